"""Starts `dp_rank.py` once a rank and takes their outcomes home; the part that pytest imports."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from overlay.proof.engine_launch import append_path, foreign_environment, link_packages
from overlay.proof.engine_spec import EngineSpec, Request
from tests.draft_graphs.dp_rank import DpOutcome, DpRun
from tests.draft_graphs.harness_client import FULL_DECODE_ONLY, TESTS

MODULE = "tests.draft_graphs.dp_rank"
RANKS = 2


class RanksFailed(AssertionError):
    """The ranks did not come to their end."""


def busy(seed: int = 5) -> tuple[Request, ...]:
    """Ten requests in three waves: prefills come between decodes, and the batch shrinks to one."""
    rng = random.Random(seed)
    made = []
    for index in range(10):
        prompt = tuple(rng.randrange(3, 192) for _ in range(rng.randint(2, 39)))
        made.append(Request(prompt, 10 + 4 * index, arrival=index // 4 * 4))
    return tuple(made)


def idle(seed: int = 6) -> tuple[Request, ...]:
    """Two short requests, far apart: before, between and behind them the rank has nothing to do."""
    rng = random.Random(seed)
    return tuple(
        Request(tuple(rng.randrange(3, 192) for _ in range(length)), 12, arrival=arrival)
        for length, arrival in ((7, 3), (12, 16))
    )


def make_dp_spec(models: Path, draft: str, k: int, *, patience: int = 60) -> dict[str, Any]:
    """A small engine for eight requests.

    :param patience: seconds that a rank waits for the others in a collective before it gives up.
    """
    spec = EngineSpec(
        models=str(models),
        draft=draft,
        k=k,
        block_size=16,
        kv_blocks=60,
        max_model_len=128,
        enforce_eager=False,
        compilation=FULL_DECODE_ONLY,
        async_scheduling=False,
        engine={
            # vLLM's own choice for several ranks is a process a worker, where nobody can look.
            "distributed_executor_backend": "uni",
            "cpu_distributed_timeout_seconds": patience,
            "distributed_timeout_seconds": patience,
        },
    )
    return dict(json.loads(spec.to_json()))


def dp_run(name: str, *modes: str, requests: Sequence[Sequence[Request]], **more: Any) -> DpRun:
    """A run in one mode for all ranks, or in one for each."""
    given = modes * RANKS if len(modes) == 1 else modes
    plain = tuple(tuple(asdict(each) for each in rank) for rank in requests)
    return DpRun(name, given, plain, **more)


def run_ranks(
    python: Path, spec: dict[str, Any], runs: Sequence[DpRun], *, timeout: float
) -> list[dict[str, DpOutcome]]:
    """The outcomes of each rank by the names of the runs.

    A run that a rank did not come to the end of is missing.

    :param timeout: seconds until all ranks are killed.
    :raises RanksFailed: if a rank did not even come to the end of the first run.
    """
    with tempfile.TemporaryDirectory(prefix="data-parallel-") as name, socket.socket() as probe:
        folder = Path(name)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        plan = folder / "plan.json"
        plan.write_text(json.dumps({"spec": spec, "runs": [asdict(each) for each in runs]}))
        link_packages(folder / "code", (TESTS,))
        processes = [_start(python, plan, rank, port) for rank in range(RANKS)]
        deadline = time.monotonic() + timeout
        try:
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(deadline - time.monotonic(), 0.1))
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        found = []
        for rank in range(RANKS):
            out = folder / f"out-{rank}.json"
            if not out.is_file():
                said = (folder / f"log-{rank}").read_text(encoding="utf-8", errors="replace")
                raise RanksFailed(f"rank {rank} finished no run:\n{said[-4000:]}")
            outcomes = json.loads(out.read_text(encoding="utf-8"))
            found.append({each["name"]: DpOutcome(**each) for each in outcomes})
    return found


def _start(python: Path, plan: Path, rank: int, port: int) -> subprocess.Popen[bytes]:
    inherited = {
        name: value for name, value in foreign_environment().items() if not name.startswith("VLLM")
    }
    identity = {
        "VLLM_DP_SIZE": str(RANKS),
        "VLLM_DP_RANK": str(rank),
        "VLLM_DP_RANK_LOCAL": str(rank),
        "VLLM_DP_MASTER_IP": "127.0.0.1",
        "VLLM_DP_MASTER_PORT": str(port),
    }
    out = plan.with_name(f"out-{rank}.json")
    with plan.with_name(f"log-{rank}").open("wb") as stream:
        return subprocess.Popen(
            [str(python), "-m", MODULE, str(plan), "--rank", str(rank), "--out", str(out)],
            cwd=plan.parent,
            env=append_path({**inherited, **identity}, plan.with_name("code")),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
