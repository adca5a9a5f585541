"""``scripts/test.py``: no test is left out of the two processes, and the worse one decides."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script() -> ModuleType:
    # By its path: its name is that of a package of Python's own.
    spec = importlib.util.spec_from_file_location("script_test", ROOT / "scripts" / "test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("here", "others", "worst"), [(0, 0, 0), (1, 0, 1), (0, 2, 2), (0, 5, 5), (4, 2, 4)]
)
def test_the_worse_status_decides_and_both_are_said(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    here: int,
    others: int,
    worst: int,
) -> None:
    asked: list[list[str]] = []

    def stand_in(python: Path, arguments: Sequence[str]) -> list[str]:
        asked.append(list(arguments))
        beside = any(argument.startswith("--ignore") for argument in arguments)
        status, word = (others, "others ran") if beside else (here, "here ran")
        return [str(python), "-c", f"import sys; print({word!r}); sys.exit({status})"]

    monkeypatch.setattr(script, "pytest", stand_in)
    assert script.in_halves(Path(sys.executable)) == worst
    said = capfd.readouterr().out
    assert said.index("here ran") < said.index("others ran")
    ends = ["passed" if status == 0 else f"ended with {status}" for status in (here, others)]
    assert said.splitlines()[-1].endswith(f"and the others: {ends[0]} and {ends[1]}")

    beside, these = sorted(asked, key=lambda arguments: len(arguments[0]))
    assert beside[0] == str(ROOT / "tests")
    assert [argument.removeprefix("--ignore=") for argument in beside[1:]] == these
    assert all(Path(file).is_file() for file in these)
    assert (ROOT / "tests" / script.LEFT_OUT).is_file()
    assert str(ROOT / "tests" / script.LEFT_OUT) not in these
