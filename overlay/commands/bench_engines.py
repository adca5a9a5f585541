"""The engines of ``overlay bench``: which run, in which order, with what, and until when.

Rounds follow each other.  In each, every engine runs once for its step times and once as a server,
in an order that moves on by one.  A round that would take longer than what is left of the budget
is left out, and the report says so.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from overlay.commands.verify_failures import told_of
from overlay.errors import OverlayError
from overlay.proof.engine_launch import append_path
from overlay.proof.engine_pool import Ended, Job, run_jobs
from overlay.proof.repeats import Served, Timed, order, read, read_served
from overlay.proof.serving import ServingSpec
from overlay.proof.shapes import DRAFTERS, write_configs, write_tokenizer
from overlay.report.benched import OVERLAY, STOCK, V2
from overlay.untrusted import read_regular

_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_ENGINES = (STOCK, OVERLAY, V2)


class Part(str, Enum):
    """What is measured of an engine; each in a process of its own."""

    STEPS = "steps"
    SERVING = "serving"


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
    :ivar budget: seconds for all rounds; the first is run in any case.
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

    :ivar left: why an engine was left out, by name; :ivar notes: what else was left out.
    """

    timed: tuple[Timed, ...]
    served: tuple[Served, ...]
    left: Mapping[str, str]
    notes: tuple[str, ...]


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


@dataclass
class Stage:
    """The place where the engines of one comparison run.

    :ivar work: an empty folder, but for ``stock``, the copy of the release's own files.
    :ivar code: a folder from which the engines import the overlay.
    :ivar logs: takes what the engines print.
    :ivar told: is called with the title of an engine, and ``None`` or the seconds it took.
    """

    question: Question
    python: Path
    work: Path
    code: Path
    logs: Path
    told: Callable[[str, float | None], None]
    _found: dict[tuple[Part, str], list[Mapping[str, Any]]] = field(default_factory=dict)
    _left: dict[str, str] = field(default_factory=dict)

    def measure(self) -> Measured:
        """Run the rounds.

        :raises OverlayError: if stock V1 or the overlay does not serve.
        """
        parts = tuple(Part) if self.question.only is None else (self.question.only,)
        notes = self._rounds(parts)
        kept = [name for name in _ENGINES if name not in self._left]

        def results(part: Part) -> list[tuple[str, list[Mapping[str, Any]]]]:
            return [(name, self._found[part, name]) for name in kept if part in parts]

        timed = tuple(read(name, found) for name, found in results(Part.STEPS))
        served = tuple(read_served(name, found) for name, found in results(Part.SERVING))
        return Measured(timed, served, self._left, notes)

    def _rounds(self, parts: tuple[Part, ...]) -> tuple[str, ...]:
        began = time.monotonic()
        for number in range(self.question.rounds):
            round_began = time.monotonic()
            for part in parts:
                for engine in order(_ENGINES, number):
                    if engine not in self._left:
                        self._run(part, engine, number)
            took, spent = time.monotonic() - round_began, time.monotonic() - began
            left = self.question.rounds - number - 1
            if left and spent + took > self.question.budget:
                rounds = "1 round was" if left == 1 else f"{left} rounds were"
                note = (
                    f"{rounds} left out: one more takes about {took:.0f} s, and {spent:.0f} s of "
                    f"--budget {self.question.budget:g} are spent"
                )
                return (note,)
        return ()

    def _run(self, part: Part, engine: str, number: int) -> None:
        """Run one engine, and keep what it gave.

        :raises OverlayError: if it did not serve, and is not V2.
        """
        ended = self._ended(part, engine, number)
        if ended.result is not None and ended.status == 0:
            self._found.setdefault((part, engine), []).append(ended.result)
        elif engine == V2:
            self._left[V2] = told_of(ended)
        else:
            raise OverlayError(f"{engine}, {part.value}: {told_of(ended)}")

    def _ended(self, part: Part, engine: str, number: int) -> Ended:
        name = f"{engine}, {part.value}, round {number + 1}"
        folder = self.work / name.replace(", ", "-").replace(" ", "-")
        folder.mkdir()
        out = folder / "result.json"
        words = self._steps(out) if part is Part.STEPS else self._serving(folder, out)
        log = self.logs / f"{folder.name}.log"
        job = Job(name, (str(self.python), "-m", *words), self._environment(engine), folder, log)

        def told(job: Job, ended: Ended | None) -> None:
            self.told(job.name, None if ended is None else ended.seconds)

        deadline = self.question.deadline
        return run_jobs([job], at_a_time=1, deadline=deadline, told=told)[name]

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
