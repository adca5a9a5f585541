"""The engines of ``overlay bench``: which run, in which order, with what, and until when.

Rounds follow each other.  In each, every engine runs once for its step times and once as a server,
in an order that moves on by one.  What the budget does not allow (``bench_budget``) is left out,
and the report says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from overlay.commands.bench_budget import ENGINES, Budget, Part, Schedule, Start
from overlay.commands.verify_failures import told_of
from overlay.errors import OverlayError
from overlay.proof.engine_launch import append_path
from overlay.proof.engine_pool import Ended, Job, run_jobs
from overlay.proof.repeats import Gap, Quantity, Served, Timed, read, read_served
from overlay.proof.serving import ServingSpec
from overlay.proof.shapes import DRAFTERS, write_configs, write_tokenizer
from overlay.report.benched import OVERLAY, STOCK, V2
from overlay.untrusted import read_regular

_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


@dataclass(frozen=True)
class Question:
    """What the user asked.

    :ivar shape: one of ``proof.shapes.SHAPES``, with dummy weights; unused with ``model``.
    :ivar model: a model to be measured; ``None`` for a shape.
    :ivar draft: its draft; ``None`` where the engine arguments name it.
    :ivar method: vLLM's name for the kind of draft; ``None``: as the draft's configuration says.
    :ivar arguments: further arguments of vLLM's engine.
    :ivar batches: numbers of requests at a time, for step times.
    :ivar concurrency: the same for a server.
    :ivar prompt: tokens of a prompt; :ivar answer: of an answer; both of a server's requests.
    :ivar rate: requests a second while the time to first token is taken; see ``ServingSpec``.
    :ivar rounds: how often each engine is started; :ivar repeats: of each batch and round.
    :ivar budget: seconds for all engines together; see ``bench_budget``.
    :ivar accept: the mean number of tokens a step, by synthetic acceptance; 0: what the models
        accept; ``None``: 2.5 for a shape, 0 for models.
    :ivar only: the one part that is measured; ``None`` for both.
    :ivar page: a file for the page of HTML; :ivar plot: one for the plots as SVG.
    """

    shape: str = "1b"
    model: str | None = None
    draft: str | None = None
    method: str | None = None
    arguments: tuple[str, ...] = ()
    k: int = 3
    batches: tuple[int, ...] = (1, 8, 32)
    concurrency: tuple[int, ...] = (1, 16, 64)
    prompt: int = 512
    answer: int = 256
    rate: float | None = None
    port: int | None = None
    rounds: int = 3
    repeats: int = 5
    budget: float = 720.0
    tokens: int = 192
    accept: float | None = None
    engine: str = "{}"
    mode: str = "FULL_AND_PIECEWISE"
    only: Part | None = None
    python: str | None = None
    deadline: float = 600.0
    page: Path | None = None
    plot: Path | None = None
    logs: Path | None = None

    @property
    def schedule(self) -> Schedule:
        """The engines that are to be started."""
        parts = tuple(Part) if self.only is None else (self.only,)
        return Schedule(parts, self.rounds, self.budget)

    @property
    def acceptance(self) -> float:
        """The mean number of tokens a step; 0: what the models accept."""
        if self.accept is None:
            return 2.5 if self.model is None else 0.0
        return self.accept

    @property
    def speculative(self) -> dict[str, Any] | None:
        """vLLM's ``speculative_config`` without the draft of a shape; ``None``: the user's own."""
        if self.model is not None and self.draft is None:
            return None
        made: dict[str, Any] = {"num_speculative_tokens": self.k}
        if self.model is None:
            made |= DRAFTERS["eagle3"].speculative
        else:
            made["model"] = self.draft
            method = self.method or method_of(Path(str(self.draft)))
            made |= {} if method is None else {"method": method}
        if self.acceptance:
            made["rejection_sample_method"] = "synthetic"
            made["synthetic_acceptance_length"] = self.acceptance
        return made


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


#: Parts of an architecture's name -> vLLM's name for the kind of draft.
_METHODS = (
    ("eagle3", "eagle3"),
    ("eagle", "eagle"),
    ("dflash", "dflash"),
    ("mtp", "mtp"),
    ("medusa", "medusa"),
)


def method_of(draft: Path) -> str | None:
    """vLLM's name for the kind of a draft in a folder; ``None`` where its configuration is silent.

    An id on the hub is silent here, too: vLLM itself knows most of these.
    """
    try:
        config = json.loads(read_regular(draft / "config.json") or b"null")
        name = str(config["architectures"][0]).lower()
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    return next((method for part, method in _METHODS if part in name), None)


class Runner(Protocol):
    """Runs one engine to its end; ``run_one``, or what a test puts in its place."""

    def __call__(
        self, job: Job, *, deadline: float, told: Callable[[Job, Ended | None], None]
    ) -> Ended:
        """How it ended; it is killed after ``deadline`` seconds."""


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
    """

    question: Question
    python: Path
    work: Path
    code: Path
    logs: Path
    told: Callable[[str, float | None], None]
    budget: Budget
    runner: Runner = run_one
    _found: dict[tuple[Part, str], list[Mapping[str, Any]]] = field(default_factory=dict)
    _left: dict[str, str] = field(default_factory=dict)

    def measure(self) -> Measured:
        """Run the rounds.

        :raises OverlayError: if stock V1 or the overlay does not serve, or the budget was spent
            before both were measured.
        """
        notes = self._rounds()

        def results(part: Part) -> list[tuple[str, list[Mapping[str, Any]]]]:
            return [(each, self._found[part, each]) for each in ENGINES if self._has(part, each)]

        timed = tuple(read(engine, found) for engine, found in results(Part.STEPS))
        served = tuple(read_served(engine, found) for engine, found in results(Part.SERVING))
        if not any(self._has(part, STOCK) and self._has(part, OVERLAY) for part in Part):
            raise OverlayError(
                f"expected to measure stock V1 and the overlay within --budget "
                f"{self.question.budget:g} s, found it spent before both were: give a larger one"
            )
        return Measured(timed, served, self._left, notes, self._gaps(timed, served))

    def _has(self, part: Part, engine: str) -> bool:
        return engine not in self._left and (part, engine) in self._found

    def _gaps(self, timed: tuple[Timed, ...], served: tuple[Served, ...]) -> tuple[Gap, ...]:
        """What was asked for and not measured, of the engines that were not left out."""
        asked, parts = self.question, self.question.schedule.parts
        batches = {each.engine: set(each.batches) for each in timed}
        concurrency = {each.engine: set(each.concurrency) for each in served}
        with_first = {each.engine for each in served if each.first_token is not None}
        gaps = list[Gap]()
        for engine in (each for each in ENGINES if each not in self._left):
            for part, quantity, wanted, found in (
                (Part.STEPS, Quantity.STEPS, asked.batches, batches),
                (Part.SERVING, Quantity.SERVING, asked.concurrency, concurrency),
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

    def _run(self, start: Start) -> bool:
        """Run one engine, and keep what it gave; whether it was measured to its end.

        :raises OverlayError: if it did not serve, and is not V2.
        """
        deadline = self.budget.until_killed(self.question.deadline)
        over_budget = deadline < self.question.deadline
        ended = self._ended(start, deadline)
        result = ended.result
        cut = ended.status is None and over_budget
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
        if start.engine != V2:
            raise OverlayError(f"{start.engine}, {start.part.value}: {told_of(ended)}")
        self._left[V2] = told_of(ended)
        return True

    def _ended(self, start: Start, deadline: float) -> Ended:
        name = f"{start.engine}, {start.part.value}, round {start.number + 1}"
        folder = self.work / name.replace(", ", "-").replace(" ", "-")
        folder.mkdir()
        out = folder / "result.json"
        words = self._steps(out) if start.part is Part.STEPS else self._serving(folder, out)
        log = self.logs / f"{folder.name}.log"
        environment = self._environment(start.engine)
        job = Job(name, (str(self.python), "-m", *words), environment, folder, log)

        def told(job: Job, ended: Ended | None) -> None:
            self.told(job.name, None if ended is None else ended.seconds)

        return self.runner(job, deadline=deadline, told=told)

    def _steps(self, out: Path) -> tuple[str, ...]:
        asked = self.question
        options: dict[str, object] = {
            "--k": asked.k,
            "--batch": ",".join(map(str, asked.batches)),
            "--mode": asked.mode,
            "--tokens": asked.tokens,
            "--repeats": asked.repeats,
            "--accept": asked.acceptance,
            "--engine": asked.engine,
            "--seconds": round(self.budget.left, 1),
            # The same folder for all: a later engine uses what an earlier one has compiled.
            "--configs": self.work / "configs",
            "--out": out,
            "--shape": asked.shape,
            "--arguments": json.dumps(asked.arguments),
        }
        if asked.model is not None:
            options["--model"] = asked.model
            options["--speculative"] = json.dumps(asked.speculative or {})
        words = [str(word) for option in options.items() for word in option]
        return ("overlay.proof.step_time", "--wait", *words)

    def _serving(self, folder: Path, out: Path) -> tuple[str, ...]:
        spec = folder / "spec.json"
        spec.write_text(self._serving_spec().to_json(), encoding="utf-8")
        return ("overlay.proof.serving", str(spec), str(out))

    def _serving_spec(self) -> ServingSpec:
        asked = self.question
        speculative, arguments = asked.speculative, list[str]()
        model = asked.model
        if model is None:
            target, draft = write_configs(asked.shape, self.work / "configs" / asked.shape)
            write_tokenizer(asked.shape, target)
            model, speculative = str(target), {**(speculative or {}), "model": str(draft)}
            most = max(256, *asked.concurrency)
            arguments += ["--load-format", "dummy", "--max-model-len", "4096"]
            arguments += ["--max-num-seqs", str(most), "--gpu-memory-utilization", "0.6"]
            arguments += ["--compilation-config", json.dumps({"cudagraph_mode": asked.mode})]
        if speculative is not None:
            arguments += ["--speculative-config", json.dumps(speculative)]
        arguments += [*as_arguments(json.loads(asked.engine)), *asked.arguments]
        return ServingSpec(
            model,
            tuple(arguments),
            asked.concurrency,
            asked.prompt,
            asked.answer,
            self._rate(),
            asked.port,
            round(self.budget.left, 1),
        )

    def _rate(self) -> float | None:
        """The rate of requests that all engines get: as asked, or as the first engine found it."""
        for results in self._found.values():
            for result in results:
                if result.get("first_token"):
                    return float(result["first_token"]["rate"])
        return self.question.rate

    def _environment(self, engine: str) -> dict[str, str]:
        """The variables of an engine: stock and V2 run the release's own files, without plugin."""
        made = dict(os.environ)
        made[_RUNNER] = "1" if engine == V2 else "0"
        if engine != OVERLAY:
            made["OVERLAY"] = "off"
            given = made.get("PYTHONPATH")
            stock = str(self.work / "stock")
            made["PYTHONPATH"] = f"{stock}{os.pathsep}{given}" if given else stock
        return append_path(made, self.code)


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Keyword arguments of ``vllm.LLM`` as arguments of ``vllm serve``."""
    words: list[str] = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", value if isinstance(value, str) else json.dumps(value)]
    return words
