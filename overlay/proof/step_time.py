"""Time one engine's step of speculative decoding on dummy weights, and print it as JSON.

Runs inside an environment that holds vLLM and a GPU; which runner, which patch and which
draft-graph mode is decided by whoever starts it (see ``bench/compare.py``).  Weights are
dummies and acceptance is synthetic, so nothing is downloaded and the tokens mean nothing.

The last line of standard output is ``RESULT {...}``: per batch size the median milliseconds per
engine step, the repeats, and the host milliseconds inside the runner and the drafter; with
``--profile`` also the GPU's milliseconds and the launches per step, with ``--memory`` what the
graphs and the KV cache take, and with ``--sample`` where the host's time goes, by function.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from overlay.proof import measuring, sampling
from overlay.proof.meeting import Meeting
from overlay.proof.shapes import ADAPTER_RANK, DRAFTERS, SHAPES, write_adapters, write_configs
from overlay.proof.verify_engine import parser_class

_PROMPT_TOKENS = 128


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--drafter", choices=DRAFTERS, default="eagle3")
    parser.add_argument("--k", type=int, default=3, help="draft tokens per step")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--mode", default="FULL_AND_PIECEWISE", help="target's cudagraph mode")
    parser.add_argument("--tokens", type=int, default=256, help="tokens per request and repeat")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--accept", type=float, default=2.5, help="synthetic mean acceptance length; 0: none"
    )
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--engine", default="{}", help="further LLM arguments, JSON")
    parser.add_argument("--arguments", default="[]", help="further engine arguments, a JSON list")
    parser.add_argument("--model", help="a model in the place of a shape; see --speculative")
    parser.add_argument("--speculative", default="{}", help="further speculative_config, JSON")
    parser.add_argument("--profile", action="store_true", help="GPU time and launches, batch 1")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="keep the profile's trace (gz)")
    parser.add_argument("--memory", action="store_true", help="what graphs and KV cache take")
    parser.add_argument("--functions", action="store_true", help="host time by function (cProfile)")
    parser.add_argument("--sample", type=Path, metavar="FILE", help="stacks sampled at batch 1")
    parser.add_argument("--sampler", choices=("auto", "py-spy", "signal"), default="auto")
    parser.add_argument("--py-spy", metavar="PROGRAM", help="default: the one on the path")
    parser.add_argument("--sample-seconds", type=float, default=8)
    parser.add_argument("--sample-rate", type=int, default=500)
    parser.add_argument("--cores", help="CPU cores to stay on, separated by commas")
    parser.add_argument("--meet", type=Path, help="folder where engines side by side meet")
    parser.add_argument("--party", type=int, default=0)
    parser.add_argument("--parties", type=int, default=1)
    parser.add_argument("--configs", type=Path, help="folder for the models' configurations")
    parser.add_argument("--wait", action="store_true", help="wait for a line on standard input")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the last RESULT there too")
    parser.add_argument("--turns", type=int, default=0, help="measure in so many turns")
    parser.add_argument("--seconds", type=float, help="begin no further batch after so many")
    return parser.parse_args()


def llm_arguments(args: argparse.Namespace, batches: list[int]) -> dict[str, Any]:
    """The keyword arguments of ``vllm.LLM``."""
    if args.model:
        return own_arguments(args)
    folder = args.configs / args.shape if args.configs else Path(tempfile.mkdtemp())
    target, draft = write_configs(args.shape, folder, args.drafter)
    drafter = DRAFTERS[args.drafter]
    options: dict[str, Any] = {
        "model": str(target),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 4096,
        "max_num_seqs": max(batches),
        "gpu_memory_utilization": 0.6,
        "tensor_parallel_size": args.tensor_parallel,
        "disable_log_stats": False,
        "compilation_config": {"cudagraph_mode": args.mode},
        "worker_extension_cls": "overlay.proof.engine_side.BenchExtension",
        "speculative_config": {
            **drafter.speculative,
            "model": str(draft),
            "num_speculative_tokens": args.k,
        },
    }
    if args.accept:
        options["speculative_config"] |= {
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": args.accept,
        }
    if drafter.adapters:
        options |= {
            "enable_lora": True,
            "max_loras": drafter.adapters,
            "max_lora_rank": ADAPTER_RANK,
        }
    options["speculative_config"] |= json.loads(args.speculative)
    options.update(json.loads(args.engine))
    return options | parsed(json.loads(args.arguments))


def own_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of ``vllm.LLM`` for a model that somebody has."""
    options: dict[str, Any] = {"model": args.model}
    speculative = json.loads(args.speculative)
    if speculative:
        options["speculative_config"] = speculative
    options |= json.loads(args.engine)
    options |= parsed(json.loads(args.arguments))
    return options | {
        "disable_log_stats": False,
        "worker_extension_cls": "overlay.proof.engine_side.BenchExtension",
    }


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Arguments of ``vllm serve`` as keyword arguments of ``vllm.LLM``, by vLLM's own parser.

    No ``EngineArgs`` are made of them: these would look for a default model, on the hub.
    """
    if not arguments:
        return {}
    from vllm.engine.arg_utils import EngineArgs

    parser = EngineArgs.add_cli_args(parser_class()(prog="vLLM"))
    given, plain = (vars(parser.parse_args(words)) for words in (arguments, []))
    names = (field.name for field in fields(EngineArgs) if field.name in given)
    return {name: given[name] for name in names if given[name] != plain[name]}


class Engine:
    """A running engine with its counters.

    :param adapters: folders of LoRA adapters, which the requests take in turn.
    :param temperature: of the requests.
    """

    def __init__(
        self, options: dict[str, Any], adapters: list[Path], temperature: float = 0.0
    ) -> None:
        from vllm import LLM, SamplingParams

        self.llm = LLM(**options)
        self._sampling_params = SamplingParams
        self._temperature = temperature
        self._vocabulary = self.llm.llm_engine.vllm_config.model_config.get_vocab_size()
        self._adapters: list[Any] = []
        if adapters:
            from vllm.lora.request import LoRARequest

            self._adapters = [
                LoRARequest(place.name, number, str(place))
                for number, place in enumerate(adapters, 1)
            ]

    def counter(self, name: str) -> float:
        """One of vLLM's counters of speculative decoding."""
        name = f"vllm:spec_decode_{name}"
        values = (getattr(m, "value", 0) for m in self.llm.get_metrics() if m.name == name)
        return float(sum(values))

    def generate(self, size: int, tokens: int) -> float:
        """Seconds to generate that many tokens for each of ``size`` requests."""
        # Ids of a part of the vocabulary only, so that drafters with a smaller one have them, too.
        known = min(30000, self._vocabulary - 10)
        prompts = [
            {"prompt_token_ids": [(7 * i + 13 * j) % known + 10 for j in range(_PROMPT_TOKENS)]}
            for i in range(size)
        ]
        params = self._sampling_params(
            temperature=self._temperature, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        adapters = self._adapters
        chosen = [adapters[i % len(adapters)] for i in range(size)] if adapters else None
        begun = time.perf_counter()
        # Ends with the tokens on the host.
        self.llm.generate(prompts, params, use_tqdm=False, lora_request=chosen)
        return time.perf_counter() - begun

    def workers(self, method: str, *args: Any) -> list[Any]:
        """What each worker answers, by rank."""
        answers: list[Any] = self.llm.collective_rpc(method, args=args)
        return answers


def profiles(engine: Engine, args: argparse.Namespace, pid: int) -> dict[str, Any]:
    """What each of the profilers that were asked for says of batch 1."""
    result: dict[str, Any] = {}
    if args.sample:
        result["sampled"] = sampled(engine, args, pid)
    if args.profile or args.trace:
        drafts = engine.counter("num_drafts")
        engine.workers("bench_profile")
        engine.generate(1, 100)
        steps = engine.counter("num_drafts") - drafts
        kept = args.trace and str(args.trace.resolve())
        result |= engine.workers("bench_profiled", steps, kept)[0]
    if args.functions:
        result["host_functions_ms_per_step"] = host_functions(engine)
    return result


def sampled(engine: Engine, args: argparse.Namespace, pid: int) -> dict[str, Any]:
    """The folded stacks of the process that holds the runner, or why there are none."""
    try:
        return sampling.sample(
            args.sample.resolve(),
            sampler=args.sampler,
            py_spy=args.py_spy,
            pid=None if pid == os.getpid() else pid,
            seconds=args.sample_seconds,
            rate=args.sample_rate,
            work=lambda: engine.generate(1, 1024),  # so long that the prompts hardly count
            steps=lambda: engine.counter("num_drafts"),
        )
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        return {"failed": str(error)}


def host_functions(engine: Engine) -> dict[str, float]:
    """Cumulative host milliseconds per step of vLLM's most expensive functions, from cProfile."""
    import cProfile
    import pstats

    drafts = engine.counter("num_drafts")
    profiler = cProfile.Profile()
    profiler.runcall(engine.generate, 1, 256)
    steps = engine.counter("num_drafts") - drafts
    # Not documented, and so without a type; the documented way joins functions of one name.
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    rows = {
        f"{Path(file).name}:{line}:{name}": 1000 * cumulative / steps
        for (file, line, name), (_, _, _, cumulative, _) in stats.items()
        if "vllm" in file
    }
    top = sorted(rows.items(), key=lambda row: -row[1])[:60]
    return {name: round(value, 4) for name, value in top}


def prepare(args: argparse.Namespace) -> None:
    """Everything that must be set before vLLM is imported."""
    if args.cores:
        os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})
    if args.tensor_parallel == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def keep(out: Path | None, result: dict[str, Any]) -> None:
    """Write the result whole, or leave the one before; nothing where no file was asked for."""
    if out is not None:
        made = out.with_name(f"{out.name}.new")
        made.write_text(json.dumps(result), encoding="utf-8")
        made.replace(out)


