#!/usr/bin/env python3
"""A KV connector that acts per layer, beside draft graphs: what it stores, and what it loads again.

vLLM's own ExampleConnector stores keys and values of each prompt, layer by layer, and another
engine serves the same prompts from the store. Without draft graphs and as by default: all layers
must be stored, the draft's included, the prompts be loaded, and each accepted draft be the
oracle's. ``--double`` rehearses it on CPU, with the graph double.

    connectors.py --out result.json [--only REGEX] [--double]
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS.parent))

from tests.engine import engine_launch
from tests.engine.engine_spec import EngineSpec, Request, make_requests
from tests.gpu import cell_runs, rounds
from tests.gpu.gpu_cells import FREE_SHARE, FULL, KV_BYTES

CONNECTOR = "ExampleConnector"
DRAFTS = ("eagle1", "eagle3")
#: The connector alone, and as the child of one that has several.
KINDS = ("alone", "nested")
CELLS = tuple(
    f"{draft}-{kind}-{mode}"
    for draft, kind in (("eagle3", "alone"), ("eagle1", "alone"), ("eagle3", "nested"))
    for mode in ("off", "auto")
)
#: Tokens of a block; the connector stores whole blocks, of which a prompt has two.
BLOCK, PROMPT = 16, 40


def requests() -> tuple[Request, ...]:
    """Prompts that end behind a whole block, one after the other."""
    made = make_requests(4, tokens=24, lengths=(PROMPT, PROMPT))
    return tuple(replace(each, arrival=20 * index) for index, each in enumerate(made))


def engine_of(draft: str, kind: str, folder: Path, store: Path, *, double: bool) -> EngineSpec:
    """An engine with the connector."""
    connector: dict[str, Any] = {
        "kv_connector": CONNECTOR,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(store)},
    }
    if kind == "nested":
        several: dict[str, Any] = {"connectors": [connector]}
        connector = {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": several,
        }
    spec = EngineSpec(
        models=str(folder),
        draft=draft,
        enforce_eager=False,
        compilation=FULL,
        block_size=BLOCK,
        requests=requests(),
        engine={
            "kv_cache_memory_bytes": KV_BYTES,
            "gpu_memory_utilization": FREE_SHARE,
            "kv_transfer_config": connector,
        },
        packages=(str(TESTS),),
    )
    return rounds.with_events(spec, double=double)


def launch_cell(cell: str, folder: Path, logs: Path, arguments: Any) -> dict[str, Any]:
    """Run the engine that stores, and then the one that loads."""
    draft, kind, mode = cell.split("-")
    found: dict[str, Any] = {"cell": cell, "mode": mode, "why": [], "engines": {}, "wall_s": 0.0}
    with tempfile.TemporaryDirectory(prefix="store-") as store:
        for phase in ("store", "load"):
            spec = engine_of(draft, kind, folder, Path(store), double=arguments.double)
            plan = {
                "spec": dataclasses.asdict(spec),
                "draft": f"{folder}/{draft}",
                "rounds": [rounds.BEFORE],
                "double": arguments.double,
            }
            seconds = max(min(arguments.limit, arguments.deadline - time.monotonic()), 1)
            log = logs / f"connectors-{cell}-{phase}.log"
            ran = rounds.launch(plan, log, seconds, {"OVERLAY_DRAFT_GRAPHS": mode})
            ran["layers"] = sorted({path.stem for path in Path(store).rglob("*.safetensors")})
            found["why"] += [f"{phase}: {why}" for why in _why_wrong(ran, phase, mode)]
            found["engines"][phase] = ran
            found["wall_s"] = round(found["wall_s"] + ran["wall_s"], 1)
            found["vllm"] = ran.get("vllm", found.get("vllm"))
    return {**found, "ok": not found["why"]}


def _why_wrong(ran: dict[str, Any], phase: str, mode: str) -> list[str]:
    """What is wrong with one engine."""
    why = rounds.why_wrong(ran, [rounds.BEFORE], graphs=False)
    target = [layer for layer in ran["layers"] if ".layers." in layer]
    if len(target) < 5:  # four of the target's, and the draft's
        why.append(f"stored {ran['layers']}")
    cached = sum(each.get("cached", 0) for each in ran["rounds"])
    if phase == "load" and cached < 2 * BLOCK * len(requests()):
        why.append(f"{cached} tokens were loaded")
    if mode != "off" and not any(CONNECTOR in line for line in ran["log"]):
        why.append("the log does not name the connector")
    return why


def write_models(folder: Path) -> Path:
    """The models; their folder."""
    engine_launch.write_models(sys.executable, folder / "eagle")
    return folder / "eagle"


def accepted_of(cell: dict[str, Any]) -> dict[str, Any]:
    """What the engines of a cell accepted, by what each was for."""
    return {
        phase: [each.get("accepted") for each in ran["rounds"]]
        for phase, ran in cell["engines"].items()
    }


def main() -> int:
    """Run the cells, write the results, print one line each; 1 if any failed."""
    arguments = cell_runs.parse((__doc__ or "").partition("\n")[0], CELLS, limit=400)
    return cell_runs.run(arguments, CELLS, write_models, launch_cell, accepted_of)


if __name__ == "__main__":
    raise SystemExit(main())
