#!/usr/bin/env python3
"""Two data-parallel ranks whose target is split into micro-batches, with draft graphs.

Runs where a patched vLLM can be imported (``PYTHONPATH``), on a host with two GPUs. Engines are
those of ``data_parallel.py`` with the target that has experts: a front end, two engine cores and a
coordinator. vLLM's check of the all-to-all backend is taken out (`tests.support.micro_batches`),
and batches of 4 tokens and more are split. First both ranks are busy, then each in turn alone. A
cell is right if

- every request's tokens, and what every verification accepted, are the oracle's, on each rank;
- on each rank `UBatchWrapper` ran batches in micro-batches, captured some and replayed them;
- draft graphs were replayed on each rank, if they were wanted, without asking another rank.

A cell named ``without-...`` switches off one of the features that let vLLM start, and is right if
it stops with the error that users have reported. ``eplb`` has no micro-batches: experts are moved
every 16 steps beside a draft that has none.

    micro_batches.py --out result.json [--only REGEX] [--jobs 3] [--limit 500]

Writes one JSON file. ``--double`` is a rehearsal on CPU, without captures of micro-batches.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine.engine_spec import EngineSpec, make_requests
from tests.gpu import cell_runs, data_parallel, dp_hooks, dp_judging
from tests.support import micro_batches

DOUBLE_VARIABLE = "TEST_MICRO_BATCHES_DOUBLE"
#: Draft, mode, variables, part of the error that must end it; None where it must serve.
Cell = tuple[str, str, dict[str, str], str | None]
CELLS: dict[str, Cell] = {
    **{f"eagle3hid-{mode}": ("eagle3hid", mode, {}, None) for mode in ("loop", "step", "off")},
    "eagle1-loop": ("eagle1", "loop", {}, None),
    "eagle1-off": ("eagle1", "off", {}, None),
    "without-dbo-drafts": (
        *("eagle1", "off", {"OVERLAY_DBO_DRAFTS": "off"}),
        "AssertionError",
    ),
    "without-dbo-eagle3": (
        *("eagle3hid", "off", {"OVERLAY_DBO_EAGLE3": "off"}),
        "TypeError: expected Tensor",
    ),
    "eplb-loop": ("eagle3hid", "loop", {}, None),
    "eplb-off": ("eagle3hid", "off", {}, None),
}
EPLB = {
    "enable_expert_parallel": True,
    "enable_eplb": True,
    "eplb_config": {"window_size": 8, "step_interval": 16, "num_redundant_experts": 2},
}


def is_split(name: str) -> bool:
    """Whether the cell's target has micro-batches."""
    return not name.startswith("eplb")


def make_spec(models: Path, name: str, *, double: bool) -> EngineSpec:
    """The engine of a cell, which each rank has one of."""
    spec = data_parallel.make_spec(models, "moe", double=double)
    more = micro_batches.ARGUMENTS if is_split(name) else EPLB
    return replace(spec, draft=CELLS[name][0], engine={**spec.engine, **more})


# ---- one cell, in a process of its own


async def serve_phase(
    engine: Any, number: int, busy_ranks: tuple[int, ...], served: dp_judging.Served
) -> None:
    """Requests of many lengths for some ranks; names are ``rank.phase.number``."""

    async def work(rank: int) -> None:
        room = asyncio.Semaphore(data_parallel.LIVE)

        async def one(index: int, request: Any) -> None:
            name = f"{rank}.{number}.{index}"
            async with room:
                served[name] = (request, await data_parallel.ask(engine, name, request))

        requests = data_parallel.busy(seed=30 + 2 * number + rank)
        await asyncio.gather(*(one(*each) for each in enumerate(requests)))

    async def idle(rank: int) -> None:
        for index, request in enumerate(make_requests(2, tokens=12, seed=40 + number)):
            name = f"{rank}.{number}.{index}"
            served[name] = (request, await data_parallel.ask(engine, name, request))

    ranks = range(dp_judging.RANKS)
    await asyncio.gather(*(work(rank) if rank in busy_ranks else idle(rank) for rank in ranks))


