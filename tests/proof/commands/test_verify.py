"""``overlay verify`` with engines that do what a test says: answers, exit codes, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from overlay.cli.run import run
from overlay.proof.commands.verify import VerifyQuestion, own_set
from tests.proof.support.fake_engine import behaving, install_plugin, write_fake_environment
from tests.report.test_schema import DOCUMENT

ROOT = Path(__file__).resolve().parents[3]
TINY = ("--tiny", "--draft", "eagle3hid")
OWN = ("--model", "a/target", "--draft", "a/draft")
RIGHT = dict.fromkeys(("off", "step", "loop", "whole", "again", "stock", "overlay"), "right")


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment that the plugin would patch in memory."""
    python = write_fake_environment(tmp_path / "environment")
    install_plugin(python)
    return python


class Told:
    """What the command answered."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def json(self) -> Any:
        told = json.loads(self.out)
        jsonschema.validate(told, DOCUMENT)
        assert told["exit"] == self.status
        return told


@pytest.fixture
def verify(python: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    def call(words: dict[str, str], *options: str, as_json: bool = True) -> Told:
        for name, value in behaving({**RIGHT, **words}).items():
            monkeypatch.setenv(name, value)
        json_option = ("--json",) if as_json else ()
        status = run(["verify", *json_option, "--python", str(python), *options])
        return Told(status, *capfd.readouterr())

    return call


@pytest.mark.parametrize("given", [None, "0", "1"])
def test_tiny_models_are_served_by_v1_unless_the_user_chooses(
    verify: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None
) -> None:
    """vLLM would serve them by V2, where there is nothing to verify."""
    name, said = "VLLM_USE_V2_MODEL_RUNNER", tmp_path / "said"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAKE_SAID", str(said))
    if given is not None:
        monkeypatch.setenv(name, given)
    told = verify({}, *TINY)
    asked = {line.split()[0] for line in said.read_text().splitlines()}
    assert asked == {f"{name}={given or 0}"}
    assert told.json["verify"]["model_runner"] == (None if given else "v1")
    said.unlink()
    assert verify({}, *OWN).json["verify"]["model_runner"] is None
    asked = {line.split()[0] for line in said.read_text().splitlines()}
    assert asked == {f"{name}={given or ''}"}


def test_people_are_told_that_tiny_models_were_served_by_v1(
    verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    says = "model runner V1, which this command asked vLLM for"
    assert says in verify({}, *TINY, as_json=False).out
    assert says not in verify({}, *OWN, as_json=False).out


def test_modes_that_are_right_end_with_0(verify: Any) -> None:
    told = verify({}, *TINY)
    assert (told.status, told.json["code"]) == (0, "verified")
    assert [each["mode"] for each in told.json["verify"]["modes"]] == ["off", "step", "loop"]
    assert [each["outcome"] for each in told.json["verify"]["modes"]] == [
        "reference",
        "same",
        "same",
    ]


def test_the_users_models_get_the_modes_that_the_configuration_has(verify: Any) -> None:
    told = verify({}, *OWN)
    assert [each["mode"] for each in told.json["verify"]["modes"]] == ["off", "step", "loop"]
    told = verify({"off": "one pass"}, *OWN)
    assert [each["mode"] for each in told.json["verify"]["modes"]] == ["off", "auto"]
    assert told.status == 0


def test_a_draft_is_of_the_kind_that_its_configuration_says(tmp_path: Path) -> None:
    """vLLM goes by the name of the folder, and takes another one's draft for a model."""
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    for method, expected in ((None, "eagle3"), ("mtp", "mtp")):
        question = VerifyQuestion(model="a/target", draft=str(tmp_path), method=method)
        arguments = own_set(question).spec.arguments
        speculative = json.loads(arguments[arguments.index("--speculative-config") + 1])
        assert speculative["method"] == expected
    arguments = own_set(VerifyQuestion(model="a/target", draft="on/the-hub")).spec.arguments
    assert "method" not in arguments[-1]


