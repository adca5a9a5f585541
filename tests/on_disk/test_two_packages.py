"""Two packages are changed one after the other, each whole, whatever happens."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import TransactionError
from overlay.on_disk import journal
from overlay.on_disk import transaction as commit
from overlay.package import VLLM, Package
from tests.support import faults, pairs, transactions
from tests.support.faults import FaultyOs, end_of_child, faulty, start_child
from tests.support.pairs import ASCEND, Pair
from tests.support.transactions import ONE, TWO, Copies, Snapshot

Action = Callable[[Pair], object]

BOTH = (VLLM, ASCEND)

ERRORS = [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO]


@dataclass(frozen=True)
class Scenario:
    """An action on two packages, with the two whole states in which each may end."""

    copies: Copies
    action: Action
    before: dict[Package, Snapshot]
    after: dict[Package, Snapshot]
    calls: tuple[str, ...]

    def fresh(self) -> Pair:
        """The packages as they were before the action."""
        pair = self.copies.fresh()
        assert isinstance(pair, Pair)
        return pair

    def die_at(self, call: int, action: Action, pair: Pair) -> bool:
        """Run an action that is dead from a call on; whether it came that far."""
        try:
            with faulty(FaultyOs(call, faults.dying, lasting=True)):
                action(pair)
        except faults.Dead:
            return True
        return False

    def changed(self, pair: Pair) -> tuple[bool, ...]:
        """Which of the packages the action has changed; each is in one of its two states."""
        now = pair.snapshots()
        for package in BOTH:
            assert now[package] in (self.before[package], self.after[package]), package.name
        return tuple(now[package] == self.after[package] for package in BOTH)


ACTIONS: dict[str, Action] = {
    "apply": lambda pair: pair.apply(),
    "revert": lambda pair: pair.revert(),
    "upgrade": lambda pair: pair.apply(TWO),
}

#: What may be changed: nothing, the first package, or both.
IN_ORDER = {(False, False), (True, False), (True, True)}


@pytest.fixture
def step(pytestconfig: pytest.Config) -> int:
    """How many calls further the next fault is; CI takes each fifth, of another kind each time.

    Every call of a transaction over one package is met in CI (``test_faults.py``).
    """
    return 1 if pytestconfig.getoption("--thorough") else 5


@pytest.fixture(params=["apply", "revert", "upgrade-together"])
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scenario]:
    with transactions.memory_folder(tmp_path) as folder:
        yield scenario_of(request.param, folder)


def scenario_of(name: str, folder: Path) -> Scenario:
    """One of the scenarios, in a folder."""
    word, _, where = name.partition("-")
    pair = pairs.installed(folder / "start", together=where == "together")
    if word != "apply":
        pair.apply()
    copies = Copies(pair, folder)  # type: ignore[arg-type]  # of a pair it needs as little
    done = pair.copy(folder / "done")
    with faulty(FaultyOs()) as system:
        ACTIONS[word](done)
    before, after = pair.snapshots(), done.snapshots()
    assert all(before[package] != after[package] for package in BOTH)
    return Scenario(copies, ACTIONS[word], before, after, tuple(system.names))


def test_killed_at_every_call_each_package_is_whole(scenario: Scenario, step: int) -> None:
    ends = set()
    for at in range(1, len(scenario.calls) + 1, step):
        pair = scenario.fresh()
        assert scenario.die_at(at, scenario.action, pair), f"call {at} was not reached"
        for package in BOTH if at % 2 else BOTH[::-1]:
            pair.recover(package)
            assert not journal.pending(pair.place(package), package)
        ends.add(scenario.changed(pair))
    assert ends == IN_ORDER


def test_an_error_at_every_call(scenario: Scenario, step: int) -> None:
    """What fails is taken back in the package that it is about; the other stays as it is."""
    for at in range(1, len(scenario.calls) + 1, step):
        number, lasting = ERRORS[at % 4], at % 8 > 3
        pair = scenario.fresh()
        where = f"{errno.errorcode[number]} at call {at}, {scenario.calls[at - 1]}"
        failed = None
        with faulty(FaultyOs(at, faults.failing(number), lasting)):
            try:
                scenario.action(pair)
            except TransactionError as error:
                failed = str(error)
        if not lasting:
            done = scenario.changed(pair)
            assert done in IN_ORDER, where
            assert failed is not None or done == (True, True), where
            if done == (True, False):
                assert failed is not None, where
                first = f"vLLM in {pair.place(VLLM)} was written before it, whole"
                second = f"nothing was written to vllm-ascend in {pair.place(ASCEND)}"
                assert (first in failed) is not (second in failed), where
        for package in BOTH[::-1]:
            pair.recover(package)
        assert scenario.changed(pair) in IN_ORDER, where


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with transactions.memory_folder(tmp_path) as folder:
        yield pairs.installed(folder / "pair", together=False)


@settings(max_examples=25)
@given(
    name=st.sampled_from(["apply", "revert", "upgrade", "apply-together"]),
    deaths=st.lists(st.integers(1, 130), min_size=2, max_size=2),
)
def test_a_former_transaction_over_both_is_ended_in_each(name: str, deaths: list[int]) -> None:
    """A former overlay made the same calls in each package, with both journals there meanwhile."""
    action: dict[str, Callable[[Pair, Package], object]] = {
        "apply": lambda pair, package: commit.carry_out([pair.applying(package)]),
        "upgrade": lambda pair, package: commit.carry_out([pair.applying(package, TWO)]),
        "revert": lambda pair, package: commit.carry_out([pair.reverting(package)]),
    }
    with transactions.memory_folder(Path(os.environ.get("TMPDIR", "/tmp"))) as folder:
        scenario = scenario_of(name, folder)
        pair = scenario.fresh()
        for package, other, at in zip(BOTH, BOTH[::-1], deaths, strict=True):
            # Mypy types no lambda with a default.
            scenario.die_at(
                at,
                lambda pair, package=package: action[name.partition("-")[0]](pair, package),  # type: ignore[misc]
                pair,
            )
            path = pair.place(package) / package.journal_path
            if path.exists():
                way = os.path.relpath(pair.place(other), pair.place(package))
                partner = {"root": way, "package": other.name}
                former = {"schema": 2, "id": "0" * 32, "partners": [partner]}
                path.write_text(json.dumps({**json.loads(path.read_text()), **former}))
        for package in BOTH:
            pair.recover(package)
            assert not journal.pending(pair.place(package), package)
        scenario.changed(pair)


def test_sixteen_writers_in_either_order(pair: Pair) -> None:
    """None waits for ever, since each holds one lock at a time; each package is always whole."""
    states = [pair.snapshots()]
    for patches in (ONE, TWO):
        other = pair.copy(pair.root.parent / patches.digest[:4])
        other.apply(patches)
        states.append(other.snapshots())

    def work(number: int) -> None:
        order = BOTH if number % 2 else BOTH[::-1]
        for turn in range(3):
            (
                lambda: pair.apply(ONE, order),
                lambda: pair.revert(order),
                lambda: pair.apply(TWO, order),
            )[(number + turn) % 3]()

    gate = os.open(pair.place(VLLM) / "vllm", os.O_RDONLY)
    fcntl.flock(gate, fcntl.LOCK_EX)
    # Mypy types no lambda with a default.
    children = [start_child(lambda number=number: work(number)) for number in range(16)]  # type: ignore[misc]
    fcntl.flock(gate, fcntl.LOCK_UN)
    os.close(gate)
    assert [end_of_child(child) for child in children] == [0] * 16
    now = pair.snapshots()
    for package in BOTH:
        assert now[package] in [state[package] for state in states]


def test_one_package_alone_waits_for_nobody_else(pair: Pair) -> None:
    """A command on one package holds no lock of the other."""
    with commit.reading(pair.place(ASCEND), package=ASCEND):
        commit.carry_out([pair.applying(VLLM)])
    with (
        commit.reading(pair.place(ASCEND), package=ASCEND),
        pytest.raises(TransactionError, match="in use by another overlay command") as caught,
    ):
        commit.carry_out([pair.applying(VLLM, TWO), pair.applying(ASCEND)], timeout=0.1)
    assert f"vLLM in {pair.place(VLLM)} was written before it, whole" in str(caught.value)
