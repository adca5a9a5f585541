"""A rank whose vLLM has no patches: the patched one names it and stops, and no rank hangs.

Two real engines of two installations, a patched vLLM and one as it was released.
`test_unequal_ranks.py` shows the same with a double of the second one, in less time.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.draft_graphs.dp_client import free_ports, make_dp_spec
from tests.draft_graphs.harness_client import TESTS
from tests.engine.engine_launch import (
    append_path,
    foreign_environment,
    link_packages,
    write_models,
)

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.thorough]

#: Seconds: that the patched rank waits; that vLLM's own collectives do; until the test fails.
PATIENCE, COLLECTIVES, DEADLINE = 40, 300, 600


def outcome_of(process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    """What a rank said at its end."""
    process.wait(timeout=DEADLINE)
    text = log.read_text(encoding="utf-8", errors="replace")
    line = next((line for line in text.splitlines() if line.startswith("RANK ")), None)
    assert line is not None, text[-4000:]
    outcome: dict[str, Any] = json.loads(line.removeprefix("RANK "))
    return outcome


@pytest.mark.parametrize("patched", [0, 1])
def test_the_patched_rank_stops_with_the_table_and_the_other_ends_with_it(
    patched: int, patched_python: Path, engine_python: Path, tmp_path: Path
) -> None:
    write_models(engine_python, tmp_path, "tiny_moe")
    spec = tmp_path / "spec.json"
    made = make_dp_spec(tmp_path, "eagle3hid", 3, patience=COLLECTIVES)
    spec.write_text(json.dumps(made), encoding="utf-8")
    code = link_packages(tmp_path / "code", (TESTS,))
    inherited = {
        name: value for name, value in foreign_environment().items() if not name.startswith("VLLM")
    }
    (port,) = free_ports(1)
    logs = [tmp_path / f"log-{rank}" for rank in range(2)]
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank, log in enumerate(logs):
            python = patched_python if rank == patched else engine_python
            with log.open("w", encoding="utf-8") as stream:
                ranks.append(
                    subprocess.Popen(
                        [
                            *(str(python), "-m", "tests.draft_graphs.unpatched_rank"),
                            *map(str, (spec, rank, port, PATIENCE)),
                        ],
                        cwd=tmp_path,
                        env=append_path(inherited, code),
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                )
        outcomes = [outcome_of(*each) for each in zip(ranks, logs, strict=True)]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    mine, other = outcomes[patched], outcomes[1 - patched]
    assert mine["patched"]
    assert not other["patched"]
    said = f"RanksDiffer: Draft graphs: rank {1 - patched} did not say within {PATIENCE} s"
    assert mine["error"].startswith(said), mine["trace"]
    for part in ("OVERLAY=off", "OVERLAY_DRAFT_GRAPHS auto", "patches ", "vLLM 0.32.0"):
        assert part in mine["error"]
    # It waits in vLLM's own agreement, and ends when the other has, not after its own timeout.
    assert "coordinate_batch_across_dp" in other["trace"], other["trace"]
    assert "closed" in other["error"].lower(), other["error"]
    assert 0 <= other["ended"] - mine["ended"] < PATIENCE
