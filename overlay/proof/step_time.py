"""Time one engine's step of speculative decoding, and write it as JSON, after each batch.

Runs inside an environment that holds vLLM and a GPU; which runner and which patch is decided by
whoever starts it (``commands.launch``).  With a shape, weights are dummies and acceptance is
synthetic, so nothing is downloaded and the tokens mean nothing.  ``repeats.read`` reads the result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from overlay.proof.engine_compat import active_features
from overlay.proof.engine_pool import write_result
from overlay.proof.oracle import token_ids
from overlay.proof.shapes import EAGLE3, SHAPES, Drafter, write_configs
from overlay.proof.verify_engine import parser_class

_PROMPT_TOKENS = 128
_EXTENSION = "overlay.proof.engine_compat.BenchExtension"
#: Runs until two in a row agree, at most.
_WARM_UPS = 6


def command_line(about: str | None) -> argparse.ArgumentParser:
    """The options of whatever times an engine's steps.

    :param about: the docstring of the program; its first line describes the command.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--k", type=int, default=3, help="draft tokens per step; 0: no drafts")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--mode", default="FULL_AND_PIECEWISE", help="target's cudagraph mode")
    parser.add_argument("--tokens", type=int, default=256, help="tokens per request and repeat")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--accept", type=float, default=2.5, help="synthetic mean acceptance length; 0: none"
    )
    parser.add_argument("--engine", default="{}", help="further LLM arguments, JSON")
    parser.add_argument("--arguments", default="[]", help="further engine arguments, a JSON list")
    parser.add_argument("--model", help="a model in the place of a shape; see --speculative")
    parser.add_argument("--speculative", default="{}", help="further speculative_config, JSON")
    parser.add_argument("--texts", type=Path, help="prompts, a list in JSON")
    parser.add_argument("--configs", type=Path, help="folder for the models' configurations")
    parser.add_argument("--wait", action="store_true", help="wait for a line on standard input")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--seconds", type=float, help="begin no further batch after so many")
    return parser


def llm_arguments(
    args: argparse.Namespace, batches: list[int], drafter: Drafter = EAGLE3
) -> dict[str, Any]:
    """The keyword arguments of ``vllm.LLM``, for a shape or for a model that somebody has."""
    speculative = json.loads(args.speculative)
    options: dict[str, Any] = {"model": args.model}
    if not args.model:
        options, own = _shape_arguments(args, max(batches), drafter)
        speculative = own | speculative
    if speculative:
        options["speculative_config"] = speculative
    options |= json.loads(args.engine) | parsed(json.loads(args.arguments))
    return options | {"disable_log_stats": False, "worker_extension_cls": _EXTENSION}


