"""``overlay bench`` with engines that start together and measure in turn."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jsonschema
import pytest

from overlay.proof import meeting, turns
from overlay.proof.reports.benched import OVERLAY, STOCK, V2
from tests.proof.commands.test_verify import expect_gone, pids_of
from tests.proof.support import traces
from tests.proof.support.fake_engine import behaving, write_fake_python
from tests.report.test_schema import DOCUMENT
from tests.support import fake_vllm
from tests.support.cli import Cli

TIMES: dict[str, object] = {
    STOCK: [4.0],
    OVERLAY: [2.0],
    V2: [2.5],
    f"{STOCK} serving": [1.0, 100.0, 101.0, 104.0, 125.0, 125.0, 102.0, 50.0],
    f"{OVERLAY} serving": [150.0, 200.0, 201.0],
    f"{V2} serving": [190.0, 190.0],
}
ENGINES = [STOCK, OVERLAY, V2]
OWN = ("--model", "a/b", "--draft", "a/c")
OPTIONS = ("--side-by-side", "--batch", "1", "--concurrency", "2")


@pytest.fixture
def python(tmp_path: Path, cli: Cli) -> Path:
    """The interpreter of an environment whose vLLM is patched."""
    folder = tmp_path / "environment"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    fake_vllm.site_packages(folder / "lib/python3.11/site-packages")
    python = write_fake_python(folder / "bin")
    assert cli("apply", "--python", python).exit == 0
    return python


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the engines write down when they measured."""
    folder = tmp_path / "trace"
    folder.mkdir()
    monkeypatch.setenv("FAKE_TRACE", str(folder))
    return folder


