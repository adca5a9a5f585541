"""Time one engine's steps as ``overlay.proof.step_time`` does, also beside others, and profile it.

Runs inside an environment that holds vLLM and a GPU; ``bench/compare.py`` starts it.

The last line of standard output is ``RESULT {...}``: per batch size the median milliseconds per
engine step, the repeats, and the host milliseconds inside the runner and the drafter; with
``--profile`` also the GPU's milliseconds and the launches per step, with ``--memory`` what the
graphs and the KV cache take, and with ``--sample`` where the host's time goes, by function.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from bench.meeting import Meeting
from bench.profiling import measuring, sampling
from bench.profiling.drafters import ADAPTER_RANK, DRAFTERS, write_adapters
from overlay.proof import step_time

EXTENSION = "bench.profiling.engine_side.ProfilingExtension"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_time.command_line(__doc__)
    parser.add_argument("--drafter", choices=DRAFTERS, default="eagle3")
    parser.add_argument("--tensor-parallel", type=int, default=1)
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
    parser.add_argument("--turns", type=int, default=0, help="measure in so many turns")
    return parser.parse_args()


def llm_arguments(args: argparse.Namespace, batches: list[int]) -> dict[str, Any]:
    """The keyword arguments of ``vllm.LLM``."""
    drafter = DRAFTERS[args.drafter]
    options = {
        "tensor_parallel_size": args.tensor_parallel,
        **step_time.llm_arguments(args, batches, drafter),
        "worker_extension_cls": EXTENSION,
    }
    if drafter.adapters:
        lora = {"max_loras": drafter.adapters, "max_lora_rank": ADAPTER_RANK}
        options = {"enable_lora": True, **lora, **options}
    return options


class Engine(step_time.Engine):
    """A running engine with its counters.

    :param adapters: folders of LoRA adapters, which the requests take in turn.
    :param temperature: of the requests.
    """

    def __init__(self, options: dict[str, Any], adapters: list[Path], temperature: float) -> None:
        super().__init__(options)
        self.temperature = temperature
        if adapters:
            from vllm.lora.request import LoRARequest

            self.adapters = [
                LoRARequest(place.name, number, str(place))
                for number, place in enumerate(adapters, 1)
            ]


def profiles(engine: Engine, args: argparse.Namespace, pid: int) -> dict[str, Any]:
    """What each of the profilers that were asked for says of batch 1."""
    result: dict[str, Any] = {}
    if args.sample:
        result["sampled"] = sampled(engine, args, pid)
    if args.profile or args.trace:
        drafts = engine.counter("num_drafts")
        engine.workers("bench_profile")
        engine.generate(1, tokens := 100)
        steps = engine.counter("num_drafts") - drafts or tokens  # without drafts each is a step
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


def started(args: argparse.Namespace, batches: list[int]) -> tuple[Engine, dict[str, Any]]:
    """Start the engine; what it is, with the process of its first worker."""
    start = time.perf_counter()
    drafter = DRAFTERS[args.drafter]
    options = llm_arguments(args, batches)
    adapters: list[Path] = []
    if drafter.adapters:
        adapters = write_adapters(args.shape, Path(options["model"]).parent, drafter.adapters)
    engine = Engine(options, adapters, drafter.temperature)
    worker = engine.workers("bench_watch")[0]
    result: dict[str, Any] = {
        **step_time.describe(worker, start),
        "shape": args.model or args.shape,
        "drafter": args.drafter,
        "k": args.k,
        "cudagraph_mode": args.mode,
        "tensor_parallel": args.tensor_parallel,
        "cores": len(os.sched_getaffinity(0)),
        "pid": worker["pid"],
    }
    if args.memory:
        announced = engine.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
        held = engine.workers("bench_memory")
        result["memory"] = {"kv_blocks_announced": announced, "workers": held}
    return engine, result


def main() -> None:
    """Start one engine, time it at every batch size, print the RESULT line."""
    args = arguments()
    prepare(args)
    meeting = Meeting(args.meet, args.party, args.parties)
    batches = [int(size) for size in args.batch.split(",")]
    engine, result = started(args, batches)
    pid = result.pop("pid")
    given = (args.tokens, args.repeats)
    if args.turns:
        times = measuring.in_turns(engine, batches, *given, args.turns, meeting)
        result |= {f"batch{size}": figures for size, figures in times.items()}
    else:
        for size in batches:
            result[f"batch{size}"] = measuring.side_by_side(engine, size, *given, meeting)
    # Whoever reads takes the last line: a profiler that fails must not cost the times.
    print("RESULT " + json.dumps(result), flush=True)
    result |= profiles(engine, args, pid)
    print("RESULT " + json.dumps(result), flush=True)
    if args.turns:
        os._exit(0)  # the next has its turn when this one is gone; its workers are killed


if __name__ == "__main__":
    main()
