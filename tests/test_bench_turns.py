"""Engines of a benchmark that measure in turns on the same GPU, while the others are stopped."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import compare
import pytest
from children import run_child
from measuring import in_turns
from meeting import Meeting, leave
from turns import Turns

ENGINE_IN_TURN = """
import sys, time
from pathlib import Path
sys.path.insert(0, {bench!r})
from meeting import Meeting
meet, number = Path(sys.argv[1]), int(sys.argv[2])
if number == 1:
    sys.exit(1)  # one that does not start holds up nobody
meeting = Meeting(meet, number, 1)
turns = []
for turn in range(2):
    meeting.wait_for_turn(turn)
    begun = time.monotonic()
    time.sleep(0.2)
    states = []
    for other in meet.glob("pid.*"):
        stat = Path("/proc", other.read_text(), "stat")
        if other.name != "pid.%d" % number and stat.exists():
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    turns.append([begun, time.monotonic(), states])
    if turn == 0:
        meeting.end_turn(turn)
print("RESULT " + __import__("json").dumps(dict(turns=turns)))
"""


def test_engines_in_turn_measure_while_the_others_are_stopped(tmp_path: Path) -> None:
    program = ENGINE_IN_TURN.format(bench=str(Path(compare.__file__).parent))
    turns = Turns(tmp_path, 4)

    def one(number: int) -> dict[str, Any]:
        def begun(group: int) -> None:
            turns.begun(number, group)
            if number != 1:
                (tmp_path / f"pid.{number}").write_text(str(group))

        command = [sys.executable, "-c", program, str(tmp_path), str(number)]
        try:
            return run_child(command, dict(os.environ), tmp_path / f"log{number}", 30, begun)
        finally:
            leave(tmp_path, number)

    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(one, number) for number in range(4)]
        started: list[bool] = []
        conducted = pool.submit(
            turns.conduct,
            lambda: started.append(not list(tmp_path.glob("turn-*"))),
        )
        conducted.result(timeout=30)
        found = [job.result() for job in jobs]
    assert started == [True]
    assert found[1]["failed"] == 1
    measured = [found[number] for number in (0, 2, 3)]
    # All others are stopped; whoever has had its last turn is gone.
    states = [[states for _, _, states in one["turns"]] for one in measured]
    assert states == [[["T", "T"], ["T", "T"]], [["T", "T"], ["T"]], [["T", "T"], []]]
    order = [one["turns"][turn][:2] for turn in (0, 1) for one in measured]
    assert all(end <= begun for (_, end), (begun, _) in itertools.pairwise(order))


class FakeEngine:
    """Takes as long as the test says, and counts as vLLM does."""

    def __init__(self, seconds: Iterable[float]) -> None:
        self._seconds = iter(seconds)
        self.asked: list[tuple[int, int]] = []
        self._drafts = 0

    def counter(self, name: str) -> float:
        return self._drafts * {"num_drafts": 1, "num_accepted_tokens": 1.5}[name]

    def generate(self, size: int, tokens: int) -> float:
        self.asked.append((size, tokens))
        self._drafts += 100 * size
        return next(self._seconds)

    def workers(self, method: str, *args: Any) -> list[Any]:
        return [{"propose": {"median_ms": 0.1, "mean_ms": 0.2, "max_ms": 0.3}}]


def test_all_turns_together_make_the_figures() -> None:
    # The first call compiles, two warm each turn up, two repeats are measured.
    engine = FakeEngine([9.0, *(0.5, 0.5, 0.2, 0.3), *(0.5, 0.5, 0.4, 0.8)])
    found = in_turns(engine, [4], 256, 4, 2, Meeting(None, 0, 1))
    assert found[4]["repeats_ms_per_step"] == [2.0, 3.0, 4.0, 8.0]
    assert found[4]["ms_per_step"] == 3.5
    assert found[4]["mean_acceptance_length"] == 2.5
    assert found[4]["propose_host_ms"] == 0.1
    assert engine.asked[0] == (4, 16)
    assert set(engine.asked[1:]) == {(4, 256)}


def test_calls_beside_each_other_measure_once_all_have_started(tmp_path: Path) -> None:
    first, second = (compare.beside(f"{tmp_path}/a:b:{number}:2") for number in (0, 1))
    assert not first.wait("group-1", 0.05)
    second.reach("group-1")
    assert first.wait("group-1", 0)
    second.leave()  # it has fewer groups
    assert first.wait("group-2", 0)
    for wrong in ("folder", "folder:1", "folder:1:x"):
        with pytest.raises(argparse.ArgumentTypeError, match="FOLDER:NUMBER:COUNT"):
            compare.beside(wrong)
