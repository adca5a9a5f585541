"""Releases that are newer than the overlay: named by ``list``, answered for by ``check``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from overlay.targets import fetch as fetching
from overlay.targets import http
from overlay.targets.pip_config import IndexConfig
from tests.authoring.commands.test_import import SCHEMA
from tests.commands.test_packages import feature_for
from tests.support import fake_vllm
from tests.support.cli import Cli, Result
from tests.support.fake_index import FakeIndex, serve
from tests.support.patches import write_feature

VERSIONS = ("0.15.1", "0.32.0", "0.33.0", "0.33.1rc1", "0.33.1", "0.34.0", "0.35.0rc1")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeIndex]:
    with serve() as running:
        config = IndexConfig((running.simple,), timeout=5.0)
        monkeypatch.setattr(fetching, "configured", lambda: config)
        monkeypatch.setattr(http, "RETRY_SECONDS", 0.001)
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        for version in VERSIONS:
            running.add(fake_vllm.sdist(tmp_path, version))
        running.add(fake_vllm.wheel(tmp_path, "0.34.1"))
        running.yanked.add("vllm-0.33.1.tar.gz")
        yield running


def test_list_names_what_is_newer_than_this_overlay(cli: Cli, index: FakeIndex) -> None:
    result = cli("list", "--releases")
    assert result.exit == 0
    assert "0.34.0 and 0.34.1 are newer than this overlay" in result.last
    assert "0.33.1    new: not tested with this overlay; yanked from the index" in result.out
    assert "rc1" not in result.out
    assert "0.15.1" not in result.out
    answer = cli("list", "--releases", "--pre", "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    assert [(entry["release"], entry["known"]) for entry in answer["releases"]] == [
        *(("0.32.0", True), ("0.33.0", True), ("0.33.1rc1", False), ("0.33.1", False)),
        *(("0.34.0", False), ("0.34.1", False), ("0.35.0rc1", False)),
    ]
    assert "releases" not in cli("list", "--json").json


def test_check_answers_for_all_of_them(cli: Cli, index: FakeIndex) -> None:
    result = cli("check", "--releases", "new", "--json")
    assert [target["target"] for target in result.json["targets"]] == ["0.34.0", "0.34.1"]
    assert all(target["features"][0]["untested"] for target in result.json["targets"])
    pre = cli("check", "--releases", "new", "--pre", "--json").json
    assert [target["target"] for target in pre["targets"]] == [
        *("0.33.1rc1", "0.34.0", "0.34.1", "0.35.0rc1"),
    ]
    both = cli("check", "--releases", "0.33.0,new", "--json").json
    assert [target["target"] for target in both["targets"]] == ["0.33.0", "0.34.0", "0.34.1"]


def test_a_release_that_cannot_be_read_is_said_and_the_others_are_answered(
    cli: Cli, index: FakeIndex
) -> None:
    del index.files["vllm-0.34.0.tar.gz"]
    index.files["vllm-0.34.0.tar.gz"] = b"damaged"
    result = cli("check", "--releases", "new", "--json")
    assert result.exit == 2
    assert [target["target"] for target in result.json["targets"]] == ["0.34.1"]
    assert "vllm-0.34.0.tar.gz" in result.json["error"]


def test_nothing_new_is_an_answer_and_not_the_installed_vllm(cli: Cli, index: FakeIndex) -> None:
    for name in list(index.files):
        if "0.34" in name:
            del index.files[name]
    result = cli("check", "--releases", "new")
    assert result.exit == 0
    assert "no release that is newer than vLLM 0.33.0" in result.last
    assert cli("check", "--releases", "new", "--json").json["code"] == "nothing-new"


@pytest.mark.parametrize("words", [("list", "--releases"), ("check", "--releases", "new")])
def test_no_network_is_said(
    cli: Cli, index: FakeIndex, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    config = IndexConfig(("http://127.0.0.1:9/simple",), timeout=5.0)
    monkeypatch.setattr(fetching, "configured", lambda: config)
    result = cli(*words)
    assert result.exit == 2
    assert "http://127.0.0.1:9/simple/vllm/" in result.err
    if words[0] == "list":
        assert "0.20.0..0.33.0" in result.err
    assert cli("list").exit == 0


def test_one_cause_of_several_releases_is_told_once_and_names_them_all(
    cli: Cli, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = IndexConfig(("http://127.0.0.1:9/simple",), timeout=5.0)
    monkeypatch.setattr(fetching, "configured", lambda: config)
    result = cli("check", "--releases", "0.30.0..0.33.0")
    assert result.exit == 2
    assert "releases 0.30.0, 0.31.0, 0.32.0 and 0.33.0: expected files of vllm" in result.err
    assert result.err.count("cannot be reached") == 1
    assert result.last == "4 of 4 targets could not be checked: see the errors."


# reason


@pytest.mark.parametrize("reason", ["waiting", "local", "never"])
def test_list_shows_why_a_feature_is_kept(cli: Cli, reason: str) -> None:
    toml = cli.team / "team-capture/feature.toml"
    toml.write_text(f'reason = "{reason}"\n' + toml.read_text())
    result = cli("list", "--patches", cli.team)
    assert result.exit == 0
    assert f"({reason}" in result.out
    warned = "no upstream URL says for what" in result.out
    has_url = "upstream = " in toml.read_text()
    assert warned is (reason == "waiting" and not has_url)
    answer = cli("list", "--patches", cli.team, "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    assert [entry["reason"] for entry in answer["features"]] == [None, reason]


def test_waiting_without_a_url_is_a_warning(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "ours"
    write_feature(place, {"files/vllm/a.py": "a = 1\n"}, id="ours")
    toml = place / "ours/feature.toml"
    lines = [line for line in toml.read_text().splitlines() if not line.startswith("upstream")]
    toml.write_text('reason = "waiting"\n' + "\n".join(lines) + "\n")
    result = cli("list", "--patches", place)
    assert (result.exit, "no upstream URL says for what" in result.out) == (0, True)


def test_another_reason_is_an_error_with_its_line(cli: Cli) -> None:
    toml = cli.team / "team-capture/feature.toml"
    toml.write_text('reason = "soon"\n' + toml.read_text())
    result = cli("list", "--patches", cli.team)
    assert result.exit == 1
    assert "feature.toml:1: reason: expected one of waiting, local, never" in result.out


# ---- another package

ASCEND = ("0.20.2rc1", "0.23.0", "0.23.0.post1", "0.30.0rc2", "0.30.0", "0.31.0.dev1", "0.31.0rc1")


@pytest.fixture
def ascend(cli: Cli, index: FakeIndex, tmp_path: Path) -> FakeIndex:
    """The same index with releases of vllm-ascend, and a feature for it."""
    feature_for(cli.shipped, "vllm_ascend", "0.20.2rc1..0.30.0rc2", "lengths")
    for number, version in enumerate(ASCEND):
        build = fake_vllm.wheel if number % 2 else fake_vllm.sdist
        index.add(build(tmp_path, version, distribution="vllm-ascend", package="vllm_ascend"))
    return index


def checked(result: Result) -> list[tuple[str, str, bool]]:
    """Each target with its state, and whether it is untested."""
    return [
        (target["target"], target["state"], target["features"][0].get("untested", False))
        for target in result.json["targets"]
    ]


def test_a_release_of_another_package(cli: Cli, ascend: FakeIndex) -> None:
    for name in ("vllm-ascend==0.23.0.post1", "vllm_ascend == 0.23.0.post1"):
        (target,) = cli("check", name, "--json").json["targets"]
        assert (target["package"], target["vllm"]) == ("vllm_ascend", "0.23.0.post1")
        assert target["state"] == "pristine"
    fetched = ascend.asked("vllm_ascend-0.23.0.post1.tar.gz")
    assert fetched == 1  # the second time it comes from the cache
    assert cli("check", "vllm==0.33.0", "--json").json["targets"][0]["package"] == "vllm"
    assert cli("check", "vllm-ascend==0.99.0").exit == 2
    written = cli("apply", "vllm-ascend==0.23.0")
    assert written.exit == 2
    assert "which apply cannot write to" in written.err + written.out


@pytest.mark.parametrize("option", [(), ("--feature", "lengths")])
def test_releases_of_another_package(cli: Cli, ascend: FakeIndex, option: tuple[str, ...]) -> None:
    prefix = "" if option else "vllm-ascend=="
    ranged = cli("check", "--releases", f"{prefix}0.23.0..0.30.0", "--json", *option)
    assert ranged.exit == 2  # of the releases that are known most are not on this index
    some = cli("check", "--releases", f"{prefix}0.23.0,{prefix}0.30.0rc2", "--json", *option)
    assert checked(some) == [
        ("vllm-ascend==0.23.0", "pristine", False),
        ("vllm-ascend==0.30.0rc2", "pristine", False),
    ]
    new = cli("check", "--releases", f"{prefix}new", "--json", *option)
    assert checked(new) == [
        ("vllm-ascend==0.30.0", "pristine", True),
        ("vllm-ascend==0.31.0rc1", "pristine", True),
    ]
    both = cli("check", "--releases", "vllm==0.33.0,vllm-ascend==0.23.0", "--json")
    assert [target["package"] for target in both.json["targets"]] == ["vllm", "vllm_ascend"]
    for name in [name for name in ascend.files if "0.30.0." in name or "0.31" in name]:
        del ascend.files[name]
    none = cli("check", "--releases", f"{prefix}new", *option)
    assert none.last.endswith("no release that is newer than vllm-ascend 0.30.0rc2.")


def test_list_names_the_releases_of_another_package(cli: Cli, ascend: FakeIndex) -> None:
    answer = cli("list", "--releases", "--package", "vllm-ascend", "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    assert [(entry["release"], entry["known"]) for entry in answer["releases"]] == [
        *(("0.20.2rc1", True), ("0.23.0", True), ("0.23.0.post1", True), ("0.30.0rc2", True)),
        *(("0.30.0", False), ("0.31.0rc1", False)),
    ]
    assert [entry["feature"] for entry in answer["features"]] == ["lengths"]
    pre = cli("list", "--releases", "--package", "vllm-ascend", "--pre", "--json").json
    assert "0.31.0.dev1" in [entry["release"] for entry in pre["releases"]]
    assert "0.23.0.post1" not in cli("list", "--releases").out


def test_what_releases_cannot_be_named(cli: Cli, index: FakeIndex) -> None:
    for text in (
        "transformers==all",
        "vllm-ascend==0.24.0..0.23.0",
        "1x==all",
        "vllm==0.20.0rc1..0.33.0",
    ):
        assert cli("check", "--releases", text).exit == 2, text
