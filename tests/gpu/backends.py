#!/usr/bin/env python3
"""EAGLE3 drafts with one attention backend on one device, equal to the oracle in every cell.

Runs where a patched vLLM can be imported (``PYTHONPATH``).  It is for rows of docs/platforms.md
that no GPU has shown: ``OVERLAY_DRAFT_GRAPHS_UNTRIED=on`` is set in every engine.  As with
``acceptance.py``, a cell that should have graphs and replayed none has failed, and so has one that
ran on another row of the table than ``--row`` names.  The JSON names the device, the release and
the row of each cell; attach it to an issue.

    backends.py --backend FLASHINFER --row XQA --out result.json [--only REGEX] [--jobs 4]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

TESTS = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, str(Path(TESTS).parent))

from overlay.proof.engine_launch import write_models
from overlay.proof.engine_spec import EngineSpec, make_requests
from tests.gpu.acceptance import run_cells
from tests.gpu.cells import Cell, expects, falling
from tests.gpu.every_size import at_every_size
from tests.gpu.gpu_cells import FREE_SHARE, KV_BYTES, ROOM
from tests.gpu.judging import judge
from tests.gpu.placing import Slots

UNTRIED = {"OVERLAY_DRAFT_GRAPHS_UNTRIED": "on"}
CHECK = {"OVERLAY_DRAFT_GRAPHS_CHECK": "on"}
#: Starts much faster than a compiled engine.
UNCOMPILED = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}


def all_cells(models: str, backend: str | None) -> Iterator[Cell]:
    """The cells of a backend, those that prove most first."""
    base = EngineSpec(
        models=models,
        draft="eagle3hid",
        k=3,
        enforce_eager=False,
        compilation=UNCOMPILED,
        attention_backend=backend,
        requests=falling(24, wave=5),
        engine={"gpu_memory_utilization": FREE_SHARE, "kv_cache_memory_bytes": KV_BYTES},
        env=UNTRIED,
        pre=ROOM,
        post_load=("tests.gpu.graph_hooks:watch_replays",),
        finish=("tests.gpu.graph_hooks:replays",),
        packages=(TESTS,),
    )
    long = make_requests(24, tokens=64, lengths=(150, 400), wave=3, steps_between=4)
    many: dict[str, Any] = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    for mode in ("loop", "step", "off"):
        graphs = mode != "off"
        for k in (5, 2, 1):
            yield Cell(f"k{k}", mode, replace(base, k=k), expects(mode))
        yield Cell("long", mode, replace(base, requests=long), expects(mode))
        yield Cell("plain", mode, replace(base, draft="eagle3"), expects(mode))
        every = replace(base, requests=at_every_size(64, 3), **many)
        yield Cell("every-size64", mode, every, expects(mode), weight=10, every_size=graphs)
    yield Cell("checked", "loop", replace(base, env={**UNTRIED, **CHECK}))


def judge_by(row: str) -> Callable[[list[dict[str, Any]]], None]:
    """As ``judging.judge``; and the cells with graphs ran on a row whose title has this text."""

    def judged(results: list[dict[str, Any]]) -> None:
        judge(results)
        for result in results:
            titles = (result.get("captured") or {}).get("rows") or []
            known = bool(titles) and all(title is not None and row in title for title in titles)
            if result["ok"] and result["expects"] == "graphs" and not known:
                result["ok"] = False
                result["why"] = f"the draft ran with {titles}, not with a row named {row!r}"

    return judged


def main() -> int:
    """Run the cells, write the results, print one line each; 1 if any failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", help="in vLLM's enumeration; default: vLLM's own choice")
    parser.add_argument("--row", default="", help="a part of the row's name in docs/platforms.md")
    parser.add_argument("--only", default="", help="regular expression on NAME-MODE")
    parser.add_argument("--jobs", type=int, default=4, help="engines at a time")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one engine")
    parser.add_argument("--list", action="store_true", help="only print the cells")
    args = parser.parse_args()
    if args.list:
        print("\n".join(cell.title for cell in all_cells("MODELS", args.backend)))
        return 0
    models = Path(tempfile.mkdtemp()) / "models"
    write_models(sys.executable, models)
    everything = all_cells(str(models), args.backend)
    cells = [cell for cell in everything if re.search(args.only, cell.title)]
    logs = args.out.parent / f"{args.out.stem}-logs"
    judged = judge_by(args.row)
    results = run_cells(cells, Slots((), args.jobs), args.out, logs, args.timeout, judged)
    failed = [result for result in results if not result["ok"]]
    print(f"{len(results) - len(failed)} of {len(results)} cells equal the oracle")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    raise SystemExit(main())
