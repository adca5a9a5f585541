"""A bar for what takes long on a terminal, plain lines anywhere else."""

from __future__ import annotations

import io
import os
import threading
import time

import pytest

from overlay.report.progress import Meter, counting, doing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def wait_for(stream: io.StringIO, text: str) -> None:
    """Until a meter's thread has shown it: a busy machine may let that wait for long."""
    deadline = time.monotonic() + 30
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.005)


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


def test_no_terminal_gets_a_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO(), 60, monkeypatch) == "vLLM 0.26.0: 0.0 of 0.0 MB\n"
    assert shown(io.StringIO(), 0.5, monkeypatch) == ""


def test_lines_come_seconds_apart() -> None:
    stream, clock = io.StringIO(), Clock()
    with Meter(stream, clock) as progress:
        for step in range(20):
            clock.now = step / 2
            progress("vLLM 0.26.0", int(clock.now * 1e6), 20_000_000)
    assert stream.getvalue().splitlines() == [
        "vLLM 0.26.0: 1.0 of 20.0 MB",
        "vLLM 0.26.0: 4.0 of 20.0 MB",
        "vLLM 0.26.0: 7.0 of 20.0 MB",
    ]


def counted(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    """What three pieces of work show of which the first ends once it was named."""
    monkeypatch.setattr("overlay.report.progress.PATIENCE", 0.02)
    monkeypatch.setattr("overlay.report.progress.BETWEEN_LINES", 0.02)
    with Meter(stream) as meter, counting(meter, "checked", 3, "target") as step:
        wait_for(stream, "0 of 3 targets")
        for _ in range(3):
            step()
    return stream.getvalue()


def test_pieces_of_work_are_counted_though_the_first_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = counted(io.StringIO(), monkeypatch).splitlines()
    assert lines[0] == "checked 0 of 3 targets"
    assert lines[-1] == "checked 3 of 3 targets"
    assert lines == sorted(set(lines))


def test_quick_work_is_not_counted() -> None:
    with (
        Meter(stream := io.StringIO()) as meter,
        counting(meter, "checked", 3, "target") as step,
    ):
        step()
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    assert "of 3 targets" in counted(Terminal(), monkeypatch)


def test_work_that_fails_ends_the_count() -> None:
    meter = Meter(io.StringIO())
    with pytest.raises(ZeroDivisionError), counting(meter, "checked", 3, "target"):
        raise ZeroDivisionError


def test_a_total_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = Terminal(), Clock()
    monkeypatch.setenv("TERM", "xterm-256color")
    with Meter(stream, clock) as progress:
        for seconds in range(3):
            clock.now = seconds
            progress("sdist", seconds * 100, None)
    assert "sdist" in stream.getvalue()


def test_what_cannot_be_counted_is_named_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.report.progress.PATIENCE", 0.02)
    stream, clock = io.StringIO(), Clock()
    with Meter(stream, clock) as meter, doing(meter, "reading vLLM 0.26.0"):
        for clock.now in (1.0, 20.0):
            wait_for(stream, f"reading vLLM 0.26.0, {clock.now:.0f} s\n")


def test_of_work_in_work_the_innermost_is_named_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overlay.report.progress.PATIENCE", 0.02)
    stream, clock = io.StringIO(), Clock()
    with Meter(stream, clock) as meter, counting(meter, "tried", 2, "release") as step:
        with doing(meter, "reading one"):
            clock.now = 5.0
            wait_for(stream, "\n")
        step()
        step()
    assert stream.getvalue().startswith("reading one, 5 s\n")


def test_a_bar_goes_with_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("overlay.report.progress.PATIENCE", 0.02)
    with Meter(stream := Terminal()) as meter, doing(meter, "importing it"):
        with doing(meter, "reading one"):
            wait_for(stream, "reading one")
        stream.seek(0)
        stream.truncate()
        wait_for(stream, "importing it")
        assert "reading one" not in stream.getvalue()


def test_nothing_is_left_behind_work_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("overlay.report.progress.PATIENCE", 0.02)
    before = threading.active_count()
    with Meter(stream := Terminal()) as meter:
        with doing(meter, "reading one"):
            wait_for(stream, "reading one")
        assert threading.active_count() == before
        shown_text = stream.getvalue()
        time.sleep(0.1)
        assert stream.getvalue() == shown_text  # a prompt may stand there now


def test_a_fork_waits_for_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.report.progress.PATIENCE", 0.02)
    drawing = threading.Event()

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            drawing.set()
            time.sleep(0.3)
            return super().write(text)

    meter = Meter(stream := Slow())
    with counting(meter, "a", 2, "b"):
        drawing.wait(10)
        child = os.fork()
        if not child:
            os._exit(0 if stream.getvalue() else 1)  # what was begun is finished
        assert os.waitpid(child, 0)[1] == 0
