"""What a command imports, seen from outside: the fast ones stay fast, and vLLM is never run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlay.cli import COMMANDS
from tests.support import fake_vllm

REPOSITORY = Path(__file__).resolve().parents[2]

#: What no command may import, whatever it does.
NEVER = {"torch", "vllm"}
#: What is for archives, the network, terminals or patches, and for nothing else.
HEAVY = {
    "rich",
    "requests",
    "urllib3",
    "urllib.request",
    "http.client",
    "ssl",
    "tarfile",
    "zipfile",
    "filelock",
}


def imported(*arguments: str | Path, path: Path | None = None) -> set[str]:
    """The modules that a command brought in."""
    environment = dict(os.environ, PYTHONPATH="" if path is None else str(path))
    if path is not None:
        environment["OVERLAY_CACHE"] = str(path.parent / "cache")
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "overlay", *map(str, arguments)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    lines = process.stderr.splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An installed vLLM that raises when it is imported, beside a torch that does."""
    site = fake_vllm.site_packages(tmp_path / "site", version="0.15.0")
    (site / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    return site


def test_help_imports_next_to_nothing() -> None:
    found = imported("--help")
    assert "click" in found
    light = {"packaging", "json", "dataclasses", "overlay._features", "overlay.report"}
    commands = {entry.module for entry in COMMANDS.values()}
    assert sorted(found & (NEVER | HEAVY | light | commands)) == []


@pytest.mark.parametrize("command", ["check", "status", "apply", "revert", "diff"])
def test_no_command_imports_its_target(command: str, site: Path) -> None:
    found = imported(command, path=site)
    assert "overlay.targets.environments" in found
    assert sorted(found & (NEVER | HEAVY)) == []


def test_list_imports_no_target() -> None:
    found = imported("list")
    others = {"overlay.targets", "overlay.planning", "overlay.on_disk", "overlay.report.model"}
    assert sorted(found & (NEVER | HEAVY | others)) == []


def test_status_imports_no_transaction(site: Path) -> None:
    assert "overlay.on_disk.transaction" not in imported("status", path=site)


def test_the_measure_works() -> None:
    """A measure that saw nothing would let everything pass."""
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import tarfile"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "tarfile" in {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
