"""One transaction over two packages: both are changed or neither is, whatever happens to it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import LedgerError, TransactionError
from overlay.on_disk import journal
from overlay.on_disk import transaction as commit
from overlay.package import VLLM, Package
from tests.support import faults, pairs, transactions
from tests.support.faults import FaultyOs, end_of_child, faulty, start_child
from tests.support.pairs import ASCEND, Pair
from tests.support.transactions import ONE, TWO, Copies, Snapshot, snapshot

Action = Callable[[Pair], object]

BOTH = (VLLM, ASCEND)

ERRORS = [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO]


@dataclass(frozen=True)
class Scenario:
    """An action on two packages, with the two whole states that it may end in."""

    copies: Copies
    action: Action
    before: Snapshot
    after: Snapshot
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

    def whole(self, pair: Pair) -> bool:
        """Whether both packages are in the same one of the two states, with nothing left over."""
        return snapshot(pair.root) in (self.before, self.after)


ACTIONS: dict[str, Action] = {
    "apply": lambda pair: pair.apply(),
    "revert": lambda pair: pair.revert(),
    "upgrade": lambda pair: pair.apply(TWO),
}


@pytest.fixture
def step(pytestconfig: pytest.Config) -> int:
    """How many calls further the next fault is; CI takes each third, of another kind each time.

    Every call of a transaction over one package is met in CI (``test_faults.py``).
    """
    return 1 if pytestconfig.getoption("--thorough") else 3


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
    before, after = snapshot(pair.root), snapshot(done.root)
    assert before != after
    return Scenario(copies, ACTIONS[word], before, after, tuple(system.names))


def test_killed_at_every_call_and_ended_from_either_end(scenario: Scenario, step: int) -> None:
    """Where both packages were begun, one of them alone brings both to one state."""
    ends, joint = set(), 0
    for at in range(1, len(scenario.calls) + 1, step):
        end, other = BOTH if at % 2 else BOTH[::-1]
        pair = scenario.fresh()
        assert scenario.die_at(at, scenario.action, pair), f"call {at} was not reached"
        where = f"killed at call {at}, {scenario.calls[at - 1]}, ended from {end.name}"
        begun = all(journal.begun(*pair.member(package)) for package in BOTH)
        said = pair.recover(end)
        if begun:
            joint += 1
            assert said is not None, where
            assert "vLLM in " in said, where
            assert "vllm-ascend in " in said, where
        else:
            # What lies in the other package alone was not begun, or is over, there.
            pair.recover(other)
        assert scenario.whole(pair), where
        ends.add(snapshot(pair.root) == scenario.after)
    assert ends == {True, False}
    assert joint > 100 // step


def test_the_next_command_ends_it_whichever_package_it_is_about(scenario: Scenario) -> None:
    for at in range(2, len(scenario.calls) + 1, 23):
        for package in BOTH:
            pair = scenario.fresh()
            scenario.die_at(at, scenario.action, pair)
            commit.carry_out([pair.applying(package)])
            pair.recover(VLLM if package == ASCEND else ASCEND)
            assert not any(journal.pending(*pair.member(each)) for each in BOTH)
            assert not [path for path in snapshot(pair.root) if path.endswith("overlay-old")]


def test_an_error_at_every_call(scenario: Scenario, step: int) -> None:
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
        if failed is not None:
            assert "vLLM in " in failed, where
            assert "vllm-ascend in " in failed, where
        if not lasting:
            assert snapshot(pair.root) in (scenario.before, scenario.after), where
            assert failed is not None or snapshot(pair.root) == scenario.after, where
        pair.recover(ASCEND)
        pair.recover(VLLM)
        assert scenario.whole(pair), where


@given(
    name=st.sampled_from(["apply", "revert", "upgrade", "apply-together"]),
    deaths=st.lists(st.tuples(st.integers(1, 260), st.sampled_from(BOTH)), min_size=2, max_size=5),
)
@settings(max_examples=25)
def test_recovery_that_is_killed_again_and_again(
    name: str, deaths: list[tuple[int, Package]]
) -> None:
    with transactions.memory_folder(Path(os.environ.get("TMPDIR", "/tmp"))) as folder:
        scenario = scenario_of(name, folder)
        pair = scenario.fresh()
        scenario.die_at(deaths[0][0], scenario.action, pair)
        for call, end in deaths[1:]:
            # Mypy types no lambda with a default.
            scenario.die_at(call, lambda pair, end=end: pair.recover(end), pair)  # type: ignore[misc]
        pair.recover(deaths[-1][1])
        for package in BOTH:
            pair.recover(package)
        assert scenario.whole(pair)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with transactions.memory_folder(tmp_path) as folder:
        yield pairs.installed(folder / "pair", together=False)


def interrupted(pair: Pair) -> None:
    """Leave both journals behind, with vLLM patched and vllm-ascend not."""
    with faulty(FaultyOs()) as counting:
        pair.copy(pair.root.parent / "counted").apply()
    replaces = [at for at, name in enumerate(counting.names, 1) if name == "replace"]
    # The first two put the journals in their places; each package has half of the others.
    first_of_ascend = replaces[2 + (len(replaces) - 2) // 2]
    with faulty(FaultyOs(first_of_ascend, faults.dying, lasting=True)), pytest.raises(faults.Dead):
        pair.apply()
    assert (pair.root / "vllm/.vllm-overlay/ledger.json").exists()
    assert not (pair.root / "vllm-ascend/.vllm_ascend-overlay/ledger.json").exists()


def test_each_journal_names_the_other(pair: Pair) -> None:
    interrupted(pair)
    for package, other in (BOTH, BOTH[::-1]):
        begun = journal.read(*pair.member(package))
        assert begun is not None
        assert begun.members(*pair.member(package))[1] == pair.member(other)
        text = (pair.member(package).root / package.journal_path).read_text()
        assert json.loads(text)["schema"] == journal.JOINT_SCHEMA


def test_the_journal_of_one_package_is_as_it_was(pair: Pair) -> None:
    with faulty(FaultyOs(40, faults.dying, lasting=True)), pytest.raises(faults.Dead):
        commit.carry_out([pair.applying(VLLM)])
    document = json.loads((pair.root / "vllm/.vllm-overlay/journal.json").read_text())
    assert document["schema"] == journal.SCHEMA
    assert document.keys() == {"schema", "action", "overlay", "steps", "made", "dropped"}


def test_moved_together_they_find_each_other(pair: Pair) -> None:
    interrupted(pair)
    pair.root.rename(pair.root.parent / "elsewhere")
    moved = Pair(pair.root.parent / "elsewhere", pair.names)
    assert moved.recover(VLLM) is not None
    assert not any(journal.pending(*moved.member(package)) for package in BOTH)


@pytest.mark.parametrize("gone", BOTH)
def test_a_partner_that_was_removed_leaves_the_other_whole(pair: Pair, gone: Package) -> None:
    interrupted(pair)
    (left,) = (package for package in BOTH if package != gone)
    shutil.rmtree(pair.member(gone).root)
    assert pair.recover(left) is not None
    again = pairs.installed(pair.root.parent / "again", together=False)
    states = [again.snapshots()[left]]
    again.apply()
    states.append(again.snapshots()[left])
    now = {path: each for path, each in pair.snapshots()[left].items() if path != "vllm-ascend"}
    assert now in [
        {path: each for path, each in state.items() if path != "vllm-ascend"} for state in states
    ]


def test_a_folder_that_does_not_name_the_journal_is_left_alone(pair: Pair, tmp_path: Path) -> None:
    """A journal may name any folder; one without a journal of the transaction is not written."""
    stranger = pairs.installed(tmp_path / "stranger", together=False)
    interrupted(pair)
    path = pair.member(VLLM).root / VLLM.journal_path
    document = json.loads(path.read_text())
    there = stranger.member(ASCEND).root
    document["partners"][0]["root"] = os.path.relpath(there, pair.member(VLLM).root)
    path.write_text(json.dumps(document))
    before = snapshot(stranger.root)
    pair.recover(VLLM)
    assert snapshot(stranger.root) == before


@pytest.mark.parametrize(
    "change",
    [
        {"partners": [{"root": "/etc", "package": "vllm"}]},
        {"partners": [{"root": "a\0b", "package": "vllm"}]},
        {"partners": [{"root": "..", "package": "../x"}]},
        {"partners": [{"root": 1, "package": "vllm"}]},
        {"partners": [{}]},
        {"partners": None},
        {"id": ""},
        {"id": "../x"},
        {"schema": 3},
        {"schema": True},
    ],
)
def test_a_damaged_journal_changes_nothing(pair: Pair, change: dict[str, object]) -> None:
    interrupted(pair)
    path = pair.member(VLLM).root / VLLM.journal_path
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    before = snapshot(pair.root)
    for package in BOTH:
        with pytest.raises(LedgerError, match="cannot be read"):
            pair.recover(package)
    assert snapshot(pair.root) == before


def test_sixteen_writers_in_either_order(pair: Pair) -> None:
    """They lock in one order, so none waits for ever, and both packages always change together."""
    pristine = snapshot(pair.root)
    states = [pristine]
    for patches in (ONE, TWO):
        other = pair.copy(pair.root.parent / patches.digest[:4])
        other.apply(patches)
        states.append(snapshot(other.root))

    def work(number: int) -> None:
        order = BOTH if number % 2 else BOTH[::-1]
        for turn in range(3):
            (
                lambda: pair.apply(ONE, order),
                lambda: pair.revert(order),
                lambda: pair.apply(TWO, order),
            )[(number + turn) % 3]()

    gate = os.open(pair.member(VLLM).root / "vllm", os.O_RDONLY)
    fcntl.flock(gate, fcntl.LOCK_EX)
    # Mypy types no lambda with a default.
    children = [start_child(lambda number=number: work(number)) for number in range(16)]  # type: ignore[misc]
    fcntl.flock(gate, fcntl.LOCK_UN)
    os.close(gate)
    assert [end_of_child(child) for child in children] == [0] * 16
    assert snapshot(pair.root) in states


def test_readers_of_both_see_one_state(pair: Pair) -> None:
    pristine = pair.snapshots()
    done = pair.copy(pair.root.parent / "done")
    done.apply()
    patched = done.snapshots()

    def write() -> None:
        for _ in range(6):
            pair.apply()
            pair.revert()

    def read() -> None:
        members = sorted(map(pair.member, BOTH), key=lambda member: str(member.root))
        for _ in range(20):
            first, second = members
            with (
                commit.reading(first.root, package=first.package) as one,
                commit.reading(second.root, package=second.package) as two,
            ):
                assert (one, two) == (None, None)
                assert pair.snapshots() in (pristine, patched)

    children = [start_child(write) for _ in range(4)] + [start_child(read) for _ in range(4)]
    assert [end_of_child(child) for child in children] == [0] * 8


def test_one_package_alone_waits_for_nobody_else(pair: Pair) -> None:
    """A command on one package holds no lock of the other, unless it has something to end there."""
    with commit.reading(pair.member(ASCEND).root, package=ASCEND):
        commit.carry_out([pair.applying(VLLM)])
    with (
        commit.reading(pair.member(ASCEND).root, package=ASCEND),
        pytest.raises(TransactionError, match="in use by another overlay command") as caught,
    ):
        commit.carry_out([pair.applying(VLLM), pair.applying(ASCEND)], timeout=0.1)
    assert "It was one transaction over vLLM in " in str(caught.value)
