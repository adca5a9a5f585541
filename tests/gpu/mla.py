#!/usr/bin/env python3
"""MTP drafts with latent attention (MLA) on one GPU, equal to the oracle in every cell.

Runs where a patched vLLM can be imported (``PYTHONPATH``): a tiny DeepSeek-V3 with an MTP layer,
dense or with experts, whose every token and accepted count is known beforehand, with
FLASH_ATTN_MLA, FLASHMLA and TRITON_MLA (Hopper), without graphs, in steps and in a loop.  As with
``acceptance.py``, a cell that should have graphs and replayed none has failed, and so has one
whose draft ran with another attention backend.  What proves most begins first; nothing is
compiled unless asked for.

    mla.py --out result.json [--only REGEX] [--jobs 6] [--timeout 150] [--compiled]
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

TESTS = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, str(Path(TESTS).parent))

from tests.engine.engine_launch import write_models
from tests.engine.engine_spec import EngineSpec, make_requests
from tests.gpu.acceptance import run_cells
from tests.gpu.cells import Cell, falling
from tests.gpu.gpu_cells import FREE_SHARE, FULL, KV_BYTES
from tests.gpu.judging import judge
from tests.gpu.placing import Slots

CHECK = {"OVERLAY_DRAFT_GRAPHS_CHECK": "1"}
UPSTREAM = {"OVERLAY_STEADY_INPUTS": "off"}
#: Starts much faster than a compiled engine, and a FULL_DECODE_ONLY drafter has no piecewise
#: graphs to fall back to.
UNCOMPILED = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
#: Backend, draft, mode, K and further entries of the spec; what proves most comes first.
Planned = tuple[str, str, str, int, dict[str, Any]]
PLAN: tuple[Planned, ...] = (
    ("FLASH_ATTN_MLA", "deepseek-mtphid", "loop", 5, {}),
    ("FLASHMLA", "deepseek-mtphid", "loop", 5, {}),
    ("FLASH_ATTN_MLA", "deepseek-mtphid", "step", 2, {}),
    ("FLASHMLA", "deepseek-mtphid", "step", 2, {}),
    ("FLASH_ATTN_MLA", "deepseek-mtp", "loop", 3, {}),
    ("FLASHMLA", "deepseek-mtp", "loop", 3, {}),
    ("FLASH_ATTN_MLA", "deepseek-mtphid", "loop", 2, {"env": CHECK}),
    ("FLASHMLA", "deepseek-mtphid", "loop", 3, {"env": CHECK}),
    ("FLASH_ATTN_MLA", "deepseek-mtp", "step", 3, {}),
    ("FLASHMLA", "deepseek-mtp", "step", 3, {}),
    ("FLASH_ATTN_MLA", "deepseek-mtp", "loop", 1, {}),
    ("FLASHMLA", "deepseek-mtp", "loop", 1, {}),
    ("FLASH_ATTN_MLA", "deepseek-mtphid", "loop", 3, {"requests": "long"}),
    *(
        (backend, "deepseek-moe-mtp", mode, k, {})
        for backend in ("FLASH_ATTN_MLA", "FLASHMLA")
        for mode, k in (("loop", 3), ("step", 5), ("off", 3))
    ),
    ("FLASH_ATTN_MLA", "deepseek-moe-mtp", "loop", 5, {"env": CHECK}),
    ("FLASH_ATTN_MLA", "deepseek-mtp", "off", 3, {}),
    ("FLASHMLA", "deepseek-mtp", "off", 3, {}),
    ("TRITON_MLA", "deepseek-mtp", "loop", 3, {}),
    ("TRITON_MLA", "deepseek-mtp", "off", 3, {}),
)
#: TRITON_MLA has no draft graphs: until 0.30 vLLM has no FULL graphs for it beside drafts, from
#: 0.31 on it is refused until a GPU has run it.  From then on it verifies drafts as decodes.
TRITON_DECODES: tuple[Planned, ...] = (("TRITON_MLA", "deepseek-mtphid", "step", 2, {}),)
#: Before, it verifies them as prefills and takes the length of their context from the host.  With
#: asynchronous scheduling that is an upper bound only (0.26.0, ``MLACommonMetadataBuilder.build``),
#: and this draft sees what is read beyond the end.  So it is the oracle's if vLLM schedules
#: synchronously, and else only what it is in upstream, twice.
TRITON_PREFILLS: tuple[Planned, ...] = (
    ("TRITON_MLA", "deepseek-mtphid", "step", 2, {"async_scheduling": False}),
    ("TRITON_MLA", "deepseek-mtphid", "off", 2, {"async_scheduling": False}),
    ("TRITON_MLA", "deepseek-mtphid", "step", 2, {}),
    ("TRITON_MLA", "deepseek-mtphid", "off", 2, {"env": UPSTREAM}),
    ("TRITON_MLA", "deepseek-mtphid", "off again", 2, {"env": UPSTREAM}),
)


def vllm_source(path: str) -> str:
    """A file of the vLLM that will run, which is not imported here."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("no vLLM can be imported; set PYTHONPATH to a patched one")
    return Path(found.submodule_search_locations[0], path).read_text(encoding="utf-8")


