"""Every bad input of the table ends as it says, in time, without a traceback or a raw escape."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from types import FrameType

import pytest

from tests.commands.bad_inputs import ROWS, Row, World
from tests.support.cli import Cli

#: Seconds of processor time that a row may take; a hang is noticed by the clock.
LIMIT, HANG = 5.0, 60

#: Characters of an answer, whatever the input quotes.
LONGEST = 20_000


def _hang(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"still busy after {HANG} s")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "-", row.name))
def test_it_ends_as_the_table_says(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    # `doctor` counts the engines of this machine, those of other tests among them.
    monkeypatch.setattr("overlay._processes.live.processes", lambda: ())
    arguments = row.make(World(cli, tmp_path, monkeypatch))
    before = signal.signal(signal.SIGALRM, _hang)
    signal.alarm(HANG)
    began = time.process_time()
    try:
        result = cli(*arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert time.process_time() - began < LIMIT
    said = result.out + result.err
    assert (result.exit, row.word in said) == (row.exit, True), said
    assert "Traceback" not in said
    assert "bug in vllm-overlay" not in said
    assert not set(said) & {chr(code) for code in (*range(9), *range(11, 32), 127)}
    assert said.endswith("\n")
    assert len(said) < LONGEST


def test_the_table_is_as_large_as_the_review_s() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 212
    assert all(row.word for row in ROWS)
