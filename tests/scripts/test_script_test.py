"""``scripts/test.py``: which commands it runs, and that the first that fails decides."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests import conftest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path("python")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    # By its path: its name is that of a package of Python's own.
    spec = importlib.util.spec_from_file_location("script_test", ROOT / "scripts" / "test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.environment, "with_supported_python", lambda: None)
    monkeypatch.setattr(module.environment, "dev_python", lambda: Path(sys.executable))
    monkeypatch.setattr(module.environment, "engine_python", lambda: Path(sys.executable))
    monkeypatch.setattr(module, "checks", list)
    return module


def test_all_tests_run_in_two_processes_and_the_slowest_are_told(script: ModuleType) -> None:
    ((_, command),) = script.suites(PYTHON, [], thorough=False)
    assert {"--numprocesses=2", "--dist=loadfile", "--costs"} <= set(command)
    assert "--thorough" not in command


def test_the_files_that_start_first_exist() -> None:
    tests = ROOT / "tests"
    assert all((tests / name).is_file() for name in conftest.LONGEST)


def test_some_tests_run_in_one_process(script: ModuleType) -> None:
    ((_, command),) = script.suites(PYTHON, ["tests/planning", "-x"], thorough=False)
    assert command[-2:] == ["tests/planning", "-x"]
    assert not any("numprocesses" in word for word in command)


def test_thorough_ends_with_the_mutants(script: ModuleType) -> None:
    tests, mutants = script.suites(PYTHON, [], thorough=True)
    assert "--thorough" in tests[1]
    assert Path(mutants[1][1]).is_file()
    assert mutants[1][2:] == ["--bounded"]  # else it takes hours
    ((_, command),) = script.suites(PYTHON, ["tests/planning"], thorough=True)
    assert "--thorough" in command


@pytest.mark.parametrize(
    ("statuses", "expected", "ran"), [((0, 0), 0, 2), ((1, 0), 1, 1), ((0, 5), 2, 2)]
)
def test_the_first_failure_decides(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    statuses: tuple[int, int],
    expected: int,
    ran: int,
) -> None:
    programs = [f"import sys; print('ran'); sys.exit({status})" for status in statuses]
    commands = [(str(i), [sys.executable, "-c", text]) for i, text in enumerate(programs)]
    monkeypatch.setattr(script, "suites", lambda *args, **named: commands)
    assert script.main([]) == expected
    said = capfd.readouterr().out.splitlines()
    assert said.count("ran") == ran
    assert {0: "all passed", 1: "failed", 2: "did not run to its end"}[expected] in said[-1]
