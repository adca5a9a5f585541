"""Metrics of a real server on CPU: what Prometheus reads is what the engine replayed.

The draft graphs are recordings (``double_site``), as in ``test_verify_engine``; the server, its
plugin and its ``/metrics`` are a user's.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.draft_graphs.double_environment import ARGUMENTS, double_environment
from tests.in_memory.installed import install_beside

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.thorough]

SAMPLE = re.compile(r"^(vllm_overlay_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

#: (metric, labels) -> value
Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(python: Path, beside: Path, models: Path, folder: Path, *options: str) -> Iterator[str]:
    """A server with the draft graphs' double; its address."""
    folder.mkdir()
    variables = double_environment(folder) | {"TEST_DOUBLE": "server"}
    variables["PYTHONPATH"] += f"{os.pathsep}{beside}"
    variables["XDG_RUNTIME_DIR"] = str(folder)
    port, log = free_port(), folder / "log"
    speculative = {"method": "eagle3", "model": str(models / "eagle3"), "num_speculative_tokens": 3}
    command = [
        *(
            str(python),
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(models / "target"),
        ),
        *(
            "--port",
            str(port),
            "--host",
            "127.0.0.1",
            "--skip-tokenizer-init",
            "--dtype",
            "float32",
        ),
        *("--max-model-len", "512", "--max-num-seqs", "8", "--block-size", "32"),
        *("--speculative-config", json.dumps(speculative), *ARGUMENTS, *options),
    ]
    with log.open("wb") as stream:
        server = subprocess.Popen(
            command, env=variables, stdout=stream, stderr=stream, start_new_session=True, cwd=folder
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(address, server, log)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(60)
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)


def wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-6000:]
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"no server after 15 minutes:\n{log.read_text()[-6000:]}")


def complete(address: str, prompt: list[int]) -> None:
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0.0, "return_token_ids": True}
    request = urllib.request.Request(
        f"{address}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["choices"]


def scraped(address: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert "vllm:" in text  # vLLM's own are there as before
    return {
        (name, frozenset(LABEL.findall(labels))): float(value)
        for name, labels, value in SAMPLE.findall(text)
    }


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(
        value
        for (metric, pairs), value in samples.items()
        if metric == f"vllm_overlay_{name}" and labels.items() <= pairs
    )


def counted_inside(folder: Path) -> int:
    """All replays, as `overlay status --live` reads them from the processes themselves."""
    ended = subprocess.run(
        [sys.executable, "-m", "overlay", "status", "--live", "--json"],
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return sum(
        count["number"]
        for process in json.loads(ended.stdout)["processes"]
        if process["record"] is not None
        for count in process["record"]["counts"]
        if count["count"].startswith("replays of ")
    )


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_beside(tmp_path_factory.mktemp("overlay"))


@pytest.mark.parametrize("servers", [1, 2])
def test_what_is_scraped_is_what_was_replayed(
    patched_python: Path, beside: Path, tiny_models: Path, tmp_path: Path, servers: int
) -> None:
    options = () if servers == 1 else ("--api-server-count", "2")
    folder = tmp_path / "code"
    with served(patched_python, beside, tiny_models, folder, *options) as address:
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
        assert replays == counted_inside(folder)
        assert total(answers[0], "replays_total", graph="first") > 0
        assert total(answers[0], "feature_state", feature="draft-graphs", state="active") == 1
        assert total(answers[0], "attention") == 0
