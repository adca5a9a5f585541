"""``overlay export``: what it writes, and that git takes it."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.authoring.test_importing import CHANGE, PATH, RELEASES, Tree
from tests.support.cli import Cli
from tests.support.git_repository import Repository, needs_git
from tests.support.releases import serve

SCHEMA = json.loads(
    resources.files("overlay.report").joinpath("schema-2.json").read_text(encoding="utf-8")
)
MAIL = (
    b"From 0123456789 Mon Sep 17 00:00:00 2001\n"
    b"From: Ada Lovelace <ada@example.org>\nDate: Tue, 3 Nov 2026 10:00:00 +0000\n"
    b"Subject: [PATCH] [Core] Count runs (#12345)\n\nRuns were not counted.\n\n---\n"
)


@pytest.fixture(autouse=True)
def releases(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, RELEASES)
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: Tree(name))


@pytest.fixture
def ours(cli: Cli, tmp_path: Path) -> Path:
    """A folder with a feature of a mail."""
    (tmp_path / "fix.mbox").write_bytes(MAIL + CHANGE)
    ours = tmp_path / "ours"
    made = cli("import", tmp_path / "fix.mbox", "--id", "count-runs", "--patches", ours)
    assert made.exit == 0, made.out
    return ours


def written(cli: Cli, ours: Path, *more: Any) -> tuple[bytes, Any]:
    file = ours.parent / "out.mbox"
    result = cli("export", "count-runs", "-o", file, "--patches", ours, *more)
    return file.read_bytes(), result


@needs_git
@pytest.mark.slow
def test_git_makes_the_commit_of_it(cli: Cli, ours: Path, tmp_path: Path) -> None:
    mailbox, result = written(cli, ours, "--release", "0.22.0")
    assert result.exit == 0
    assert "am --keep-non-patch" in result.last
    repository = Repository.create(tmp_path / "checkout")
    before = Tree("0.22.0").read(PATH)
    assert before is not None
    repository.commit("Base", {PATH: before})
    repository("am", "-q", "--keep-non-patch", str(tmp_path / "out.mbox"))
    log = repository("log", "-1", "--format=%an|%ae|%s|%b").strip()
    name, address, subject, body = log.split("|", 3)
    assert (name, address) == ("Ada Lovelace", "ada@example.org")
    assert subject == "[Core] Count runs (#12345)"
    assert body.startswith("Runs were not counted.")
    assert "Overlay-Feature: count-runs" in body
    fresh = Repository.create(tmp_path / "other")
    fresh.commit("Base", {PATH: before})
    fresh("apply", str(tmp_path / "fix.mbox"))
    assert (fresh.folder / PATH).read_bytes() == (repository.folder / PATH).read_bytes()
    assert mailbox.count(b"diff --git ") == 1


def test_the_json_has_the_mails(cli: Cli, ours: Path) -> None:
    result = cli("export", "count-runs", "--patches", ours, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    assert result.json["export"]["mailbox"].startswith("From 0000")
    assert result.json["code"] == "exported"


def test_what_does_not_land_is_not_written(cli: Cli, ours: Path, tmp_path: Path) -> None:
    file = tmp_path / "none.mbox"
    result = cli("export", "count-runs", "--release", "0.20.0", "-o", file, "--patches", ours)
    assert result.exit == 1
    assert "Nothing was written: count-runs is" in result.last
    assert not file.exists()


def test_features_that_no_release_has_together_are_refused(cli: Cli, ours: Path) -> None:
    result = cli("export", "count-runs", "--release", "x", "--patches", ours)
    assert result.exit == 2
