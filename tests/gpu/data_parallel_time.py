#!/usr/bin/env python3
"""Step time of two data-parallel ranks with experts in the draft, as upstream and in graphs.

Runs where a vLLM that ``overlay apply`` patched can be imported (``PYTHONPATH``), on a host with
two GPUs: the hooks load vLLM's modules before a plugin could patch them. The target has the shape
of GLM-4.5-Air with its MTP layer, dummy weights, and ``--layers`` layers. For each mode an engine
serves three phases: one request on each rank; eight on each; one on rank 0 and none on rank 1. By
phase and rank it tells the medians over the steps of that kind: the time between two of them, the
host's time in ``propose`` (or in the dummy batch), and how often ranks asked each other (the
target asks once a step). The share is that of the first mode. Writes one JSON file.

    data_parallel_time.py --out result.json [--modes off,step,loop] [--layers 46] [--limit 900]

``--runner v2`` measures model runner V2, in mode ``off`` alone. ``--double`` rehearses on CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine import tiny_glm
from tests.engine.engine_spec import EngineSpec, Request
from tests.gpu import data_parallel, dp_step_hooks

RANKS = 2
RUNNER_VARIABLE = "TEST_DATA_PARALLEL_RUNNER"
#: The shape of GLM-4.5-Air; the head of 128 has rotary angles in its first half.
SHAPE: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": True,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "partial_rotary_factor": 0.5,
    "rope_theta": 1000000.0,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000000.0,
        "partial_rotary_factor": 0.5,
    },
}
VOCABULARY = 151552
#: Requests on each rank, by phase.
PHASES = {"one on each": (1, 1), "eight on each": (8, 8), "one on rank 0": (1, 0)}
#: Tokens of each request: hardly a draft is accepted, so about as many steps.
TOKENS = 400


def make_spec(folder: Path, arguments: Any) -> EngineSpec:
    """The engine of one mode."""
    more: dict[str, Any] = {"num_hidden_layers": arguments.layers}
    config = tiny_glm.glm_config(192 if arguments.double else VOCABULARY, **more)
    if not arguments.double:
        config |= SHAPE
    target = folder / "target"
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    engine: dict[str, Any] = {"data_parallel_size": RANKS, "load_format": "dummy"}
    if arguments.double:
        engine["distributed_executor_backend"] = "uni"
    else:
        engine |= {"enable_expert_parallel": True, "moe_backend": "triton"}
        engine |= {"gpu_memory_utilization": 0.92, "kv_cache_memory_bytes": 1 << 30}
    quick = arguments.uncompiled or arguments.double
    return EngineSpec(
        str(folder),
        draft="target",
        k=3,
        max_num_seqs=8,
        block_size=16,
        kv_blocks=400 if arguments.double else None,
        enforce_eager=False,
        compilation=data_parallel.UNCOMPILED if quick else None,
        runner=arguments.runner,
        speculative={"method": "mtp"},
        engine=engine,
    )


async def serve(spec: EngineSpec, tokens: int) -> dict[str, tuple[float, float]]:
    """Start the engine and serve all phases; when each began and ended, by the shared clock."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**spec.llm_arguments()))
    times = {}
    try:
        for name, counts in {"warm-up": (2, 2), **PHASES}.items():
            began = time.perf_counter()
            await asyncio.gather(
                *(
                    data_parallel.ask(
                        engine,
                        f"{rank}.{name}.{index}",
                        Request(tuple(range(5 + index, 37 + index)), tokens),
                    )
                    for rank, count in enumerate(counts)
                    for index in range(count)
                )
            )
            times[name] = (began, time.perf_counter())
        # What a process has counted since it last wrote is lost: so it writes once more.
        await data_parallel.ask(engine, "0.last.0", Request(tuple(range(5, 37)), tokens))
    finally:
        engine.shutdown()
    return times


def read_steps(events: Path) -> list[dict[str, Any]]:
    """All steps of all ranks, in the order of their beginnings."""
    lines = events.read_text(encoding="utf-8").splitlines()
    return sorted((step for line in lines for step in json.loads(line)), key=_begin)


def _begin(step: dict[str, Any]) -> float:
    return float(step["began"])


def measure(
    steps: list[dict[str, Any]], times: dict[str, tuple[float, float]]
) -> dict[str, dict[str, Any]]:
    """By phase, rank and kind of step: medians, in milliseconds, and how many steps there were."""
    found: dict[str, dict[str, Any]] = {}
    for phase, counts in PHASES.items():
        begin, end = times[phase]
        for rank, count in enumerate(counts):
            kind = f"decode {count}" if count else "dummy"
            mine = [s for s in steps if s["rank"] == rank and begin <= s["began"] <= end]
            gaps = defaultdict(list)
            for step, following in pairwise(mine):
                if step["kind"] == following["kind"] == kind:
                    gaps["step"].append(following["began"] - step["began"])
                    gaps["host"].append(step["host"] or 0.0)
                    gaps["asked"].append(step["asked"])
            found[f"{phase}, rank {rank}"] = {
                "kind": kind,
                "steps": len(gaps["step"]),
                "step_ms": _median(gaps["step"], 1000),
                "host_ms": _median(gaps["host"], 1000),
                "asked": _median(gaps["asked"], 1),
            }
    return found