def test_the_verdict_says_where_a_mode_fell_back_to_another(verify: Any) -> None:
    told = verify({"loop": "no loop"}, *OWN)
    assert told.status == 0
    assert told.json["verdict"].endswith("in step and loop (which replayed no loop graph).")
    assert "no loop graph" not in verify({}, *OWN).json["verdict"]


@pytest.mark.parametrize("mode", ["loop", "whole"])
def test_a_mode_that_was_asked_for_and_fell_back_is_not_verified(verify: Any, mode: str) -> None:
    told = verify({"loop": "no loop", "whole": "no loop"}, *OWN, "--mode", mode)
    assert (told.status, told.json["code"]) == (1, "not-verified")
    assert f"{mode} was asked for and replayed no {mode} graph" in told.json["verdict"]
    assert "only first and step" in told.json["verdict"]
    assert "8 graphs" in told.json["verdict"]
    assert verify({}, *OWN, "--mode", mode).status == 0


@pytest.mark.parametrize(
    ("models", "word", "place"),
    [
        (TINY, "token", {"request": 2, "position": 4, "kind": "token"}),
        (TINY, "accepted", {"request": 1, "kind": "accepted drafts"}),
        (OWN, "token", {"request": 2, "position": 4, "kind": "token"}),
        (OWN, "never accepts", {"request": 0, "kind": "accepted drafts"}),
    ],
)
def test_the_first_difference_is_named(
    verify: Any, models: tuple[str, ...], word: str, place: dict[str, Any]
) -> None:
    told = verify({"loop": word}, *models)
    assert (told.status, told.json["code"]) == (1, "drafts-differ")
    difference = told.json["verify"]["modes"][2]["difference"]
    assert place.items() <= difference.items()
    assert f"loop differs from the {'known answer' if models is TINY else 'engine'}" in told.out
    assert f"request {difference['request']}, position {difference['position']}" in told.out


def test_a_draft_more_is_how_kernels_round(verify: Any) -> None:
    """With the user's own weights; a graph may have other kernels than upstream's drafter."""
    told = verify({"step": "accepted", "loop": "accepted"}, *OWN)
    assert (told.status, told.json["code"]) == (0, "verified")
    modes = told.json["verify"]["modes"]
    assert [mode["outcome"] for mode in modes] == ["reference", *["same but for rounding"] * 2]
    assert [(mode["rounding"]["fewer"], mode["rounding"]["more"]) for mode in modes[1:]] == [
        (0, 1)
    ] * 2
    assert told.json["verdict"].count("accepted fewer and 1 more") == 1
    assert told.json["verdict"].startswith("Draft graphs gave the tokens and the accepted drafts")
    assert " in step and loop, but for how kernels round: " in told.json["verdict"]
    assert told.err.count("engine again off: started") == 1


def test_where_a_gpu_is_not_alone_no_mode_is_to_blame(verify: Any) -> None:
    word = "This happens when other processes sharing the same container release GPU memory while"
    told = verify({"loop": f"says AssertionError: {word} vLLM is profiling."}, *OWN)
    assert (told.status, told.json["code"]) == (2, "environment")
    assert "run it again alone" in told.json["error"]


def test_an_engine_that_differs_from_itself_proves_nothing(verify: Any) -> None:
    told = verify({"off": "random", "loop": "right", "again": "random"}, *OWN)
    assert (told.status, told.json["code"]) == (1, "not-verified")
    assert "differs from itself" in told.json["verdict"]


def test_a_mode_without_replays_is_not_verified_and_says_why(verify: Any) -> None:
    told = verify({"step": "idle"}, *TINY)
    assert (told.status, told.json["code"]) == (1, "not-verified")
    assert "attention backend X is not known" in told.json["verdict"]


#: What an engine without graphs may say, and what is told of it.
STOPS = (
    ("problem not patched: no draft-graphs here", "no draft-graphs here; run `overlay apply"),
    ("problem another model runner: found V2: set VLLM_USE_V2_MODEL_RUNNER=0", "found V2"),
    ("problem raised: ValueError: No available memory for the cache blocks", "too small"),
    ("says torch.OutOfMemoryError: CUDA out of memory.", "the GPU is too small"),
    ("says OSError: [Errno 98] Address already in use", "a port that the engine was told"),
    ("says RuntimeError: what a day", "ended with status 3 and no result: RuntimeError: what"),
    ("killed", "was ended by signal 9"),
    ("malformed", "expected the result of an engine run"),
)


