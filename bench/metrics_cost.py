#!/usr/bin/env python3
"""Time an engine's steps with the overlay's counting on and off, in turn, in one engine.

Runs where a patched vLLM and the overlay's plugin can be imported, so that the counts lie in the
memory that the metrics are read from. Off: nothing is counted, in no module. Both ways take turns
in short windows under the same load, the order turned each time, so that the host's drift falls
on both; what is compared are the two windows of each pair. Weights are dummies.

    metrics_cost.py cost.json --concurrency 8 --pairs 40 --seconds 1
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.load_engine import Load
from overlay.proof import step_time
from overlay.proof.shapes import DRAFTERS, SHAPES


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="file for the figures, JSON")
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--drafter", choices=DRAFTERS, default="eagle3")
    parser.add_argument("--k", type=int, default=3, help="draft tokens per step")
    parser.add_argument("--mode", default="FULL_AND_PIECEWISE", help="target's cudagraph mode")
    parser.add_argument("--concurrency", type=int, default=8, help="requests at a time")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=2048, help="tokens of an answer")
    parser.add_argument("--pairs", type=int, default=40, help="of windows, on and off")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a window")
    parser.add_argument("--accept", type=float, default=2.5, help="mean acceptance length; 0: none")
    parser.add_argument("--engine", default="{}", help="further LLM arguments, JSON")
    parser.add_argument("--speculative", default="{}", help="further speculative_config, JSON")
    # What `step_time.llm_arguments` reads besides.
    parser.set_defaults(model=None, arguments="[]", tensor_parallel=1, configs=None)
    return parser.parse_args()


def window(load: Load, llm: Any, seconds: float, *, counting: bool) -> dict[str, float]:
    """Milliseconds of a step, and counts per step, with counting on or off."""
    llm.collective_rpc("load_counting", args=(counting,))
    for _ in range(3):  # what is in flight began in the other way
        load.step()
    llm.collective_rpc("load_steps")
    counts, begun = llm.collective_rpc("load_counted")[0], time.perf_counter()
    while time.perf_counter() < begun + seconds:
        load.step()
    ended = time.perf_counter()
    steps = len(llm.collective_rpc("load_steps")[0])
    counted = llm.collective_rpc("load_counted")[0] - counts
    return {"ms": 1000 * (ended - begun) / steps, "counts": counted / steps}


def compared(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """How much longer a step is with counting on, by pairs of (on, off) milliseconds.

    ``percent``: the mean of the pairs' differences; ``error``: its standard error, in per cent as
    well; ``median``: the median of the differences.
    """
    differences = [100 * (on - off) / off for on, off in pairs]
    spread = statistics.stdev(differences) if len(differences) > 1 else math.nan
    return {
        "percent": round(statistics.fmean(differences), 4),
        "error": round(spread / math.sqrt(len(differences)), 4),
        "median": round(statistics.median(differences), 4),
    }


def measure(load: Load, llm: Any, pairs: int, seconds: float) -> dict[str, Any]:
    """The windows of all pairs, and what follows from them."""
    windows: list[dict[str, dict[str, float]]] = []
    for number in range(pairs):
        order = (True, False) if number % 2 else (False, True)
        taken = {way: window(load, llm, seconds, counting=way) for way in order}
        windows.append({"on": taken[True], "off": taken[False]})
    return {
        "difference": compared([(each["on"]["ms"], each["off"]["ms"]) for each in windows]),
        "step_ms": {
            way: round(statistics.median(each[way]["ms"] for each in windows), 4)
            for way in ("on", "off")
        },
        "counts_per_step": {
            way: round(statistics.fmean(each[way]["counts"] for each in windows), 2)
            for way in ("on", "off")
        },
        "windows": [
            {way: round(figures["ms"], 4) for way, figures in each.items()} for each in windows
        ],
    }


def main() -> None:
    """Start the engine, load it, write the figures."""
    args = arguments()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    import torch
    import vllm

    args.configs = Path(tempfile.mkdtemp())
    options = step_time.llm_arguments(args, [args.concurrency])
    options |= {"worker_extension_cls": "bench.load_side.LoadExtension"}
    llm = vllm.LLM(**options | {"enable_prefix_caching": False} | json.loads(args.engine))
    description = llm.collective_rpc("load_watch")[0]
    load = Load(llm, args.concurrency, args.prompt, args.answer)
    window(load, llm, max(args.seconds, 3.0), counting=True)  # warms up
    results = {
        "what": "milliseconds of a step with the overlay's counting on and off, in pairs",
        "vllm": vllm.__version__,
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "draft_graphs": description.get("draft_graphs"),
        **{name: getattr(args, name) for name in ("shape", "drafter", "k", "mode", "concurrency")},
        **{name: getattr(args, name) for name in ("prompt", "answer", "accept", "seconds")},
        **measure(load, llm, args.pairs, args.seconds),
    }
    args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: results[name] for name in ("difference", "step_ms")}), flush=True)


if __name__ == "__main__":
    main()
