"""The laws of turns: who measures when, while all others are stopped."""

from __future__ import annotations

import itertools
import signal
import subprocess
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import meeting, turns
from bench.turns import Turns

#: What the system call for signals of a group of processes is replaced by needs numbers.
GROUP = 1_000_000


class World:
    """Engines that measure as soon as they may; no processes.

    :param wanted: the turns that each engine wants; ``None``: it never starts.
    :param fails_at: the number of the signal that cannot be sent; ``None``: all can.
    """

    def __init__(self, folder: Path, wanted: list[int | None], fails_at: int | None = None) -> None:
        self.folder, self.wanted = folder, wanted
        self.stopped, self.killed = set[int](), list[int]()
        self.given = list[tuple[int, int]]()
        self._sent, self._fails_at = itertools.count(), fails_at
        for party, turns_ in enumerate(wanted):
            if turns_ is not None:
                (folder / f"{meeting.STARTED}.{party}").touch()

    def made(self) -> Turns:
        made = Turns(self.folder, len(self.wanted))
        for party in range(len(self.wanted)):
            made.begin(party, GROUP + party)
        return made

    @staticmethod
    def signals(wanted: list[int]) -> int:
        """How many are sent: each engine is stopped, goes on and is stopped; it ends running."""
        return sum(2 + 2 * turns_ for turns_ in wanted)

    def conduct(self, made: Turns) -> None:
        with (
            mock.patch.object(turns.os, "killpg", self.send),
            mock.patch.object(turns.meeting, "give_turn", self.give_turn),
            mock.patch.object(turns, "_PAUSE", 0.0),
        ):
            made.conduct()

    def send(self, group: int, what: signal.Signals) -> None:
        party = group - GROUP
        if next(self._sent) == self._fails_at:
            raise PermissionError(1, "Operation not permitted")
        if what is signal.SIGKILL:
            self.killed.append(party)
            meeting.leave(self.folder, party)
        elif what is signal.SIGSTOP:
            self.stopped.add(party)
        else:
            self.stopped.discard(party)

    def give_turn(self, folder: Path, number: int, party: int) -> None:
        """The engine measures at once: nobody else runs, and it wants so many turns."""
        alive = {each for each in range(len(self.wanted)) if not self.left(each)}
        assert alive - self.stopped == {party}
        self.given.append((number, party))
        wanted = self.wanted[party]
        assert wanted is not None
        if number < wanted:
            meeting.Meeting(folder, party, 1).end_turn(number)
        else:
            meeting.leave(folder, party)

    def left(self, party: int) -> bool:
        return meeting.is_at(self.folder, meeting.LEFT, party)


@given(wanted=st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_every_engine_has_each_turn_before_any_has_the_next(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[int]
) -> None:
    world = World(tmp_path_factory.mktemp("meet"), list(wanted))
    world.conduct(world.made())
    # In the turn behind the last that it wants an engine ends.
    assert world.given == [
        (number, party)
        for number in range(5)
        for party, turns_ in enumerate(wanted)
        if number <= turns_
    ]
    assert world.killed == []


@given(
    wanted=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    fails_at=st.integers(0, 20),
)
def test_where_a_signal_cannot_be_sent_all_engines_are_killed(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[int], fails_at: int
) -> None:
    world = World(tmp_path_factory.mktemp("meet"), list(wanted), fails_at)
    made = world.made()
    if world.signals(list(wanted)) <= fails_at:
        world.conduct(made)
        assert world.killed == []
        return
    with pytest.raises(PermissionError):
        world.conduct(made)
    assert world.killed == list(range(len(wanted)))


def test_an_engine_that_does_not_start_is_waited_for(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, [1, None])

    def dies_meanwhile(_: float) -> None:
        meeting.leave(tmp_path, 1)

    with mock.patch.object(turns.time, "sleep", dies_meanwhile):
        world.conduct(world.made())
    assert (world.killed, world.given) == ([], [(0, 0), (1, 0)])


def test_engines_of_which_none_has_started_are_all_waited_for(tmp_path: Path) -> None:
    world, sleeps = World(tmp_path, [None, None]), itertools.count()

    def starts_at_last(_: float) -> None:
        if next(sleeps) == 50:
            for party in (0, 1):
                world.wanted[party] = 1
                (tmp_path / f"{meeting.STARTED}.{party}").touch()

    with mock.patch.object(turns.time, "sleep", starts_at_last):
        world.conduct(world.made())
    assert (world.killed, len(world.given)) == ([], 4)


def test_a_process_has_stopped_when_the_system_says_so() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert not turns.has_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        while not turns.has_stopped(child.pid):
            time.sleep(0.001)
        child.send_signal(signal.SIGCONT)
        assert not turns.has_stopped(child.pid)
        child.kill()
    assert child.returncode == -signal.SIGKILL
    assert turns.has_stopped(child.pid)
