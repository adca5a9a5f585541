#!/usr/bin/env python3
"""Acceptance per position of the draft graphs on a GPU, equal to the oracle in every cell.

Runs where a patched vLLM can be imported (``PYTHONPATH``), several engines at a time, and writes
one JSON file: for each cell its settings, whether every token and accepted count agreed with the
oracle, and how often which graph was replayed, on every rank.  A cell in a graph mode that
replayed nothing has failed: it proves nothing.

    acceptance.py --out result.json [--only REGEX] [--jobs 6] [--gpus 0,1,2,3]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS.parent))

from tests.engine.engine_launch import append_path, link_packages, write_models
from tests.gpu import drafter_cells, hybrid_cells, long_cells, quantised_cells
from tests.gpu.cells import Cell
from tests.gpu.gpu_cells import all_cells
from tests.gpu.judging import judge
from tests.gpu.placing import Slots

#: As in ``failing_capture``, which only a vLLM environment can import.
REASON = "failed on purpose"
#: The last line of a traceback, which PyTorch writes with the rank.
RAISED = re.compile(r"(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception|Refused)(?::.*)?$)")


def verdict(result: dict[str, Any]) -> dict[str, Any]:
    """The part of an engine's result that is kept."""
    kept = {
        name: result[name]
        for name in ("vllm", "torch", "device", "engine_steps", "seconds", "counts", "oracle")
    }
    for name in ("tokens_ok", "steps_ok", "prompt_logprobs_ok"):
        found = [request[name] for request in result["requests"] if request[name] is not None]
        kept[name] = f"{sum(found)} of {len(found)}"
    kept |= {"preemptions": result["preemptions"], "counts_ok": result["counts_ok"]}
    asked = [request for request in result["requests"] if request["prompt_logprobs"]]
    if asked:
        kept["prompt_logprobs"] = [
            {"right": request["prompt_logprobs_ok"], "values": request["prompt_logprobs"]}
            for request in asked
        ]
    hooks = result["hooks"]
    kept["captured"] = hooks.get("graph_hooks:watch_replays")
    kept["ran"] = hooks.get("graph_hooks:replays") or {}
    kept["hooks"] = {
        name: found for name, found in hooks.items() if not name.startswith("graph_hooks:")
    }
    kept["equals"] = "oracle" if result["ok"] else None
    return kept


def run_engine(cell: Cell, log: Path, out: Path, gpus: tuple[str, ...], seconds: float) -> Any:
    """Run the engine of a cell; its exit status, or what else ended it.

    It leads a process group, of which nothing is left afterwards.
    """
    given = out.with_name("spec.json")
    given.write_text(cell.spec.to_json())
    code = link_packages(out.with_name("code"), {TESTS, *map(Path, cell.spec.packages)})
    environment = append_path(os.environ | {"OVERLAY_DRAFT_GRAPHS": cell.draft_graphs}, code)
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    with log.open("w") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.run_engine", str(given), "--out", str(out)],
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"not done after {seconds:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def run_cell(cell: Cell, logs: Path, slots: Slots, seconds: float) -> dict[str, Any]:
    """Run one cell as soon as there is room for it."""
    log = logs / f"{cell.title}.log"
    with slots.room(cell.gpus, alone=cell.alone) as gpus:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "result.json")
            status = run_engine(cell, log, out, gpus, seconds)
            found = verdict(json.loads(out.read_text())) if out.exists() else {}
        wall = time.monotonic() - begun
    text = log.read_text(errors="replace")
    if status != 0:
        found["failed"] = f"{status}: {text[-1500:]}"
        raised = [line[1] for line in map(RAISED.match, text.splitlines()) if line]
        found["raised"] = raised[-1][:600] if raised else None
    lines = [line[-600:] for line in text.splitlines() if "Draft graphs" in line]
    found |= {"cell": cell.name, "mode": cell.mode, "expects": cell.expects, "log": lines}
    if cell.expects == "withdrawn":
        found["reason"] = REASON
    if cell.every_size:
        found["every_size"] = cell.every_size
    spec = cell.spec
    found["settings"] = {
        "draft": spec.draft,
        "k": spec.k,
        "max_num_seqs": spec.max_num_seqs,
        "max_model_len": spec.max_model_len,
        "compilation": spec.compilation,
        "attention_backend": spec.attention_backend,
        "tensor_parallel": spec.tensor_parallel_size,
        "block_size": spec.block_size,
        "kv_blocks": spec.kv_blocks,
        "requests": len(spec.requests),
        "pre": list(spec.pre),
        "env": dict(spec.env),
    }
    return found | {"gpus": list(gpus), "wall_s": round(wall, 1)}


def run_cells(
    cells: Iterable[Cell],
    slots: Slots,
    out: Path,
    logs: Path,
    seconds: float,
    judged: Callable[[list[dict[str, Any]]], None],
    about: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Run the cells, write all results after each, print one line each; the results.

    :param seconds: for one engine.
    :param judged: says of all results which are right, each time that there is one more.
    :param about: what else the file says, as ``machine.describe`` returns it.
    """
    logs.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    with ThreadPoolExecutor(slots.count) as pool:
        futures = [pool.submit(run_cell, cell, logs, slots, seconds) for cell in cells]
        for future in as_completed(futures):
            found = future.result()
            results.append(found)
            judged(results)
            replays = (found.get("ran") or {}).get("replays")
            state = found.get("shown") or ("equal" if found["ok"] else f"({found['why']})")
            print(found["cell"], found["mode"], state, replays, f"{found['wall_s']} s", flush=True)
            date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            release = next((one["vllm"] for one in results if "vllm" in one), None)
            document = {"date": date, "release": release, **(about or {}), "cells": results}
            out.write_text(json.dumps(document, indent=1) + "\n")
    for found in results:
        if not found["ok"]:
            print("FAILED", found["cell"], found["mode"], found["why"])
    return results


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="regular expression on NAME-MODE")
    parser.add_argument("--jobs", type=int, default=6, help="engines at a time on one GPU")
    parser.add_argument("--gpus", default="", help="indices, separated by commas; default: one")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one engine")
    parser.add_argument("--list", action="store_true", help="only print the cells")
    return parser.parse_args()


def chosen(args: argparse.Namespace, models: str) -> list[Cell]:
    """The cells that were asked for and that the GPUs hold, in the order in which they begin."""
    room = len(args.gpus.split(","))
    cells = [cell for cell in all_cells(models) if re.search(args.only, cell.title)]
    for cell in cells:
        if cell.gpus > room:
            print(f"left out, wants {cell.gpus} GPUs:", cell.title)
    return [cell for cell in cells if cell.gpus <= room]


def main() -> int:
    """Run the cells, write the results, print one line each; 1 if any failed."""
    args = arguments()
    if args.list:
        for cell in chosen(args, "MODELS"):
            print(cell.title, cell.expects)
        return 0
    models = Path(tempfile.mkdtemp()) / "models"
    write_models(sys.executable, models)
    write_models(sys.executable, models / drafter_cells.FOLDER, "tiny_drafters")
    write_models(sys.executable, models / hybrid_cells.FOLDER, "tiny_hybrids")
    long_cells.write(models)
    quantised_cells.write(models)
    logs = args.out.parent / "logs"
    slots = Slots(tuple(args.gpus.split(",")) if args.gpus else (), args.jobs)
    cells = chosen(args, str(models))
    results = run_cells(cells, slots, args.out, logs, args.timeout, judge)
    failed = [found for found in results if not found["ok"]]
    equal = f"{len(results) - len(failed)} of {len(results)} cells"
    print(f"{equal} equal the oracle, or themselves without graphs")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