@pytest.mark.parametrize(
    ("word", "says", "models"),
    [
        # Behind the models it is the same code: each of them meets every other word.
        pytest.param(word, says, models, marks=pytest.mark.thorough if (place + turn) % 2 else ())
        for place, (word, says) in enumerate(STOPS)
        for turn, models in enumerate((TINY, OWN))
    ],
)
def test_what_stops_the_engine_without_graphs_ends_with_2(
    verify: Any, word: str, says: str, models: tuple[str, ...]
) -> None:
    told = verify({"off": word}, *models)
    assert (told.status, told.json["code"]) == (2, "environment")
    assert says in told.json["error"]


@pytest.mark.parametrize("word", ["says RuntimeError: what a day", "killed"])
def test_an_engine_that_dies_with_graphs_alone_is_a_finding(verify: Any, word: str) -> None:
    told = verify({"loop": word}, *OWN)
    assert (told.status, told.json["code"]) == (1, "engine-died")
    assert told.json["verify"]["modes"][2]["outcome"] == "died"


def test_where_nothing_served_no_mode_is_to_blame(verify: Any) -> None:
    told = verify({"loop": "killed"}, *TINY, "--mode", "loop")
    assert told.status == 2
    assert "no engine served in any mode that was run" in told.json["error"]


def test_models_that_cannot_be_made_are_an_error(
    verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WRITER", "1")
    told = verify({}, *TINY)
    assert told.status == 2
    assert "the Python that vLLM is installed in" in told.json["error"]
    assert "(what a library prints while models are made)" in told.json["error"]
    assert "what a library prints" not in told.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "name them with --model and --draft, or give --tiny"),
        (("--tiny", "--model", "x"), "--tiny brings models of its own"),
        (("--tiny", "--draft", "x"), "one of the drafts eagle3hid, eagle3, p-eagle"),
        (("--tiny", "--mode", "off"), "compares nothing"),
        (("--model", "x"), "expected a draft"),
        (("--model", "./nowhere", "--draft", "x"), "--model ./nowhere: expected a folder"),
        (("--model", "x", "--draft", "./nowhere"), "--draft ./nowhere: expected a folder"),
        ((*OWN, "--", "--speculative-config", "{}"), "both name a draft"),
        ((*OWN, "--", "--speculative_config={}"), "both name a draft"),
        ((*OWN, "--", "--speculative-config.method", "mtp"), "both name a draft"),
        (("--model", "x", "--k", "2", "--", "-sc", "{}"), "--k would change nothing"),
        (("--tiny", "--k", "2", "--method", "mtp"), "--method and --k would change nothing"),
        (("--tiny", "--prompts", __file__), "--prompts would change nothing"),
        ((*OWN, "--prompts", sys.executable), "expected a text file in UTF-8"),
        ((*OWN, "--prompts", "nowhere.txt"), "a prompt on each line"),
        ((*OWN, "--python", "/nowhere/python"), "no program at /nowhere/python"),
    ],
)
def test_what_cannot_be_meant_is_refused(verify: Any, options: tuple[str, ...], says: str) -> None:
    told = verify({}, *options)
    assert told.status == 2
    assert says in told.json["error"]


# ---- model runner V2: stock and the overlay as an engine gets it


@pytest.fixture
def on_v2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    monkeypatch.setenv("FAKE_RUNNER", "v2")


