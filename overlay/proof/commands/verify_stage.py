"""The engines of ``overlay verify``: their models, how each is started, and what became of it.

Of an engine that could not be compared: why, and what the user can do.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from overlay.errors import OverlayError, UsageError, command
from overlay.proof import verify_engine
from overlay.proof.engine_compat import GraphMode, runner_environment
from overlay.proof.engine_pool import (
    EngineEnd,
    Job,
    WriterFailed,
    append_path,
    as_stock,
    run_jobs,
    write_models,
)
from overlay.proof.oracle import LIVE, EngineRequest, Rule, make_rule, tiny_requests
from overlay.proof.tiny_drafters import LEAST_PROMPT, VOTERS, following, voters_rule
from overlay.proof.verification import EngineRun, ModeOutcome, ModeResult, judged
from overlay.proof.verify_engine import VerifySpec
from overlay.results import ModelRunner
from overlay.untrusted import printable

#: vLLM's arguments for the tiny models.  Some requests are preempted: the KV cache is too small for
#: all.  A small share of the memory must be free, so that several engines fit beside each other.
_ARGUMENTS: dict[str, str | int | float | None] = {
    "--skip-tokenizer-init": None,
    "--dtype": "bfloat16",
    "--seed": 0,
    "--block-size": 16,
    "--num-gpu-blocks-override": 26,
    "--max-model-len": 128,
    "--max-num-seqs": LIVE,
    "--max-num-batched-tokens": 512,
    "--gpu-memory-utilization": 0.05,
    "--kv-cache-memory-bytes": 1 << 28,
    "--no-enable-prefix-caching": None,
}
#: The same on a CPU, whose attention takes blocks of 32 tokens and multiples of it.  To compile the
#: models takes most of an engine's time there, and captures nothing.
_CPU_ARGUMENTS: dict[str, str | int | float | None] = {
    "--enforce-eager": None,
    "--block-size": 32,
    "--num-gpu-blocks-override": 13,
}


class ModelSet(NamedTuple):
    """Models that are served in several modes.

    :ivar name: empty where there is one set.
    :ivar answer: the rule and the requests where the answer is known beforehand.
    :ivar modes: those with graphs; empty: the engine without graphs tells.
    """

    name: str
    spec: VerifySpec
    answer: tuple[Rule, Sequence[EngineRequest]] | None = None
    modes: tuple[GraphMode, ...] = ()


class _TinyDraft(NamedTuple):
    """One of the drafts.

    :ivar writer: the module that writes it; :ivar folder: the folder of its models below the rest.
    :ivar model: its name there; :ivar k: draft tokens a step.
    :ivar modes: those that differ for it.
    """

    writer: str
    folder: str
    model: str
    k: int
    speculative: dict[str, Any]
    modes: tuple[GraphMode, ...]
    one_pass: bool = False


_EAGLE: dict[str, Any] = {"method": "eagle3"}
#: By name: what depends most on what a pass hands on to the next; what reads the past through the
#: tokens that it is given; and what drafts all tokens in one pass.
DRAFTS = {
    "eagle3hid": _TinyDraft(
        "tiny_models",
        "eagle3",
        "eagle3hid",
        5,
        _EAGLE,
        (GraphMode.OFF, GraphMode.STEP, GraphMode.LOOP),
    ),
    "eagle3": _TinyDraft(
        "tiny_models", "eagle3", "eagle3", 5, _EAGLE, (GraphMode.STEP, GraphMode.LOOP)
    ),
    "p-eagle": _TinyDraft(
        "tiny_drafters",
        "drafters",
        "peagle",
        3,
        {**_EAGLE, "parallel_drafting": True},
        (GraphMode.OFF, GraphMode.WHOLE),
        one_pass=True,
    ),
}
#: What a CPU serves: few engines, since each takes a minute and all cores.
_ON_CPU = {"eagle3hid": (GraphMode.OFF, GraphMode.WHOLE), "p-eagle": (GraphMode.WHOLE,)}


def tiny_sets(
    python: Path,
    folder: Path,
    arguments: Sequence[str],
    modes: Sequence[GraphMode],
    only: str | None = None,
    on_cpu: bool = False,
    whole: bool = False,
) -> list[ModelSet]:
    """Make the models; the sets that have any of the modes with graphs.

    :param python: an interpreter with PyTorch.
    :param folder: where to write them.
    :param arguments: the user's own arguments of vLLM, which win.
    :param modes: those to run; empty: all, with the one without graphs.
    :param only: the name of the only draft that is meant; ``None`` for all.
    :param on_cpu: whether there are no graphs, so that each draft is served as the overlay leaves
        it to upstream, and one of them without the overlay's part as well.
    :param whole: whether stock and the overlay are compared; P-EAGLE is V1's alone.
    :raises UsageError: if no draft of that name has any of the modes.
    :raises OverlayError: if the models cannot be made.
    """
    sets = []
    for name, draft in DRAFTS.items():
        own_modes = tuple(mode for mode in draft.modes if not modes or mode in modes)
        if whole:
            own_modes = () if draft.one_pass else (GraphMode.STOCK, GraphMode.OVERLAY)
        elif on_cpu:
            own_modes = _ON_CPU.get(name, ())
        if only not in (None, name) or not set(own_modes) - {GraphMode.OFF}:
            continue
        _write(python, folder / draft.folder, draft.writer)
        rule = voters_rule() if draft.one_pass else make_rule()
        requests = tiny_requests(rule.vocab)
        if draft.one_pass:
            requests = following(rule, tiny_requests(VOTERS, LEAST_PROMPT))
        spec = replace(_spec(folder, draft, arguments, on_cpu=on_cpu), requests=requests)
        sets.append(ModelSet(name, spec, (rule, requests), own_modes))
    if not sets:
        served = f"on a CPU one of the drafts {', '.join(_ON_CPU)}"
        if whole:
            names = ", ".join(name for name, draft in DRAFTS.items() if not draft.one_pass)
            served = f"one of the drafts {names} to compare the overlay with stock"
        elif not on_cpu:
            served = f"one of the drafts {', '.join(DRAFTS)}, and a mode that it has"
        mode = f" and {', '.join(mode.shown for mode in modes)}" if modes else ""
        raise UsageError(f"expected with --tiny {served}, found --draft {only}{mode}")
    return sets


def _spec(
    folder: Path, draft: _TinyDraft, arguments: Sequence[str], *, on_cpu: bool = False
) -> VerifySpec:
    """What the engines of a draft are started with, without what they serve."""
    models = folder / draft.folder / ("parallel" if draft.one_pass else "")
    words = ["--model", str(models / "target")]
    for name, value in (_ARGUMENTS | (_CPU_ARGUMENTS if on_cpu else {})).items():
        words += [name] if value is None else [name, str(value)]
    config = {
        **draft.speculative,
        "model": str(models / draft.model),
        "num_speculative_tokens": draft.k,
    }
    words += ["--speculative-config", json.dumps(config)]
    return VerifySpec((*words, *arguments))


def _write(python: Path, folder: Path, writer: str) -> None:
    try:
        write_models(python, folder, f"overlay.proof.{writer}", os.environ)
    except WriterFailed as error:
        printed = [line for line in error.output.splitlines() if line.strip()]
        last = f" ({printable(printed[-1].strip())})" if printed else ""
        raise OverlayError(
            f"expected {python} to write the tiny models, found exit status {error.status}"
            f"{last}: it must be the Python that vLLM is installed in, with PyTorch and "
            "safetensors; name it with --python"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise OverlayError(
            f"expected {python} to write the tiny models within {error.timeout:.0f} s, found that "
            "it had not; name the Python that vLLM is installed in with --python"
        ) from error


#: The last line of a traceback, which PyTorch and vLLM's workers write with a prefix.
_RAISED = re.compile(r"(?:.*\] ?|.*: )?([\w.]*(?:Error|Exception|Refused|Mismatch)\b(?::.*)?)$")
#: What vLLM says of an error that another of its processes has printed.
_ELSEWHERE = "See root cause above"
#: Parts of what vLLM and PyTorch say where memory is short -> what the user can do.
_MEMORY = (
    "out of memory",
    "less than desired GPU memory utilization",
    "No available memory for the cache blocks",
    "larger than the available KV cache memory",
    "larger than the maximum number of tokens that can be stored in KV cache",
)
_MEMORY_HELP = (
    "the GPU is too small for these engines, or another process holds its memory: give vLLM a "
    "smaller --max-model-len or --max-num-seqs, or another --gpu-memory-utilization behind --"
)
#: The same of a port.
_PORT = ("Address already in use", "EADDRINUSE")
_PORT_HELP = (
    "a port that the engine was told to use is taken: end what holds it, or unset VLLM_PORT and "
    "MASTER_PORT so that the engine takes a free one"
)
#: What vLLM says where another process gave memory back while it measured what it needs itself.
_UNSTEADY = "release GPU memory while vLLM is profiling"
_UNSTEADY_HELP = (
    "another process of this GPU ended or gave memory back meanwhile: run it again alone"
)
_LINES = 15


def usable(ended: EngineEnd) -> EngineRun:
    """The run of an engine that served.

    :raises OverlayError: if it did not: with what it said, and what the user can do.
    """
    if ended.result is not None and "problem" not in ended.result:
        return EngineRun.read(ended.result)
    raise OverlayError(failure_text(ended))


def raised_by(ended: EngineEnd, *, with_graphs: bool) -> str | None:
    """Why an engine with draft graphs died; ``None`` where it served.

    :raises OverlayError: if the engine has no graphs, or can have none, whatever the mode.
    """
    if ended.result is not None and "problem" not in ended.result:
        return None
    kind = None if ended.result is None else str(ended.result["problem"])
    text = failure_text(ended)
    if with_graphs and (kind is None or kind == verify_engine.RAISED) and _UNSTEADY not in text:
        return text
    raise OverlayError(text)


def _fixed_help(kind: str) -> str:
    if kind == verify_engine.NOT_PATCHED:
        return f"run {command('apply')}, then {command('status')}"
    if kind == verify_engine.NO_DRAFTER:
        return "name a draft with --draft, or --speculative-config behind --"
    if kind == verify_engine.NOT_STOCK:
        return (
            "a folder before it on the import path, or OVERLAY, brings the overlay in: unset "
            "PYTHONPATH, or name the environment with --python"
        )
    return ""


def failure_text(ended: EngineEnd) -> str:
    """What an engine that did not serve said, and what the user can do."""
    last = "\n".join(ended.log.rstrip().splitlines()[-_LINES:])
    cause = _cause(ended.log)
    # An engine that died or was killed may have measured something, and says no problem.
    if ended.result is not None and "problem" in ended.result:
        text, kind = str(ended.result["text"]), str(ended.result["problem"])
        help_ = _fixed_help(kind) or _help(f"{text}\n{ended.log}")
        if kind == verify_engine.NOT_SERVED:
            text = "\n".join(filter(None, (text, "" if cause in last else cause, last)))
        return printable(f"{text}{'; ' + help_ if help_ else ''}", lines=True)
    if ended.status is None:
        how = f"did not end within {ended.seconds:.0f} s and was killed (--deadline)"
    elif ended.status < 0:
        how = f"was ended by signal {-ended.status}"
    else:
        measured = "no result" if ended.result is None else "a part of its result"
        how = f"ended with status {ended.status} and {measured}"
    why = f": {cause}" if cause else ""
    help_ = _help(ended.log)
    return printable(
        f"the engine {how}{why}{'; ' + help_ if help_ else ''}\nits last lines:\n{last}", lines=True
    )


def _cause(log: str) -> str:
    """The last error of a log that says what went wrong; empty where there is none.

    The process that others have failed under only says that it is somewhere above.
    """
    lines = [match[1] for match in map(_RAISED.match, log.splitlines()) if match]
    causes = [line for line in lines if _ELSEWHERE not in line]
    return (causes or lines or [""])[-1]


def _help(output: str) -> str:
    """What the user can do; vLLM has no codes for these, so its sentences are looked for."""
    if any(part in output for part in _MEMORY):
        return _MEMORY_HELP
    if _UNSTEADY in output:
        return _UNSTEADY_HELP
    return _PORT_HELP if any(part in output for part in _PORT) else ""


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