def main() -> None:
    """Start one engine, time it at every batch size, print the RESULT line."""
    # Over fifty lines: one sequence, whose middle is the table of what the result says.
    args = arguments()
    if args.wait and not sys.stdin.readline():
        sys.exit("whoever started this engine is gone")
    prepare(args)
    meeting = Meeting(args.meet, args.party, args.parties)
    begun = time.perf_counter()
    import torch
    import vllm

    batches = [int(size) for size in args.batch.split(",")]
    drafter = DRAFTERS[args.drafter]
    options = llm_arguments(args, batches)
    adapters: list[Path] = []
    if drafter.adapters:
        adapters = write_adapters(args.shape, Path(options["model"]).parent, drafter.adapters)
    engine = Engine(options, adapters, drafter.temperature)
    workers = engine.workers("bench_watch")
    on_gpu = torch.cuda.is_available()
    result: dict[str, Any] = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0) if on_gpu else "none",
        "shape": args.model or args.shape,
        "drafter": args.drafter,
        "k": args.k,
        "cudagraph_mode": args.mode,
        "tensor_parallel": args.tensor_parallel,
        "cores": len(os.sched_getaffinity(0)),
        "start_s": round(time.perf_counter() - begun, 1),
        "runner": workers[0]["runner"],
        "draft_graphs": workers[0].get("draft_graphs"),
    }
    if args.memory:
        announced = engine.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
        result["memory"] = {
            "kv_blocks_announced": announced,
            "workers": engine.workers("bench_memory"),
        }
    given = (args.tokens, args.repeats)

    def over() -> bool:
        return args.seconds is not None and time.perf_counter() - begun >= args.seconds

    def keep_turns(times: dict[int, dict[str, Any]]) -> None:
        result.update({f"batch{size}": figures for size, figures in times.items()})
        keep(args.out, result)  # what is measured counts, also if this is killed later

    if args.turns:
        turns = (args.turns, meeting)
        measuring.in_turns(engine, batches, *given, *turns, over=over, keep=keep_turns)
    else:
        for size in batches:
            if over():
                break
            result[f"batch{size}"] = measuring.side_by_side(engine, size, *given, meeting)
            keep(args.out, result)  # what is measured counts, also if a later batch is killed
    # Whoever reads takes the last line: a profiler that fails must not cost the times.
    print("RESULT " + json.dumps(result), flush=True)
    result |= profiles(engine, args, workers[0]["pid"])
    print("RESULT " + json.dumps(result), flush=True)
    keep(args.out, result)
    if args.turns:
        os._exit(0)  # the next has its turn when this one is gone; its workers are killed


if __name__ == "__main__":
    main()
