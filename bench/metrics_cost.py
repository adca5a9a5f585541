#!/usr/bin/env python3
"""Time an engine's steps with the overlay's counting on and off, in turn, in one engine.

Runs where a patched vLLM and the overlay's plugin can be imported, so that the counts lie in the
memory that the metrics are read from. Off: nothing is counted, in no module. Both ways take turns
in windows of a few steps under the same load, the order turned each time, so that the host's drift
falls on both; what is compared are the two windows of each pair. What else runs on a host makes a
few windows very long, so that the median of the differences counts. Weights are dummies.

    metrics_cost.py cost.json --concurrency 8 --pairs 1000 --steps 10
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.load_engine import Load, add_engine_options, start
from overlay.proof.engine_compat import runner_environment
from overlay.results import ModelRunner


def _nothing(*_: Any, **__: Any) -> None:
    """Stands for a count that is not made."""


class Counting:
    """Has every module that holds ``count`` or ``put`` call them, or nothing.

    Those modules are looked for once, so that both ways are switched to by the same assignments: a
    search of all modules made the steps after it longer by 1.3 % on an H100.

    :param effects: the module ``vllm.v1.overlay_effects``, after the engine has loaded all else.
    """

    def __init__(self, effects: Any) -> None:
        functions = {name: getattr(effects, name) for name in ("count", "put")}
        self._places = [
            (module, name, function)
            for module in list(sys.modules.values())
            for name, function in functions.items()
            if getattr(module, "__dict__", {}).get(name) is function
        ]

    def switch(self, on: bool) -> None:
        """Count from now on, or do not."""
        for module, name, function in self._places:
            setattr(module, name, function if on else _nothing)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="file for the figures, JSON")
    add_engine_options(parser)
    parser.add_argument("--concurrency", type=int, default=8, help="requests at a time")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=2048, help="tokens of an answer")
    parser.add_argument("--pairs", type=int, default=1000, help="of windows, on and off")
    parser.add_argument("--steps", type=int, default=10, help="of a window")
    args = parser.parse_args()
    if args.pairs < 4:
        parser.error(f"--pairs: expected two of either order, 4 at least, found {args.pairs}")
    return args


def window(load: Load, llm: Any, steps: int, *, counting: bool) -> dict[str, float]:
    """Milliseconds of a step, and counts per step, with counting on or off.

    :param steps: how many the window lasts, as the engine's client sees them.
    """
    llm.collective_rpc("load_counting", args=(counting,))
    for _ in range(3):  # what is in flight began in the other way
        load.step()
    llm.collective_rpc("load_steps")
    counts, begun = llm.collective_rpc("load_counted")[0], time.perf_counter()
    for _ in range(steps):
        load.step()
    ended = time.perf_counter()
    taken = len(llm.collective_rpc("load_steps")[0])
    counted = llm.collective_rpc("load_counted")[0] - counts
    return {"ms": 1000 * (ended - begun) / taken, "counts": counted / taken}


def compared(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """How much longer a step is with counting on, by pairs of (on, off) milliseconds.

    ``median``: of the pairs' differences, in per cent; ``low`` and ``high``: its interval of 95 %,
    the differences that as many lie below and above as a coin falls in 95 of 100 series.
    ``percent``: their mean; ``error``: its standard error.
    """
    differences = sorted(100 * (on - off) / off for on, off in pairs)
    count = len(differences)
    spread = statistics.stdev(differences) if count > 1 else math.nan
    below = max(math.floor(count / 2 - 0.98 * math.sqrt(count)), 0)
    return {
        "median": round(statistics.median(differences), 4),
        "low": round(differences[below], 4),
        "high": round(differences[count - 1 - below], 4),
        "percent": round(statistics.fmean(differences), 4),
        "error": round(spread / math.sqrt(count), 4),
    }


def differences(pairs: Sequence[tuple[float, float]]) -> dict[str, dict[str, float]]:
    """What follows from all pairs, and from those of either order.

    The first window of a pair goes on in the way of the window before it, so only the second one is
    behind a change. A change that costs more one way than the other shows between the orders.

    :param pairs: of (on, off) milliseconds, in the order in which they were taken.
    """
    orders = {"difference": pairs, "off_first": pairs[0::2], "on_first": pairs[1::2]}
    return {name: compared(chosen) for name, chosen in orders.items()}


def measure(load: Load, llm: Any, pairs: int, steps: int) -> dict[str, Any]:
    """The windows of all pairs, and what follows from them."""
    windows: list[dict[str, dict[str, float]]] = []
    for number in range(pairs):
        order = (True, False) if number % 2 else (False, True)
        taken = {way: window(load, llm, steps, counting=way) for way in order}
        windows.append({"on": taken[True], "off": taken[False]})
    return {
        **differences([(each["on"]["ms"], each["off"]["ms"]) for each in windows]),
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
    os.environ |= runner_environment(ModelRunner.V1)
    llm, description = start(args, own_process=True)
    if not description["draft_graphs"]:
        sys.exit(
            "this engine has no draft graphs, so it counts nothing: patch the vLLM that runs here "
            "(overlay apply), and leave OVERLAY and OVERLAY_DRAFT_GRAPHS unset"
        )
    load = Load(llm, args.concurrency, args.prompt, args.answer)
    window(load, llm, 1000, counting=True)  # warms up
    results = {
        "what": "milliseconds of a step with the overlay's counting on and off, in pairs",
        **description,
        **{name: getattr(args, name) for name in ("prompt", "answer", "steps")},
        **measure(load, llm, args.pairs, args.steps),
    }
    args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    shown = ("difference", "off_first", "on_first", "step_ms")
    print(json.dumps({name: results[name] for name in shown}), flush=True)


if __name__ == "__main__":
    main()
