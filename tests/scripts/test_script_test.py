"""``scripts/test.py``: which commands it runs, and that the first that fails decides."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
import yaml

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
    monkeypatch.setattr(module, "compile_sources", lambda python: None)
    monkeypatch.setattr(module, "compile_tests", lambda python, *, every: None)
    return module


def test_all_tests_run_in_three_processes_and_the_slowest_are_told(script: ModuleType) -> None:
    ((_, command),) = script.suites(PYTHON, [], thorough=False)
    assert {"--whole", "--numprocesses=4", "--dist=loadfile", "--costs"} <= set(command)
    assert "--thorough" not in command


def test_the_files_that_start_first_exist() -> None:
    tests = ROOT / "tests"
    assert all((tests / name).is_file() for name in conftest.LONGEST)


def test_some_tests_run_in_one_process(script: ModuleType) -> None:
    ((_, command),) = script.suites(PYTHON, ["tests/planning", "-x"], thorough=False)
    assert command[-2:] == ["tests/planning", "-x"]
    assert not any("numprocesses" in word for word in command)


def test_what_pytest_makes_of_its_plugins_is_written_down(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the function itself, which the fixture left out
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    script.compile_tests(Path(sys.executable), every=False)
    assert list(Path(hypothesis.__file__).parent.glob("__pycache__/*-pytest-*.pyc"))


@pytest.mark.parametrize("tool", ["ruff", "mypy"])
def test_the_hooks_run_the_checks_of_ci(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    made = ("ruff one", "mypy one", "ruff two", "mypy two")
    checks = [script.Check(name, ROOT, ("pytest", "--version")) for name in made]
    monkeypatch.setattr(script, "checks", lambda: checks)
    said: list[str] = []
    monkeypatch.setattr(script, "say", said.append)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    (words,) = (hook["entry"].split() for hook in hooks if hook["id"] == tool)
    assert words[:2] == ["python3", "scripts/test.py"]
    assert script.main(words[2:]) == 0
    assert [text.splitlines()[0] for text in said] == [f"[check] {tool} one", f"[check] {tool} two"]
    assert all("pytest" in text for text in said)  # what a check prints is told with its name
    monkeypatch.setattr(script, "checks", lambda: [script.Check(tool, ROOT, ("no_such_module",))])
    assert script.main(words[2:]) == 1


def test_a_tool_without_a_check_is_an_error(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(script.environment.EnvironmentFailed, match="found 'pylint'"):
        script.main(["--checks", "pylint"])


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


@pytest.mark.parametrize("status", [0, 1])
def test_mypy_runs_beside_the_tests_and_stops_them_where_it_fails(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    status: int,
) -> None:
    """Each waits until the other has begun; tests that nobody stops would run for ten minutes."""
    modules = {"typed": tmp_path / "tests began", "tests": tmp_path / "typed began"}
    for name, other in modules.items():
        (tmp_path / f"{name}_program.py").write_text(
            "import pathlib, sys, time\n"
            f"pathlib.Path({str(tmp_path / f'{name} began')!r}).touch()\n"
            f"while not pathlib.Path({str(other)!r}).exists(): time.sleep(0.01)\n"
            + (f"sys.exit({status})" if name == "typed" else f"time.sleep({600 * status})")
        )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checks = [script.Check("mypy one", ROOT, ("typed_program",))]
    monkeypatch.setattr(script, "checks", lambda: checks)
    suites = [("tests", [sys.executable, str(tmp_path / "tests_program.py")]), ("mutants", ["no"])]
    monkeypatch.setattr(script, "suites", lambda *args, **named: suites[: 1 + status])
    assert script.main([]) == status
    last = capfd.readouterr().out.splitlines()[-1]
    assert "[check mypy one] failed" in last if status else "all passed" in last


def test_the_environment_of_the_engines_is_made_beside_the_tests(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began = tmp_path / "the tests began"

    def made_once_the_tests_began() -> Path:
        for _ in range(6000):
            if began.exists():
                return Path(sys.executable)
            time.sleep(0.01)
        raise AssertionError("the tests waited for the environment")

    monkeypatch.setattr(script.environment, "engine_python", made_once_the_tests_began)
    program = f"import pathlib; pathlib.Path({str(began)!r}).touch()"
    suites = [("tests", [sys.executable, "-c", program])]
    monkeypatch.setattr(script, "suites", lambda *args, **named: suites)
    assert script.main([]) == 0


@pytest.mark.parametrize("status", [0, 1])
def test_an_environment_that_cannot_be_made_is_told_whatever_the_tests_say(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    status: int,
) -> None:
    def refused() -> Path:
        raise script.environment.EnvironmentFailed("pip has no space left")

    monkeypatch.setattr(script.environment, "engine_python", refused)
    suites = [("tests", [sys.executable, "-c", f"raise SystemExit({status})"])]
    monkeypatch.setattr(script, "suites", lambda *args, **named: suites)
    with pytest.raises(script.environment.EnvironmentFailed, match="no space left"):
        script.main([])
    said = capfd.readouterr().out
    assert "all passed" not in said
    assert ("[tests] failed" in said) == (status == 1)


def test_without_pytorch_the_tests_run_and_the_reason_is_told(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def unavailable() -> Path:
        raise script.environment.TorchUnavailable("no build")

    monkeypatch.setattr(script.environment, "engine_python", unavailable)
    suites = [("tests", [sys.executable, "-c", ""])]
    monkeypatch.setattr(script, "suites", lambda *args, **named: suites)
    assert script.main([]) == 0
    assert "the engine tests will be skipped" in capfd.readouterr().out