async def serve(spec: EngineSpec) -> dp_judging.Served:
    """Start the engine and serve three phases; each request with its tokens, by its name."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**spec.llm_arguments()))
    served: dp_judging.Served = {}
    try:
        await serve_phase(engine, 0, (0, 1), served)
        await serve_phase(engine, 1, (0,), served)
        await serve_phase(engine, 2, (1,), served)
    finally:
        engine.shutdown()
    return served


def judge(spec: EngineSpec, served: dp_judging.Served, events: Path) -> list[dict[str, Any]]:
    """What each rank did."""
    from overlay.proof.tiny_models import read_rule

    told = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    ranks = dp_judging.judge(spec.k, read_rule(Path(spec.models)), served, told)
    for rank, found in enumerate(ranks):
        found["target"] = dict(
            Counter(
                each["deed"]
                for each in told
                if each["kind"] == "target" and each.get("rank") == rank
            )
        )
    return ranks


def why_wrong(name: str, ranks: list[dict[str, Any]], *, double: bool) -> list[str]:
    """What is not as it must be on each rank; nothing if all is right."""
    mode = CELLS[name][1]
    wrong = []
    for rank, found in enumerate(ranks):
        target = found["target"]
        checks = {
            "tokens": found["requests"] > 0 and found["tokens_ok"] == found["requests"],
            "accepted drafts": found["every_step_ok"] and found["accepted"] == found["oracle"],
            "accepted none": sum(found["accepted"]) > 0,
            "replays of draft graphs": bool(found["replays"]) == (mode != "off"),
            "roles": mode == "off" or set(found["replays"]) == {"first", mode},
            "asked": (found["asked"] > 0) == (mode == "off"),
            "withdrawn": not any(event["withdrawn"] for event in found["captured"]),
            "eager micro-batches": bool(target.get("ran")) == is_split(name),
            "captured micro-batches": double or bool(target.get("captured")) == is_split(name),
            "replayed micro-batches": double or bool(target.get("replayed")) == is_split(name),
        }
        wrong += [f"rank {rank}: {what}" for what, right in checks.items() if not right]
    return wrong


# ---- all cells


def launch(name: str, models: Path, logs: Path, arguments: Any) -> dict[str, Any]:
    """Run one cell; what was found."""
    draft, mode, variables, error = CELLS[name]
    begun = time.monotonic()
    log = logs / f"micro-batches-{name}.log"
    found: dict[str, Any] = {"cell": name, "draft": draft, "mode": mode}
    spec = make_spec(models, name, double=arguments.double)
    with tempfile.TemporaryDirectory(prefix="micro-batches-") as scratch:
        given, out, events = (Path(scratch, each) for each in ("spec.json", "out.json", "events"))
        given.write_text(spec.to_json(), encoding="utf-8")
        events.touch()
        env = {
            **os.environ,
            **variables,
            "OVERLAY_DRAFT_GRAPHS": mode,
            dp_hooks.EVENTS_VARIABLE: str(events),
            DOUBLE_VARIABLE: str(int(arguments.double)),
        }
        command = [sys.executable, __file__, "--cell", str(given), "--out", str(out)]
        limit = max(min(arguments.limit, arguments.deadline - begun), 1)
        failed = data_parallel.run_session(command, env, log, limit)
        said = log.read_text(encoding="utf-8", errors="replace")
        if error is not None:
            found["why"] = [] if failed and error in said else [f"{error} did not end it"]
            found["error"] = [line[-300:] for line in said.splitlines() if error in line][:2]
        elif out.is_file():
            found |= json.loads(out.read_text(encoding="utf-8"))
            found["why"] = [failed] if failed else []
            found["why"] += why_wrong(name, found["ranks"], double=arguments.double)
        else:
            found["failed"] = said[-3000:]
            found["why"] = [failed or "ended without a result"]
    found["ok"] = not found["why"]
    found["log"] = [line[-400:] for line in said.splitlines() if "Draft graphs" in line]
    return found | {"wall_s": round(time.monotonic() - begun, 1)}


def main() -> int:
    """Run the cells, write the results, print one line each; 1 if any is wrong."""
    arguments = cell_runs.parse((__doc__ or "").partition("\n")[0], CELLS, limit=500)
    if arguments.cell:
        return cell_main(arguments.cell, arguments.out)
    return cell_runs.run(
        arguments,
        CELLS,
        lambda folder: data_parallel.write_models(folder)["moe"],
        launch,
        lambda cell: [(rank["replays"], rank["target"]) for rank in cell.get("ranks", ())],
    )


def cell_main(given: Path, out: Path) -> int:
    """One cell: the engine's front end."""
    spec = EngineSpec.from_json(given.read_text(encoding="utf-8"))
    prepare(front_end=True)
    import torch
    import vllm

    served = asyncio.run(serve(spec))
    ranks = judge(spec, served, Path(os.environ[dp_hooks.EVENTS_VARIABLE]))
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    result = {"vllm": vllm.__version__, "torch": torch.__version__, "device": device}
    out.write_text(json.dumps({**result, "ranks": ranks}), encoding="utf-8")
    return 0


def prepare(*, front_end: bool) -> None:
    """Environment and hooks of one process of a cell, before it makes an engine."""
    double = os.environ.get(DOUBLE_VARIABLE) == "1"
    os.environ[data_parallel.DOUBLE_VARIABLE] = str(int(double))
    data_parallel.prepare(front_end=front_end)
    micro_batches.allow()
    if front_end:
        return
    if double:
        micro_batches.install_on_cpu()
    watch_targets()


def watch_targets() -> None:
    """Tell what each target that can be split does with its batches, by rank."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    stock = GPUModelRunner.__init__
    rank = 0

    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal rank
        rank = dp_hooks.rank_of(vllm_config)
        stock(self, vllm_config, *args, **kwargs)

    GPUModelRunner.__init__ = init
    micro_batches.watch(lambda deed: dp_hooks.tell("target", rank=rank, deed=deed))


if __name__ == "__main__":
    raise SystemExit(main())
elif __name__ == "__mp_main__" and "Coordinator" not in multiprocessing.current_process().name:
    prepare(front_end=False)
