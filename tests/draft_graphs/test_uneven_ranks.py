"""A capture that fails on one rank leaves the ranks with equally many recorded all-reduces.

vLLM pairs what the ranks have recorded by place, and reads past the end of a shorter list.
"""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("uneven_ranks.py")


def test_the_rank_with_fewer_records_the_rest(patched_python: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    done = subprocess.run(
        [str(patched_python), str(SCRIPT), port, "5", "3"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line[5:] for line in done.stdout.splitlines() if line.startswith("RANK ")]
    results = sorted((json.loads(line) for line in lines), key=lambda rank: int(rank["rank"]))
    assert results == [
        {"rank": 0, "recorded": 5, "captures": 0},
        {"rank": 1, "recorded": 5, "captures": 1},
    ]
