#!/usr/bin/env python3
"""Auto-apply with two ranks on two GPUs: vLLM's Ray executors and the multiprocess executor.

Needs a pristine vLLM (with Ray beside it) and the folder that ``overlay_site.py`` made; neither is
written to, and where the system allows it the installation is mounted read-only.  Each cell is one
engine with tensor parallel 2 on the tiny models, patched in memory:

- tokens and accepted drafts, position by position, equal the oracle; every process of the engine
  reports the same digest and runs what was planned; both ranks captured draft graphs and replayed
  them;
- or one rank is given another switch or another patch set, and all ranks stop with the table.

    ray_executor.py --site SITE --overlay FOLDER --out result.json [--jobs 2] [--limit 200]
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from tests.engine.engine_launch import EngineFailed, launch, write_models
from tests.engine.engine_spec import EngineSpec, make_requests
from tests.gpu import installation
from tests.gpu.rank_hooks import PATCHES_VARIABLE, SWITCH

#: Starts much faster than a compiled engine; the draft graphs are there all the same.
UNCOMPILED = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
#: From 0.25 vLLM's Ray executor looks for a port within ``WINDOW`` from 100 on above that of the
#: data-parallel master, which is 0 where it is not told: engines that start at the same time take
#: the same one.  So each cell is told another, below the ports that the system gives away.
MASTER_PORT, FIRST_PORT, WINDOW = "VLLM_DP_MASTER_PORT", 21000, 32
#: Of the three modules that are patched in place for draft graphs.
TARGETS = (
    "vllm.v1.spec_decode.llm_base_proposer",
    "vllm.v1.cudagraph_dispatcher",
    "vllm.v1.worker.gpu_model_runner",
)
TABLE = "do not run the same code"
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",  # what both ranks say is to be seen twice
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(1 << 30),
}
OWN_CORE = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    # The script asks the workers what they run, by functions that are sent to them.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}
FURTHER = """
id = "further"
title = "A further module"
why = "To be another patch set."
upstream = "https://example.com/1"
releases = "0.20.0..0.33.0"
"""


def cells(models: str) -> Iterator[tuple[str, int, EngineSpec]]:
    """``(name, processes, spec)`` of every cell; no processes where the ranks must stop."""
    ports = count(FIRST_PORT, 100 + 2 * WINDOW)
    base = EngineSpec(
        models=models,
        k=3,
        requests=make_requests(24, wave=5),
        enforce_eager=False,
        tensor_parallel_size=2,
        compilation=UNCOMPILED,
        packages=(str(REPOSITORY / "tests"),),
        post_load=("tests.gpu.graph_hooks:watch_replays",),
        finish=("tests.gpu.graph_hooks:replays", "tests.in_memory.engine_hooks:live"),
    )

    def spec(executor: str, env: dict[str, str] | None = None, **more: Any) -> EngineSpec:
        memory = {"gpu_memory_utilization": 0.5, "kv_cache_memory_bytes": 1 << 30}
        ray = {**RAY, MASTER_PORT: str(next(ports))} if executor == "ray" else {}
        more.setdefault("pre", ("tests.gpu.rank_hooks:one_address",) if ray else ())
        engine = {**memory, "distributed_executor_backend": executor}
        return replace(base, engine=engine, env={**ray, **(env or {})}, **more)

    # vLLM keeps Ray from setting the devices that a worker sees, and there Ray's compiled graph
    # looks for its own.
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1")
    older = {"VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "0", "CUDA_VISIBLE_DEVICES": seen}
    spawn = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    yield "ray", 3, spec("ray")
    yield "ray-own-core", 4, spec("ray", OWN_CORE, draft="eagle3hid", k=5)
    yield (
        "ray-older",
        3,
        spec(
            "ray",
            older,
            pre=("tests.gpu.rank_hooks:one_address", "tests.gpu.rank_hooks:one_stream"),
        ),
    )
    yield "multiprocess", 3, spec("mp")
    yield "ray-other-patches", 0, spec("ray", pre=("tests.gpu.rank_hooks:patches_of_one_ray_rank",))
    yield (
        "ray-older-other-switch",
        0,
        spec("ray", older, pre=("tests.gpu.rank_hooks:switch_of_one_ray_rank",)),
    )
    yield (
        "multiprocess-other-switch",
        0,
        spec("mp", spawn, pre=("tests.gpu.rank_hooks:switch_of_one_process",)),
    )


def further_patches(folder: Path) -> Path:
    """A patches folder with a feature that adds a module that is never imported."""
    feature = folder / "further-patches/further"
    module = feature / "files/vllm/further.py"
    module.parent.mkdir(parents=True)
    module.write_text('"""Something else."""\n')
    (feature / "feature.toml").write_text(FURTHER)
    return feature.parent


def judge_drafts(result: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the tokens and the acceptance."""
    for name in ("tokens_ok", "steps_ok"):
        wrong = [number for number, one in enumerate(result["requests"]) if not one[name]]
        if wrong:
            yield f"{name} is false for requests {wrong}"
    if result["counts"] != result["oracle"]:
        yield f"counts {result['counts']}, oracle {result['oracle']}"