@pytest.fixture
def bench(python: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(times: dict[str, object], *options: str) -> Any:
        for name, value in behaving({**TIMES, **times}).items():
            monkeypatch.setenv(name, value)
        found = cli("bench", "--python", python, "--json", *OPTIONS, *options)
        told = json.loads(found.out)
        jsonschema.validate(told, DOCUMENT)
        told["said"] = found.err.splitlines()
        return told

    return call


def turns_of(measured: list[traces.Measured]) -> list[str]:
    """The engines, in the order of their turns."""
    return [engine for engine, _ in itertools.groupby(each.engine for each in measured)]


def expect_alone(measured: list[traces.Measured]) -> None:
    """No two engines measured at the same time, and the others were stopped."""
    for before, after in itertools.pairwise(measured):
        assert before.ended <= after.begun
    assert {state for each in measured for state in each.others} <= {"T"}


def test_step_times_are_taken_in_turns_of_which_each_engine_begins_one(
    bench: Any, trace: Path
) -> None:
    told = bench({}, "--only", "steps", "--rounds", "3", "--repeats", "2")
    assert (told["exit"], told["code"]) == (0, "measured"), told
    measured = traces.read(trace)
    expect_alone(measured)
    assert turns_of(measured) == [STOCK, OVERLAY, V2, OVERLAY, V2, STOCK, V2, STOCK, OVERLAY]
    assert (told["bench"]["side_by_side"], told["bench"]["rounds"]) == (True, 3)
    for engine in told["bench"]["engines"]:
        (batch,) = engine["batches"]
        assert batch["repeats_by_round"] == [2, 2, 2]
        assert len(batch["ms_per_step"]) == 6
        assert engine["start_s"] == [1.5]
    notes = told["bench"]["notes"]
    assert "side by side: started once, measured in turn, 3 rounds (--side-by-side)" in notes


def test_servers_take_turns_at_one_rate_and_what_warms_them_up_does_not_count(
    bench: Any, trace: Path, tmp_path: Path
) -> None:
    told = bench({}, "--only", "serving", "--rounds", "2", "--logs", str(tmp_path / "logs"))
    assert (told["exit"], told["code"]) == (0, "measured"), told
    measured = traces.read(trace)
    expect_alone(measured)
    # The first round has four turns, to warm up and to be measured, with two requests at a time and
    # at the rate; the second, which the overlay begins, has one of each.
    assert turns_of(measured) == [*ENGINES * 4, *[OVERLAY, V2, STOCK] * 2]
    served = {each["engine"]: each for each in told["bench"]["serving"]}
    assert list(served) == ENGINES
    # The third run agrees with the second; each later turn has one run, of which these count.
    (cell,) = served[STOCK]["concurrency"]
    assert cell == {
        "requests": 2,
        "output_tokens_per_s": [104.0, 102.0],
        "repeats_by_round": [1, 1],
        "steady": True,
    }
    assert {each["request_rate"] for each in served.values()} == {5.2}
    assert [len(each["first_token_ms"]) for each in served.values()] == [2, 2, 2]
    # Two or three runs until they agree, one at the rate; then one of each in each round.
    runs = {engine: sum(each.engine == engine for each in measured) for engine in ENGINES}
    assert runs == {STOCK: 8, OVERLAY: 8, V2: 7}
    expect_said(told["said"])
    kept = json.loads((tmp_path / "logs" / "stock-V1-serving.json").read_text())
    assert kept["concurrency"]["2"]["values"] == [104.0, 102.0]


def expect_said(lines: list[str]) -> None:
    """What each engine has come to is said with the seconds since the start."""
    lines = [line for line in lines if line.startswith("[")]
    assert all(re.match(r"\[ *\d+ s\] engine ", line) for line in lines)
    words = [line.partition("] engine ")[2] for line in lines]
    stock = [each for each in words if each.startswith(f"{STOCK}, serving: ")]
    assert [each.partition(": ")[2] for each in stock][:-1] == [
        "started",
        "can be measured, waits for its turn",
        "round 1 of 2, 2 requests at a time: begins to warm up",
        "round 1 of 2, 2 requests at a time: warm after 3 runs",
        "round 1 of 2, 2 requests at a time: 104 tokens/s",
        "round 1 of 2, first token: begins to warm up",
        "round 1 of 2, first token: warm after 1 run",
        "round 1 of 2, first token: 8.0 ms at 5.2 requests/s",
        "round 2 of 2, 2 requests at a time: 102 tokens/s",
        "round 2 of 2, first token: 20.0 ms at 5.2 requests/s",
        "the turn in which it ends begins",
    ]
    assert stock[-1].startswith(f"{STOCK}, serving: ended after ")


def test_v2_that_fails_leaves_the_others_measuring_and_what_it_measured_in_its_file(
    bench: Any, trace: Path, tmp_path: Path
) -> None:
    options = ("--only", "serving", "--rounds", "2", "--request-rate", "0")
    told = bench({f"{V2} serving": "client fails"}, *options, "--logs", str(tmp_path / "logs"))
    assert told["exit"] == 0
    assert "what a client" in told["bench"]["left"][V2]
    # They warm up and are measured; in the second of two rounds the overlay begins.
    assert turns_of(traces.read(trace)) == [STOCK, OVERLAY, V2, STOCK, OVERLAY, STOCK]
    assert [each["engine"] for each in told["bench"]["serving"]] == [STOCK, OVERLAY]
    failed = json.loads((tmp_path / "logs" / "V2-serving.json").read_text())
    assert (failed["vllm"], failed["concurrency"]) == ("0.99.0", {})
    assert "what a client" in failed["text"]


@pytest.mark.thorough
def test_v2_that_does_not_start_is_left_out_of_both_parts(bench: Any, trace: Path) -> None:
    told = bench({V2: "ValueError: no V2 here"}, "--rounds", "2", "--request-rate", "0")
    assert told["exit"] == 0
    assert "no V2 here" in told["bench"]["left"][V2]
    # In the second of two rounds the overlay begins: of step times, and then of servers, which have
    # two turns in the first.
    assert turns_of(traces.read(trace)) == [STOCK, OVERLAY] * 3 + [STOCK]
    assert [each["engine"] for each in told["bench"]["serving"]] == [STOCK, OVERLAY]


def test_v2_that_dies_after_a_turn_is_left_out_with_its_error(
    bench: Any, trace: Path, tmp_path: Path
) -> None:
    dies = [*(2.5 for _ in range(5)), "what a day"]  # in its second turn
    options = ("--only", "steps", "--rounds", "2", "--repeats", "2")
    told = bench({V2: dies}, *options, "--logs", str(tmp_path / "logs"))
    assert (told["exit"], told["code"]) == (0, "measured"), told
    why = "ended with status 1 and a part of its result: ValueError: what a day"
    assert why in told["bench"]["left"][V2]
    assert [each["engine"] for each in told["bench"]["engines"]] == [STOCK, OVERLAY]
    kept = json.loads((tmp_path / "logs" / "V2-steps.json").read_text())
    assert kept["batch1"]["repeats_by_turn"] == [2]


@pytest.mark.parametrize(
    ("engine", "part"),
    [
        (STOCK, ""),
        pytest.param(OVERLAY, " serving", marks=pytest.mark.thorough),
        pytest.param(OVERLAY, "", marks=pytest.mark.thorough),
        pytest.param(STOCK, " serving", marks=pytest.mark.thorough),
    ],
)
def test_an_engine_that_dies_ends_those_that_wait(
    bench: Any, trace: Path, engine: str, part: str
) -> None:
    word = "says what a day" if part else "ValueError: what a day"
    only = ("--only", "serving" if part else "steps")
    told = bench({f"{engine}{part}": word, V2: [1.0]}, *only)
    assert told["exit"] == 2
    assert f"{engine}, {only[1]}: the " in told["error"]
    assert "what a day" in told["error"]
    assert "--one-by-one starts them in turn" in told["error"]
    expect_gone([int(each.name.removeprefix("pid-")) for each in trace.glob("pid-*")])


def test_a_budget_keeps_what_was_measured_and_leaves_no_engine(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PIDS", str(tmp_path / "pids"))
    told = bench({f"{OVERLAY} serving": "hangs"}, "--rounds", "1", "--budget", "20")
    assert (told["exit"], told["code"]) == (0, "measured"), told
    expect_gone(pids_of(tmp_path / "pids"))
    assert len(told["bench"]["engines"]) == 3
    # It had half of the time that was left to start in; then the others have their turns.
    assert [each["engine"] for each in told["bench"]["serving"]] == [STOCK, V2]
    (note,) = (each for each in told["bench"]["notes"] if "had not started" in each)
    assert note.startswith(f"{OVERLAY}, serving: it had not started after ")
    gaps = {(each["engine"], each["what"]) for each in told["bench"]["not_measured"]}
    assert {what for engine, what in gaps if engine == OVERLAY} == {"serving", "first-token"}


def test_where_no_turn_can_be_given_the_engine_is_named_with_its_last_lines(
    bench: Any, trace: Path
) -> None:
    def give_turn(folder: Path, number: int, party: int) -> None:
        if (number, party) == (1, 1):
            raise OSError(28, "No space left on device")
        given_turn(folder, number, party)

    given_turn = meeting.give_turn
    with mock.patch.object(turns.meeting, "give_turn", give_turn):
        told = bench({}, "--only", "steps", "--rounds", "2")
    assert told["exit"] == 2
    assert told["error"].startswith(
        "overlay, steps: expected to give this engine its turn, found OSError: [Errno 28] No space "
        "left on device; all engines were ended. Its last lines:"
    )
    assert "signal" not in told["error"]
    expect_gone([int(each.name.removeprefix("pid-")) for each in trace.glob("pid-*")])


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.thorough),
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.thorough),
    ],
)
def test_no_stopped_server_outlives_the_command(
    python: Path, tmp_path: Path, trace: Path, how: signal.Signals
) -> None:
    """Two servers have measured and are stopped, while the third never answers its client."""
    pids = tmp_path / "pids"
    words = behaving({**TIMES, f"{V2} serving": "answers no client"})
    command = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "overlay",
            "bench",
            *OPTIONS,
            *("--only", "serving", "--python", python),
        ],
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, **words, "FAKE_PIDS": str(pids), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stuck, _ = pids_of(pids)
    waiting = [int(each.name.removeprefix("pid-")) for each in trace.glob("pid-*")]
    stopped = [pid for pid in waiting if pid != stuck]
    assert [traces.state_of(pid) for pid in stopped] == ["T", "T"]
    command.send_signal(how)
    command.wait(20)
    expect_gone([stuck, *stopped])


def test_models_of_your_own_need_a_cache_whose_size_is_known(bench: Any) -> None:
    told = bench({}, *OWN)
    assert told["exit"] == 2
    assert (
        "--side-by-side with --model: expected --kv-cache-memory-bytes behind --" in told["error"]
    )


@pytest.mark.thorough
def test_models_of_your_own_with_such_a_cache_are_measured(bench: Any) -> None:
    sized = ("--only", "steps", "--rounds", "1", "--", "--kv-cache-memory-bytes", "1000")
    assert bench({}, *OWN, *sized)["bench"]["side_by_side"] is True
