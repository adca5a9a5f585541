"""``overlay bench``: stock and the overlay in turn, on one GPU: step times and serving.

Every engine starts in each round, once for its step times and once as a server.  What the budget
does not allow (``question``) is left out; ``bench_report`` says what the repeats show.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from overlay.errors import OverlayError, UsageError
from overlay.proof.commands.bench_report import OVERLAY, OVERLAY_V1, PLAIN, BenchReport, benched
from overlay.proof.commands.installation import device_of, expect_device, interpreter, make_stock
from overlay.proof.commands.pair import Pair, expect_pair, pair_of, without_draft
from overlay.proof.commands.question import BenchQuestion, Budget, Part, Schedule, Start
from overlay.proof.commands.verify import prompt_lines, refuse_unknown_models
from overlay.proof.commands.verify_stage import failure_text
from overlay.proof.engine_pool import EngineEnd, Job, append_path, as_stock, link_packages, run_jobs
from overlay.proof.oracle import docstrings, questions
from overlay.proof.repeats import Gap, Quantity, Served, Timed, read, read_served
from overlay.proof.serving import ServingSpec
from overlay.proof.shapes import SHAPES, write_configs, write_tokenizer
from overlay.untrusted import parse_json

_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
#: Tokens of the longest request that a shape's server takes.
_MAX_MODEL_LEN = 4096
#: The requests that a shape's server serves at a time, unless more are asked for.
_MOST_SERVED = 256


@dataclass(frozen=True)
class Launch:
    """Makes the jobs of one comparison.

    :ivar work: an empty folder, but for ``stock``, the copy of the release's own files.
    :ivar code: a folder from which the engines import the overlay.
    :ivar logs: takes what the engines print.
    :ivar budget: has begun.
    :ivar texts: a file with the prompts of a model, a list in JSON; ``None`` for a shape.
    """

    question: BenchQuestion
    python: Path
    work: Path
    code: Path
    logs: Path
    budget: Budget
    texts: Path | None = None

    def job(self, name: str, start: Start, rate: float | None) -> Job:
        """An engine to be started.

        :param rate: of requests; see ``ServingSpec``.
        """
        folder = self.work / name.replace(", ", "-").replace(" ", "-")
        folder.mkdir()
        out = folder / "result.json"
        steps = start.part is Part.STEPS
        plain = start.engine.endswith(PLAIN)
        words = self._steps(out, plain) if steps else self._serving(folder, out, rate, plain)
        log = self.logs / f"{folder.name}.log"
        environment = self._environment(start.engine)
        return Job(name, (str(self.python), "-m", *words), environment, folder, log)

    def _steps(self, out: Path, plain: bool) -> tuple[str, ...]:
        question = self.question
        options: dict[str, object] = {
            "--k": 0 if plain else question.k,
            "--batch": ",".join(map(str, question.batches)),
            "--mode": question.mode or "",
            "--tokens": question.tokens,
            "--repeats": question.repeats,
            "--accept": question.acceptance,
            "--engine": json.dumps(self._options(plain)),
            "--seconds": round(self.budget.remaining, 1),
            # The same folder for all: a later engine uses what an earlier one has compiled.
            "--configs": self.work / "configs",
            "--out": out,
            "--shape": question.shape,
            "--arguments": json.dumps(self._arguments(plain)),
        }
        if question.model is not None:
            options["--model"] = question.model
            options["--speculative"] = json.dumps({} if plain else question.speculative or {})
            options["--texts"] = self.texts
        words = [str(word) for option in options.items() for word in option]
        return ("overlay.proof.step_time", "--wait", *words)

    def _options(self, plain: bool) -> dict[str, Any]:
        """The keyword arguments of ``--engine``; without a draft where ``plain``."""
        options: dict[str, Any] = json.loads(self.question.engine)
        return {k: v for k, v in options.items() if not plain or k != "speculative_config"}

    def _arguments(self, plain: bool) -> tuple[str, ...]:
        """The user's engine arguments; without a draft where ``plain``."""
        return without_draft(self.question.arguments) if plain else self.question.arguments

    def _serving(self, folder: Path, out: Path, rate: float | None, plain: bool) -> tuple[str, ...]:
        spec = folder / "spec.json"
        spec.write_text(self._serving_spec(rate, plain).to_json(), encoding="utf-8")
        return ("overlay.proof.serving", str(spec), str(out))

    def _serving_spec(self, rate: float | None, plain: bool) -> ServingSpec:
        question = self.question
        speculative, arguments = question.speculative, list[str]()
        model = question.model
        if model is None:
            target, draft = write_configs(question.shape, self.work / "configs" / question.shape)
            write_tokenizer(SHAPES[question.shape]["vocab_size"], target)
            model, speculative = str(target), {**(speculative or {}), "model": str(draft)}
            most = max(_MOST_SERVED, *question.concurrency)
            arguments += ["--load-format", "dummy", "--max-model-len", str(_MAX_MODEL_LEN)]
            arguments += ["--max-num-seqs", str(most)]
            arguments += ["--gpu-memory-utilization", "0.6"]
            if question.mode:
                mode = {"cudagraph_mode": question.mode}
                arguments += ["--compilation-config", json.dumps(mode)]
        if speculative is not None and not plain:
            arguments += ["--speculative-config", json.dumps(speculative)]
        arguments += [*as_arguments(self._options(plain)), *self._arguments(plain)]
        return ServingSpec(
            model,
            tuple(arguments),
            question.concurrency,
            question.prompt,
            question.answer,
            rate,
            question.port,
            round(self.budget.remaining, 1),
            None if self.texts is None else str(self.texts),
        )

    def _environment(self, engine: str) -> dict[str, str]:
        """The variables of an engine: stock and V2 run the release's own files, without plugin."""
        variables = dict(os.environ)
        runner = self.question.runner_of(engine)
        if runner is not None:
            variables[_RUNNER] = runner
        if engine.removesuffix(PLAIN) not in (OVERLAY, OVERLAY_V1):
            variables = as_stock(variables, self.work / "stock")
        return append_path(variables, self.code)


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


