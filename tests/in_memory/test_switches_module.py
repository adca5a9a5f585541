"""``vllm/v1/overlay_switches.py``: patched code reads its switches."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "patches/shared/files/vllm/v1/overlay_switches.py"


@pytest.fixture
def is_on() -> Any:
    spec = importlib.util.spec_from_file_location("overlay_switches_under_test", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.is_on


def test_an_empty_variable_is_an_unset_one_and_both_are_on(is_on: Any) -> None:
    assert is_on("OVERLAY_DEMO", {})
    assert is_on("OVERLAY_DEMO", {"OVERLAY_DEMO": ""})
    assert is_on("OVERLAY_DEMO", {"OVERLAY_DEMO": "on"})
    assert not is_on("OVERLAY_DEMO", {"OVERLAY_DEMO": "off"})


@pytest.mark.parametrize("value", ["On", "1", "no", "untried", "None"])
def test_any_other_value_is_refused_by_name(is_on: Any, value: str) -> None:
    with pytest.raises(ValueError, match=f"^OVERLAY_DEMO is '{value}'; set it to on or off$"):
        is_on("OVERLAY_DEMO", {"OVERLAY_DEMO": value})


def test_a_further_value_asks_for_it_too_and_is_named(is_on: Any) -> None:
    assert is_on("OVERLAY_DEMO", {"OVERLAY_DEMO": "untried"}, further=("untried", "all"))
    assert not is_on("OVERLAY_DEMO", {"OVERLAY_DEMO": "off"}, further=("untried", "all"))
    with pytest.raises(ValueError, match=r"is '1'; set it to on or off, or to untried or all$"):
        is_on("OVERLAY_DEMO", {"OVERLAY_DEMO": "1"}, further=("untried", "all"))


def test_the_variables_of_this_process_are_read_when_it_is_asked(
    is_on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, answer in (("off", False), ("on", True)):
        monkeypatch.setenv("OVERLAY_DEMO", value)
        assert is_on("OVERLAY_DEMO") is answer
