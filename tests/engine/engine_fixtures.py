"""Fixtures for tests that need a real engine, and the notice that there was none.

Where ``.cache/engine`` is not there yet, it is made first (about three minutes).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from overlay.proof.engine_launch import write_models
from scripts import environment
from tests.engine.private_copy import PrivateCopy, make_private_copy

_SKIPS_ITSELF = re.compile(r"^(\w+(: \w+)? = )?pytest\.importorskip\(", re.MULTILINE)
ENGINE = (
    "THE ENGINE WAS NOT TESTED",
    "No real vLLM ran, so nothing here shows that a patched vLLM still drafts as it should. ",
)
ASCEND = (
    "VLLM-ASCEND WAS NOT TESTED",
    "Nothing of it ran, so nothing here shows that a patched one still drafts as it should. ",
)
#: By title, what was not tested and why.
NOT_TESTED = pytest.StashKey[dict[str, str]]()
NOT_TESTED_OUTPUT = "what was not tested"


class OverlayFailed(AssertionError):
    """A call of the command did not end with the expected exit status."""


def overlay(*arguments: str | Path, expect: int = 0) -> str:
    """Call the command in a process of its own; what it printed.

    :raises OverlayFailed: if it ends with another status than ``expect``.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "overlay", *map(str, arguments)],
        cwd=environment.ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")},
        text=True,
        capture_output=True,
        check=False,
        timeout=600,
    )
    if ended.returncode != expect:
        raise OverlayFailed(
            f"overlay {arguments} ended with status {ended.returncode}, not {expect}:\n"
            f"{ended.stdout}{ended.stderr}"
        )
    return ended.stdout


def note_missing(config: pytest.Config, reason: str, what: tuple[str, str] = ENGINE) -> None:
    """Keep the reason why something did not run for the end of the session.

    :param what: ``ENGINE`` or ``ASCEND``.
    """
    title, text = what
    notes = config.stash.setdefault(NOT_TESTED, {})
    notes[title] = text + reason
    output = getattr(config, "workeroutput", None)  # of a process that pytest-xdist started
    if output is not None:
        output[NOT_TESTED_OUTPUT] = notes


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a process of pytest-xdist noted."""
    notes = getattr(node, "workeroutput", {}).get(NOT_TESTED_OUTPUT, {})
    node.config.stash.setdefault(NOT_TESTED, {}).update(notes)


@pytest.fixture(scope="session")
def engine_python(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Path:
    """The interpreter of an environment with an unpatched vLLM that runs on CPU."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            return environment.engine_python()
    except environment.TorchUnavailable as error:
        note_missing(pytestconfig, str(error))
        pytest.skip(f"no engine: {error}")


@pytest.fixture(scope="session")
def tiny_models(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the tiny target and its drafts."""
    folder = tmp_path_factory.mktemp("models")
    write_models(engine_python, folder)
    return folder


def private_vllm(engine_python: Path, folder: Path) -> Iterator[PrivateCopy]:
    """A private, still pristine copy of vLLM below ``folder``, gone afterwards."""
    copy = make_private_copy(engine_python, folder / "environment")
    yield copy
    shutil.rmtree(folder / "environment")


def needs_vllm(test_module: Path) -> bool:
    """Whether a test module imports PyTorch or the like, as an ``importorskip`` at its top says."""
    return _SKIPS_ITSELF.search(test_module.read_text(encoding="utf-8")) is not None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave such modules to ``test_with_vllm``, which runs them where vLLM is."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if is_test and find_spec("vllm") is None and needs_vllm(collection_path):
        return True
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so, at the end and unmistakably, where the engine tests were skipped."""
    for title, text in terminalreporter.config.stash.get(NOT_TESTED, {}).items():
        terminalreporter.section(title, sep="!", red=True, bold=True)
        terminalreporter.line(text, red=True)
