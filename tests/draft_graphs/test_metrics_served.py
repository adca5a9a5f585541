"""Metrics of a real server on CPU: what Prometheus reads is what the engine replayed.

The draft graphs are recordings (``double_site``), as in ``test_verify_engine``; the server, its
plugin and its ``/metrics`` are a user's.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from overlay import _processes
from overlay._processes import ProcessRecord
from tests.draft_graphs.double_environment import ARGUMENTS, double_environment
from tests.in_memory.installed import install_beside
from tests.support.process_records import counting
from tests.support.served_metrics import (
    Served,
    arguments,
    complete,
    counted_inside,
    running,
    scraped,
    total,
)

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.thorough]


@contextmanager
def served(
    python: Path, beside: Path, models: Path, folder: Path, *options: str
) -> Iterator[Served]:
    """A server with the draft graphs' double."""
    folder.mkdir()
    variables = double_environment(folder) | {"TEST_DOUBLE": "server"}
    variables["PYTHONPATH"] += f"{os.pathsep}{beside}"
    variables["XDG_RUNTIME_DIR"] = str(folder)
    own = ("--dtype", "float32", "--block-size", "32", *ARGUMENTS)
    with running(python, arguments(models, *own, *options), variables, folder) as server:
        yield server


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_beside(tmp_path_factory.mktemp("overlay"))


@pytest.mark.parametrize("servers", [1, 2])
def test_what_is_scraped_is_what_was_replayed(
    patched_python: Path, beside: Path, tiny_models: Path, tmp_path: Path, servers: int
) -> None:
    options = () if servers == 1 else ("--api-server-count", "2")
    folder = tmp_path / "code"
    with served(patched_python, beside, tiny_models, folder, *options) as (address, pid):
        before = scraped(address)
        assert total(before, "graphs", graph="first") > 0
        assert total(before, "withdrawn") == 0
        for number in range(4):
            complete(address, [1 + number, 2, 3, 4])
        # Each scrape may reach another API server; all of them say the same.
        answers = [scraped(address) for _ in range(8)]
        assert all(answer == answers[0] for answer in answers)
        replays = total(answers[0], "replays_total")
        assert replays > total(before, "replays_total")
        assert replays == counted_inside(folder, pid)
        assert total(answers[0], "replays_total", graph="first") > 0
        assert total(answers[0], "feature_state", feature="draft-graphs", state="active") == 1
        assert total(answers[0], "attention") == 0


@pytest.fixture
def neighbour(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessRecord]:
    """Another engine of this user that counts; its record lies where every reader looks."""
    place = Path(tempfile.gettempdir(), f"vllm-overlay-{os.geteuid()}")
    monkeypatch.setattr(_processes, "folders", lambda: (place,))
    with counting("worker", 0) as made:
        yield made


def test_the_script_for_a_gpu_finds_nothing_wrong_beside_another_engine(
    patched_python: Path, beside: Path, tmp_path: Path, neighbour: ProcessRecord
) -> None:
    script, out = Path(__file__).parents[1] / "gpu" / "metrics.py", tmp_path / "result.json"
    options = ["--site", str(tmp_path), "--overlay", str(beside), "--out", str(out)]
    ended = subprocess.run(
        [str(patched_python), str(script), "--double", "--requests", "4", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    cells = json.loads(out.read_text())["cells"]
    assert [cell["api_servers"] for cell in cells] == [1, 2, 1]
    assert all(cell["replays"]["loop"] >= cell["drafts_verified"] > 0 for cell in cells)
    assert list(_processes.read_all()) == [neighbour]  # it was there all the time
