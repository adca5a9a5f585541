#!/usr/bin/env python3
"""Weights loaded again, sleep and wake, while draft graphs serve: accepted drafts are the oracle's.

One engine a drafter, without graphs and with them, each in rounds: the same requests before and
after each event. The events with a sleep want a GPU (vLLM's memory pool); ``--double`` rehearses
the others on CPU.  With ``--ranks 2`` each engine has two tensor-parallel ranks, on two GPUs.

    reload.py --out result.json [--only REGEX] [--jobs 3] [--ranks 2] [--double]
"""

from __future__ import annotations

import dataclasses
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS.parent))

from tests.engine import engine_launch
from tests.engine.engine_spec import EngineSpec
from tests.gpu import cell_runs, rounds
from tests.gpu.cells import falling
from tests.gpu.drafter_cells import DRAFTERS
from tests.gpu.gpu_cells import FREE_SHARE, FULL, KV_BYTES

#: What happens to an engine's weights, one after the other.
EVENTS = ("load_weights", "reload_weights")
#: Tensors that are replaced behind vLLM's back. On CPU only: on a GPU vLLM's own PIECEWISE graphs
#: read the old ones, so that stock drafts are wrong (seen with 0.26.0 on an H100).
MOVES = ("moved_data", "moved_parameters", "moved_tensors")
#: The same, of a draft that has a head in `lm_head`.
HEADS = ("moved_head",)
#: The writers of models, by the folder that they write to.
WRITERS = {"eagle": "tiny_models", "drafters": "tiny_drafters", "mla": "tiny_mla"}
NAMES = ("eagle1", "eagle3", "mtp", *DRAFTERS)
CELLS = tuple(f"{name}-{mode}" for name in NAMES for mode in ("off", "auto"))
#: Drafters that the double can hold: latent attention has no kernel on CPU.
REHEARSED = tuple(name for name in NAMES if name != "mtp")


def engine_of(name: str, folder: Path, *, double: bool, ranks: int = 1) -> tuple[EngineSpec, Path]:
    """The engine of a drafter, and the folder of its draft's checkpoint."""
    engine: dict[str, Any] = {
        "kv_cache_memory_bytes": KV_BYTES,
        "gpu_memory_utilization": FREE_SHARE,
    }
    base = EngineSpec(
        models=str(folder / "eagle"),
        enforce_eager=False,
        compilation=FULL,
        requests=falling(8, wave=4),
        engine={**engine, "enable_sleep_mode": True},
        packages=(str(TESTS),),
        tensor_parallel_size=ranks,
    )
    if name == "mtp":
        models = f"{folder}/mla"
        draft = "deepseek-mtp"
        engine = {**base.engine, "model": f"{models}/{draft}"}
        spec = replace(base, models=models, draft=draft, engine=engine)
        spec = replace(spec, speculative={"method": "mtp"}, attention_backend="FLASH_ATTN_MLA")
        spec = replace(spec, compilation={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"})
    elif name in DRAFTERS:
        drafter = DRAFTERS[name]
        spec = drafter.spec(replace(base, models=str(folder)), 3)
        spec = replace(spec, requests=drafter.requests(8, wave=4))
    else:
        spec = replace(base, draft=name)
    if name == "dflash" and ranks > 1:
        # With it vLLM's own PIECEWISE capture dies, whether drafts are in graphs or not.
        spec = replace(spec, engine={**spec.engine, "disable_custom_all_reduce": True})
    if double:  # few cores
        shorter = tuple(replace(each, tokens=min(each.tokens, 24)) for each in spec.requests)
        spec = replace(spec, requests=shorter)
    return rounds.with_events(spec, double=double), Path(spec.models, str(spec.draft))


def rounds_of(name: str, *, double: bool) -> tuple[str, ...]:
    """What happens, in order."""
    heads = HEADS if name.startswith("eagle") else ()
    moves = (*MOVES, *heads) if double else ()
    sleeps = ("wake", "given_back") if double else tuple(rounds.SLEEPS)
    # vLLM refuses it: the operator of dflash's own rotary embedding has no kernel for shapes alone.
    layers = () if name == "dflash" else ("layerwise",)
    return (rounds.BEFORE, *EVENTS, *moves, *sleeps, *layers)


def launch_cell(cell: str, folder: Path, logs: Path, arguments: Any) -> dict[str, Any]:
    """Run one engine."""
    name, _, mode = cell.rpartition("-")
    spec, draft = engine_of(name, folder, double=arguments.double, ranks=arguments.ranks)
    planned = rounds_of(name, double=arguments.double)
    plan = {
        "spec": dataclasses.asdict(spec),
        "draft": str(draft),
        "rounds": planned,
        "double": arguments.double,
    }
    seconds = max(min(arguments.limit, arguments.deadline - time.monotonic()), 1)
    log = logs / f"reload-{cell}.log"
    env = {"OVERLAY_DRAFT_GRAPHS": mode}
    found = rounds.launch(plan, log, seconds, env)
    found["why"] = rounds.why_wrong(found, planned, graphs=mode != "off")
    found["again"] = sum("capturing them again" in line for line in found["log"])
    return {"cell": cell, "mode": mode, "ranks": arguments.ranks, "ok": not found["why"], **found}


def write_models(folder: Path) -> Path:
    """All models; their folder."""
    for name, writer in WRITERS.items():
        engine_launch.write_models(sys.executable, folder / name, writer)
    return folder


def main() -> int:
    """Run the cells, write the results, print one line each; 1 if any failed."""
    parser = cell_runs.parser((__doc__ or "").partition("\n")[0], CELLS, limit=560)
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel, each on a GPU")
    arguments = parser.parse_args()
    cells = [each for each in CELLS if not arguments.double or each.rpartition("-")[0] in REHEARSED]
    return cell_runs.run(
        arguments,
        cells,
        write_models,
        launch_cell,
        lambda cell: [each.get("accepted") for each in cell["rounds"]],
    )


if __name__ == "__main__":
    raise SystemExit(main())