@pytest.mark.usefixtures("on_v2")
def test_on_v2_the_overlay_is_compared_with_stock(verify: Any) -> None:
    told = verify({}, *OWN)
    assert (told.status, told.json["code"]) == (0, "verified")
    modes = told.json["verify"]["modes"]
    assert [(each["mode"], each["outcome"]) for each in modes] == [
        ("stock", "reference"),
        ("overlay", "same"),
    ]
    assert modes[1]["run"]["runner"] == "v2"
    assert modes[1]["run"]["features"]["steady-scheduler"]["counts"] == {"steps": 3}
    assert "With steady-scheduler in use the overlay gave the tokens" in told.json["verdict"]
    started = [line for line in told.err.splitlines() if line.endswith(": started")]
    assert started == [f"engine {name}: started" for name in ("configuration", "stock", "overlay")]


@pytest.mark.usefixtures("on_v2")
def test_where_no_feature_is_used_nothing_was_compared(verify: Any) -> None:
    for word in ("idle", "mends"):  # what mends a fault that was not met has no effect
        told = verify({"overlay": word}, *OWN)
        assert (told.status, told.json["code"]) == (1, "not-verified")
        assert "No feature of the overlay was in use" in told.json["verdict"]
        assert "steady-scheduler: why" in told.json["verdict"]