#: Passages that a model is asked about, five questions each: more than several runs have requests.
_PASSAGES = 1600


def bench(
    question: BenchQuestion,
    on_engine: Callable[[str, float | None], None],
    on_plan: Callable[[Schedule], None],
    on_remark: Callable[[str], None],
) -> BenchReport:
    """Run the engines and compare their repeats.

    :param on_engine: is called with the title of an engine, and ``None`` or the seconds it took.
    :param on_plan: is called once, before the first engine starts.
    :param on_remark: takes a sentence that the user should read before the engines have ended.
    :raises UsageError: if the arguments do not go together, or name models that are not there.
    :raises OverlayError: if vLLM is not patched, or the question's reference or the overlay
        does not serve; then the logs of the engines are kept and named.
    """
    budget = Budget(question.budget)
    check_question(question)
    pair = _pair(question)
    remark = expect_pair(pair)
    if remark is not None:
        on_remark(remark)

    def on_end(engine: str, seconds: float | None) -> None:
        on_engine(engine, seconds)
        if seconds is not None:
            expect_pair(pair)  # what vLLM has downloaded can be read now

    expect_device(device_of(question.python, (*question.arguments, question.engine)), "bench")
    python = interpreter(question.python)
    with tempfile.TemporaryDirectory(prefix="overlay-bench-") as folder:
        work = Path(folder)
        make_stock(None if question.python is None else str(python), work / "stock")
        texts = _texts(question)
        on_plan(question.schedule)
        with _logs(question.logs) as logs:
            code = link_packages(work / "code")
            place = work / "texts.json" if texts else None
            if place is not None:
                place.write_text(json.dumps(texts), encoding="utf-8")
            launch = Launch(question, python, work, code, logs, budget, place)
            return BenchStage(launch, on_end).measure()


def check_question(question: BenchQuestion) -> None:
    """Refuse what cannot be meant.

    :raises UsageError: naming what was expected and what was found.
    """
    if question.model is None:
        draft_options = {"--draft": question.draft, "--method": question.method}
        options = [option for option, value in draft_options.items() if value is not None]
        if options:
            raise UsageError(
                f"{' and '.join(options)}: expected --model as well, found none; a --shape has a "
                "draft of its own"
            )
    elif question.drafts != "without" or question.draft is not None:
        refuse_unknown_models(question.model, question.draft, question.arguments)
    if question.model is None and question.prompts is not None:
        raise UsageError("--prompts: expected --model as well; a --shape is asked random tokens")
    if question.prompts is not None:
        prompt_lines(question.prompts)
    if question.v1 and question.against != "default":
        raise UsageError(
            f"--v1 and --against {question.against} both choose engines: give one of them"
        )
    try:
        options = parse_json(question.engine)
    except ValueError as error:
        raise UsageError(f"--engine: expected an object in JSON, found no JSON: {error}") from error
    if not isinstance(options, dict):
        raise UsageError(f"--engine: expected an object in JSON, found {question.engine}")
    for option, place in (("--html", question.page), ("--svg", question.plot)):
        if place is not None and not place.absolute().parent.is_dir():
            raise UsageError(f"{option} {place}: expected a file in a folder, there is no folder")


def _pair(question: BenchQuestion) -> Pair | None:
    """The user's own model and its draft, where any engine has it."""
    if question.drafts == "without":
        return None
    return pair_of(question.model, question.draft, question.method, question.arguments)


def _texts(question: BenchQuestion) -> tuple[str, ...]:
    """What a model is asked; empty for a shape."""
    if question.model is None:
        return ()
    if question.prompts is not None:
        return prompt_lines(question.prompts)
    return tuple(each.text for each in questions(0, islice(docstrings(), _PASSAGES)))


@contextmanager
def _logs(folder: Path | None) -> Iterator[Path]:
    """The folder for what engines print; where one fails, it is kept, and the error names it.

    :param folder: the user's own, which is kept in any case; ``None``: one that is made.
    """
    logs = folder or Path(tempfile.mkdtemp(prefix="overlay-bench-logs-"))
    logs.mkdir(parents=True, exist_ok=True)
    keep = folder is not None
    try:
        yield logs.resolve()
    except OverlayError as error:
        keep = True
        raise OverlayError(f"{error}\nwhat the engines printed is in {logs}") from error
    finally:
        if not keep:
            shutil.rmtree(logs)


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
