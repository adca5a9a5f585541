"""Somebody exchanges a folder, a file or the ledger at any system call of a transaction.

The law: whatever is exchanged for a link that leads out of the target, at whichever call, nothing
outside changes, and the command goes through or ends with a message; where the ledger is exchanged,
no file gets bytes that no ledger and no plan knows.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from overlay import untrusted
from overlay.errors import OverlayError
from overlay.on_disk import files, journal, ledger, recovery
from tests.support import transactions
from tests.support.faults import CALLS
from tests.support.hostile import stamps
from tests.support.sites import interrupt_in_the_middle
from tests.support.transactions import ONE, PROPOSER, TWO, Site

#: Every module of the overlay that looks at a target or writes there during a transaction.
MODULES = (files, untrusted, journal, ledger)
#: Of the hundred or so calls that write, how many lie between two that are tried.
STEP = 53
LOOKING = CALLS | {"stat", "lstat", "fstat", "read", "listdir", "scandir"}


class SwappingOs:
    """The module ``os``, with somebody else's action before the call number ``at`` (1-based)."""

    def __init__(self, at: int, action: Callable[[], object], names: frozenset[str]) -> None:
        self.at, self.action, self.names = at, action, names
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.names:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                self.action()
            return None if name == "fsync" else real(*args, **kwargs)

        return call


@contextmanager
def swapping(system: SwappingOs) -> Iterator[None]:
    """Let every module of a transaction see ``system`` as its ``os``."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "os", system)
        yield


def _exchange(place: Path, target: Path) -> None:
    """Move what is at a place aside, if it is there, and put a link in its place."""
    place.parent.mkdir(exist_ok=True)  # where the state's own folder is not made yet
    if os.path.lexists(place):
        place.rename(place.with_name(f"{place.name}.aside"))
    place.symlink_to(target)


@dataclass(frozen=True)
class Swap:
    """What somebody exchanges for a link to the same place below ``outside``."""

    path: str

    def __call__(self, folder: Path) -> None:
        _exchange(folder / "site" / self.path, folder / "outside" / self.path)


SWAPS = [
    Swap("vllm"),
    Swap("vllm/v1/spec_decode"),
    Swap("vllm/v1/spec_decode/__pycache__"),
    Swap("vllm/v1/draft"),
    Swap(PROPOSER),
    Swap("vllm/v1/spec_decode/.proposer.py.overlay-new"),
    Swap("vllm/v1/spec_decode/.proposer.py.overlay-old"),
    Swap(".vllm-overlay"),
    Swap(".vllm-overlay/pristine"),
    Swap(".vllm-overlay/ledger.json"),
    Swap(".vllm-overlay/journal.json"),
    Swap("vllm-0.26.0.dist-info"),
    Swap("vllm-0.26.0.dist-info/RECORD"),
]

Action = Callable[[Site], object]
ACTIONS: dict[str, tuple[Callable[[Site], object], Action]] = {
    "apply": (lambda site: None, lambda site: site.apply(ONE)),
    "upgrade": (lambda site: site.apply(ONE), lambda site: site.apply(TWO)),
    "revert": (lambda site: site.apply(ONE), lambda site: site.revert()),
    "recover": (interrupt_in_the_middle, lambda site: recovery.recover(site.root)),
}


@dataclass(frozen=True)
class Lab:
    """Targets in a state that an action starts from, each with a canary beside it."""

    folder: Path
    start: Site
    action: Action

    def fresh(self) -> Site:
        """A new target in ``try/site``, and the canary ``try/outside`` with the same files."""
        attempt = self.folder / "try"
        shutil.rmtree(attempt, ignore_errors=True)
        attempt.mkdir()
        shutil.copytree(self.start.root, attempt / "outside", symlinks=True)
        return self.start.copy(attempt / "site")

    def calls(self, names: frozenset[str]) -> int:
        """How many calls the action makes where nothing is exchanged."""
        system = SwappingOs(0, lambda: None, names)
        target = self.fresh()
        with swapping(system):
            self.action(target)
        return system.count

    def attempt(self, at: int, swap: Swap, names: frozenset[str]) -> None:
        """Act, with an exchange at a call, and look at the canary."""
        target = self.fresh()
        canary = stamps(target.root.parent / "outside")
        system = SwappingOs(at, lambda: swap(target.root.parent), names)
        said = "it went through"
        with swapping(system):
            try:
                self.action(target)
            except OverlayError as error:
                said = str(error)
        where = f"{swap.path} exchanged at call {at}: {said}"
        assert stamps(target.root.parent / "outside") == canary, where


@pytest.fixture(params=ACTIONS)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    prepare, action = ACTIONS[request.param]
    with transactions.memory_folder(tmp_path) as folder:
        start = transactions.installed(folder.resolve() / "start" / "site")
        prepare(start)
        yield Lab(folder.resolve(), start, action)


def test_the_exchange_is_made(lab: Lab) -> None:
    """The proof that the proof would fail: the canary notices what is written through a link."""
    target = lab.fresh()
    outside = target.root.parent / "outside"
    before = stamps(outside)
    Swap(PROPOSER)(target.root.parent)
    assert (target.root / PROPOSER).is_symlink()
    (target.root / PROPOSER).write_bytes(b"through the link")
    assert stamps(outside) != before


@pytest.mark.parametrize("number", range(len(SWAPS)), ids=lambda n: SWAPS[n].path)
def test_nothing_outside_changes_whatever_is_exchanged_at_a_call_that_writes(
    lab: Lab, number: int
) -> None:
    """At a few such calls, others for each exchange; ``--thorough`` takes every call."""
    for at in range(1 + number * 3, lab.calls(CALLS) + 1, STEP):
        lab.attempt(at, SWAPS[number], CALLS)


@pytest.mark.thorough
@pytest.mark.parametrize("swap", SWAPS, ids=lambda swap: swap.path)
def test_nothing_outside_changes_whatever_is_exchanged_at_any_call(lab: Lab, swap: Swap) -> None:
    for at in range(1, lab.calls(LOOKING) + 1):
        lab.attempt(at, swap, LOOKING)


@pytest.mark.parametrize("content", [None, b"{", b"of another apply"], ids=["gone", "cut", "other"])
def test_a_ledger_that_is_exchanged_meanwhile_costs_no_file(
    lab: Lab, content: bytes | None
) -> None:
    """Every file of vLLM is pristine, as it was before, or as the action leaves it."""
    done = lab.fresh()
    before = {path: (done.root / path).read_bytes() for path in done.pristine}
    lab.action(done)
    after = {path: (done.root / path).read_bytes() for path in done.pristine}
    for at in range(1, lab.calls(CALLS) + 1, STEP):
        target = lab.fresh()
        place = target.root / ".vllm-overlay/ledger.json"

        def exchange(place: Path = place) -> None:
            place.unlink(missing_ok=True)
            if content is not None and place.parent.is_dir():
                place.write_bytes(content)

        with swapping(SwappingOs(at, exchange, CALLS)), suppress(OverlayError):
            lab.action(target)
        for path in target.pristine:
            known = (before[path], after[path], target.pristine[path])
            assert (target.root / path).read_bytes() in known, (path, at)
