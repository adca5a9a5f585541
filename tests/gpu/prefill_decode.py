#!/usr/bin/env python3
"""A decode instance behind a prefill instance, each on a GPU of its own, beside draft graphs.

P2pNcclConnector (until 0.23) sends keys and values layer by layer, the draft's included, and the
decode instance waits for each of them: a layer that a graph replays unseen would hold it for ever.
Without draft graphs and as by default, each token and each accepted draft must be the oracle's.

    CUDA_VISIBLE_DEVICES=0,1 prefill_decode.py --out result.json [--only REGEX]
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine.engine_spec import EngineSpec
from tests.gpu import cell_runs, rounds
from tests.gpu.connectors import accepted_of, engine_of, write_models

#: The variable that tells a worker the other one's address (`peer_events`).
PEER = "TEST_CONNECTOR_PEER"
CONNECTOR = "P2pNcclConnector"
CELLS = tuple(f"{draft}-{mode}" for draft in ("eagle3", "eagle1") for mode in ("off", "auto"))
#: Role -> the port where it listens.
PORTS = {"kv_producer": 21001, "kv_consumer": 22001}


def instance(draft: str, role: str, folder: Path) -> EngineSpec:
    """One of the two engines; the one that prefills answers each prompt with a token."""
    spec = engine_of(draft, "alone", folder, Path(), double=False)
    engine = {
        **spec.engine,
        "worker_extension_cls": "tests.gpu.peer_events.PeerEvents",
        "kv_transfer_config": {
            "kv_connector": CONNECTOR,
            "kv_role": role,
            "kv_port": PORTS[role],
            "kv_buffer_size": 1e9,
            "kv_connector_extra_config": {"send_type": "PUT", "mem_pool_size_gb": 1},
        },
    }
    requests = spec.requests
    if role == "kv_producer":
        requests = tuple(replace(each, tokens=1) for each in requests)
    return replace(spec, engine=engine, requests=requests)


def variables(role: str, mode: str) -> dict[str, str]:
    """The environment of an engine: its GPU, and where the other one listens."""
    first, second = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")[:2]
    (other,) = set(PORTS) - {role}
    return {
        "CUDA_VISIBLE_DEVICES": first if role == "kv_producer" else second,
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
        PEER: f"127.0.0.1:{PORTS[other]}",
        "OVERLAY_DRAFT_GRAPHS": mode,
    }


def launch_cell(cell: str, folder: Path, logs: Path, arguments: Any) -> dict[str, Any]:
    """Run both engines at a time."""
    draft, mode = cell.split("-")
    seconds = max(min(arguments.limit, arguments.deadline - time.monotonic()), 1)

    def run(role: str) -> dict[str, Any]:
        plan = {
            "spec": dataclasses.asdict(instance(draft, role, folder)),
            "draft": f"{folder}/{draft}",
            "rounds": [rounds.BEFORE],
            "double": False,
        }
        log = logs / f"prefill-decode-{cell}-{role}.log"
        return rounds.launch(plan, log, seconds, variables(role, mode))

    with ThreadPoolExecutor() as pool:
        ran = dict(zip(PORTS, pool.map(run, PORTS), strict=True))
    why = why_wrong(ran, mode)
    wall = max(each["wall_s"] for each in ran.values())
    release = next((each["vllm"] for each in ran.values() if "vllm" in each), None)
    about = {"cell": cell, "mode": mode, "engines": ran, "wall_s": wall, "vllm": release}
    return {**about, "why": why, "ok": not why}


def why_wrong(ran: dict[str, dict[str, Any]], mode: str) -> list[str]:
    """What is wrong with the two engines' results, by role."""
    prefill, decode = ran["kv_producer"], ran["kv_consumer"]
    why = [f"prefill: {prefill['failed']}"] if prefill.get("failed") else []
    why += [
        f"prefill: {each.get('error', 'other tokens than the oracle')}"
        for each in prefill["rounds"]
        if each.get("error") or not each["tokens_ok"]
    ]
    why += [f"decode: {each}" for each in rounds.why_wrong(decode, [rounds.BEFORE], graphs=False)]
    cached = sum(each.get("cached", 0) for each in decode["rounds"])
    if not cached:
        why.append("decode: nothing was loaded")
    if mode != "off" and not any(CONNECTOR in line for line in decode["log"]):
        why.append("the log does not name the connector")
    return why


def main() -> int:
    """Run the cells, write the results, print one line each; 1 if any failed."""
    arguments = cell_runs.parse((__doc__ or "").partition("\n")[0], CELLS, limit=400)
    arguments.jobs = 1  # all have the same ports
    return cell_runs.run(arguments, CELLS, write_models, launch_cell, accepted_of)


if __name__ == "__main__":
    raise SystemExit(main())
