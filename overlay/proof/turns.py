"""Engines that were started together measure one after the other, on the same GPUs.

An engine takes longer to start than to be measured, so that starting all of a cell at once saves
most of a lease; and the same GPU for all leaves out by how much two GPUs of one host differ.  While
one measures, the others are stopped with all their workers: they take neither GPU nor core.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from overlay.proof import meeting
from overlay.proof.repeats import order

#: Seconds between two looks at the meeting place.
_PAUSE = 0.02
#: Seconds in which a stopped engine is expected to stop: a busy host may take some.
_STOPPING = 2.0
#: How many times as long as the first any engine may take to start.
_AFTER_FIRST = 1.5


class Step(str, Enum):
    """What an engine has come to."""

    STARTED = "started"
    #: It did not start in time, and is killed.
    LATE = "late"
    BEGAN = "began"
    ENDED = "ended"


class Event(NamedTuple):
    """What happened to an engine; :ivar turn: the number of a turn that began or ended."""

    party: int
    step: Step
    turn: int = 0


class Failure(NamedTuple):
    """Why turns could not be given; :ivar party: the engine that was dealt with."""

    party: int
    error: BaseException


def has_stopped(pid: int) -> bool:
    """Whether a child of this process has stopped with all its threads, or has ended.

    Also true of what is no child of this process, which the system says nothing about.
    """
    try:
        how = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return True
    return how is not None


def patience(first: float, least: float) -> float:
    """Seconds after which an engine that has not started is late.

    :param first: after so many the first engine had started: where that took long, all take long.
    :param least: as the limit was given.
    """
    return max(least, _AFTER_FIRST * first)


class Turns:
    """The order in which engines may measure.

    :param folder: where the engines meet (:mod:`meeting`).
    :param parties: how many engines there are; they measure in the order of their numbers.
    :param round_of: the round of a turn; a round may have several.  Another engine begins in each
        round, so that none has the same neighbours in time whenever it measures: an order that
        moves on by one.  By default there is one round, and the order stays.
    :param patience: seconds after which an engine that has not started is killed, so that those
        that have can measure (see ``patience``); ``None``: whoever started it sets the limit.
    :param told: is called with each event, from the thread that conducts.
    :ivar failure: is set before ``conduct`` kills the engines because it cannot go on.
    """

    def __init__(
        self,
        folder: Path,
        parties: int,
        *,
        round_of: Callable[[int], int] = lambda _: 0,
        patience: float | None = None,
        told: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self._folder, self._parties, self._round_of = folder, parties, round_of
        self._patience, self._told = patience, told
        self._groups: dict[int, int] = {}
        self._at = 0
        self.failure: Failure | None = None

    def begun(self, party: int, group: int) -> None:
        """Note the process group that an engine leads."""
        self._groups[party] = group

    def conduct(self, all_started: Callable[[], object] = lambda: None) -> None:
        """Wait until every engine has started or ended; give turns until none wants a further one.

        It ends when all engines have: whoever started them sets the limit (``meeting.leave``).
        Should it fail, it kills them all: the stopped ones would never go on.

        :param all_started: is called before the first measures, and may wait for others yet.
        """
        try:
            self._conduct(all_started)
        except BaseException as error:
            self.failure = Failure(self._at, error)
            for party in self._groups:
                # One that cannot be killed must not save the others.
                with contextlib.suppress(OSError):
                    self._send(party, signal.SIGKILL)
            raise

    def _conduct(self, all_started: Callable[[], object]) -> None:
        self._wait_for_starts()
        all_started()
        waiting = [party for party in range(self._parties) if not self._has_left(party)]
        for party in waiting:
            self._stop(party)
        number = 0
        while waiting:
            each = order(range(self._parties), self._round_of(number))
            among = [party for party in each if party in waiting]
            waiting = [party for party in among if self._take_turn(number, party)]
            number += 1

    def _wait_for_starts(self) -> None:
        """Wait until every engine has started or ended; kill those that are late."""
        pending, began = list(range(self._parties)), time.monotonic()
        last: float | None = None
        while pending:
            for party in tuple(pending):
                self._at = party
                if self._has_left(party):
                    pending.remove(party)
                elif self._is_at(party, meeting.STARTED):
                    pending.remove(party)
                    self._told(Event(party, Step.STARTED))
                    if last is None and self._patience is not None:
                        last = began + patience(time.monotonic() - began, self._patience)
            if last is not None and time.monotonic() > last:
                last = None
                for party in (each for each in pending if each in self._groups):
                    self._told(Event(party, Step.LATE))
                    self._send(party, signal.SIGKILL)
            if pending:
                time.sleep(_PAUSE)

    def _take_turn(self, number: int, party: int) -> bool:
        """Let an engine measure; whether it wants a further turn."""
        self._at = party
        self._told(Event(party, Step.BEGAN, number))
        self._send(party, signal.SIGCONT)
        meeting.give_turn(self._folder, number, party)
        self._wait(party, meeting.turn_ended(number))
        if self._has_left(party):
            return False
        self._stop(party)
        self._told(Event(party, Step.ENDED, number))
        return True

    def _wait(self, party: int, point: str) -> None:
        while not self._has_left(party) and not self._is_at(party, point):
            time.sleep(_PAUSE)

    def _is_at(self, party: int, point: str) -> bool:
        # An engine may be quicker to start than its starter to tell us of its group.
        return party in self._groups and meeting.is_at(self._folder, point, party)

    def _has_left(self, party: int) -> bool:
        return meeting.is_at(self._folder, meeting.LEFT, party)

    def _stop(self, party: int) -> None:
        """Stop an engine; a signal is only on its way when it has been sent."""
        self._send(party, signal.SIGSTOP)
        last = time.monotonic() + _STOPPING
        while not has_stopped(self._groups[party]) and time.monotonic() < last:
            time.sleep(0.001)

    def _send(self, party: int, what: signal.Signals) -> None:
        self._at = party
        # It may have ended in this moment; its place in the meeting will say so.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._groups[party], what)