def _shape_arguments(
    args: argparse.Namespace, requests: int, drafter: Drafter
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keyword arguments for a shape, and its ``speculative_config``."""
    folder = args.configs / args.shape if args.configs else Path(tempfile.mkdtemp())
    target, draft = write_configs(args.shape, folder, drafter)
    options: dict[str, Any] = {
        "model": str(target),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 4096,
        "max_num_seqs": requests,
        "gpu_memory_utilization": 0.6,
        "compilation_config": {"cudagraph_mode": args.mode} if args.mode else {},
    }
    if not args.k:
        return options, {}
    speculative = {**drafter.speculative, "model": str(draft), "num_speculative_tokens": args.k}
    if args.accept:
        speculative["rejection_sample_method"] = "synthetic"
        speculative["synthetic_acceptance_length"] = args.accept
    return options, speculative


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Arguments of ``vllm serve`` as keyword arguments of ``vllm.LLM``, by vLLM's own parser.

    No ``EngineArgs`` are made of them: these would look for a default model, on the hub.
    """
    if not arguments:
        return {}
    from vllm.engine.arg_utils import EngineArgs

    parser = EngineArgs.add_cli_args(parser_class()(prog="vLLM"))
    values, defaults = (vars(parser.parse_args(words)) for words in (arguments, []))
    names = (field.name for field in fields(EngineArgs) if field.name in values)
    return {name: values[name] for name in names if values[name] != defaults[name]}


class Engine:
    """A running engine with its counters.

    :param options: the keyword arguments of ``vllm.LLM``.
    :param texts: prompts, which requests take in turn; empty: tokens that mean nothing.
    """

    #: Of the requests, which take the LoRA adapters in turn.
    temperature: float = 0.0
    adapters: Sequence[Any] = ()

    def __init__(self, options: dict[str, Any], texts: Sequence[str] = ()) -> None:
        from vllm import LLM, SamplingParams

        self.llm = LLM(**options)
        self._prompts = token_ids(self.llm.get_tokenizer(), texts) if texts else []
        self._sampling_params = SamplingParams
        self._vocabulary = self.llm.llm_engine.vllm_config.model_config.get_vocab_size()

    def counter(self, name: str) -> float:
        """One of vLLM's counters of speculative decoding."""
        name = f"vllm:spec_decode_{name}"
        values = (getattr(m, "value", 0) for m in self.llm.get_metrics() if m.name == name)
        return float(sum(values))

    def generate(self, size: int, tokens: int) -> float:
        """Seconds to generate that many tokens for each of ``size`` requests."""
        # Ids of a part of the vocabulary only, so that drafters with a smaller one have them, too.
        ids = min(30000, self._vocabulary - 10)
        own = self._prompts or [
            [(7 * i + 13 * j) % ids + 10 for j in range(_PROMPT_TOKENS)] for i in range(size)
        ]
        prompts = [{"prompt_token_ids": own[i % len(own)]} for i in range(size)]
        params = self._sampling_params(
            temperature=self.temperature, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        adapters = self.adapters
        request_adapters = [adapters[i % len(adapters)] for i in range(size)] if adapters else None
        start = time.perf_counter()
        # Ends with the tokens on the host.
        self.llm.generate(prompts, params, use_tqdm=False, lora_request=request_adapters)
        return time.perf_counter() - start

    def workers(self, method: str, *args: Any) -> list[Any]:
        """What each worker answers, by rank."""
        answers: list[Any] = self.llm.collective_rpc(method, args=args)
        return answers


class TimedEngine(Protocol):
    """What is asked of an engine that is timed."""

    def counter(self, name: str) -> float:
        """One of vLLM's counters of speculative decoding."""

    def generate(self, size: int, tokens: int) -> float:
        """Seconds to generate that many tokens for each of ``size`` requests."""


def warm_up(engine: TimedEngine, size: int, tokens: int) -> None:
    """Generate until two runs agree, or a few times."""
    before = None
    for _ in range(_WARM_UPS):
        seconds = engine.generate(size, tokens)
        if before is not None and abs(seconds - before) < 0.02 * before:
            return
        before = seconds


def repeat(engine: TimedEngine, size: int, tokens: int, count: int) -> list[tuple[float, float]]:
    """Of each of so many repeats its seconds and its engine steps.

    Without drafts a step gives each request a token, and the first tokens come with the prompts.
    """
    repeats = []
    for _ in range(count):
        before = engine.counter("num_drafts")
        seconds = engine.generate(size, tokens)
        drafted = (engine.counter("num_drafts") - before) / size
        repeats.append((seconds, drafted or float(tokens - 1)))
    return repeats


def milliseconds(repeats: list[tuple[float, float]]) -> list[float]:
    """The milliseconds per engine step of each repeat."""
    return [round(1000 * seconds / steps, 3) for seconds, steps in repeats]


def describe(worker: dict[str, Any], start: float) -> dict[str, Any]:
    """What an engine is.

    :param worker: as the first one describes itself; :param start: when the engine was started.
    """
    import torch
    import vllm

    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "start_s": round(time.perf_counter() - start, 1),
        "runner": worker["runner"],
        "draft_graphs": worker.get("draft_graphs"),
    }


def main() -> None:
    """Start one engine, time it at every batch size, write the result after each."""
    args = command_line(__doc__).parse_args()
    if args.wait and not sys.stdin.readline():
        sys.exit("whoever started this engine is gone")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    start = time.perf_counter()
    batches = [int(size) for size in args.batch.split(",")]
    texts = json.loads(args.texts.read_text(encoding="utf-8")) if args.texts else ()
    engine = Engine(llm_arguments(args, batches), texts)
    result = describe(engine.workers("bench_describe")[0], start)
    for size in batches:
        if args.seconds is not None and time.perf_counter() - start >= args.seconds:
            break
        warm_up(engine, size, args.tokens)
        repeats = repeat(engine, size, args.tokens, args.repeats)
        result[f"batch{size}"] = {"repeats_ms_per_step": milliseconds(repeats)}
        workers = engine.workers("bench_features")
        result["features"] = sorted(
            {*active_features(), *(id_ for each in workers for id_ in each)}
        )
        write_result(args.out, result)  # what is measured counts, also if a later batch is killed


if __name__ == "__main__":
    main()
