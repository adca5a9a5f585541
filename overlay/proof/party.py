"""Run engines that start at the same moment on one GPU, and measure there one after the other.

The jobs run as ``engine_pool`` runs them; who measures when is up to ``turns``, which works in a
thread of its own.  All that is told is told from the thread that called ``run_party``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from overlay.errors import OverlayError
from overlay.proof import meeting
from overlay.proof.engine_pool import Ended, Job, run_jobs, tail
from overlay.proof.turns import Event, Failure, Step, Turns

#: Lines of an engine's log that an error shows.
_LINES = 15


def meeting_arguments(meet: Path, number: int, rounds: int) -> tuple[str, ...]:
    """The arguments from which an engine knows where it meets the others.

    :param number: of the engine, from 0 on; :param rounds: in how many it measures.  In each an
        engine of step times has one turn, and a server one for each cell (``serving_turns``).
    """
    return ("--meet", str(meet), "--party", str(number), "--turns", str(rounds))


class Party:
    """Engines that run side by side.

    :param jobs: in the order of their numbers (``meeting_arguments``).
    :param meet: an empty folder in which they meet.
    :param patience: seconds after which an engine that has not started is killed (``turns``).
    :param round_of: the round of a turn (``turns``).
    :param told: as of ``run_jobs``.
    :param heard: is called with each engine and what it has come to.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        meet: Path,
        *,
        patience: float,
        round_of: Callable[[int], int],
        told: Callable[[Job, Ended | None], None],
        heard: Callable[[Job, Event], None],
    ) -> None:
        self._jobs, self._meet = jobs, meet
        self._told, self._heard = told, heard
        self._numbers = {job.name: number for number, job in enumerate(jobs)}
        self._events = SimpleQueue[Event]()
        self._late = set[int]()
        self._turns = Turns(
            meet, len(jobs), round_of=round_of, patience=patience, told=self._events.put
        )

    def run(self, deadline: float) -> dict[str, Ended]:
        """Start all engines, let them measure in turn, and wait for their end.

        :param deadline: seconds after which an engine is killed, whether it measures or waits.
        :returns: how each ended, by name.
        :raises OverlayError: if no turns can be given; what ``told`` and ``heard`` raise is raised
            as well. No engine runs then.
        """
        with ThreadPoolExecutor(1) as pool:
            conducted = pool.submit(self._turns.conduct)
            try:
                ended = run_jobs(
                    self._jobs,
                    at_a_time=len(self._jobs),
                    deadline=deadline,
                    told=self._passed_on,
                    begun=self._begun,
                    looked=self._look,
                )
            finally:
                # Whatever happened, no engine runs by now: the conductor must not wait for any.
                for number in self._numbers.values():
                    meeting.leave(self._meet, number)
        # A failure first, which names the engine; what it does not explain is raised as it is.
        self._look()
        conducted.result()
        return ended

    def _begun(self, job: Job, group: int) -> None:
        self._turns.begun(self._numbers[job.name], group)

    def _passed_on(self, job: Job, ended: Ended | None) -> None:
        """Tell of a start or an end, with the reason of an engine that was killed here."""
        self._look()
        if ended is not None:
            number = self._numbers[job.name]
            meeting.leave(self._meet, number)
            if number in self._late:
                why = f"had not started after {ended.seconds:.0f} s, as others had, and was killed"
                ended = ended._replace(killed=why)
        self._told(job, ended)

    def _look(self) -> None:
        """Tell of what the engines have come to.

        :raises OverlayError: if no turns can be given any more.
        """
        while not self._events.empty():
            event = self._events.get()
            if event.step is Step.LATE:
                self._late.add(event.party)
            self._heard(self._jobs[event.party], event)
        failure = self._turns.failure
        if failure is not None:
            raise self._failed(failure) from failure.error

    def _failed(self, failure: Failure) -> OverlayError:
        job = self._jobs[failure.party]
        last = "\n".join(tail(job.log).rstrip().splitlines()[-_LINES:]) if job.log.exists() else ""
        error = failure.error
        return OverlayError(
            f"{job.name}: expected to give this engine its turn, found {type(error).__name__}: "
            f"{error}; all engines were ended. Its last lines:\n{last}"
        )


def run_party(
    jobs: Sequence[Job],
    meet: Path,
    *,
    deadline: float,
    patience: float,
    round_of: Callable[[int], int],
    told: Callable[[Job, Ended | None], None],
    heard: Callable[[Job, Event], None],
) -> dict[str, Ended]:
    """Run engines as a :class:`Party`; how each ended, by name."""
    party = Party(jobs, meet, patience=patience, round_of=round_of, told=told, heard=heard)
    return party.run(deadline)
