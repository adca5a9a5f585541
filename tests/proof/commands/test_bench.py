"""``overlay bench`` with engines that take what a test says."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from overlay.proof.commands import bench as bench_command
from overlay.proof.commands.bench import as_arguments
from overlay.proof.commands.pair import without_draft
from overlay.proof.commands.question import BenchQuestion, method_of
from tests.proof.commands.test_verify import expect_gone, pids_of
from tests.proof.support.fake_engine import behaving, install_plugin, write_fake_environment
from tests.report.test_schema import DOCUMENT
from tests.support.cli import Cli

TIMES: dict[str, object] = {
    "stock V1": [4.0, 4.2],
    "overlay": [2.0, 2.1],
    "V2": [2.05, 2.2],
    "stock V1 serving": [1.0, 100.0, 101.0],
    "overlay serving": [1.0, 150.0, 200.0, 201.0],
    "V2 serving": [200.0, 201.0, 201.0],
    "stock": [4.0, 4.2],
    "stock serving": [100.0, 101.0],
    "stock without drafts": [6.0, 6.2],
    "overlay without drafts": [5.0, 5.1],
}
STEPS = ("--only", "steps")
BOTH = ("--against", "both")
DEFAULT = ("--against", "default")
SERVING = ("--only", "serving", "--concurrency", "2")


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment whose vLLM is pristine."""
    return write_fake_environment(tmp_path / "environment")


