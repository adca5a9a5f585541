"""A bar for what takes long, on a terminal, and nothing anywhere else."""

from __future__ import annotations

import io

import pytest

from overlay.report.progress import Meter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(stream: io.StringIO, seconds: float, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    clock = Clock()
    with Meter(stream, clock) as progress:
        progress("vLLM 0.26.0", 0, 1000)
        clock.now = seconds
        progress("vLLM 0.26.0", 600, 1000)
    return stream.getvalue()


def test_what_takes_long_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "vLLM 0.26.0" in shown(Terminal(), 1.5, monkeypatch)


def test_what_is_quick_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(Terminal(), 0.5, monkeypatch) == ""


def test_no_terminal_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO(), 60, monkeypatch) == ""


def test_a_total_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = Terminal(), Clock()
    monkeypatch.setenv("TERM", "xterm-256color")
    with Meter(stream, clock) as progress:
        for seconds in range(3):
            clock.now = seconds
            progress("sdist", seconds * 100, None)
    assert "sdist" in stream.getvalue()