def judge_processes(result: dict[str, Any], processes: int) -> Iterator[str]:
    """What is wrong with the processes' records, seen beside what the workers run."""
    said = result["hooks"]["engine_hooks:live"]
    if len(said) != processes:
        yield f"{len(said)} processes, expected {processes}: {[one['title'] for one in said]}"
    for one in said:
        record = one["record"] or {"way": None, "digest": None}
        if one["problem"] or record["way"] != "memory":
            yield f"process {one['pid']} ({one['title']}): {one['problem']}, {record['way']}"
    if len({(one["record"] or {}).get("digest") for one in said}) != 1:
        yield "the digests differ"
    records = {one["pid"]: one["record"] for one in said if one["record"]}
    for worker in result["workers"]:
        modules = {
            m["module"]: m for m in (records.get(worker["pid"]) or {"modules": ()})["modules"]
        }
        for target in TARGETS:
            scopes = modules.get(target, {"scopes": {}})["scopes"]
            if set(scopes.values()) != {"runs"}:
                yield f"rank {worker['rank']}: {target} has {scopes or 'no record'}"


def judge_graphs(result: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the draft graphs of each rank."""
    captured, ran = (
        (result["hooks"][hook] or {}).get("ranks") or []
        for hook in ("graph_hooks:watch_replays", "graph_hooks:replays")
    )
    if len(captured) != 2 or len(ran) != 2:
        yield f"graphs of {len(captured)} ranks, replays of {len(ran)}"
    for rank, (one, after) in enumerate(zip(captured, ran, strict=False)):
        keys, replays = one.get("keys") or {}, after["replays"]
        if after["withdrawn"] or not keys.get("first") or not keys.get("loop"):
            yield f"rank {rank} has the graphs {one}"
        if not replays.get("first") or not replays.get("loop"):
            yield f"rank {rank} replayed {replays}"
    if len({json.dumps(one["replays"], sort_keys=True) for one in ran}) > 1:
        yield f"the ranks replayed different graphs: {ran}"


def judge_stopped(log: str) -> tuple[list[str], list[str]]:
    """What is wrong with an engine whose ranks differ, and the table that was shown.

    Each rank raises for itself: the multiprocess executor logs it behind the worker's pid, for
    Ray's tasks ``rank_hooks`` prints what each of them raised.
    """
    ranks: set[str] = set()
    speaker = ""
    for line in log.splitlines():
        raised = re.match(r"(TASK-\d+) RAISED", line)
        speaker = raised[1] if raised else speaker
        if TABLE in line:
            worker = re.search(r"\(Worker[^)]*pid=(\d+)\)", line)
            ranks.add(worker[1] if worker else speaker)
    wrong = [] if len(ranks - {""}) == 2 else [f"stopped with the table: {sorted(ranks)}"]
    table = [line[-200:] for line in log.splitlines() if re.search(r"\s[01]\s+\d+\s+0\.\d+", line)]
    if not table:
        wrong.append("no table in the log")
    return wrong, table[:4]


def run_cell(
    name: str,
    processes: int,
    spec: EngineSpec,
    env: dict[str, str],
    logs: Path,
    limit: float,
) -> dict[str, Any]:
    """One engine; what was found, and whether it is as it must be."""
    begun = time.monotonic()
    found: dict[str, Any] = {"cell": name, "k": spec.k, "draft": spec.draft}
    wrong: list[str] = []
    try:
        result = launch(sys.executable, spec, env=env, timeout=limit)
        log = result["log"]
        if processes:
            wrong = [
                *judge_drafts(result),
                *judge_processes(result, processes),
                *judge_graphs(result),
            ]
        else:
            wrong = ["the engine ran, although its ranks differ"]
        kept = ("vllm", "torch", "device", "seconds", "counts", "oracle", "hooks", "engine_steps")
        found |= {one: result[one] for one in kept}
    except EngineFailed as error:
        log = error.output
        if processes:
            wrong = [str(error)[-3000:]]
        else:
            wrong, found["table"] = judge_stopped(log)
    (logs / f"{name}.log").write_text(log)
    said = [line[-300:] for line in log.splitlines() if "vllm-overlay: " in line]
    found |= {"ok": not wrong, "wrong": wrong, "said": said[:12]}
    return found | {"wall_s": round(time.monotonic() - begun, 1)}


def main() -> int:
    """Run the cells, compare the installation, write the result; 1 if anything is wrong."""
    parser = installation.parser(__doc__)
    parser.add_argument("--only", default="", help="regular expression on the cell's name")
    parser.add_argument("--jobs", type=int, default=2, help="engines at a time")
    parser.add_argument("--limit", type=float, default=200, help="seconds for one engine")
    args = parser.parse_args()
    site = args.site.resolve()
    installation.mount_read_only(site)
    before = installation.fingerprint(site)
    kept_by = installation.why_not_written(site)
    work = Path(tempfile.mkdtemp(prefix="ranks-"))
    models = str(work / "models")
    patches = further_patches(work)
    switches = {SWITCH: "loop", PATCHES_VARIABLE: str(patches)}
    env = installation.environment(site, args.overlay, work, **switches)
    write_models(sys.executable, Path(models))
    logs = args.out.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    chosen = [cell for cell in cells(models) if re.search(args.only, cell[0])]
    results: list[dict[str, Any]] = []
    with ThreadPoolExecutor(args.jobs) as pool:
        pending = [pool.submit(run_cell, *cell, env, logs, args.limit) for cell in chosen]
        for found in (each.result() for each in pending):
            results.append(found)
            state = "ok" if found["ok"] else "FAILED"
            print(state, found["cell"], f"{found['wall_s']} s", *found["wrong"], flush=True)
            write(args.out, kept_by, results, None)
    touched = installation.changed(before, installation.fingerprint(site))
    write(args.out, kept_by, results, touched)
    failed = [found["cell"] for found in results if not found["ok"]]
    print(
        f"{len(results) - len(failed)} of {len(results)} cells; installation ({kept_by}): ", end=""
    )
    print(f"{len(touched)} files changed" if touched else f"{len(before)} files unchanged")
    return 1 if failed or touched else 0


def write(
    out: Path, kept_by: str, results: list[dict[str, Any]], touched: list[str] | None
) -> None:
    """Write what was found so far; ``touched`` is ``None`` until the installation was compared."""
    document = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "release": next((one["vllm"] for one in results if "vllm" in one), None),
        "device": next((one["device"] for one in results if "device" in one), None),
        "installation": {"kept_by": kept_by, "changed": touched},
        "cells": results,
    }
    out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