@pytest.fixture
def bench(python: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    # To read all of Python's library takes seconds.
    monkeypatch.setattr(bench_command, "_PASSAGES", 2)

    def call(times: dict[str, object], *options: str) -> Any:
        for name, value in behaving({**TIMES, **times}).items():
            monkeypatch.setenv(name, value)
        against = () if {"--against", "--v1"} & set(options) else BOTH
        words = ("--python", python, "--batch", "1", "--json", *against)
        found = cli("bench", *words, *options)
        told = json.loads(found.out)
        jsonschema.validate(told, DOCUMENT)
        return told

    return call


def test_a_vllm_that_is_not_patched_on_disk_is_refused(bench: Any) -> None:
    told = bench({})
    assert (told["exit"], told["code"]) == (2, "environment")
    assert "run `overlay apply --python" in told["error"]


def test_a_vllm_that_is_patched_in_memory_is_measured_against_stock(
    bench: Any, python: Path
) -> None:
    install_plugin(python)
    told = bench({}, *STEPS, "--rounds", "1", "--against", "default")
    assert {each["engine"] for each in told["bench"]["engines"]} == {"stock", "overlay"}
    assert told["bench"]["comparisons"][0]["ratio"] == 2.0


def test_engines_run_in_rounds_and_only_what_is_apart_is_concluded(
    bench: Any, cli: Cli, python: Path, tmp_path: Path
) -> None:
    assert cli("apply", "--python", python).exit == 0
    told = bench({}, *STEPS, "--rounds", "2", "--html", str(tmp_path / "page.html"))
    assert (told["exit"], told["code"]) == (0, "measured")
    repeats = {
        each["engine"]: each["batches"][0]["ms_per_step"] for each in told["bench"]["engines"]
    }
    assert repeats["overlay"] == [2.0, 2.1, 2.0, 2.1]
    shown = {each["other"]: each["conclusive"] for each in told["bench"]["comparisons"]}
    assert shown == {"stock V1": True, "V2": False}
    assert told["verdict"] == "Times as fast as stock V1: 2.00 with 1 request."
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_v2_is_left_out_where_it_does_not_serve_and_the_others_are_not(
    bench: Any, cli: Cli, python: Path
) -> None:
    assert cli("apply", "--python", python).exit == 0
    told = bench({"V2": "ValueError: no V2 here"}, *STEPS)
    assert told["exit"] == 0
    assert "no V2 here" in told["bench"]["left"]["V2"]
    for engine in ("stock V1", "overlay"):
        told = bench({engine: "ValueError: what a day"}, *STEPS)
        assert told["exit"] == 2
        assert f"{engine}, steps: the engine ended with status 1" in told["error"]


@pytest.mark.parametrize(
    ("against", "other", "left", "ratio"),
    [("stock", "stock V1", "V2", "2.00"), ("v2", "V2", "stock V1", "1.50")],
)
def test_the_overlay_is_measured_against_one_engine_alone(
    bench: Any, cli: Cli, python: Path, against: str, other: str, left: str, ratio: str
) -> None:
    assert cli("apply", "--python", python).exit == 0
    # The one that is not asked for would fail.
    times = {"V2": [3.0, 3.15], left: "ValueError: what a day"}
    told = bench(times, *STEPS, "--against", against)
    assert (told["exit"], told["bench"]["left"]) == (0, {})
    assert {each["engine"] for each in told["bench"]["engines"]} == {"overlay", other}
    assert told["verdict"] == f"Times as fast as {other}: {ratio} with 1 request."
    told = bench({other: "ValueError: what a day"}, *STEPS, "--against", against)
    assert told["exit"] == 2
    assert f"{other}, steps: the engine ended with status 1" in told["error"]
    slow = bench({other: [1.0, 1.05]}, *STEPS, "--against", against)
    assert (slow["exit"], slow["code"]) == (1, "slower")
    assert slow["verdict"] == f"Slower than {other} with 1 request."


@pytest.fixture
def patched(cli: Cli, python: Path) -> None:
    assert cli("apply", "--python", python).exit == 0


@pytest.mark.usefixtures("patched")
def test_servers_are_asked_until_runs_agree_and_all_at_the_rate_of_the_first(
    bench: Any, tmp_path: Path
) -> None:
    page, plot = tmp_path / "page.html", tmp_path / "plot.svg"
    told = bench({}, *SERVING, "--rounds", "1", "--html", str(page), "--svg", str(plot))
    assert (told["exit"], told["code"]) == (0, "measured")
    served = {each["engine"]: each for each in told["bench"]["serving"]}
    (cell,) = served["overlay"]["concurrency"]
    assert cell == {
        "requests": 2,
        "output_tokens_per_s": [200.0, 201.0],
        "repeats_by_round": [2],
        "steady": True,
    }
    assert {each["request_rate"] for each in served.values()} == {5.025}
    assert {each["tokens_per_step"] for each in served.values()} == {2.5}
    concluded = {each["other"]: each for each in told["bench"]["serving_comparisons"]}
    assert (concluded["stock V1"]["ratio"], concluded["stock V1"]["conclusive"]) == (1.995, True)
    assert concluded["V2"]["conclusive"] is False
    assert "2.00 serving 2 requests" in told["verdict"]
    assert "to the first token" in told["verdict"]
    for text in (page.read_text(), plot.read_text()):
        assert "output tokens a second of a server" in text
        assert "first token at 5.025 requests a second" in text
        assert "5.025 requests/s</text>" in text
    ElementTree.parse(plot)


@pytest.mark.usefixtures("patched")
def test_of_a_model_a_slower_server_and_one_that_is_never_steady_are_told(bench: Any) -> None:
    speeds = {"overlay serving": [50.0, 60.0, 70.0, 80.0, 90.0], "V2 serving": "says no V2"}
    own = ("--model", "a/b", "--draft", "a/c", "--rounds", "1", "--request-rate", "0")
    told = bench(speeds, *SERVING, *own, "--", "--max-num-seqs", "4")
    assert "bench" in told, told
    assert (told["bench"]["shape"], told["bench"]["dummy_weights"]) == ("a/b", False)
    assert set(told["bench"]["left"]) == {"V2"}
    assert (told["exit"], told["code"]) == (1, "slower")
    assert "Slower than stock V1 serving 2 requests." in told["verdict"]
    assert "overlay: the last runs with 2 requests at a time did not agree" in str(
        told["bench"]["notes"]
    )
    assert told["bench"]["first_token_comparisons"] == []


@pytest.mark.usefixtures("patched")
def test_a_budget_that_is_spent_before_anything_is_measured_is_an_error(bench: Any) -> None:
    told = bench({}, *STEPS, "--budget", "0")
    assert told["exit"] == 2
    assert "found it spent before both were: give a larger one" in told["error"]


@pytest.mark.usefixtures("patched")
def test_a_server_that_does_not_answer_ends_with_the_budget(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PIDS", str(tmp_path / "pids"))
    told = bench({"stock V1 serving": "hangs"}, "--rounds", "1", "--budget", "9")
    assert (told["exit"], told["code"]) == (0, "measured")
    expect_gone(pids_of(tmp_path / "pids"))
    assert told["bench"]["serving"] == []
    gaps = {(each["engine"], each["what"]) for each in told["bench"]["not_measured"]}
    assert {what for engine, what in gaps if engine == "overlay"} >= {"serving", "first-token"}


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("says torch.OutOfMemoryError: CUDA out of memory.", "the GPU is too small"),
        ("says OSError: [Errno 98] Address already in use", "unset VLLM_PORT"),
        ("dies", "the server ended with status 7"),
        ("loses one", "expected an answer to 8 requests, found 7 (--max-concurrency 2)"),
        ("client fails", "vLLM's client failed: ValueError: what a client"),
    ],
)
def test_a_server_that_does_not_serve_is_an_error_with_its_log(
    bench: Any, word: str, says: str
) -> None:
    told = bench({"stock V1 serving": word}, *SERVING)
    assert told["exit"] == 2
    assert says in told["error"]
    logs = Path(told["error"].rpartition("what the engines printed is in ")[2])
    # The log, and what the server had measured.
    assert sorted(each.name for each in logs.iterdir()) == [
        "stock-V1-serving-round-1.json",
        "stock-V1-serving-round-1.log",
    ]
    shutil.rmtree(logs)


