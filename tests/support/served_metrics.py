"""A real server of vLLM, its requests, and what its `/metrics` says of the overlay."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from overlay.proof.serving import reserve_port

SAMPLE = re.compile(r"^(vllm[:_]\w+)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: Seconds in which a server starts.
STARTING = 900.0

#: (metric, labels) -> value
Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


class Served(NamedTuple):
    """A server that is ready.

    :ivar pid: of its first process; all others of the server descend from it.
    """

    address: str
    pid: int


def arguments(models: Path, *options: str) -> tuple[str, ...]:
    """The module to run and its arguments: the tiny target with its EAGLE3 draft, K = 3.

    :param models: what ``write_models`` wrote.
    """
    speculative = {"method": "eagle3", "model": str(models / "eagle3"), "num_speculative_tokens": 3}
    return (
        *("vllm.entrypoints.openai.api_server", "--model", str(models / "target")),
        *("--host", "127.0.0.1", "--skip-tokenizer-init", "--max-model-len", "512"),
        *("--max-num-seqs", "8", "--speculative-config", json.dumps(speculative), *options),
    )


@contextmanager
def running(
    python: Path, given: Sequence[str], variables: Mapping[str, str], folder: Path
) -> Iterator[Served]:
    """Start a server, and end it behind the block.

    :param given: what ``arguments`` returned.
    :param folder: where it runs, and writes its log.
    """
    place, log = reserve_port(None), folder / "log"
    port = place.getsockname()[1]
    command = [str(python), "-m", *given, "--port", str(port)]
    with log.open("wb") as stream:
        server = subprocess.Popen(
            command, env=variables, stdout=stream, stderr=stream, start_new_session=True, cwd=folder
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address, server, log)
        yield Served(address, server.pid)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(60)
        finally:
            place.close()
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTING
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-6000:]
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"no server after {STARTING:.0f} s:\n{log.read_text()[-6000:]}")


def complete(address: str, prompt: list[int]) -> None:
    """Ask for 24 tokens."""
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0.0, "return_token_ids": True}
    request = urllib.request.Request(
        f"{address}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["choices"]


def scraped(address: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of vLLM and of the overlay."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert "vllm:" in text  # vLLM's own are there as before
    return {
        (name, frozenset(LABEL.findall(labels))): float(value)
        for name, labels, value in SAMPLE.findall(text)
    }


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of a metric of the overlay over the samples with these labels."""
    return total_of(samples, f"vllm_overlay_{name}", **labels)


def total_of(samples: Samples, name: str, **labels: str) -> float:
    """The sum of any metric over the samples with these labels."""
    return sum(
        value
        for (metric, pairs), value in samples.items()
        if metric == name and labels.items() <= pairs
    )


def counted_inside(folder: Path, server: int) -> int:
    """All replays of one server, as `overlay status --live` reads them from its processes.

    :param folder: ``XDG_RUNTIME_DIR`` of the server.
    :param server: pid of its first process.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "overlay", "status", "--live", "--json"],
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return replays_of(json.loads(ended.stdout)["processes"], server)


def replays_of(processes: Iterable[Mapping[str, Any]], server: int) -> int:
    """The replays that the processes of one server counted.

    :param processes: of ``overlay status --live --json``, which lists every engine of this user:
        records are read from the folders that all of them share, too.
    :param server: pid of the server's first process.
    """
    own = [process for process in processes if process["engine"] == server]
    assert own, f"no process of server {server} is listed"
    return sum(
        count["number"]
        for process in own
        if process["record"] is not None
        for count in process["record"]["counts"]
        if count["count"].startswith("replays of ")
    )
