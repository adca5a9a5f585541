"""How ``overlay bench`` starts an engine: its command, its variables and its memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlay.proof.commands.budget import Budget, Part, Sharing, Start
from overlay.proof.commands.question import Question
from overlay.proof.commands.sharing import cache_of
from overlay.proof.engine_launch import append_path
from overlay.proof.engine_pool import Job
from overlay.proof.reports.benched import OVERLAY, V2
from overlay.proof.serving import ServingSpec
from overlay.proof.shape_memory import MAX_MODEL_LEN, MOST_SERVED
from overlay.proof.shapes import write_configs, write_tokenizer

_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


@dataclass(frozen=True)
class Launch:
    """Makes the jobs of one comparison; the fields are those of ``bench_engines.Stage``."""

    question: Question
    python: Path
    work: Path
    code: Path
    logs: Path
    budget: Budget
    sharing: Sharing

    def job(
        self,
        name: str,
        start: Start,
        rate: float | None,
        meeting: tuple[str, ...] = (),
        number: int = 0,
    ) -> Job:
        """An engine to be started.

        :param rate: of requests; see ``ServingSpec``.
        :param meeting: how it meets the others, and :param number: which of them it is; by default
            it is alone.
        """
        folder = self.work / name.replace(", ", "-").replace(" ", "-")
        folder.mkdir()
        out = folder / "result.json"
        steps = start.part is Part.STEPS
        words = self._steps(out) if steps else self._serving(folder, out, rate, number)
        log = self.logs / f"{folder.name}.log"
        environment = self._environment(start.engine)
        return Job(name, (str(self.python), "-m", *words, *meeting), environment, folder, log)

    def _steps(self, out: Path) -> tuple[str, ...]:
        asked, repeats = self.question, self.question.repeats
        seconds = self.budget.left
        if self.sharing.side_by_side:
            repeats *= asked.rounds
            # The servers measure after all rounds of this: they must not find the budget spent.
            seconds /= len(asked.schedule.parts)
        options: dict[str, object] = {
            "--k": asked.k,
            "--batch": ",".join(map(str, asked.batches)),
            "--mode": asked.mode,
            "--tokens": asked.tokens,
            "--repeats": repeats,
            "--accept": asked.acceptance,
            "--engine": json.dumps(self._memory(Part.STEPS) | json.loads(asked.engine)),
            "--seconds": round(seconds, 1),
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

    def _memory(self, part: Part) -> dict[str, Any]:
        """Arguments of an engine that say how much of the GPU is its own; empty: vLLM's choice.

        With a size of the KV cache vLLM measures no memory, and compares its utilization only with
        what is free when it starts.
        """
        if not self.sharing.side_by_side:
            return {}
        made: dict[str, Any] = {"gpu_memory_utilization": 0.1}
        if self.question.model is None:
            made["kv_cache_memory_bytes"] = cache_of(self.question, part)
        return made

    def _serving(self, folder: Path, out: Path, rate: float | None, number: int) -> tuple[str, ...]:
        spec = folder / "spec.json"
        spec.write_text(self._serving_spec(rate, number).to_json(), encoding="utf-8")
        return ("overlay.proof.serving", str(spec), str(out))

    def _serving_spec(self, rate: float | None, number: int) -> ServingSpec:
        asked = self.question
        speculative, arguments = asked.speculative, list[str]()
        model = asked.model
        if model is None:
            target, draft = write_configs(asked.shape, self.work / "configs" / asked.shape)
            write_tokenizer(asked.shape, target)
            model, speculative = str(target), {**(speculative or {}), "model": str(draft)}
            most = max(MOST_SERVED, *asked.concurrency)
            arguments += ["--load-format", "dummy", "--max-model-len", str(MAX_MODEL_LEN)]
            arguments += ["--max-num-seqs", str(most)]
            if not self.sharing.side_by_side:
                arguments += ["--gpu-memory-utilization", "0.6"]
            arguments += ["--compilation-config", json.dumps({"cudagraph_mode": asked.mode})]
        if speculative is not None:
            arguments += ["--speculative-config", json.dumps(speculative)]
        engine = self._memory(Part.SERVING) | json.loads(asked.engine)
        arguments += [*as_arguments(engine), *asked.arguments]
        return ServingSpec(
            model,
            tuple(arguments),
            asked.concurrency,
            asked.prompt,
            asked.answer,
            rate,
            None if asked.port is None else asked.port + number,
            round(self.budget.left, 1),
        )

    def _environment(self, engine: str) -> dict[str, str]:
        """The variables of an engine: stock and V2 run the release's own files, without plugin."""
        made = dict(os.environ)
        made[_RUNNER] = "1" if engine == V2 else "0"
        if self.sharing.side_by_side:
            # Engines that start at the same moment must not write the same files of a cache, nor
            # take each other's ports.
            made["VLLM_CACHE_ROOT"] = str(self.work / "compiled" / engine.replace(" ", "-"))
            made.pop("VLLM_PORT", None)
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
