#!/usr/bin/env python3
"""Time stock V1, patched V1 and V2 beside each other in one sitting on one GPU host.

Takes two folders of the same vLLM release, one pristine and one that ``overlay apply`` patched,
and starts ``step_time.py`` once for each engine and cell, one after the other.  Every result goes
into one JSON file with the release, the GPU, the modes and the date; nothing is compared across
sittings.

    compare.py --stock /site --patched /patched --out result.json --cells 1b:3:FULL_AND_PIECEWISE
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

#: Engine name -> (which folder, environment).
ENGINES: dict[str, tuple[str, dict[str, str]]] = {
    "stock-v1": ("stock", {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    "patched-step": (
        "patched",
        {"VLLM_USE_V2_MODEL_RUNNER": "0", "OVERLAY_DRAFT_GRAPHS": "step"},
    ),
    "patched-loop": (
        "patched",
        {"VLLM_USE_V2_MODEL_RUNNER": "0", "OVERLAY_DRAFT_GRAPHS": "loop"},
    ),
    "patched-loop-unsteady": (
        "patched",
        {
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "OVERLAY_DRAFT_GRAPHS": "loop",
            "OVERLAY_STEADY_INPUTS": "off",
        },
    ),
    "v2": ("stock", {"VLLM_USE_V2_MODEL_RUNNER": "1"}),
}


def run_cell(
    engine: str, folder: Path, cell: str, args: argparse.Namespace, logs: Path
) -> dict[str, Any]:
    """Run one engine in one cell ``shape:K:mode[:tensor parallel]``; a failure is a result too."""
    shape, k, mode, *rest = cell.split(":")
    tensor_parallel = rest[0] if rest else "1"
    environment = os.environ | ENGINES[engine][1]
    environment["PYTHONPATH"] = f"{folder}:{args.site}" if args.site else str(folder)
    command = [sys.executable, str(HERE / "step_time.py"), "--shape", shape, "--k", k]
    command += ["--mode", mode, "--batch", args.batch, "--repeats", str(args.repeats)]
    command += ["--tensor-parallel", tensor_parallel, *args.more.split()]
    log = logs / f"{engine}-{cell.replace(':', '-')}.log"
    begun = time.monotonic()
    with log.open("w") as stream:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=stream, text=True, check=False
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found: dict[str, Any] = json.loads(lines[-1][7:]) if lines else {"failed": done.returncode}
    found |= {"engine": engine, "cell": cell, "wall_s": round(time.monotonic() - begun, 1)}
    return found


def main() -> None:
    """Run every engine in every cell and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stock", type=Path, required=True)
    parser.add_argument("--patched", type=Path, required=True)
    parser.add_argument("--site", type=Path, help="folder with vLLM's dependencies, if apart")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cells", nargs="+", required=True, metavar="SHAPE:K:MODE[:TP]")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--more", default="", help="further arguments of step_time.py")
    args = parser.parse_args()
    logs = args.out.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    folders = {"stock": args.stock, "patched": args.patched}
    results = []
    for cell in args.cells:
        for engine in args.engines:
            results.append(run_cell(engine, folders[ENGINES[engine][0]], cell, args, logs))
            print(json.dumps(results[-1]), flush=True)
            date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            args.out.write_text(json.dumps({"date": date, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