def all_cells(models: str, compilation: dict[str, Any]) -> Iterator[Cell]:
    """The cells for the release that can be imported."""
    triton = vllm_source("v1/attention/backends/mla/triton_mla.py")
    decodes = "QueryLenSupport.UNIFORM" in triton
    requests = falling(44, lengths=(3, 39), wave=9)
    long = make_requests(24, tokens=64, lengths=(150, 400), wave=3, steps_between=4)
    for backend, draft, mode, k, more in PLAN + (TRITON_DECODES if decodes else TRITON_PREFILLS):
        spec = EngineSpec(
            models=models,
            draft=draft,
            k=k,
            enforce_eager=False,
            max_num_seqs=20,
            compilation=compilation,
            attention_backend=backend,
            requests=long if more.get("requests") == "long" else requests,
            async_scheduling=more.get("async_scheduling"),
            engine={
                "model": f"{models}/{draft}",
                "gpu_memory_utilization": FREE_SHARE,
                "kv_cache_memory_bytes": KV_BYTES,
            },
            speculative={"method": "mtp"},
            post_load=("tests.gpu.graph_hooks:watch_replays",),
            finish=("tests.gpu.graph_hooks:replays",),
            packages=(TESTS,),
        )
        spec = replace(spec, env=more.get("env", {}))
        graphs = not mode.startswith("off") and backend != "TRITON_MLA"
        kind = f"{backend.lower()}-{draft.removeprefix('deepseek-')}-k{k}{_kind(more)}"
        yield Cell(kind, mode, spec, expects="graphs" if graphs else "none")


def _kind(more: dict[str, Any]) -> str:
    """What the name of a cell says beyond its backend, draft and K."""
    if more.get("env") == CHECK:
        return "-checked"
    return {"requests": "-long", "async_scheduling": "-sync"}.get(next(iter(more), ""), "")


def judge_all(results: list[dict[str, Any]]) -> None:
    """As ``judging.judge``; and the draft's attention backend is the one that was asked for."""
    judge(results)
    for one in results:
        asked = [one["settings"]["attention_backend"]]
        found = (one.get("captured") or {}).get("attention")
        if one["ok"] and found != asked:
            one["ok"], one["why"] = False, f"the draft's attention backend is {found}, not {asked}"


def main() -> int:
    """Run the cells, write the results, print one line each; 1 if any failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="regular expression on NAME-MODE")
    parser.add_argument("--jobs", type=int, default=6, help="engines at a time")
    parser.add_argument("--compiled", action="store_true", help=f"in {FULL['cudagraph_mode']}")
    parser.add_argument("--timeout", type=float, default=150, help="seconds for one engine")
    args = parser.parse_args()
    models = Path(tempfile.mkdtemp()) / "models"
    write_models(sys.executable, models, "tiny_mla")
    everything = all_cells(str(models), FULL if args.compiled else UNCOMPILED)
    cells = [cell for cell in everything if re.search(args.only, cell.title)]
    logs = args.out.parent / f"{args.out.stem}-logs"
    slots = Slots((), args.jobs)
    results = run_cells(cells, slots, args.out, logs, args.timeout, judge_all)
    failed = [found for found in results if not found["ok"]]
    print(f"{len(results) - len(failed)} of {len(results)} cells equal the oracle")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    raise SystemExit(main())
