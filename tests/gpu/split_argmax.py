#!/usr/bin/env python3
"""The split argmax of the draft graphs beside PyTorch's own: the same tokens, and the time of each.

    python split_argmax.py --patched PATCHED --out RESULT.json

Needs PyTorch and a GPU, no vLLM that runs. Logits have few values, so that the largest is there
several times, and NaN among them. Times are medians of replays of a CUDA graph with 20 calls.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROWS = (1, 2, 3, 4, 8, 17, 32, 64, 256, 600)
#: Vocabularies of models that vLLM serves, and sizes that no power of two splits.
SIZES = (128256, 151936, 129280, 32000, 32768, 262144, 50257, 997)
_CALLS = 20


def equal(first_largest: Callable[[Any], Any], logits: Any) -> bool:
    """Whether both give the same tokens."""
    return bool(torch.equal(first_largest(logits), logits.argmax(dim=-1)))


def inputs(rows: int, size: int, kind: torch.dtype) -> list[Any]:
    """Logits with many largest ones, with NaN, of all the same value, and of any value."""
    few = torch.randint(-3, 4, (rows, size), device="cuda").to(kind)
    broken = few.clone()
    broken[:, torch.randint(0, size, (3,))] = float("nan")
    padded = torch.randn(rows, size + 64, device="cuda").to(kind)[:, :size]
    masked = torch.full((rows, size), float("-inf"), device="cuda", dtype=kind)
    return [few, broken, torch.zeros_like(few), torch.randn_like(few), padded, masked]


def microseconds(function: Callable[[Any], Any], logits: Any) -> float:
    """Median time of one call on the GPU."""
    function(logits)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            function(logits)
    times: list[float] = []
    for _ in range(30):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * begin.elapsed_time(end) / _CALLS)
    return round(statistics.median(times), 2)


def main() -> int:
    """Compare both, write the result; 1 if they differ anywhere."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--patched", type=Path, required=True, help="folder of a patched vLLM")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    sys.path.insert(0, str(args.patched / "vllm" / "v1" / "sample"))
    split = importlib.import_module("split_argmax")
    torch.manual_seed(0)
    unequal, cases, times = [], 0, []
    for size in SIZES:
        for rows in ROWS:
            for kind in (torch.bfloat16, torch.float16, torch.float32):
                for number, logits in enumerate(inputs(rows, size, kind)):
                    cases += 1
                    if not equal(split.first_largest, logits):
                        unequal.append([rows, size, str(kind), number])
            if rows in (1, 8, 32):
                logits = torch.randn(rows, size, device="cuda", dtype=torch.bfloat16)
                times.append(
                    {
                        "rows": rows,
                        "size": size,
                        "split_us": microseconds(split.first_largest, logits),
                        "argmax_us": microseconds(lambda held: held.argmax(dim=-1), logits),
                    }
                )
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0),
        "cases": cases,
        "unequal": unequal,
        "times": times,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{cases} cases, {len(unequal)} unequal")
    return int(bool(unequal))


if __name__ == "__main__":
    raise SystemExit(main())
