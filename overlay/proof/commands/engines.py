"""The engines of ``overlay bench``: which run, in which order, with what, and until when.

Side by side (``bench_sharing``), all engines start at the same moment for their step times, and
again as servers; each time they measure in turn, round after round, in an order that moves on by
one, and servers cell by cell (``serving_turns``).  One by one, every engine starts in each round,
once for its step times and once as a server.  What the budget does not allow (``bench_budget``) is
left out, and the report says so.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from overlay.errors import OverlayError
from overlay.proof.commands.budget import ONE_BY_ONE, Budget, Part, Sharing, Start
from overlay.proof.commands.launch import Launch
from overlay.proof.commands.progress import Progress
from overlay.proof.commands.question import Question
from overlay.proof.commands.verify_failures import told_of
from overlay.proof.engine_pool import Ended, Job, read_result, run_jobs
from overlay.proof.party import meeting_arguments, run_party
from overlay.proof.repeats import Gap, Quantity, Served, Timed, read, read_served
from overlay.proof.reports.benched import OVERLAY
from overlay.proof.turns import Event, Step
from overlay.report.words import count

#: The share of a part's time in which engines side by side are to start: what is left then is for
#: those that have.
_SHARE_TO_START = 0.5


class Measured(NamedTuple):
    """What the rounds gave.

    :ivar left: why an engine was left out, by name; :ivar notes: which rounds were left out.
    :ivar gaps: what was not measured because the budget was spent.
    """

    timed: tuple[Timed, ...]
    served: tuple[Served, ...]
    left: Mapping[str, str]
    notes: tuple[str, ...]
    gaps: tuple[Gap, ...]


class Runner(Protocol):
    """Runs one engine to its end; ``run_one``, or what a test puts in its place."""

    def __call__(
        self, job: Job, *, deadline: float, told: Callable[[Job, Ended | None], None]
    ) -> Ended:
        """How it ended; it is killed after ``deadline`` seconds."""


class PartyRunner(Protocol):
    """Runs engines that take turns to their end; ``run_party``, or what a test puts in its place.

    What ``told`` or ``heard`` raises ends all engines, and is raised.
    """

    def __call__(
        self,
        jobs: Sequence[Job],
        meet: Path,
        *,
        deadline: float,
        patience: float,
        round_of: Callable[[int], int],
        told: Callable[[Job, Ended | None], None],
        heard: Callable[[Job, Event], None],
    ) -> Mapping[str, Ended]:
        """How each ended, by name; each is killed after ``deadline`` seconds.

        :param patience: seconds after which one that has not started, as others have, is killed.
        :param round_of: the round of a turn.
        :param heard: is called with each engine and what it has come to.
        """


def run_one(job: Job, *, deadline: float, told: Callable[[Job, Ended | None], None]) -> Ended:
    """Run one engine in a process of its own."""
    return run_jobs([job], at_a_time=1, deadline=deadline, told=told)[job.name]


@dataclass
class Stage:
    """The place where the engines of one comparison run.

    :ivar work: an empty folder, but for ``stock``, the copy of the release's own files.
    :ivar code: a folder from which the engines import the overlay.
    :ivar logs: takes what the engines print.
    :ivar told: is called with the title of an engine, and ``None`` or the seconds it took.
    :ivar budget: has begun.
    :ivar sharing: how the engines share the GPU.
    :ivar said: is called with what is going on, in words.
    """

    question: Question
    python: Path
    work: Path
    code: Path
    logs: Path
    told: Callable[[str, float | None], None]
    budget: Budget
    runner: Runner = run_one
    party: PartyRunner = run_party
    sharing: Sharing = ONE_BY_ONE
    said: Callable[[str], None] = lambda _: None
    _found: dict[tuple[Part, str], list[Mapping[str, Any]]] = field(default_factory=dict)
    _left: dict[str, str] = field(default_factory=dict)
    _notes: list[str] = field(default_factory=list)

    def measure(self) -> Measured:
        """Run the rounds.

        :raises OverlayError: if the question's reference or the overlay does not serve, or the
            budget was spent before both were measured.
        """
        notes = self._parties() if self.sharing.side_by_side else self._rounds()

        def results(part: Part) -> list[tuple[str, list[Mapping[str, Any]]]]:
            return [
                (each, self._found[part, each])
                for each in self.question.engines
                if self._has(part, each)
            ]

        timed = tuple(read(engine, found) for engine, found in results(Part.STEPS))
        served = tuple(read_served(engine, found) for engine, found in results(Part.SERVING))
        reference = self.question.reference
        if not any(self._has(part, reference) and self._has(part, OVERLAY) for part in Part):
            raise OverlayError(
                f"expected to measure {reference} and the overlay within --budget "
                f"{self.question.budget:g} s, found it spent before both were: give a larger one"
            )
        return Measured(
            timed, served, self._left, (*self._notes, *notes), self._gaps(timed, served)
        )

    def _has(self, part: Part, engine: str) -> bool:
        return engine not in self._left and (part, engine) in self._found

    def _gaps(self, timed: tuple[Timed, ...], served: tuple[Served, ...]) -> tuple[Gap, ...]:
        """What was asked for and not measured, of the engines that were not left out."""
        asked, parts = self.question, self.question.schedule.parts
        batches = {each.engine: set(each.batches) for each in timed}
        concurrency = {each.engine: set(each.concurrency) for each in served}
        with_first = {each.engine for each in served if each.first_token is not None}
        gaps = list[Gap]()
        for engine in (each for each in self.question.engines if each not in self._left):
            for part, quantity, wanted, found in (
                (Part.STEPS, Quantity.STEP_TIME, asked.batches, batches),
                (Part.SERVING, Quantity.THROUGHPUT, asked.concurrency, concurrency),
            ):
                missing = tuple(size for size in wanted if size not in found.get(engine, ()))
                if part in parts and missing:
                    gaps.append(Gap(engine, quantity, missing))
            if Part.SERVING in parts and asked.rate != 0 and engine not in with_first:
                gaps.append(Gap(engine, Quantity.FIRST_TOKEN, ()))
        return tuple(gaps)

    def _rounds(self) -> tuple[str, ...]:
        """Run what the budget allows; a note of the rounds that it does not."""
        schedule = self.question.schedule
        for number in range(schedule.rounds):
            before = self.budget.spent
            starts = [each for each in schedule.round(number) if each.engine not in self._left]
            whole = [self.budget.allows(each.part) and self._run(each) for each in starts]
            if number and not all(whole):
                spent = f"--budget {schedule.budget:g} s was spent"
                return (f"round {number + 1} was not finished: {spent}",)
            took = self.budget.spent - before
            left = schedule.rounds - number - 1
            if left and took > self.budget.left:
                rounds = "1 round was" if left == 1 else f"{left} rounds were"
                note = (
                    f"{rounds} left out: one more takes about {took:.0f} s, and "
                    f"{self.budget.spent:.0f} s of --budget {schedule.budget:g} are spent"
                )
                return (note,)
        return ()

    def _parties(self) -> tuple[str, ...]:
        """Start all engines once for each part; a note of rounds that the budget did not allow."""
        notes = list[str]()
        for part in self.question.schedule.parts:
            if self.budget.allows(part):
                self._party(part)
                notes += self._cut_rounds(part)
        return tuple(notes)

    def _party(self, part: Part) -> None:
        """Start the engines side by side, and keep what each gave.

        :raises OverlayError: if the question's reference or the overlay did not serve; then the
            others are killed.
        """
        starts = [Start(part, each, 0) for each in self.question.engines if each not in self._left]
        names = {f"{each.engine}, {part.value}": each for each in starts}
        meet = self.work / f"meet-{part.value}"
        meet.mkdir()
        jobs = [
            self._job(name, start, meeting_arguments(meet, number, self.question.rounds), number)
            for number, (name, start) in enumerate(names.items())
        ]
        # An engine waits while the others measure.
        allowed = self.question.deadline * len(jobs)
        deadline = self.budget.until_killed(allowed)
        parts = self.question.schedule.parts
        left = len(parts) - parts.index(part)
        patience = min(self.question.deadline, _SHARE_TO_START * deadline / left)

        def told(job: Job, ended: Ended | None) -> None:
            self.told(job.name, None if ended is None else ended.seconds)
            if ended is not None:
                self._keep_files(job)
                given, limit = deadline, allowed
                if ended.killed:  # it had not started
                    given, limit = patience, self.question.deadline
                self._keep(names[job.name], ended, over_budget=given < limit)

        progress = Progress(self.question, part)

        def heard(job: Job, event: Event) -> None:
            result = None
            if event.step is Step.ENDED:
                result = read_result(job.out)
                self._keep_files(job)
            words = progress.text(event, result)
            if words:
                self.said(f"engine {job.name}: {words}")

        limits = {"deadline": deadline, "patience": patience}
        self.party(jobs, meet, **limits, round_of=progress.round_of, told=told, heard=heard)

    def _keep_files(self, job: Job) -> None:
        """Copy what an engine has measured to its log, where this process may yet be killed."""
        if job.out.exists():
            copy = job.log.with_suffix(".json")
            copy.unlink(missing_ok=True)  # it may be a link to anywhere
            shutil.copyfile(job.out, copy)

    def _cut_rounds(self, part: Part) -> Iterator[str]:
        """Say so if an engine did not measure all of a part in each of several rounds."""
        asked, wanted = self.question, self.question.rounds
        finished = list[int]()
        for engine in (each for each in self.question.engines if self._has(part, each)):
            results = self._found[part, engine]
            if part is Part.STEPS:
                batches = read(engine, results).batches
                samples = [batches.get(size) for size in asked.batches]
            else:
                served = read_served(engine, results)
                samples = [served.concurrency.get(size) for size in asked.concurrency]
                samples += [] if asked.rate == 0 else [served.first_token]
            finished += [0 if sample is None else len(sample.rounds) for sample in samples]
        # What a single round lacks is a gap.
        if wanted > 1 and min(finished, default=wanted) < wanted:
            yield (
                f"{part.words}: {min(finished)} of {count(wanted, 'round')} were finished: "
                f"--budget {asked.budget:g} s was spent"
            )

    def _run(self, start: Start) -> bool:
        """Run one engine, and keep what it gave; whether it was measured to its end.

        :raises OverlayError: if it did not serve, and there is nothing to compare without it.
        """
        deadline = self.budget.until_killed(self.question.deadline)
        job = self._job(f"{start.engine}, {start.part.value}, round {start.number + 1}", start)

        def told(job: Job, ended: Ended | None) -> None:
            self.told(job.name, None if ended is None else ended.seconds)
            if ended is not None:
                self._keep_files(job)

        ended = self.runner(job, deadline=deadline, told=told)
        return self._keep(start, ended, over_budget=deadline < self.question.deadline)

    def _keep(self, start: Start, ended: Ended, *, over_budget: bool) -> bool:
        """Keep what an engine gave; whether it was measured to its end.

        :param over_budget: whether an engine that was killed had spent the budget.
        :raises OverlayError: if it did not serve, and there is nothing to compare without it.
        """
        result = ended.result
        cut = over_budget and (ended.status is None or bool(ended.killed))
        if ended.killed:
            self._notes.append(f"{start.engine}, {start.part.value}: it {ended.killed}")
        if cut and result is None:
            return False
        if result is not None and "problem" not in result and (ended.status == 0 or cut):
            self.budget.note_start(start.part, float(result.get("start_s", 0.0)))
            cells = result.get("concurrency") or [n for n in result if n.startswith("batch")]
            if cells:
                self._found.setdefault((start.part, start.engine), []).append(result)
            wanted = (
                self.question.batches if start.part is Part.STEPS else self.question.concurrency
            )
            return len(cells) == len(wanted)
        if start.engine in (OVERLAY, self.question.reference):
            beside = ""
            if self.sharing.side_by_side:
                beside = "\nthe engines ran side by side: --one-by-one starts them in turn"
            raise OverlayError(f"{start.engine}, {start.part.value}: {told_of(ended)}{beside}")
        self._left[start.engine] = told_of(ended)
        return True

    def _job(self, name: str, start: Start, meeting: tuple[str, ...] = (), number: int = 0) -> Job:
        launch = Launch(
            self.question, self.python, self.work, self.code, self.logs, self.budget, self.sharing
        )
        return launch.job(name, start, self._rate(), meeting, number)

    def _rate(self) -> float | None:
        """The rate of requests that all engines get: as asked, or as the first engine found it."""
        for results in self._found.values():
            for result in results:
                if result.get("first_token"):
                    return float(result["first_token"]["rate"])
        return self.question.rate
