"""Each process speaks for itself: forked ones, too, and those in which the overlay is off."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from overlay import _processes
from overlay._processes.live import problem
from overlay.in_memory import plugin as process
from overlay.results import Way
from tests.in_memory.boxes import PATCHED, Box

FORK = """
import multiprocessing, os
def child():
    register(); register()
    %s
    os._exit(0 if runs() == %r else 1)
register()
forked = multiprocessing.get_context("fork").Process(target=child, name="EngineCore_DP0")
forked.start(); forked.join(); assert forked.exitcode == 0
"""
RECORD = """
    from overlay import _processes as records
    [mine] = [r for r in records.read_all() if r.pid == os.getpid()]
    print(mine.role, mine.way.value, flush=True)
"""


def lines(log: str, words: str) -> list[str]:
    return [line for line in log.splitlines() if words in line]


def test_a_forked_child_says_once_what_it_runs_and_as_what(box: Box) -> None:
    done = box.attempt(FORK % (RECORD.strip(), "patched"))
    assert done.returncode == 0, done.stderr
    said = lines(done.stderr, "has the patches demo (memory)")
    assert len(said) == 2
    assert said[0] != said[1]  # each names its own pid
    assert done.stdout.split() == ["engine", "core", "memory"]


def test_a_forked_child_of_a_process_that_is_off_is_off_and_says_so(box: Box) -> None:
    done = box.attempt(FORK % (RECORD.strip(), "pristine"), OVERLAY="off")
    assert done.returncode == 0, done.stderr
    assert len(lines(done.stderr, "off (OVERLAY=off)")) == 2
    assert done.stdout.split() == ["engine", "core", "off"]


def record(way: Way, **more: object) -> _processes.ProcessRecord:
    given: dict[str, object] = {
        "pid": 1,
        "started": "1",
        "host": "h",
        "role": "worker",
        "rank": None,
        "vllm": "0.26.0",
        "root": "/vllm",
        "way": way,
        "digest": "a" * 64 if way is not Way.OFF else "",
        "summary": way.value,
    }
    # Keywords of a helper, typed as object.
    return _processes.ProcessRecord(**{**given, **more})  # type: ignore[arg-type]


def test_where_all_are_off_nobody_needs_to_look() -> None:
    off = record(Way.OFF)
    assert problem(off, [off, off]) is None


def test_one_that_is_off_among_patched_ones_is_named() -> None:
    off, patched = record(Way.OFF), record(Way.MEMORY)
    assert problem(off, [off, patched]) == "is off (OVERLAY=off), its peers patched"
    message = problem(patched, [off, patched])
    assert message is not None
    assert "its peers differ: 1 off" in message


def test_off_reaches_the_workers_on_other_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else they would patch themselves, all alike, and nothing would stop them."""
    monkeypatch.setattr(process, "_process", None)
    monkeypatch.setattr(sys, process._MARK, None, raising=False)
    monkeypatch.setattr(os, "register_at_fork", lambda **calls: None)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    environment = {"OVERLAY": "off"}
    process.start(environment)
    assert environment["VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"] == "OVERLAY"
    [written] = (tmp_path / "vllm-overlay").glob("*.json")
    assert json.loads(written.read_text())["way"] == "off"
    monkeypatch.undo()


def test_a_process_says_its_line_once(box: Box) -> None:
    assert len(lines(box.run("register()\n" + PATCHED), "has the patches demo (memory)")) == 1
