#!/usr/bin/env python3
"""Acceptance per position of the draft graphs on a GPU, equal to the oracle in every cell.

Runs where a patched vLLM can be imported (``PYTHONPATH``), several engines at a time, and writes
one JSON file: for each cell its settings, whether every token and accepted count agreed with the
oracle, and how often which graph was replayed.  A cell in a graph mode that replayed nothing has
failed: it proves nothing.

    acceptance.py --out result.json [--only REGEX] [--jobs 6]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENGINE = HERE.parent / "engine"
sys.path.insert(0, str(ENGINE))

from engine_spec import EngineSpec, Request, make_requests  # noqa: E402

FULL = {"cudagraph_mode": "FULL_AND_PIECEWISE"}


def falling(count: int, *, shortest: int = 12, **more: Any) -> tuple[Request, ...]:
    """Requests of many lengths, so that the batch shrinks through every size."""
    made = make_requests(count, **more)
    spread = [shortest + (7 * index) % 61 for index in range(count)]
    return tuple(
        replace(request, tokens=tokens) for request, tokens in zip(made, spread, strict=True)
    )


def mixed(requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """Some with a temperature, some that ask for prompt logprobs, beside the greedy ones."""
    return tuple(
        replace(
            request,
            temperature=0.7 if index % 3 == 1 else 0.0,
            prompt_logprobs=1 if index % 4 == 2 else None,
        )
        for index, request in enumerate(requests)
    )


def cells(models: str) -> Iterator[tuple[str, str, EngineSpec]]:
    """``(name, mode, spec)`` of every cell."""
    base = EngineSpec(
        models=models,
        enforce_eager=False,
        compilation=FULL,
        engine={"gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": 1 << 30},
        post_load=("graph_hooks:watch_replays",),
        finish=("graph_hooks:replays",),
        python_path=(str(HERE),),
    )
    eight = falling(24, wave=5)
    for mode in ("off", "step", "loop"):
        for k in (1, 2, 3, 5, 7):
            yield f"k{k}", mode, replace(base, k=k, requests=eight)
        for draft in ("eagle3hid", "eagle1"):
            yield draft, mode, replace(base, draft=draft, k=5, requests=eight)
    limit = make_requests(16, tokens=200, lengths=(20, 90))
    for mode in ("off", "step", "loop"):
        # Here upstream itself leaves the oracle: near the length limit it drafts zeros for the
        # whole batch, and prompt logprobs can tie.  The engine without graphs is the measure.
        yield "max-model-len", mode, replace(base, max_model_len=128, k=5, requests=limit)
        yield "sampled-and-logprobs", mode, replace(base, requests=mixed(eight))
    for mode in ("off", "step", "loop"):
        for seqs in (1, 8, 200, 256):
            requests = falling(min(seqs * 3, 300), wave=None if seqs > 8 else 3)
            budget = {"max_num_seqs": seqs, "max_num_batched_tokens": 2048}
            yield f"seqs{seqs}", mode, replace(base, k=3, requests=requests, **budget)
            yield (
                f"seqs{seqs}-k5-hid",
                mode,
                replace(base, draft="eagle3hid", k=5, requests=requests, **budget),
            )
    for mode in ("step", "loop"):
        small = {**FULL, "cudagraph_capture_sizes": [1, 2, 4, 8]}
        yield "sizes-1248", mode, replace(base, compilation=small, requests=eight)
        for name in ("FULL", "FULL_DECODE_ONLY"):
            graphs = {"cudagraph_mode": name}
            yield name.lower(), mode, replace(base, compilation=graphs, requests=eight)
        yield "triton", mode, replace(base, attention_backend="TRITON_ATTN", requests=eight)
        yield (
            "triton-hid-k5",
            mode,
            replace(base, attention_backend="TRITON_ATTN", draft="eagle3hid", k=5, requests=eight),
        )
        long = make_requests(24, tokens=64, lengths=(150, 400), wave=3, steps_between=4)
        yield "long-prompts", mode, replace(base, draft="eagle3hid", requests=long)
        yield (
            "preempted",
            mode,
            replace(
                base,
                draft="eagle3hid",
                k=5,
                block_size=16,
                kv_blocks=40,
                requests=falling(24, shortest=80),
            ),
        )
        prefix = tuple(
            replace(request, prompt=tuple(range(3, 103)) + request.prompt) for request in eight
        )
        yield (
            "prefix-caching",
            mode,
            replace(base, draft="eagle3hid", prefix_caching=True, requests=prefix),
        )
        yield (
            "profiled-memory",
            mode,
            replace(base, engine={"gpu_memory_utilization": 0.3}, requests=eight),
        )
    for workers in (2, 4):  # chosen with --only on a host that has the GPUs
        parallel = {"tensor_parallel_size": workers, "post_load": (), "finish": ()}
        for mode in ("off", "step", "loop"):
            for draft, k in (("eagle3", 3), ("eagle3hid", 5)):
                spec = replace(base, draft=draft, k=k, requests=eight, **parallel)
                yield f"tp{workers}-{draft}-k{k}", mode, spec
    checked = {"OVERLAY_DRAFT_GRAPHS_CHECK": "1"}
    yield (
        "soak",
        "loop",
        replace(base, draft="eagle3hid", k=3, env=checked, requests=make_requests(7000, tokens=60)),
    )
    yield (
        "soak",
        "step",
        replace(base, draft="eagle3hid", k=7, env=checked, requests=make_requests(5200, tokens=60)),
    )


def verdict(mode: str, result: dict[str, Any]) -> dict[str, Any]:
    """The part of an engine's result that is kept."""
    kept = {
        name: result[name]
        for name in ("vllm", "torch", "device", "engine_steps", "seconds", "counts", "oracle")
    }
    for name in ("tokens_ok", "steps_ok", "prompt_logprobs_ok"):
        found = [request[name] for request in result["requests"] if request[name] is not None]
        kept[name] = f"{sum(found)} of {len(found)}"
    kept |= {"preemptions": result["preemptions"], "counts_ok": result["counts_ok"]}
    hooks = result["hooks"]
    kept["captured"] = hooks.get("graph_hooks:watch_replays")
    kept["ran"] = hooks.get("graph_hooks:replays") or {}
    kept["equals"] = "oracle" if result["ok"] else None
    return kept


