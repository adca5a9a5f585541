"""Start `dp_rank.py` and take the outcomes of its ranks home; the part that pytest imports."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.draft_graphs.dp_rank import DpOutcome, DpRun, Engines
from tests.draft_graphs.harness_client import FULL_DECODE_ONLY, QUICKEST, TESTS
from tests.engine.engine_launch import append_path, foreign_environment, link_packages
from tests.engine.engine_spec import EngineSpec, Request

MODULE = "tests.draft_graphs.dp_rank"
RANKS = 2
#: Seconds that importing vLLM may take on a busy machine.
IMPORTING = 300


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
            **QUICKEST,
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
    python: Path, pairs: Sequence[tuple[dict[str, Any], Sequence[DpRun]]], *, seconds: float
) -> list[list[dict[str, DpOutcome]] | RanksFailed]:
    """Run pairs of engines one after the other, each an `EngineSpec` and its runs.

    :param seconds: until the ranks of a pair are killed.
    :returns: for each pair the outcomes of each rank by the names of the runs, without those that
        the rank did not come to the end of; the failure where a rank finished no run.
    """
    with tempfile.TemporaryDirectory(prefix="data-parallel-") as name:
        folder = Path(name)
        engines = []
        for number, ((spec, runs), port) in enumerate(
            zip(pairs, free_ports(len(pairs)), strict=True)
        ):
            own = folder / str(number)
            own.mkdir()
            engines.append(Engines(spec, tuple(runs), str(own), port, seconds))
        _start(python, folder, engines)
        return [_outcomes(Path(each.folder)) for each in engines]


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, each once.

    They lie below those that Linux hands out by itself, so that no other process is given one
    before the ranks use it, which may be minutes later.
    """
    candidates = list(range(15_000, 32_000))
    random.SystemRandom().shuffle(candidates)
    ports: list[int] = []
    for port in candidates:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError(f"expected {count} free ports from 15000 to 31999, found {len(ports)}")


def _start(python: Path, folder: Path, engines: Sequence[Engines]) -> None:
    """Run `dp_rank.py` to its end, which comes within the limits of its engines.

    :raises RanksFailed: if it fails itself.
    """
    plan, log = folder / "plan.json", folder / "log"
    plan.write_text(json.dumps([asdict(each) for each in engines]), encoding="utf-8")
    link_packages(folder / "code", (TESTS,))
    inherited = {
        name: value for name, value in foreign_environment().items() if not name.startswith("VLLM")
    }
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(python), "-m", MODULE, str(plan)],
            cwd=folder,
            env=append_path(inherited, folder / "code"),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(IMPORTING + sum(each.seconds for each in engines))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status != 0:
        said = log.read_text(encoding="utf-8", errors="replace")
        raise RanksFailed(f"ended with status {status}:\n{said[-4000:]}")


def _outcomes(folder: Path) -> list[dict[str, DpOutcome]] | RanksFailed:
    by_rank = []
    for rank in range(RANKS):
        out = folder / f"out-{rank}.json"
        if not out.is_file():
            said = [
                f"rank {each}:\n{log.read_text(encoding='utf-8', errors='replace')[-4000:]}"
                for each in range(RANKS)
                if (log := folder / f"log-{each}").is_file()
            ]
            return RanksFailed("\n".join([f"rank {rank} finished no run", *said]))
        outcomes = json.loads(out.read_text(encoding="utf-8"))
        by_rank.append({each["name"]: DpOutcome(**each) for each in outcomes})
    return by_rank
