"""The one command that owners of a device run says at once where there is none."""

from __future__ import annotations

import sys

import pytest

from tests.gpu import backends, machine

GPU = {"cuda": "13.0", "hip": None, "name": "NVIDIA H200", "platform": "vllm.platforms.cuda.X"}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (GPU, None),
        (
            {"cuda": None, "platform": "vllm.platforms.cpu.CpuPlatform"},
            "the platform is vllm.platforms.cpu.CpuPlatform",
        ),
        (
            {"error": "Traceback\nModuleNotFoundError: No module named 'torch'\n"},
            "ModuleNotFoundError: No module named 'torch'. Run this with the Python of that vLLM",
        ),
        ({"error": ""}, "it said nothing"),
    ],
)
def test_what_is_missing_is_told(told: dict[str, object], said: str | None) -> None:
    problem = machine.missing(told)
    assert (problem is None) if said is None else (problem is not None and said in problem)


def test_no_engine_is_started_without_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "describe", lambda command: {"device": {"error": "no torch"}})
    monkeypatch.setattr(backends, "run_cells", None)  # calling it would be a TypeError
    monkeypatch.setattr(sys, "argv", ["backends.py", "--out", "unwritten.json"])
    assert backends.main() == 2
    assert "no torch" in capsys.readouterr().err