def _median(values: list[float], factor: float) -> float | None:
    return round(statistics.median(values) * factor, 4) if values else None


def run_mode(mode: str, folder: Path, logs: Path, arguments: Any) -> dict[str, Any]:
    """Start one engine in a session of its own, and measure it."""
    with tempfile.TemporaryDirectory(prefix="data-parallel-") as scratch:
        given, out, events = (Path(scratch, each) for each in ("spec.json", "out.json", "events"))
        given.write_text(make_spec(folder, arguments).to_json(), encoding="utf-8")
        events.touch()
        env = {
            **os.environ,
            "OVERLAY_DRAFT_GRAPHS": mode,
            dp_step_hooks.EVENTS_VARIABLE: str(events),
            RUNNER_VARIABLE: arguments.runner,
            data_parallel.DOUBLE_VARIABLE: str(int(arguments.double)),
        }
        command = [sys.executable, __file__, "--cell", str(given), "--out", str(out)]
        command += ["--tokens", str(arguments.tokens)]
        log = logs / f"data-parallel-time-{mode}.log"
        failed = data_parallel.run_session(command, env, log, arguments.limit)
        said = log.read_text(encoding="utf-8", errors="replace")
        result: dict[str, Any] = {"mode": mode, "runner": arguments.runner, "failed": failed}
        result["log"] = [line[-400:] for line in said.splitlines() if "Draft graphs" in line]
        if not failed and mode != "off" and arguments.runner == "v1" and not result["log"]:
            # Without it the figure would be upstream's, under the mode's name.
            failed = "no process speaks of draft graphs: patch this vLLM by overlay apply"
        if failed or not out.is_file():
            return result | {"failed": failed or "no result", "said": said[-3000:]}
        told = json.loads(out.read_text(encoding="utf-8"))
        return result | {"vllm": told["vllm"], "phases": measure(read_steps(events), told["times"])}


def main() -> int:
    """Measure each mode, print one line for each phase and rank; 1 if an engine failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--modes", default="off,step,loop")
    parser.add_argument("--layers", type=int, default=46)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each request")
    parser.add_argument("--limit", type=float, default=900, help="seconds for each engine")
    parser.add_argument("--runner", choices=("v1", "v2"), default="v1")
    parser.add_argument("--uncompiled", action="store_true", help="start without torch.compile")
    parser.add_argument("--double", action="store_true", help="on CPU, with the graph double")
    parser.add_argument("--cell", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        return cell_main(arguments)
    logs = arguments.out.resolve().parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="models-") as folder:
        for mode in arguments.modes.split(","):
            results.append(run_mode(mode, Path(folder), logs, arguments))
            document = {"layers": arguments.layers, "k": 3, "modes": results}
            arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            print_lines(results)
    return int(any(each["failed"] for each in results))


def print_lines(results: list[dict[str, Any]]) -> None:
    """Print the last mode's phases, and how its steps compare with the first mode's."""
    last = results[-1]
    if last["failed"]:
        print(last["mode"], "FAILED", last["failed"], flush=True)
        return
    for name, phase in last["phases"].items():
        stock = results[0].get("phases", {}).get(name, {}).get("step_ms")
        share = round(phase["step_ms"] / stock, 3) if stock and phase["step_ms"] else None
        print(last["mode"], name, phase, "of the first mode's step:", share, flush=True)


def cell_main(arguments: Any) -> int:
    """One mode: the engine's front end."""
    prepare(front_end=True)
    spec = EngineSpec.from_json(arguments.cell.read_text(encoding="utf-8"))
    import vllm

    times = asyncio.run(serve(spec, arguments.tokens))
    result = {"vllm": vllm.__version__, "times": times}
    arguments.out.write_text(json.dumps(result), encoding="utf-8")
    return 0


def prepare(*, front_end: bool) -> None:
    """Environment and hooks of one process of a cell, before it loads vLLM."""
    from overlay.proof import engine_compat
    from overlay.results import ModelRunner

    runner = os.environ.get(RUNNER_VARIABLE, "v1")
    data_parallel.set_environment(engine_compat.runner_environment(ModelRunner(runner)))
    double = os.environ.get(data_parallel.DOUBLE_VARIABLE) == "1"
    if double:
        from tests.draft_graphs import dp_double

        dp_double.prepare()
    if front_end:
        return
    if double:
        dp_double.install()
    dp_step_hooks.install()


if __name__ == "__main__":
    raise SystemExit(main())
elif __name__ == "__mp_main__" and "Coordinator" not in multiprocessing.current_process().name:
    prepare(front_end=False)
