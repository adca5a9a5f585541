#!/usr/bin/env python3
"""Two data-parallel ranks with draft graphs, each in turn idle most of the time.

Runs where a patched vLLM can be imported (``PYTHONPATH``), on a host with two GPUs. Each cell is an
engine as ``vllm serve --data-parallel-size 2`` starts it: a front end, two engine cores, and for
targets with experts a coordinator; requests name their rank. First rank 0 is busy while rank 1
gets two short requests, then the other way round. A cell is right if

- every request's tokens, and what every verification accepted, are the oracle's, on each rank;
- graphs were replayed on each rank, if they were wanted, and none if not;
- ranks with experts ran dummy batches, in which no KV cell of the draft was written, and ranks of
  the dense target, which are alone, ran none;
- where the draft has no experts, the drafter asked other ranks for nothing where there are graphs,
  and no dummy batch replayed one;
- where the draft has experts (``glm``, GLM-4-MoE with its MTP layer and expert parallelism; and
  ``eplb``, the same while its experts are moved), both ranks replayed the same graphs in the same
  order, dummy batches among them, and asked each other in the other steps only;
- where they replayed ``loop``, graphs of the later passes followed prefills, too: there were more
  of these than first passes in graphs.

A cell that hangs is killed with all its processes and has failed. Writes one JSON file.

    data_parallel.py --out result.json [--only REGEX] [--jobs 3] [--limit 560]

``--double`` is a rehearsal on CPU, with the graph double of ``tests/draft_graphs``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overlay.results import ModelRunner
from tests.engine import engine_launch
from tests.engine.engine_spec import EngineSpec, Request, make_requests
from tests.gpu import cell_runs, dp_hooks
from tests.gpu.dp_judging import RANKS, TOGETHER, Served, judge, why_wrong

DOUBLE_VARIABLE = "TEST_DATA_PARALLEL_DOUBLE"
#: The folder of each target's models, and the module that writes it.
TARGETS = {
    "dense": ("dense", "tiny_models"),
    "moe": ("moe", "tiny_moe"),
    "glm": ("glm", "tiny_glm"),
    "eplb": ("glm", "tiny_glm"),
}
GLM_DRAFT = "glm-mtphid"
#: Expert load balancing that moves experts a few times in a cell.
BALANCING = {"window_size": 8, "step_interval": 16}
#: Live requests of the busy rank.
LIVE = 8
#: Of the prompts; an MTP layer needs three tokens.
LENGTHS = (3, 39)
#: Starts much faster, and a FULL_DECODE_ONLY drafter has no piecewise graphs to fall back to.
UNCOMPILED = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
CELLS = {
    f"{target}-{mode}": (target, mode) for target in TARGETS for mode in ("off", "step", "loop")
}


def busy(seed: int) -> tuple[Request, ...]:
    """Requests of many lengths: prefills beside decodes, and a batch that shrinks at the end."""
    made = make_requests(24, lengths=LENGTHS, seed=seed)
    return tuple(
        replace(request, tokens=12 + (7 * index) % 61) for index, request in enumerate(made)
    )


def make_spec(models: Path, target: str = "moe", *, double: bool) -> EngineSpec:
    """The engine of a cell, which each rank has one of."""
    engine: dict[str, Any] = {"data_parallel_size": RANKS}
    speculative: dict[str, Any] = {}
    if target in TOGETHER:
        engine |= {"model": f"{models}/{GLM_DRAFT}", "enable_expert_parallel": not double}
        speculative["method"] = "mtp"
    if target == "eplb":
        engine |= {"enable_eplb": True, "eplb_config": BALANCING}
    if double:
        engine["distributed_executor_backend"] = "uni"  # fewer processes
    else:
        engine |= {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 28}
        engine["moe_backend"] = "triton"  # others may want to fetch or to compile kernels
    return EngineSpec(
        str(models),
        draft=GLM_DRAFT if target in TOGETHER else "eagle3hid",
        k=3,
        speculative=speculative,
        max_num_seqs=LIVE,
        block_size=16,
        enforce_eager=False,
        compilation=UNCOMPILED,
        kv_blocks=64 if double else None,
        engine=engine,
    )


# ---- one cell, in a process of its own


async def ask(engine: Any, name: str, request: Request) -> list[int]:
    """The tokens of one request to the rank that its name begins with."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    parameters = SamplingParams(
        temperature=0.0,
        max_tokens=request.tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    prompt = {"prompt_token_ids": list(request.prompt)}
    rank = int(name.partition(".")[0])
    tokens: list[int] = []
    async for output in engine.generate(prompt, parameters, name, data_parallel_rank=rank):
        tokens = list(output.outputs[0].token_ids)
    return tokens


async def phase(engine: Any, number: int, working: int, served: Served) -> None:
    """One rank works, the other gets two short requests: at once, and when half is done."""
    room, half = asyncio.Semaphore(LIVE), asyncio.Event()
    requests = busy(seed=10 + number)

    async def work(index: int, request: Request) -> None:
        name = f"{working}.{number}.{index}"
        async with room:
            served[name] = (request, await ask(engine, name, request))
        if sum(each.startswith(f"{working}.{number}.") for each in served) > len(requests) // 2:
            half.set()

    async def idle() -> None:
        for index, request in enumerate(
            make_requests(2, tokens=12, lengths=LENGTHS, seed=20 + number)
        ):
            name = f"{1 - working}.{number}.{index}"
            served[name] = (request, await ask(engine, name, request))
            await half.wait()

    await asyncio.gather(idle(), *(work(*each) for each in enumerate(requests)))


