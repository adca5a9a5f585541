"""How ``overlay bench`` starts an engine: its command, its variables and its memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlay.proof.commands.bench_report import OVERLAY, OVERLAY_V1, PLAIN
from overlay.proof.commands.pair import without_draft
from overlay.proof.commands.question import BenchQuestion, Budget, Part, Start
from overlay.proof.engine_pool import Job, append_path, as_stock
from overlay.proof.serving import ServingSpec
from overlay.proof.shapes import SHAPES, write_configs, write_tokenizer

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
