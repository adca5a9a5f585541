"""Run `dp_rank.py` in a fork and take home what its ranks did; the part that pytest imports."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.draft_graphs.dp_rank import DpOutcome, DpRun, Engines
from tests.draft_graphs.forked_modules import ForkedModules
from tests.draft_graphs.harness_client import FULL_DECODE_ONLY, QUICKEST
from tests.engine.engine_spec import EngineSpec, Request

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
        # Up to vLLM's own largest; its own sizes are three times as many, and each takes two passes
        # of all ranks.
        compilation={
            **FULL_DECODE_ONLY,
            "cudagraph_capture_sizes": [size * (k + 1) for size in (1, 2, 4, 8, 16)],
        },
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
    forks: ForkedModules,
    pairs: Sequence[tuple[dict[str, Any], Sequence[DpRun]]],
    *,
    seconds: float,
    module: str = MODULE,
) -> list[list[dict[str, DpOutcome]] | RanksFailed]:
    """Run pairs of engines one after the other, each an `EngineSpec` and its runs.

    :param seconds: until the ranks of a pair are killed.
    :param module: the program that forks them.
    :returns: for each pair the outcomes of each rank by the names of the runs, without those that
        the rank did not come to the end of; the failure where a rank finished no run.
    :raises RanksFailed: if that program fails itself.
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
        plan = folder / "plan.json"
        plan.write_text(json.dumps([asdict(each) for each in engines]), encoding="utf-8")
        ended = forks.run(module, str(plan))
        if ended.returncode != 0:
            printed = f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
            raise RanksFailed(f"ended with status {ended.returncode}:\n{printed}")
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