async def serve(spec: EngineSpec) -> Served:
    """Start the engine and serve two phases; each request with its tokens, by its name.

    Names are ``rank.phase.number``.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**spec.llm_arguments()))
    served: Served = {}
    try:
        await phase(engine, 0, working=0, served=served)
        await phase(engine, 1, working=1, served=served)
    finally:
        engine.shutdown()
    return served


def run_cell(spec: EngineSpec, events: Path) -> list[dict[str, Any]]:
    """What each rank did."""
    from overlay.proof.tiny_models import read_rule

    served = asyncio.run(serve(spec))
    told = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    return judge(spec.k, read_rule(Path(spec.models)), served, told)


# ---- all cells


def session_of(process: int) -> set[int]:
    """The processes of the session that `process` leads."""
    found = set()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == process:
                found.add(int(folder.name))
    return found


def kill_session(process: int) -> None:
    """Kill what is left of it; twice, because a dying parent may still have started a child."""
    for _ in range(2):
        for each in session_of(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.2)


def run_session(command: list[str], env: dict[str, str], log: Path, limit: float) -> str | None:
    """Run a command in a session of its own, of which nothing is left; why it failed, if it did."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"did not end within {limit:.0f} s"
    finally:
        kill_session(process.pid)
        process.wait()
    return f"ended with status {status}" if status else None


def launch_cell(name: str, folders: dict[str, Path], logs: Path, arguments: Any) -> dict[str, Any]:
    """Run one cell; what was found."""
    target, mode = CELLS[name]
    begun = time.monotonic()
    log = logs / f"data-parallel-{name}.log"
    found: dict[str, Any] = {"cell": name, "target": target, "mode": mode}
    spec = make_spec(folders[target], target, double=arguments.double)
    with tempfile.TemporaryDirectory(prefix="data-parallel-") as scratch:
        given, out, events = (Path(scratch, each) for each in ("spec.json", "out.json", "events"))
        given.write_text(spec.to_json(), encoding="utf-8")
        events.touch()
        env = {
            **os.environ,
            "OVERLAY_DRAFT_GRAPHS": mode,
            dp_hooks.EVENTS_VARIABLE: str(events),
            DOUBLE_VARIABLE: str(int(arguments.double)),
        }
        command = [sys.executable, __file__, "--cell", str(given), "--out", str(out)]
        limit = max(min(arguments.limit, arguments.deadline - begun), 1)
        failed = run_session(command, env, log, limit)
        found["why"] = [failed] if failed else []
        if out.is_file():
            found |= json.loads(out.read_text(encoding="utf-8"))
            found["why"] += why_wrong(target, mode, found["ranks"])
        else:
            told = events.read_text(encoding="utf-8").splitlines()
            found["told"] = dict(Counter(json.loads(line)["kind"] for line in told))
            found["failed"] = log.read_text(encoding="utf-8", errors="replace")[-3000:]
            found["why"] = found["why"] or ["ended without a result"]
    found["ok"] = not found["why"]
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    found["log"] = [line[-400:] for line in said if "Draft graphs" in line]
    found["settings"] = {"draft": spec.draft, "k": spec.k, "compilation": spec.compilation}
    return found | {"wall_s": round(time.monotonic() - begun, 1)}


def write_models(folder: Path) -> dict[str, Path]:
    """The folder of each target."""
    for name, writer in sorted(set(TARGETS.values())):
        engine_launch.write_models(sys.executable, folder / name, writer)
    return {target: folder / name for target, (name, _) in TARGETS.items()}


def main() -> int:
    """Run the cells, write the results, print one line each; 1 if any failed."""
    arguments = cell_runs.parse((__doc__ or "").partition("\n")[0], CELLS, limit=560)
    if arguments.cell:
        return cell_main(arguments.cell, arguments.out)
    return cell_runs.run(
        arguments,
        CELLS,
        write_models,
        launch_cell,
        lambda cell: [rank["replays"] for rank in cell.get("ranks", ())],
    )


def cell_main(given: Path, out: Path) -> int:
    """One cell: the engine's front end."""
    prepare(front_end=True)
    spec = EngineSpec.from_json(given.read_text(encoding="utf-8"))
    import torch
    import vllm

    ranks = run_cell(spec, Path(os.environ[dp_hooks.EVENTS_VARIABLE]))
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    result = {"vllm": vllm.__version__, "torch": torch.__version__, "device": device}
    out.write_text(json.dumps({**result, "ranks": ranks}), encoding="utf-8")
    return 0


def set_environment(runner: Mapping[str, str]) -> None:
    """Set the variables of a process of an engine, where they are not set.

    :param runner: those that choose the model runner.
    """
    from tests.engine import engine_facts

    wanted = {
        **engine_facts.base_environment(workers=1),
        **runner,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        # Only a process that is spawned imports the script, and so gets its hooks.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def prepare(*, front_end: bool) -> None:
    """Environment and hooks of one process of a cell, before it loads vLLM."""
    from overlay.proof import engine_compat

    set_environment(engine_compat.runner_environment(ModelRunner.V1))
    double = os.environ.get(DOUBLE_VARIABLE) == "1"
    if double:
        from tests.draft_graphs import dp_double

        dp_double.prepare()
    if front_end:
        return
    if double:
        dp_double.install()
    dp_hooks.install()


if __name__ == "__main__":
    raise SystemExit(main())
elif __name__ == "__mp_main__" and "Coordinator" not in multiprocessing.current_process().name:
    prepare(front_end=False)
