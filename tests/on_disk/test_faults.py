"""Whatever happens to a transaction, at whichever system call: one of the two whole states."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from overlay.errors import TransactionError
from overlay.on_disk import transaction as commit
from overlay.on_disk.recovery import recover
from overlay.package import VLLM
from overlay.results import Change
from tests.support import faults, one_package, transactions
from tests.support.faults import FaultyOs, faulty
from tests.support.transactions import ONE, PROPOSER, TWO, Copies, Site, Snapshot, snapshot

Action = Callable[[Site], object]
ERRORS = [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO]
#: The code tells EACCES apart, where it means that there are no links; the others are one case.
REPEATED = {errno.EROFS, errno.EIO}
#: Every so many calls of a recovery fail in CI, others for each death: all deaths together meet
#: every call, and `--thorough` has each pair.
STRIDE = 3
#: What differs from another scenario in a few calls.  CI puts each kind of fault at each third call
#: of it, and not two kinds at the same call; `--thorough` puts each kind at every call.
ALIKE = ("checkout", "revert-checkout", "apply-no-links")


@dataclass(frozen=True)
class Scenario:
    """An action on a site, with the two whole states it may end in.

    :ivar never: calls that the file system does not know, with what it answers.
    :ivar step: of how many calls one is met by each kind of fault.
    """

    folder: Path
    copies: Copies
    action: Action
    before: Snapshot
    after: Snapshot
    calls: tuple[str, ...]
    never: dict[str, int]
    step: int = 1

    def numbers(self, kind: int) -> range:
        """The calls that a kind of fault is put at, 0 to 2: all kinds together meet every call."""
        return range(1 + kind % self.step, len(self.calls) + 1, self.step)

    def system(self, at: int = 0, fault: faults.Fault | None = None, lasting: bool = False):
        return FaultyOs(at, fault, lasting, self.never)

    def die_at(self, call: int, action: Action, site: Site) -> None:
        """Run an action that is dead from a call on."""
        system = self.system(call, faults.dying, lasting=True)
        with faulty(system), pytest.raises(faults.Dead):
            action(site)

    def whole(self, site: Site) -> bool:
        """Whether the site is in one of the two states, with nothing left over."""
        return snapshot(site.root) in (self.before, self.after)

    def patched_alike(self, present: Snapshot, state: Snapshot) -> bool:
        """Whether a snapshot is a whole state but for what the clean-up will remove."""
        mine = {path: found for path, found in present.items() if ".overlay-" not in path}
        mine.pop(".vllm-overlay/journal.json", None)
        folders = {path for path, found in mine.items() if found[1] is None} - state.keys()
        return {path: found for path, found in mine.items() if path not in folders} == state

    def each_file_is_whole(self, site: Site) -> bool:
        """Whether every file that has a place in a whole state has one of its two contents."""
        for path, found in snapshot(site.root).items():
            known = [state[path] for state in (self.before, self.after) if path in state]
            if known and found not in known:
                return False
        return True


def second_calls(number: int, count: int, *, thorough: bool) -> range:
    """The calls of a recovery to fail, of so many, after the death of a number."""
    return range(1, count + 1) if thorough else range(1 + number % STRIDE, count + 1, STRIDE)


def calls_to_fail(scenario: Scenario, number: int, *, thorough: bool) -> list[int]:
    """The calls that an error is put at.

    What the code tells EACCES apart for is one kind of call, so CI puts it at the first and the
    last call of each kind, and at every link; other errors are put at every call of the scenario.
    """
    if thorough or number != errno.EACCES:
        return list(scenario.numbers(0))
    first = {kind: at for at, kind in reversed(list(enumerate(scenario.calls, 1)))}
    last = {kind: at for at, kind in enumerate(scenario.calls, 1)}
    ends = {*first.values(), *last.values()}
    links = {at for at, kind in enumerate(scenario.calls, 1) if kind == "link"}
    return sorted(ends | links)


def _apply(site: Site) -> object:
    return site.apply(ONE)


def _upgrade(site: Site) -> object:
    return site.apply(TWO)


def _revert(site: Site) -> object:
    return site.revert()


def _edit(site: Site) -> None:
    """Edit a patched file and one that is not, and put a module there."""
    for path in (PROPOSER, PACKAGE):
        (site.root / path).write_bytes((site.root / path).read_bytes() + b"MINE = 1\n")
    (site.root / OWN).write_bytes(b"OWN = 1\n")


def _revert_with_edits(site: Site) -> object:
    edits = [
        Change(path, (site.root / path).read_bytes(), site.pristine.get(path))
        for path in (PROPOSER, PACKAGE, OWN)
    ]
    return one_package.revert(site.root, record_file=site.record, edits=edits)


PACKAGE, OWN = "vllm/v1/worker/__init__.py", "vllm/v1/own.py"

NO_LINKS = {"link": errno.EPERM}


@pytest.fixture(
    params=["apply", "revert", "upgrade", "checkout", "revert-checkout", "apply-no-links"]
)
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scenario]:
    whole = request.param not in ALIKE or request.config.getoption("--thorough")
    with transactions.memory_folder(tmp_path) as folder:
        yield _scenario(request.param, folder, 1 if whole else STRIDE)


def _scenario(name: str, folder: Path, step: int = 1) -> Scenario:
    start = transactions.checkout if "checkout" in name else transactions.installed
    site = start(folder / "start")
    action = {"revert": _revert, "revert-checkout": _revert, "upgrade": _upgrade}.get(name, _apply)
    never = NO_LINKS if "no-links" in name else {}
    if action is not _apply:
        site.apply(ONE)
    if name == "revert-edits":
        action = _revert_with_edits
        site.apply(ONE)
        _edit(site)
    copies = Copies(site, folder)
    done = site.copy(folder / "done")
    with faulty(FaultyOs(never=never)) as system:
        action(done)
    before, after = snapshot(site.root), snapshot(done.root)
    assert before != after
    return Scenario(folder, copies, action, before, after, tuple(system.names), never, step)


def test_the_scenarios_go_through_every_kind_of_call(scenario: Scenario) -> None:
    assert {"open", "write", "fsync", "close", "replace", "unlink"} <= set(scenario.calls)
    assert len(scenario.calls) > 60


def test_all_deaths_together_meet_every_call_of_a_recovery() -> None:
    for count in (1, 2, 7, 60):
        met = [second_calls(number, count, thorough=False) for number in range(STRIDE)]
        assert sorted(call for calls in met for call in calls) == list(range(1, count + 1))


def test_killed_at_every_call(scenario: Scenario) -> None:
    for at in scenario.numbers(1):
        site = scenario.copies.fresh()

        def work(site: Site = site, at: int = at) -> None:
            with faulty(scenario.system(at, faults.killing)):
                scenario.action(site)

        assert faults.in_child(work) == -signal.SIGKILL, f"call {at} was not reached"
        where = f"killed at call {at}, {scenario.calls[at - 1]}"
        assert scenario.each_file_is_whole(site), where
        present = snapshot(site.root, bytecode=True)
        with commit.reading(site.root) as interrupted:
            assert (interrupted is not None) is (VLLM.journal_path in present), where
        assert snapshot(site.root, bytecode=True) == present, where
        recover(site.root)
        assert scenario.whole(site), where
        assert recover(site.root) is None, where


@pytest.mark.parametrize(
    ("number", "lasting"),
    [
        *(
            pytest.param(*(number, False), marks=pytest.mark.thorough if number in REPEATED else ())
            for number in ERRORS
        ),
        (errno.EROFS, True),
    ],
    ids=lambda value: errno.errorcode[value] if value > 1 else ("once", "from-then-on")[value],
)
def test_an_error_at_every_call(
    scenario: Scenario, number: int, lasting: bool, pytestconfig: pytest.Config
) -> None:
    thorough = pytestconfig.getoption("--thorough")
    for at in calls_to_fail(scenario, number, thorough=thorough):
        site = scenario.copies.fresh()
        where = f"{errno.errorcode[number]} at call {at}, {scenario.calls[at - 1]}"
        with faulty(scenario.system(at, faults.failing(number), lasting)):
            try:
                scenario.action(site)
            except TransactionError as error:
                told = str(error)
            else:
                # Some failures are none: a link that becomes a copy, bytecode nobody believes.
                told = ""
        assert scenario.each_file_is_whole(site), where
        present = snapshot(site.root)
        if not told:
            assert present == scenario.after, where
        elif not lasting:
            # One failure is dealt with at once; a second one may keep the clean-up waiting.
            assert scenario.whole(site), f"{where}: {told}"
        if "is complete." in told:
            assert present == scenario.after, f"{where}: {told}"
        if "as it was before the" in told and "cleans up" not in told:
            assert present == scenario.before, f"{where}: {told}"
        recover(site.root)
        assert scenario.whole(site), where


def test_a_revert_that_takes_edits_out_is_whole_at_every_call(tmp_path: Path) -> None:
    with transactions.memory_folder(tmp_path) as folder:
        scenario = _scenario("revert-edits", folder)
        assert scenario.after == snapshot(transactions.installed(folder / "untouched").root)
        test_killed_at_every_call(scenario)
        test_ctrl_c_at_every_call(scenario)


def test_ctrl_c_at_every_call(scenario: Scenario) -> None:
    for at in scenario.numbers(2):
        site = scenario.copies.fresh()
        where = f"interrupted at call {at}, {scenario.calls[at - 1]}"
        with faulty(scenario.system(at, faults.interrupting)), pytest.raises(KeyboardInterrupt):
            scenario.action(site)
        assert scenario.whole(site), where


def test_dead_again_while_recovering(scenario: Scenario, pytestconfig: pytest.Config) -> None:
    """A second death, at the calls of the recovery from a death at every few calls."""
    thorough = pytestconfig.getoption("--thorough")
    few = 10 if thorough else 19
    for number, first in enumerate(range(1, len(scenario.calls) + 1, few)):
        site = scenario.copies.fresh()
        scenario.die_at(first, scenario.action, site)
        dead = Copies(site, scenario.folder / f"dead-{first}")
        with faulty(scenario.system()) as system:
            recover(site.root)
        for second in second_calls(number, system.count, thorough=thorough):
            site = dead.fresh()
            scenario.die_at(second, lambda one: recover(one.root), site)
            where = f"dead at call {first}, recovering dead at {second}"
            assert scenario.each_file_is_whole(site), where
            recover(site.root)
            assert scenario.whole(site), where


def recovered(site: Site) -> str | None:
    """What recovery says, also where it cannot end the transaction."""
    try:
        return recover(site.root)
    except TransactionError as error:
        return str(error)


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from-then-on"])
def test_an_error_while_recovering(
    scenario: Scenario, lasting: bool, pytestconfig: pytest.Config
) -> None:
    """Neither direction is taken where it could not be gone to its end."""
    thorough = pytestconfig.getoption("--thorough")
    for number, first in enumerate(range(2, len(scenario.calls) + 1, 20)):
        site = scenario.copies.fresh()
        scenario.die_at(first, scenario.action, site)
        dead = Copies(site, scenario.folder / f"dead-{first}")
        with faulty(scenario.system()) as system:
            recover(site.root)
        for second in second_calls(number, system.count, thorough=thorough):
            site = dead.fresh()
            with faulty(scenario.system(second, faults.failing(errno.EIO), lasting)):
                said = recovered(site)
            where = f"dead at call {first}, an error while recovering at {second}: {said}"
            assert scenario.each_file_is_whole(site), where
            present = snapshot(site.root)
            if said is not None and "is complete" in said:
                assert scenario.patched_alike(present, scenario.after), where
            if said is not None and "as it was before" in said:
                assert scenario.patched_alike(present, scenario.before), where
            recover(site.root)
            assert scenario.whole(site), where


def test_after_any_death_apply_and_revert_work(scenario: Scenario) -> None:
    for at in range(1, len(scenario.calls) + 1, 9):
        site = scenario.copies.fresh()
        scenario.die_at(at, scenario.action, site)
        scenario.action(site)
        assert snapshot(site.root) == scenario.after
        site.revert()
        assert not (site.root / ".vllm-overlay").exists()
        for path, content in site.pristine.items():
            assert (site.root / path).read_bytes() == content