@pytest.mark.usefixtures("on_v2")
@pytest.mark.parametrize(
    ("gaps", "status", "outcome"),
    [
        ([0.25], 0, "same but for rounding"),
        ([0.75], 1, "differs"),
        # Stock itself leaves its own answer as far.
        ([0.75, 0.75], 1, "unsteady"),
        # Two answers part: in one of them the first token.
        ([0.25, 0.25], 0, "same but for rounding"),
    ],
)
def test_another_token_is_judged_by_what_stock_thinks_of_it(
    verify: Any, gaps: list[float], status: int, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GAPS", json.dumps(gaps))
    again = "random" if len(gaps) > 1 else "right"
    told = verify({"overlay": "token", "stock": again}, *OWN)
    assert told.status == status
    mode = told.json["verify"]["modes"][1]
    assert mode["outcome"] == outcome
    place = {"request": 2, "position": 4, "log_probabilities": [-1.0, -1.0 - gaps[0]]}
    if outcome != "unsteady":
        assert place.items() <= mode["rounding"]["partings"][-1].items()
        assert mode["difference"]["kind"] == "token"
        assert f"at most {gaps[0]:.3f} apart (request " in told.json["verdict"]
    assert "engine again stock: started" in told.err


@pytest.mark.usefixtures("on_v2")
def test_another_token_that_stock_never_gives_is_wrong(verify: Any) -> None:
    told = verify({"overlay": "token"}, *OWN)
    assert (told.status, told.json["code"]) == (1, "drafts-differ")
    assert "rounding is no reason" in told.json["verdict"]


@pytest.mark.usefixtures("on_v2")
@pytest.mark.parametrize(("word", "status"), [("accepted", 0), ("never accepts", 1)])
def test_drafts_that_are_accepted_less_are_wrong(verify: Any, word: str, status: int) -> None:
    told = verify({"overlay": word}, *OWN)
    assert told.status == status
    rounding = told.json["verify"]["modes"][1]["rounding"]
    assert (rounding["fewer"] > 10) == bool(status)
    assert "accepted fewer" in told.json["verdict"]


@pytest.mark.usefixtures("on_v2")
@pytest.mark.parametrize("options", [("--mode", "step"), ("--check",)])
def test_what_is_about_draft_graphs_is_refused_on_v2_before_an_engine(
    verify: Any, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = verify({}, *OWN, *options)
    assert told.status == 2
    assert "found that vLLM chooses V2" in told.json["error"]
    assert "engine stock" not in told.err
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    told = verify({}, *OWN, *options)
    assert "found that vLLM chooses V2" in told.json["error"]
    assert "started" not in told.err


def test_what_vllm_refuses_is_said_before_an_engine_starts(
    verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    monkeypatch.setenv("FAKE_RUNNER", "ValueError: no such model")
    told = verify({}, *OWN)
    assert told.status == 2
    assert "the engine configuration: ValueError: no such model" in told.json["error"]


@pytest.mark.usefixtures("on_v2")
def test_a_vllm_that_nothing_patches_is_refused_at_once(verify: Any, python: Path) -> None:
    (python.parents[1] / "lib/python3.11/site-packages/vllm_overlay-9.dist-info").rmdir()
    told = verify({}, *OWN)
    assert told.status == 2
    assert "expected a vLLM that is patched, on disk or in memory" in told.json["error"]
    assert "started" not in told.err


@pytest.mark.usefixtures("on_v2")
def test_stock_runs_without_the_plugin_and_the_overlay_as_the_user_has_it(
    verify: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_SAID", str(tmp_path / "said"))
    verify({}, *OWN)
    overlay = [line.split() for line in (tmp_path / "said").read_text().splitlines()]
    assert [words[1] for words in overlay] == ["OVERLAY=off", "OVERLAY=off", "OVERLAY="]


def test_on_v1_the_overlay_is_compared_with_stock_where_that_is_asked(verify: Any) -> None:
    told = verify({}, *OWN, "--mode", "overlay")
    assert told.status == 0
    assert [each["mode"] for each in told.json["verify"]["modes"]] == ["stock", "overlay"]
    told = verify({}, *OWN, "--mode", "overlay", "--mode", "step")
    assert "omit it, or --mode step" in told.json["error"]


@pytest.mark.parametrize("runner", ["0", "1"])
def test_tiny_models_show_all_features_where_that_is_asked(
    verify: Any, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    options = ("--mode", "overlay") if runner == "0" else ()
    told = verify({}, *TINY, *options)
    assert told.status == 0
    modes = told.json["verify"]["modes"]
    assert [(each["mode"], each["against"]) for each in modes] == [
        ("stock", "the known answer"),
        ("overlay", "the known answer"),
    ]
    for word in ("token", "accepted"):
        told = verify({"overlay": word}, *TINY, *options)
        assert (told.status, told.json["code"]) == (1, "drafts-differ")


def test_prompts_of_a_file_are_served(verify: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n\ntwo\nthree\n")
    told = verify({}, *OWN, "--prompts", str(prompts), "--tokens", "8")
    assert told.status == 0
    assert told.json["verify"]["modes"][0]["run"]["requests"] == 3


def test_people_get_a_table_and_programs_the_log(verify: Any, tmp_path: Path) -> None:
    told = verify({}, *TINY, "--logs", str(tmp_path / "logs"), as_json=False)
    assert told.out.splitlines()[0] == "vLLM 0.99.0 in /site"
    assert told.out.splitlines()[-1].startswith("Draft graphs gave the tokens")
    assert {each.name for each in (tmp_path / "logs").iterdir()} == {
        f"eagle3hid-{mode}.log" for mode in ("off", "step", "loop")
    }


# ---- nothing is left behind


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids_of(file: Path) -> list[int]:
    """The engine and what it started, as soon as both run."""
    last = time.monotonic() + 60
    while not file.is_file() or len(file.read_text().split()) < 2:
        assert time.monotonic() < last, "the engine did not start"
        time.sleep(0.05)
    return [int(pid) for pid in file.read_text().split()]


def expect_gone(pids: list[int]) -> None:
    last = time.monotonic() + 20
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < last, "a process was left behind"
        time.sleep(0.05)


def test_an_engine_that_hangs_is_killed_with_all_it_started(
    verify: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    monkeypatch.setenv("FAKE_PIDS", str(pids))
    for deadline in ("2", "8", "60"):  # a busy machine takes longer to start it
        told = verify({"off": "hangs"}, *OWN, "--deadline", deadline)
        assert told.status == 2
        assert f"did not end within {deadline} s" in told.json["error"]
        if pids.is_file():
            break
    expect_gone(pids_of(pids))


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_engines_end_with_the_command_however_that_ends(
    python: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    pids = tmp_path / "pids"
    environment = {**os.environ, **behaving({**RIGHT, "off": "hangs"}), "FAKE_PIDS": str(pids)}
    command = subprocess.Popen(
        [sys.executable, "-m", "overlay", "verify", *OWN, "--python", str(python)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    found = pids_of(pids)
    assert all(map(alive, found))
    command.send_signal(sent)
    command.wait(20)
    expect_gone(found)
