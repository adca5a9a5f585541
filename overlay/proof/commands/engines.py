"""The engines of ``overlay bench``: which run, in which order, with what, and until when.

Every engine starts in each round, once for its step times and once as a server.  What the budget
does not allow (``budget``) is left out, and the report says so.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from overlay.errors import OverlayError
from overlay.proof.commands.budget import Part, Start
from overlay.proof.commands.launch import Launch
from overlay.proof.commands.verify_failures import failure_text
from overlay.proof.engine_pool import EngineEnd, Job, run_jobs
from overlay.proof.repeats import Gap, Quantity, Served, Timed, read, read_served
from overlay.proof.reports.benched import BenchReport, benched

#: Takes an engine when it starts (``None``) and when it has ended.
OnJob = Callable[[Job, EngineEnd | None], None]
#: Runs one engine to its end; it is killed after so many seconds.
Runner = Callable[[Job, float, OnJob], EngineEnd]


def run_one(job: Job, deadline: float, on_engine: OnJob) -> EngineEnd:
    """Run one engine in a process of its own."""
    return run_jobs([job], at_a_time=1, deadline=deadline, on_engine=on_engine)[job.name]


@dataclass
class BenchStage:
    """The place where the engines of one comparison run.

    :ivar launch: how they are started.
    :ivar on_engine: is called with the title of an engine, and ``None`` or the seconds it took.
    :ivar runner: ``run_one``, or what a test puts in its place.
    """

    launch: Launch
    on_engine: Callable[[str, float | None], None]
    runner: Runner = run_one
    _results: dict[tuple[Part, str], list[Mapping[str, Any]]] = field(default_factory=dict)
    _left: dict[str, str] = field(default_factory=dict)

    def measure(self) -> BenchReport:
        """Run the rounds, and report on them.

        :raises OverlayError: if the question's reference or the overlay does not serve, or the
            budget was spent before both were measured.
        """
        notes = self._rounds()

        def results(part: Part) -> list[tuple[str, list[Mapping[str, Any]]]]:
            return [
                (each, self._results[part, each])
                for each in self.launch.question.engines
                if self._has(part, each)
            ]

        timed = tuple(read(engine, starts) for engine, starts in results(Part.STEPS))
        served = tuple(read_served(engine, starts) for engine, starts in results(Part.SERVING))
        question = self.launch.question
        reference, overlay = question.reference, question.overlay
        if not any(self._has(part, reference) and self._has(part, overlay) for part in Part):
            raise OverlayError(
                f"expected to measure {reference} and the overlay within --budget "
                f"{question.budget:g} s, found it spent before both were: give a larger one"
            )
        gaps = self._gaps(timed, served)
        return BenchReport(
            benched(timed, served, gaps),
            question.model or question.shape,
            question.k,
            timed,
            self._left,
            served,
            notes,
            gaps,
            dummy=question.model is None,
            budget=question.budget,
            rounds=question.rounds,
        )

    def _has(self, part: Part, engine: str) -> bool:
        return engine not in self._left and (part, engine) in self._results

    def _gaps(self, timed: tuple[Timed, ...], served: tuple[Served, ...]) -> tuple[Gap, ...]:
        """What was asked for and not measured, of the engines that were not left out."""
        question, parts = self.launch.question, self.launch.question.schedule.parts
        batches = {each.engine: set(each.batches) for each in timed}
        concurrency = {each.engine: set(each.concurrency) for each in served}
        with_first = {each.engine for each in served if each.first_token is not None}
        gaps = list[Gap]()
        for engine in (each for each in self.launch.question.engines if each not in self._left):
            for part, quantity, sizes, measured in (
                (Part.STEPS, Quantity.STEP_TIME, question.batches, batches),
                (Part.SERVING, Quantity.THROUGHPUT, question.concurrency, concurrency),
            ):
                missing = tuple(size for size in sizes if size not in measured.get(engine, ()))
                if part in parts and missing:
                    gaps.append(Gap(engine, quantity, missing))
            if Part.SERVING in parts and question.rate != 0 and engine not in with_first:
                gaps.append(Gap(engine, Quantity.FIRST_TOKEN, ()))
        return tuple(gaps)

    def _rounds(self) -> tuple[str, ...]:
        """Run what the budget allows; a note of the rounds that it does not."""
        schedule = self.launch.question.schedule
        for number in range(schedule.rounds):
            before = self.launch.budget.spent
            starts = [each for each in schedule.round(number) if each.engine not in self._left]
            whole = [self.launch.budget.allows(each.part) and self._run(each) for each in starts]
            if number and not all(whole):
                spent = f"--budget {schedule.budget:g} s was spent"
                return (f"round {number + 1} was not finished: {spent}",)
            seconds = self.launch.budget.spent - before
            rounds_to_go = schedule.rounds - number - 1
            if rounds_to_go and seconds > self.launch.budget.remaining:
                rounds = "1 round was" if rounds_to_go == 1 else f"{rounds_to_go} rounds were"
                note = (
                    f"{rounds} left out: one more takes about {seconds:.0f} s, and "
                    f"{self.launch.budget.spent:.0f} s of --budget {schedule.budget:g} are spent"
                )
                return (note,)
        return ()

    def _keep_files(self, job: Job) -> None:
        """Copy what an engine has measured to its log, where this process may yet be killed."""
        if job.out.exists():
            copy = job.log.with_suffix(".json")
            copy.unlink(missing_ok=True)  # it may be a link to anywhere
            shutil.copyfile(job.out, copy)

    def _run(self, start: Start) -> bool:
        """Run one engine, and keep what it gave; whether it was measured to its end.

        :raises OverlayError: if it did not serve, and there is nothing to compare without it.
        """
        deadline = self.launch.budget.until_killed(self.launch.question.deadline)
        name = f"{start.engine}, {start.part.value}, round {start.number + 1}"
        job = self.launch.job(name, start, self._rate())

        def on_engine(job: Job, ended: EngineEnd | None) -> None:
            self.on_engine(job.name, None if ended is None else ended.seconds)
            if ended is not None:
                self._keep_files(job)

        ended = self.runner(job, deadline, on_engine)
        result = ended.result
        cut = ended.status is None and deadline < self.launch.question.deadline
        if cut and result is None:
            return False
        if result is not None and "problem" not in result and (ended.status == 0 or cut):
            self.launch.budget.note_start(start.part, float(result.get("start_s", 0.0)))
            cells = result.get("concurrency") or [n for n in result if n.startswith("batch")]
            if cells:
                self._results.setdefault((start.part, start.engine), []).append(result)
            sizes = self.launch.question.batches
            if start.part is Part.SERVING:
                sizes = self.launch.question.concurrency
            return len(cells) == len(sizes)
        if start.engine in (self.launch.question.overlay, self.launch.question.reference):
            raise OverlayError(f"{start.engine}, {start.part.value}: {failure_text(ended)}")
        self._left[start.engine] = failure_text(ended)
        return True

    def _rate(self) -> float | None:
        """The rate of requests that all engines get: as asked, or as the first engine found it."""
        for results in self._results.values():
            for result in results:
                if result.get("first_token"):
                    return float(result["first_token"]["rate"])
        return self.launch.question.rate
