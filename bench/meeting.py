"""Processes that measure side by side wait for each other, so that all meet the same noise.

A folder is the meeting place: a process that has reached a point leaves a file there.  Whoever
started the processes leaves one for each that has ended, so that none waits for a dead one, and
one for each whose turn it is, where they measure one after the other (:mod:`turns`).
"""

from __future__ import annotations

import time
from pathlib import Path

LEFT = "left"
STARTED = "started"


class Meeting:
    """One process's view of the meeting.

    :param folder: the same for all; ``None`` if this process measures alone.
    :param party: this process, from 0 on.
    :param parties: how many processes there are.
    """

    def __init__(self, folder: Path | None, party: int, parties: int) -> None:
        self._folder, self._party = folder, party
        self._others = [other for other in range(parties) if other != party]

    @property
    def alone(self) -> bool:
        """Whether no process is left to wait for."""
        return self._folder is None or not self._others

    def reach(self, point: str) -> None:
        """Say that this process has reached a point."""
        if self._folder is not None:
            (self._folder / f"{point}.{self._party}").touch()

    def all_at(self, point: str) -> bool:
        """Whether every other process has reached the point, or has ended."""
        folder = self._folder
        if folder is None:
            return True
        return all(
            is_at(folder, point, other) or is_at(folder, LEFT, other) for other in self._others
        )

    def wait(self, point: str, seconds: float) -> bool:
        """Wait until all are there, but no longer than that; whether all are."""
        self.reach(point)
        last = time.monotonic() + seconds
        while not self.all_at(point):
            if time.monotonic() > last:
                return False
            time.sleep(0.01)
        return True

    def leave(self) -> None:
        """Say that no other process needs to wait for this one any more."""
        if self._folder is not None:
            leave(self._folder, self._party)

    def wait_for_turn(self, number: int) -> None:
        """Say that this process has started, and wait for a turn of its own, however long.

        :param number: from 0 on.
        """
        self.reach(STARTED)
        while self._folder is not None and not is_at(self._folder, turn(number), self._party):
            time.sleep(0.01)

    def end_turn(self, number: int) -> None:
        """Say that this process wants one more turn, after the others.

        What a turn has given must be kept by then: the process may be killed while it waits.
        """
        self.reach(turn_ended(number))


def is_at(folder: Path, point: str, party: int) -> bool:
    """Whether a process has reached a point."""
    return (folder / f"{point}.{party}").exists()


def leave(folder: Path, party: int) -> None:
    """Say that a process has ended."""
    (folder / f"{LEFT}.{party}").touch()


def give_turn(folder: Path, number: int, party: int) -> None:
    """Let a process measure."""
    (folder / f"{turn(number)}.{party}").touch()


def turn(number: int) -> str:
    """The point at which a process may measure."""
    return f"turn-{number}"


def turn_ended(number: int) -> str:
    """The point at which a process has measured and wants a further turn."""
    return f"turn-{number}-ended"
