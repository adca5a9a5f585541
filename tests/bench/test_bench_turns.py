"""Engines of a benchmark that measure in turns on the same GPU, while the others are stopped."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from bench import compare
from bench.meeting import Meeting
from bench.plan import Cell, Party, Place
from bench.profiling.measuring import in_turns
from tests.bench.sittings import sitting

ENGINE_IN_TURN = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, {bench!r})
from bench.meeting import Meeting
pids = Path({pids!r})
meet, number = Path(sys.argv[sys.argv.index("--meet") + 1]), int(sys.argv[-3])
if number == 1:
    sys.exit(1)
(pids / f"pid.{{number}}").write_text(str(os.getpid()))
meeting = Meeting(meet, number, 1)
turns = []
for turn in range(2):
    meeting.wait_for_turn(turn)
    begun = time.monotonic()
    time.sleep(0.2)
    states = []
    for other in pids.iterdir():
        stat = Path("/proc", other.read_text(), "stat")
        if other.name != f"pid.{{number}}" and stat.exists():
            state = stat.read_text().rpartition(")")[2].split()[0]
            states += [state] if state not in "ZX" else []
    turns.append([begun, time.monotonic(), states])
    if turn == 0:
        meeting.end_turn(turn)
print("RESULT " + json.dumps(dict(engines_turns=turns)))
"""


PARTIES = [Party("stock-v1", Cell.parse(f"1b:{k}:FULL"), Place()) for k in range(4)]


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """Where the engines of a test leave their pids."""
    folder = tmp_path / "pids"
    folder.mkdir()
    return folder


def engine_in_turn(pids: Path) -> Callable[[Party, Path], list[str]]:
    """Instead of the command that starts ``step_time.py``."""
    program = ENGINE_IN_TURN.format(bench=str(Path(compare.__file__).parents[1]), pids=str(pids))
    return lambda party, cache: [sys.executable, "-c", program]


def test_engines_in_turn_measure_while_the_others_are_stopped(
    tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sitting(tmp_path, in_turn=4, turns=2)
    monkeypatch.setattr(one, "command", engine_in_turn(pids))
    started = []
    all_started = one._all_started
    monkeypatch.setattr(
        one, "_all_started", lambda: (started.append(len(list(pids.iterdir()))), all_started())
    )
    one.run(PARTIES, 0)
    one.close()
    assert started == [3]
    first, second, third, fourth = one.results
    assert second["failed"] == 1  # one that does not start holds up no other
    measured = [first, third, fourth]
    assert [one["in_turn"] for one in measured] == [4] * 3
    # All others are stopped; whoever has had its last turn is gone.
    states = [[states for _, _, states in one["engines_turns"]] for one in measured]
    assert states == [[["T", "T"], ["T", "T"]], [["T", "T"], ["T"]], [["T", "T"], []]]
    order = [one["engines_turns"][turn][:2] for turn in (0, 1) for one in measured]
    assert all(end <= begun for (_, end), (begun, _) in itertools.pairwise(order))


def test_an_engine_that_cannot_even_be_described_holds_up_nobody(
    tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sitting(tmp_path, in_turn=4, turns=2)
    monkeypatch.setattr(one, "command", engine_in_turn(pids))

    def environment(engine: str, place: Place, cache: Path) -> dict[str, str]:
        raise OSError("no room")

    monkeypatch.setattr(one, "environment", environment)
    with pytest.raises(OSError, match="no room"):
        one.run(PARTIES, 0)
    one.close()


def test_whoever_is_killed_while_it_waits_holds_up_nobody(
    tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sitting(tmp_path, in_turn=4, turns=2)
    monkeypatch.setattr(one, "command", engine_in_turn(pids))

    def kill_the_last() -> None:
        os.kill(int((pids / "pid.3").read_text()), signal.SIGKILL)

    monkeypatch.setattr(one, "_all_started", kill_the_last)
    one.run(PARTIES, 0)
    one.close()
    assert ["engines_turns" in found for found in one.results] == [True, False, True, False]


def test_a_conductor_that_fails_leaves_nobody_stopped(
    tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sitting(tmp_path, in_turn=4, turns=2)
    monkeypatch.setattr(one, "command", engine_in_turn(pids))

    def fails() -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(one, "_all_started", fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        one.run(PARTIES, 0)
    one.close()
    assert all(found["failed"] for found in one.results)


def test_no_engine_outlives_whoever_started_it(tmp_path: Path) -> None:
    bench = str(Path(compare.__file__).parents[1])
    starter = (
        f"import os, signal, sys; sys.path.insert(0, {bench!r})\n"
        "from bench.children import run_child\n"
        "from overlay.proof.engine_pool import Watchdog\n"
        "from pathlib import Path\n"
        "def begin(group):\n"
        "    os.killpg(group, signal.SIGSTOP)\n"
        "    print(group, flush=True)\n"
        "run_child([sys.executable, '-c', 'import time; time.sleep(60)'], dict(os.environ),\n"
        "          Path(sys.argv[1]), 60, Watchdog(), begin)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starter, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        group = int(process.stdout.readline())
        process.kill()
    last = time.monotonic() + 10
    stat = Path(f"/proc/{group}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < last, "it is still there"
        time.sleep(0.05)


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
    with pytest.raises(argparse.ArgumentTypeError, match="earlier sitting"):
        compare.beside(f"{tmp_path}/a:b:1:2")


@pytest.mark.parametrize(
    "wrong",
    [("--in-turn", "0"), ("--in-turn", "2", "--turns", "0"), ("--beside", "FOLDER:0:2")],
)
def test_what_would_not_be_done_is_refused(
    wrong: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--stock", "a", "--patched", "b", "--out", "c", "--cells", "1b:3:FULL"]
    words = [word.replace("FOLDER", str(tmp_path)) for word in wrong]
    monkeypatch.setattr(sys, "argv", ["compare.py", *given, *words])
    with pytest.raises(SystemExit):
        compare.arguments()
    assert "--in-turn" in capsys.readouterr().err
