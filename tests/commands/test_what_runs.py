"""What a release runs by default is said wherever a feature is called applied or applicable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from overlay._processes.live import LiveProcess
from overlay.results import RUNNER_FILES, ModelRunner
from tests.support import fake_vllm
from tests.support.cli import ADDED, CAPTURE, PROPOSE, Cli
from tests.support.patches import write_feature

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def newest(cli: Cli, tmp_path: Path) -> Path:
    """A vLLM that chooses V2 for every model, and two features: one for V1, one for either."""
    write_feature(
        cli.shipped,
        {"10-capture/0.20.0..0.33.0.patch": CAPTURE},
        id="for-v1",
        toml='model_runner = "v1"',
    )
    return fake_vllm.site_packages(tmp_path / "newest", version="0.33.0")


COMMANDS = (("check",), ("apply", "--dry-run"), ("apply",), ("status",), ("check",))


def test_each_command_says_what_does_nothing_there(cli: Cli, newest: Path) -> None:
    for command in COMMANDS:
        answer = cli(*command, newest)
        (note,) = [line for line in answer.out.splitlines() if "note: " in line]
        assert "vLLM 0.33.0 chooses model runner V2 for every model: for-v1 does nothing" in note
        assert f"unless {VARIABLE}=0 is set" in note
        assert "demo" not in note
        assert answer.exit == 0, answer.out
        assert "note" not in answer.last


def test_the_report_says_it_too(cli: Cli, newest: Path) -> None:
    answer = cli("report", "--no-matrix", newest)
    assert answer.out.count("for-v1 does nothing there unless") == 2  # of check and of status


def test_json_has_it_for_each_feature_that_depends_on_a_runner(cli: Cli, newest: Path) -> None:
    for command in COMMANDS:
        (target,) = cli(*command, newest, "--json").json["targets"]
        runs = {each["feature"]: each.get("runs") for each in target["features"]}
        assert runs == {"demo": None, "for-v1": "no"}
        assert "for-v1 does nothing there" in target["model_runner"]


@pytest.mark.parametrize(
    ("version", "runs"),
    [("0.21.0", "yes"), ("0.26.0", "some"), ("0.31.0", "no"), ("0.99.0", "unknown")],
)
def test_what_is_said_depends_on_the_release(
    cli: Cli, newest: Path, tmp_path: Path, version: str, runs: str
) -> None:
    assert newest
    site = fake_vllm.site_packages(tmp_path / "site", version=version)
    (target,) = cli("check", site, "--json").json["targets"]
    assert {each.get("runs") for each in target["features"]} == {None, runs}
    assert ("model_runner" in target) == (runs != "yes")


@pytest.mark.parametrize(("value", "runs"), [("0", "yes"), ("1", "no"), ("00", "yes"), ("", "no")])
def test_what_the_environment_asks_for_counts(
    cli: Cli, newest: Path, monkeypatch: pytest.MonkeyPatch, value: str, runs: str
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    (target,) = cli("status", newest, "--json").json["targets"]
    assert {each.get("runs") for each in target["features"]} == {None, runs}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("2", f"uses model runner V2 by {VARIABLE}=2"),
        ("true", f"does not start with {VARIABLE}='true'"),
        ("", f"does not start with {VARIABLE}=''"),
    ],
)
def test_the_variable_is_told_as_it_is(
    cli: Cli, newest: Path, monkeypatch: pytest.MonkeyPatch, value: str, told: str
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert told in cli("check", newest).out


def test_what_is_required_is_promised_no_effect(
    cli: Cli, newest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are as they are required to be: an image is built where nobody serves."""
    require = ("--require", "for-v1", "--require", "demo")
    for command in (("apply", "--dry-run"), ("apply",), ("apply",), ("status",)):
        answer = cli(*command, *require, newest)
        assert answer.exit == 0
        assert answer.last.endswith(
            f", but for-v1 does nothing there by default: {VARIABLE}=0 has to be set where vLLM "
            "serves."
        )
        assert (
            f"warning: vLLM 0.33.0: for-v1 does nothing there by default: {VARIABLE}=0"
            in answer.out
        )
        (target,) = cli(*command, *require, newest, "--json").json["targets"]
        assert len(target["warnings"]) == 1
    assert "does nothing there" in cli("status", "--require", "all", newest).last
    assert "does nothing" not in cli("status", "--require", "demo", newest).last
    monkeypatch.setenv(VARIABLE, "0")
    assert "does nothing" not in cli("status", *require, newest).out