@pytest.mark.usefixtures("patched")
def test_a_server_that_hangs_is_killed_with_all_it_started(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, logs = tmp_path / "pids", tmp_path / "logs"
    monkeypatch.setenv("FAKE_PIDS", str(pids))
    for deadline in ("2", "8", "60"):  # a busy machine takes longer to start it
        options = ("--deadline", deadline, "--logs", str(logs / deadline))
        told = bench({"stock V1 serving": "hangs"}, *SERVING, *options)
        assert told["exit"] == 2
        # The seconds that it had: as many, or more on a busy machine.
        assert re.search(r"did not end within \d+ s and was killed", told["error"])
        assert list((logs / deadline).iterdir())
        if pids.is_file():
            break
    expect_gone(pids_of(pids))


@pytest.mark.usefixtures("patched")
def test_a_server_ends_with_the_command_when_that_is_killed(python: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    words = behaving({**TIMES, "stock V1 serving": "hangs"})
    command = subprocess.Popen(
        [sys.executable, "-m", "overlay", "bench", *SERVING, *BOTH, "--python", str(python)],
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, **words, "FAKE_PIDS": str(pids), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    found = pids_of(pids)
    command.kill()
    command.wait(20)
    expect_gone(found)


@pytest.mark.usefixtures("patched")
def test_a_port_in_use_is_named_and_a_free_one_is_taken_by_itself(
    bench: Any, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = str(place.getsockname()[1])
        told = bench({}, *SERVING, "--port", port, "--logs", str(tmp_path / "logs"))
    assert told["exit"] == 2
    assert f"--port {port}: expected a port that is free, found it in use" in told["error"]


def test_models_need_a_draft_that_is_there(bench: Any, tmp_path: Path) -> None:
    for options, says in (
        (("--model", "x"), "expected a draft"),
        (("--draft", "x"), "--draft: expected --model as well"),
        (("--model", "x", "--draft", "./nowhere"), "--draft ./nowhere: expected a folder"),
        (("--model", "x", "--draft", "y", "--", "-sc", "{}"), "both name a draft"),
        (("--engine", "[]"), "--engine: expected an object in JSON"),
        (("--html", str(tmp_path / "nowhere" / "page.html")), "there is no folder"),
        (("--prompts", "x"), "--prompts: expected --model as well"),
        (("--v1", *BOTH), "--v1 and --against both both choose engines"),
        (("--model", "x", "--draft", "y", "--prompts", "no/file"), "expected a text file"),
    ):
        told = bench({}, *options)
        assert told["exit"] == 2
        assert says in told["error"]


def test_the_method_comes_from_the_drafts_configuration(tmp_path: Path) -> None:
    for architecture, method in (
        ("LlamaForCausalLMEagle3", "eagle3"),
        ("EagleLlamaForCausalLM", "eagle"),
        ("DFlashDraftModel", "dflash"),
        ("DeepSeekMTPModel", "mtp"),
        ("LlamaForCausalLM", None),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        assert method_of(tmp_path) == method
    for text in ("", "[]", "{}", '{"architectures": []}', "\x00"):
        (tmp_path / "config.json").write_text(text)
        assert method_of(tmp_path) is None
    assert method_of(tmp_path / "nowhere") is None
    asked = BenchQuestion(model="a/b", draft=str(tmp_path), k=2)
    assert asked.speculative == {"num_speculative_tokens": 2, "model": str(tmp_path)}
    shape = BenchQuestion().speculative
    assert shape is not None
    assert shape["rejection_sample_method"] == "synthetic"


def test_keyword_arguments_become_those_of_a_server() -> None:
    given = {
        "max_model_len": 8,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "a": {"b": 1},
    }
    assert as_arguments(given) == [
        *("--max-model-len", "8", "--enforce-eager", "--no-enable-prefix-caching"),
        *("--a", '{"b": 1}'),
    ]


def test_stock_is_what_the_release_chooses(bench: Any, cli: Cli, python: Path) -> None:
    """No engine is told which model runner it has; draft graphs are not expected of V2."""
    assert cli("apply", "--python", python).exit == 0
    told = bench({}, *STEPS, *DEFAULT, "--rounds", "1")
    assert (told["exit"], told["verdict"]) == (
        0,
        "Times as fast as stock: 2.00 with 1 request.",
    )
    runners = {each["engine"]: each["runner"] for each in told["bench"]["engines"]}
    assert runners == {"stock": "v2", "overlay": "v2"}
    assert "model runners: stock V2, overlay V2" in told["bench"]["notes"]


def test_engines_without_drafts_are_compared_with_each_other(
    bench: Any, cli: Cli, python: Path
) -> None:
    assert cli("apply", "--python", python).exit == 0
    one = ("--rounds", "1", *STEPS, *DEFAULT)
    told = bench({}, *one, "--drafts", "both")
    shown = {each["other"]: each["ratio"] for each in told["bench"]["comparisons"]}
    assert shown == {"stock": 2.0, "stock without drafts": 1.208}
    assert told["verdict"] == (
        "Times as fast as stock: 2.00 with 1 request; as stock without drafts: 1.21 with 1 request."
    )
    own = ("--model", "a/b", "--drafts", "without")
    told = bench({"stock without drafts": [4.0, 4.1]}, *one, *own)
    assert (told["exit"], told["code"]) == (1, "slower")
    assert told["verdict"] == "Slower than stock without drafts with 1 request."
    told = bench({"stock without drafts": "ValueError: what a day"}, *one, *own)
    assert "stock without drafts, steps: the engine ended with status 1" in told["error"]


def test_v1_is_measured_beside_them(bench: Any, cli: Cli, python: Path) -> None:
    assert cli("apply", "--python", python).exit == 0
    told = bench({}, *STEPS, "--rounds", "1", "--v1")
    engines = [each["engine"] for each in told["bench"]["engines"]]
    assert engines == ["stock", "overlay", "stock V1", "overlay V1"]
    assert {each["other"] for each in told["bench"]["comparisons"]} == {
        *("stock", "stock V1", "overlay V1")
    }
    assert told["bench"]["engines"][3]["graphs"] == {"loop": 4}


@pytest.mark.usefixtures("patched")
def test_a_model_is_asked_texts_in_the_form_of_its_chats(bench: Any, tmp_path: Path) -> None:
    prompts, logs = tmp_path / "prompts", tmp_path / "logs"
    prompts.write_text("What is a clock?\n\n")
    own = ("--model", "a/b", "--draft", "a/c", "--prompts", str(prompts), "--logs", str(logs))
    told = bench({}, *SERVING, *own, *DEFAULT, "--rounds", "1", "--request-rate", "0")
    served = {each["engine"]: each for each in told["bench"]["serving"]}
    assert served["overlay"]["accepted_by_position"] == [0.9, 0.6]
    accepted = "drafts accepted by position, servers: stock 0.90 0.60, overlay 0.90 0.60"
    assert accepted in told["bench"]["notes"]
    assert "asks [What is a clock?]" in (logs / "stock-serving-round-1.log").read_text()


@pytest.mark.usefixtures("patched")
def test_a_model_is_asked_about_texts_at_hand(bench: Any, tmp_path: Path) -> None:
    own = ("--model", "a/b", "--draft", "a/c", "--logs", str(tmp_path))
    bench({}, *SERVING, *own, *DEFAULT, "--rounds", "1", "--request-rate", "0")
    assert re.search(r"asks \[\w", (tmp_path / "stock-serving-round-1.log").read_text())


def test_what_names_the_draft_goes_where_there_is_none() -> None:
    for words, left in (
        (("--speculative-config", '{"model": "x"}', "--seed", "1"), ("--seed", "1")),
        (("--speculative_config={}", "--seed", "1"), ("--seed", "1")),
        (("-sc", "{}", "--enforce-eager"), ("--enforce-eager",)),
        (("--speculative-config.model", "x", "--seed", "1"), ("--seed", "1")),
        (("--enforce-eager",), ("--enforce-eager",)),
    ):
        assert without_draft(words) == left
