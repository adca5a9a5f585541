"""The engines of ``overlay verify``: what was asked, how each is started, and what became of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from overlay.errors import OverlayError
from overlay.proof.commands.verify_failures import raised_by, usable
from overlay.proof.commands.verify_tiny import ModelSet
from overlay.proof.engine_compat import runner_environment
from overlay.proof.engine_launch import append_path, as_stock
from overlay.proof.engine_pool import EngineEnd, Job, run_jobs
from overlay.proof.graph_mode import GraphMode
from overlay.proof.verification import EngineRun, ModeOutcome, ModeResult, judged
from overlay.results import ModelRunner

#: Takes the title of each engine, and ``None`` when it starts or the seconds it took.
OnEngine = Callable[[str, float | None], None]


@dataclass(frozen=True)
class VerifyQuestion:
    """What the user asked.

    :ivar model: ``None`` with ``tiny``.
    :ivar draft: ``None`` where the engine's own arguments name it; with ``tiny`` the name of the
        only draft that is meant, ``None`` for all.
    :ivar modes: those to run; empty: each that the configuration gets, and the one without graphs.
    :ivar arguments: further arguments of vLLM's engine.
    :ivar check: whether the address check is on.
    :ivar prompts: a file with a prompt on each line.
    :ivar jobs: engines at a time.
    :ivar deadline: seconds for one engine.
    :ivar logs: a folder that keeps what the engines print.
    """

    model: str | None = None
    draft: str | None = None
    method: str | None = None
    k: int | None = None
    tiny: bool = False
    modes: tuple[GraphMode, ...] = ()
    arguments: tuple[str, ...] = ()
    python: str | None = None
    check: bool = False
    prompts: Path | None = None
    tokens: int = 64
    jobs: int | None = None
    deadline: float = 900.0
    logs: Path | None = None


@dataclass(frozen=True)
class VerifyStage:
    """The place where the engines of one verification run.

    :ivar work: an empty folder, but for ``release``, the copy of the release's own files.
    :ivar code: a folder from which the engines import the overlay.
    """

    question: VerifyQuestion
    python: Path
    work: Path
    code: Path
    on_engine: OnEngine

    def run(
        self, engines: Sequence[tuple[ModelSet, GraphMode | None]], at_a_time: int = 1
    ) -> dict[str, EngineEnd]:
        """Run an engine for each set and mode; how each ended, by its title.

        Without a mode vLLM only says which model runner it chooses.

        :raises OverlayError: as soon as one cannot be compared at all.
        """
        jobs = [self._job(models, mode) for models, mode in engines]
        modes = {title(models, mode): mode for models, mode in engines}

        def on_engine(job: Job, ended: EngineEnd | None) -> None:
            self.on_engine(job.name, None if ended is None else ended.seconds)
            if ended is not None:  # one that cannot be compared at all ends the others at once
                failure_of(job.name, modes[job.name], ended)

        deadline = self.question.deadline
        return run_jobs(jobs, at_a_time=at_a_time, deadline=deadline, on_engine=on_engine)

    def _job(self, models: ModelSet, mode: GraphMode | None) -> Job:
        name = title(models, mode)
        folder = self.work / name.replace(" ", "-")
        folder.mkdir()
        spec = folder / "spec.json"
        spec.write_text(replace(models.spec, mode=mode).to_json(), encoding="utf-8")
        logs = self.question.logs
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        environment = append_path(os.environ, self.code) | runner_variable(
            self.question, os.environ
        )
        if mode in (None, GraphMode.STOCK):
            environment = as_stock(environment, self.work / "release")
        elif mode is not GraphMode.OVERLAY:
            environment["OVERLAY_DRAFT_GRAPHS"] = mode.value
        if self.question.check:
            environment["OVERLAY_DRAFT_GRAPHS_CHECK"] = "on"
        program = (str(self.python), "-m", "overlay.proof.verify_engine")
        command = (*program, str(spec), str(folder / "result.json"))
        log = (folder if logs is None else logs.resolve()) / f"{folder.name}.log"
        return Job(name, command, environment, folder, log)


def runner_variable(question: VerifyQuestion, environment: Mapping[str, str]) -> dict[str, str]:
    """The variable that asks vLLM for model runner V1; empty where the user or vLLM chooses.

    From 0.25 on vLLM chooses V2 for models like the tiny ones, which are served here alone. With
    the user's own models the answer must be about the runner that serves them elsewhere.

    :param environment: the user's variables.
    """
    variables = runner_environment(ModelRunner.V1)
    return variables if question.tiny and not variables.keys() & environment.keys() else {}


def title(models: ModelSet, mode: GraphMode | None) -> str:
    """The name of an engine for people."""
    return f"{models.name} {'configuration' if mode is None else mode.shown}".strip()


def result_of(
    models: ModelSet, mode: GraphMode, ended: EngineEnd, reference: EngineRun | None
) -> ModeResult:
    """What became of one engine; one that cannot be compared at all ends the command."""
    failure = failure_of(title(models, mode), mode, ended)
    if failure is not None:
        return ModeResult(models.name, mode, ModeOutcome.DIED, failure=failure)
    return judged(models.name, mode, usable(ended), reference, models.answer)


def failure_of(name: str, mode: GraphMode | None, ended: EngineEnd) -> str | None:
    """Why an engine with draft graphs died; ``None`` where it served.

    :param name: the engine's title.
    :raises OverlayError: if the engine cannot be compared, whatever the mode; it is named.
    """
    try:
        return raised_by(ended, with_graphs=not (mode is None or mode.measure))
    except OverlayError as error:
        raise OverlayError(f"the engine {name}: {error}") from error
