#!/usr/bin/env python3
"""Drafts with one attention backend on one device, equal to the oracle in every cell.

Runs where a patched vLLM can be imported (``PYTHONPATH``).  It is for rows of docs/platforms.md
that no GPU has shown: ``OVERLAY_DRAFT_GRAPHS_UNTRIED=on`` is set in every engine.  The drafts are
EAGLE3's, or those of an MTP layer where the backend is one of latent attention (MLA).  As with
``acceptance.py``, a cell that should have graphs and replayed none has failed, and so has one that
ran on another row of the table than ``--row`` names.  The JSON names the device, driver, packages
and patches, and the row of each cell; attach it to an issue.

    backends.py --backend FLASHINFER --row XQA --out result.json [--only REGEX] [--jobs 4]

``--engine`` is for what chooses a kernel beside the backend, as
``{"attention_config": {"flash_attn_version": 2}}`` does for FLASH_ATTN.  ``--compiled`` is for a
backend beside which vLLM makes no FULL graphs of the target, as TRITON_MLA until 0.30: its
PIECEWISE graphs want a compiled target.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

TESTS = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, str(Path(TESTS).parent))

from tests.engine.engine_launch import write_models
from tests.engine.engine_spec import EngineSpec, make_requests
from tests.gpu import machine
from tests.gpu.acceptance import run_cells
from tests.gpu.cells import Cell, expects, falling, replayed
from tests.gpu.every_size import at_every_size
from tests.gpu.gpu_cells import FREE_SHARE, FULL, KV_BYTES, ROOM
from tests.gpu.judging import judge
from tests.gpu.placing import Slots

UNTRIED = {"OVERLAY_DRAFT_GRAPHS_UNTRIED": "on"}
CHECK = {"OVERLAY_DRAFT_GRAPHS_CHECK": "on"}
#: Starts much faster than a compiled engine.
UNCOMPILED = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}


def all_cells(
    models: str,
    backend: str | None,
    *,
    compiled: bool = False,
    engine: Mapping[str, Any] | None = None,
) -> Iterator[Cell]:
    """The cells of a backend, those that prove most first.

    :param compiled: whether vLLM compiles the models, in its default mode of graphs.
    :param engine: further arguments of ``vllm.LLM``.
    """
    latent = is_latent(backend)
    base = EngineSpec(
        models=models,
        k=3,
        enforce_eager=False,
        compilation=FULL if compiled else UNCOMPILED,
        attention_backend=backend,
        env=UNTRIED,
        pre=ROOM,
        post_load=("tests.gpu.graph_hooks:watch_replays",),
        finish=("tests.gpu.graph_hooks:replays",),
        packages=(TESTS,),
    )
    # An MTP layer's input is blank at position 0.
    shortest = 3 if latent else 2
    # The first of them shows what is read of stale memory.
    base, plain = (
        _with_draft(base, draft, engine or {}, latent=latent) for draft in _drafts(latent)
    )
    requests = falling(24, lengths=(shortest, 12), wave=5)
    long = make_requests(24, tokens=64, lengths=(150, 400), wave=3, steps_between=4)
    sizes, wide_sizes = (
        at_every_size(seqs, 3, requests=make_requests(seqs, lengths=(shortest, 12)))
        for seqs in (64, 256)
    )
    base, plain = replace(base, requests=requests), replace(plain, requests=requests)
    many: dict[str, Any] = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    wide: dict[str, Any] = {**many, "max_num_seqs": 256}
    for mode in ("loop", "step", "off"):
        for k in (5, 2, 1):
            yield Cell(f"k{k}", mode, replace(base, k=k), expects(mode))
        yield Cell("long", mode, replace(base, requests=long), expects(mode))
        yield Cell("plain", mode, plain, expects(mode))
        every = replace(base, requests=sizes, **many)
        yield Cell("every-size64", mode, every, expects(mode), weight=10, every_size=replayed(mode))
        # First passes above the largest capture size, where the row grants them.
        every = replace(base, requests=wide_sizes, **wide)
        yield Cell(
            "every-size256", mode, every, expects(mode), weight=20, every_size=replayed(mode)
        )
    yield Cell("checked", "loop", replace(base, env={**UNTRIED, **CHECK}))


def is_latent(backend: str | None) -> bool:
    """Whether a backend is one of latent attention, which needs a model that has it."""
    return backend is not None and "MLA" in backend


def _drafts(latent: bool) -> tuple[str, str]:
    return ("deepseek-mtphid", "deepseek-mtp") if latent else ("eagle3hid", "eagle3")


def _with_draft(
    base: EngineSpec, draft: str, further: Mapping[str, Any], *, latent: bool
) -> EngineSpec:
    engine: dict[str, Any] = {
        "gpu_memory_utilization": FREE_SHARE,
        "kv_cache_memory_bytes": KV_BYTES,
        **further,
    }
    if not latent:
        return replace(base, draft=draft, engine=engine)
    # An MTP layer lies in the target's own checkpoint.
    engine["model"] = f"{base.models}/{draft}"
    return replace(base, draft=draft, engine=engine, speculative={"method": "mtp"})


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
    """Run the cells, write the results, print one line each; 1 if any failed, 2 without device."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", help="in vLLM's enumeration; default: vLLM's own choice")
    parser.add_argument("--row", default="", help="a part of the row's name in docs/platforms.md")
    parser.add_argument("--only", default="", help="regular expression on NAME-MODE")
    parser.add_argument("--jobs", type=int, default=4, help="engines at a time")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one engine")
    parser.add_argument("--compiled", action="store_true", help="let vLLM compile the models")
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="further arguments of vllm.LLM, JSON"
    )
    parser.add_argument("--list", action="store_true", help="only print the cells")
    args = parser.parse_args()
    if args.list:
        print("\n".join(cell.title for cell in all_cells("MODELS", args.backend)))
        return 0
    told = machine.describe(sys.argv[1:])
    if (problem := machine.missing(told["device"])) is not None:
        print(problem, file=sys.stderr)
        return 2
    models = Path(tempfile.mkdtemp()) / "models"
    write_models(sys.executable, models, "tiny_mla" if is_latent(args.backend) else "tiny_models")
    everything = all_cells(str(models), args.backend, compiled=args.compiled, engine=args.engine)
    cells = [cell for cell in everything if re.search(args.only, cell.title)]
    logs = args.out.parent / f"{args.out.stem}-logs"
    judged = judge_by(args.row)
    results = run_cells(cells, Slots((), args.jobs), args.out, logs, args.timeout, judged, told)
    failed = [result for result in results if not result["ok"]]
    print(f"{len(results) - len(failed)} of {len(results)} cells equal the oracle")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    raise SystemExit(main())
