"""Fixtures for tests that need a real engine, and the notice that there was none.

Where ``.cache/engine`` is not there yet, it is made first (about three minutes).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from scripts import environment
from tests.engine.engine_launch import write_models
from tests.engine.private_copy import PrivateCopy, make_private_copy
from tests.in_memory.installed import install_beside
from tests.support.made_once import made_once

_SKIPS_ITSELF = re.compile(r"^(\w+(: \w+)? = )?pytest\.importorskip\(", re.MULTILINE)
ENGINE = (
    "THE ENGINE WAS NOT TESTED",
    "No real vLLM ran, so nothing here shows that a patched vLLM still drafts as it should. ",
)
ASCEND = (
    "VLLM-ASCEND WAS NOT TESTED",
    "Nothing of it ran, so nothing here shows that a patched one still drafts as it should. ",
)
TESTS = Path(__file__).resolve().parents[1]
#: Runs the modules that import PyTorch or vLLM themselves.
WITH_VLLM = Path(__file__).resolve().with_name("test_with_vllm.py")
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
    return made_once(tmp_path_factory, "models", partial(write_models, engine_python))


@pytest.fixture(scope="session")
def moe_models(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the target that has experts, and its drafts."""
    write = partial(write_models, engine_python, writer="tiny_moe")
    return made_once(tmp_path_factory, "moe-models", write)


@pytest.fixture(scope="session")
def installed_beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The overlay as pip installs it, in a folder that is no environment's."""
    folder = made_once(tmp_path_factory, "overlay", install_beside)
    return folder / "beside"


def private_vllm(engine_python: Path, folder: Path) -> Iterator[PrivateCopy]:
    """A private, still pristine copy of vLLM below ``folder``, gone afterwards."""
    copy = make_private_copy(engine_python, folder / "environment")
    yield copy
    shutil.rmtree(folder / "environment")


def needs_vllm(test_module: Path) -> bool:
    """Whether a test module imports PyTorch or the like, as an ``importorskip`` at its top says."""
    return _SKIPS_ITSELF.search(test_module.read_text(encoding="utf-8")) is not None


def is_left_out(path: Path) -> bool:
    """Whether a file is a test module that is run by ``test_with_vllm``, where vLLM is."""
    return path.name.startswith("test_") and path.suffix == ".py" and needs_vllm(path)


def with_vllm(arguments: Sequence[str], folder: Path) -> list[str]:
    """Pytest's arguments, with the tests of ``test_with_vllm`` that run the modules they name.

    A named folder stays, since other tests may be in it.  A named module of that kind goes, since
    pytest would import it right here.

    :param arguments: files, folders and ids of tests, relative to ``folder``.
    :raises pytest.UsageError: if they name a single test of such a module.
    """
    kept, modules, every = list[str](), set[Path](), False
    for argument in arguments:
        name, _, test = argument.partition("::")
        path = Path(os.path.abspath(folder / name))
        if path.is_file() and path.is_relative_to(TESTS) and is_left_out(path):
            if test:
                python = environment.CACHE / "engine/bin/python"
                raise pytest.UsageError(
                    f"{argument}: expected tests that run without vLLM, found one of a module that "
                    f"imports it; name the whole module, or run {python} -m pytest {argument}"
                )
            modules.add(path)
            continue
        kept.append(argument)
        every = every or (WITH_VLLM.is_relative_to(path) and not test)
        if path.is_relative_to(TESTS):
            modules.update(filter(is_left_out, path.rglob("test_*.py")))
    if every or not modules:
        return kept
    names = [module.relative_to(environment.ROOT).as_posix() for module in sorted(modules)]
    tests = [f"test_a_module_that_imports_vllm[{name}]" for name in names]
    wanted = [f"{WITH_VLLM}::{test}" for test in (*tests, "test_the_run_as_a_whole_succeeded")]
    return [*kept, *(test for test in wanted if test not in kept)]


def pytest_configure(config: pytest.Config) -> None:
    """Run what is named and left out below, too."""
    if find_spec("vllm") is None:
        config.args[:] = with_vllm(config.args, config.invocation_params.dir)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave such modules to ``test_with_vllm``, which runs them where vLLM is."""
    return True if find_spec("vllm") is None and is_left_out(collection_path) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so, at the end and unmistakably, where the engine tests were skipped."""
    for title, text in terminalreporter.config.stash.get(NOT_TESTED, {}).items():
        terminalreporter.section(title, sep="!", red=True, bold=True)
        terminalreporter.line(text, red=True)