def graphs_ran(found: dict[str, Any]) -> bool:
    """Whether draft graphs ran: by their replays, or, in other processes, by the log."""
    if found.get("ran"):
        return sum(found["ran"]["replays"].values()) > 0 and not found["ran"]["withdrawn"]
    text = " ".join(found["log"])
    return "captured" in text and "withdrawn" not in text


def judge(results: list[dict[str, Any]]) -> None:
    """Set ``ok`` of every cell: equal to the oracle, or else to the engine without graphs."""
    exact = ("tokens_ok", "steps_ok", "prompt_logprobs_ok", "counts", "counts_ok")
    plain = {one["cell"]: one for one in results if one["mode"] == "off" and "counts" in one}
    for one in results:
        same = plain.get(one["cell"])
        unjudged = "counts" in one and one["equals"] is None and same is not None
        if unjudged and all(one[name] == same[name] for name in exact):
            one["equals"] = "itself without graphs"
        one["ok"] = one.get("equals") is not None and graphs_ran(one) == (one["mode"] != "off")


def run_cell(name: str, mode: str, spec: EngineSpec, logs: Path) -> dict[str, Any]:
    """Run one cell in a process of its own."""
    title = f"{name}-{mode}"
    log = logs / f"{title}.log"
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "spec.json", Path(folder) / "result.json"
        given.write_text(spec.to_json())
        with log.open("w") as stream:
            done = subprocess.run(
                [sys.executable, str(ENGINE / "run_engine.py"), str(given), "--out", str(out)],
                env=os.environ | {"OVERLAY_DRAFT_GRAPHS": mode},
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=540,
                check=False,
            )
        found = verdict(mode, json.loads(out.read_text())) if out.exists() else {}
    if done.returncode:
        found["failed"] = log.read_text()[-1500:]
    lines = [line[-400:] for line in log.read_text().splitlines() if "Draft graphs" in line]
    found |= {"cell": name, "mode": mode, "log": lines}
    found["settings"] = {
        "draft": spec.draft,
        "k": spec.k,
        "max_num_seqs": spec.max_num_seqs,
        "max_model_len": spec.max_model_len,
        "compilation": spec.compilation,
        "attention_backend": spec.attention_backend,
        "requests": len(spec.requests),
        "env": dict(spec.env),
    }
    return found | {"wall_s": round(time.monotonic() - begun, 1)}


def main() -> int:
    """Run the cells, write the results, print one line each; 1 if any failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="regular expression on NAME-MODE")
    parser.add_argument("--jobs", type=int, default=6)
    args = parser.parse_args()
    models = Path(tempfile.mkdtemp()) / "models"
    subprocess.run([sys.executable, str(ENGINE / "tiny_models.py"), str(models)], check=True)
    logs = args.out.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    chosen = [cell for cell in cells(str(models)) if re.search(args.only, f"{cell[0]}-{cell[1]}")]
    results: list[dict[str, Any]] = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for found in pool.map(lambda cell: run_cell(*cell, logs), chosen):
            results.append(found)
            judge(results)
            replays = (found.get("ran") or {}).get("replays")
            state = "ok" if found["ok"] else "FAILED"
            print(state, found["cell"], found["mode"], replays, f"{found['wall_s']} s", flush=True)
            date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            document = {"date": date, "release": found.get("vllm"), "cells": results}
            args.out.write_text(json.dumps(document, indent=1) + "\n")
    failed = [found for found in results if not found["ok"]]
    equal = f"{len(results) - len(failed)} of {len(results)} cells"
    print(f"{equal} equal the oracle, or themselves without graphs")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