def test_what_is_missing_is_still_missing(cli: Cli, newest: Path) -> None:
    refused = cli("status", "--require", "for-v1", newest)
    assert refused.exit == 1
    assert "for-v1 is required and not applied" in refused.last
    assert "by default" not in refused.last


def test_nothing_is_said_of_what_is_not_there(cli: Cli, newest: Path, tmp_path: Path) -> None:
    write_feature(
        cli.shipped,
        {f"files/{ADDED}2": ""},
        id="later",
        releases="0.40.0..0.41.0",
        toml='model_runner = "v1"',
    )
    assert "later does" not in cli("check", newest).out
    plain = fake_vllm.site_packages(tmp_path / "plain", version="0.33.0")
    alone = cli("check", "--feature", "demo", plain)
    assert "note: " not in alone.out


@pytest.mark.parametrize(
    ("toml", "more", "runs"),
    [
        ("", {}, "no"),
        ("", {f"files/{ADDED}2": ""}, "no"),  # run by what is patched
        ("", {"20-propose/0.20.0..0.33.0.patch": PROPOSE}, None),
        ('model_runner = "v2"', {}, "yes"),  # who says it knows it
    ],
    ids=["V1's file", "and an added one", "and one of both runners", "feature.toml wins"],
)
def test_what_names_no_runner_is_told_by_its_files(
    cli: Cli, tmp_path: Path, toml: str, more: dict[str, str], runs: str | None
) -> None:
    """As ``new`` and ``import`` make features: a patch of V1 alone would silently do nothing."""
    shutil.rmtree(cli.shipped / "demo")
    site = fake_vllm.site_packages(tmp_path / "site", version="0.33.0")
    v2 = site / RUNNER_FILES[ModelRunner.V2]
    v2.parent.mkdir()
    v2.touch()
    folder = write_feature(
        tmp_path / "mine",
        {"10-capture/0.20.0..0.33.0.patch": CAPTURE, **more},
        id="ours",
        toml=toml,
    )
    text = (folder / "feature.toml").read_text(encoding="utf-8")
    for command in COMMANDS:
        words = (*command, "--patches", folder.parent, site)
        answer = cli(*words)
        assert ("ours does nothing there unless" in answer.out) == (runs == "no"), answer.out
        (target,) = cli(*words, "--json").json["targets"]
        assert [each.get("runs") for each in target["features"]] == [runs]
    required = cli("status", "--patches", folder.parent, "--require", "ours", site)
    assert required.exit == 0
    assert ("ours does nothing there by default" in required.last) == (runs == "no")
    assert (folder / "feature.toml").read_text(encoding="utf-8") == text


def test_several_releases_share_what_is_said(cli: Cli, newest: Path, tmp_path: Path) -> None:
    others = [
        fake_vllm.site_packages(tmp_path / version, version=version)
        for version in ("0.20.2", "0.25.1", "0.26.0", "0.32.0")
    ]
    notes = [
        line for line in cli("check", newest, *others).out.splitlines() if line.startswith("note: ")
    ]
    assert len(notes) == 2
    assert "0.20.2" not in "".join(notes)
    assert "V2 for every model" in next(line for line in notes if str(newest) in line)
    assert "V2 for some models" in next(line for line in notes if "0.25.1" in line)


def test_vllm_ascend_chooses_by_a_rule_of_its_own(cli: Cli, newest: Path) -> None:
    (newest / "vllm_ascend").mkdir()
    answer = cli("check", newest)
    assert "is run by vllm-ascend, which chooses model runner V1" in answer.out
    assert "chooses model runner V2" not in answer.out


def test_a_change_beside_a_running_server_says_that_it_has_to_be_restarted(
    cli: Cli, newest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = LiveProcess(7, "vllm serve", 7, None, None, root=str(newest))
    theirs = LiveProcess(8, "vllm serve", 8, None, None, root="/other")
    monkeypatch.setattr("overlay._processes.live.processes", lambda: (ours, theirs))
    says = "process 7 of vLLM runs what was there before: restart vLLM there"
    assert says in cli("apply", newest).out
    assert says not in cli("apply", newest).out  # it writes nothing
    assert says in cli("revert", newest, "--feature", "demo").out
    cli("apply", newest)
    assert says in cli("revert", newest).out
    assert says not in cli("revert", newest).out
