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
from pathlib import Path

from bench import meeting

#: Seconds between two looks at the meeting place.
_PAUSE = 0.02
#: Seconds in which a stopped engine is expected to stop: a busy host may take some.
_STOPPING = 2.0


def has_stopped(pid: int) -> bool:
    """Whether a child of this process has stopped with all its threads, or has ended.

    Also true of what is no child of this process, which the system says nothing about.
    """
    try:
        how = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return True
    return how is not None


class Turns:
    """The order in which engines may measure.

    :param folder: where the engines meet (:mod:`meeting`).
    :param parties: how many engines there are; they measure in the order of their numbers.
    """

    def __init__(self, folder: Path, parties: int) -> None:
        self._folder, self._parties = folder, parties
        self._groups: dict[int, int] = {}

    def begin(self, party: int, group: int) -> None:
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
        except BaseException:
            for party in self._groups:
                # One that cannot be killed must not save the others.
                with contextlib.suppress(OSError):
                    self._send(party, signal.SIGKILL)
            raise

    def _conduct(self, all_started: Callable[[], object]) -> None:
        for party in range(self._parties):
            self._wait(party, meeting.STARTED)
        all_started()
        waiting = [party for party in range(self._parties) if not self._has_left(party)]
        for party in waiting:
            self._stop(party)
        number = 0
        while waiting:
            waiting = [party for party in waiting if self._take_turn(number, party)]
            number += 1

    def _take_turn(self, number: int, party: int) -> bool:
        """Let an engine measure; whether it wants a further turn."""
        self._send(party, signal.SIGCONT)
        meeting.give_turn(self._folder, number, party)
        self._wait(party, meeting.turn_ended(number))
        if self._has_left(party):
            return False
        self._stop(party)
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
        # It may have ended in this moment; its place in the meeting will say so.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._groups[party], what)
