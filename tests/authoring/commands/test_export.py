"""``overlay export``: what it writes, and that git takes it."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay._features.model import UpstreamPlan
from overlay.planning.diff import render
from overlay.planning.planner import plan
from overlay.results import Change
from tests.authoring.test_importing import CHANGE, PATH, RELEASES, Tree
from tests.support.cli import Cli
from tests.support.git_repository import Repository, needs_git
from tests.support.patches import MemoryTree
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
    assert result.exit == 0, result.out + result.err
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


KEYS = """
situational = true
[fault]
symptom = "runs were not counted"
affects = "0.21.0..0.22.0"
evidence = "a test"

[[switches]]
name = "OVERLAY_RUNS"
values = ["off", "on"]
default = "on"
text = "count \\"runs\\", or Läufe"
deprecated = { "0" = "off" }
"""


def reimported(cli: Cli, box: Path, *more: Any) -> Any:
    again = box.parent / "again"
    return cli("import", box, "--id", "count-runs", "--patches", again, *more), again


@pytest.mark.parametrize("author", ["", "Ada Lovelace", "Ada <ada@example.org>"])
def test_who_is_not_known_stays_so(cli: Cli, ours: Path, author: str) -> None:
    (patch,) = ours.glob("count-runs/10-*/*.patch")
    line = b"Author: Ada Lovelace <ada@example.org>\n"
    assert line in patch.read_bytes()
    own = f"Author: {author}\n".encode() if author else b""
    patch.write_bytes(patch.read_bytes().replace(line, own))
    written(cli, ours, "--release", "0.22.0")
    made, again = reimported(cli, ours.parent / "out.mbox")
    assert made.exit == 0, made.out + made.err
    (patch,) = again.glob("count-runs/10-*/*.patch")
    assert re.findall(rb"Author: .*\n", patch.read_bytes()) == ([own] if own else [])


def test_a_feature_says_why_it_is_kept(cli: Cli, ours: Path, tmp_path: Path) -> None:
    document = ours / "count-runs/feature.toml"
    assert 'reason = "waiting"' in document.read_text("utf-8")  # upstream has a page of it
    (tmp_path / "plain.diff").write_bytes(CHANGE)
    own = tmp_path / "own"
    words = ("import", tmp_path / "plain.diff", "--patches", own, "--id")
    assert (cli(*words, "a").exit, cli(*words, "b", "--releases", "0.22.0").exit) == (0, 0)
    taken, ours_alone = load([own])
    assert (taken.merged, taken.reason) == (Version("0.23.0"), UpstreamPlan.WAITING)
    assert ours_alone.reason is UpstreamPlan.LOCAL
    text = document.read_text("utf-8").replace('reason = "waiting"\n', "")
    document.write_text(text, "utf-8")
    written(cli, ours, "--release", "0.22.0")
    made, again = reimported(cli, tmp_path / "out.mbox")
    assert made.exit == 0, made.out + made.err
    assert load([again])[0].reason is None


def test_a_mail_carries_switches_and_what_else_a_feature_says(cli: Cli, ours: Path) -> None:
    document, patch = ours / "count-runs/feature.toml", next(ours.glob("count-runs/10-*/*.patch"))
    text = document.read_text("utf-8")
    head, tests = text[: text.index("\n[[upstreamed]]")], text[text.index("\n[[upstreamed]]") :]
    document.write_text(head + KEYS + tests, "utf-8")
    patch.write_bytes(
        patch.read_bytes().replace(b"Last-Update", b"Bug: https://x.org/1\nLast-Update")
    )
    _, result = written(cli, ours, "--release", "0.22.0")
    assert "warning" not in result.out
    made, again = reimported(cli, ours.parent / "out.mbox")
    assert made.exit == 0, made.out + made.err
    (before,), (after,) = load([ours]), load([again])
    assert "situational = true" in (again / "count-runs/feature.toml").read_text("utf-8")
    for name in ("switches", "reason", "fault", "title", "upstream", "why"):
        assert getattr(after, name) == getattr(before, name), name
    headers = after.topics[0].variants[0].patch.headers
    assert headers["Bug"] == "https://x.org/1"


def test_what_a_mail_cannot_carry_is_said(cli: Cli, ours: Path) -> None:
    document = ours / "count-runs/feature.toml"
    by_hand = '[[upstreamed]]\npath = "vllm/a.py"\nscope = "<module>"\ncontains = "x"\n'
    document.write_text(document.read_text("utf-8") + by_hand, "utf-8")
    result = cli("export", "count-runs", "--patches", ours, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    (warning,) = result.json["export"]["warnings"]
    assert "does not carry upstreamed" in warning


@pytest.mark.parametrize(
    "key",
    [
        b"switches 1",
        b"switches [1, null]",
        b"reason NaN",
        b"needs " + b"[" * 5000 + b"]" * 5000,
        b"releases 1",
        b"group {",
        b'group "\\ud800"',
        b'fault {"a": {"b": []}}',
    ],
)
def test_a_key_that_a_stranger_wrote_ends_in_a_sentence(cli: Cli, ours: Path, key: bytes) -> None:
    box = ours.parent / "strange.mbox"
    trailers = b"\nOverlay-Feature: a\nOverlay-Key: " + key + b"\n---\n"
    box.write_bytes(MAIL.replace(b"\n---\n", trailers) + CHANGE)
    result, again = reimported(cli, box)
    assert result.exit == 2
    assert "Traceback" not in result.err
    assert result.err
    assert not again.exists()


def test_data_files_come_back_as_they_were(cli: Cli, tmp_path: Path, monkeypatch: Any) -> None:
    before = {"vllm/a.json": b"1\n2\n3\n", "vllm/b.bin": b"\0old", "vllm/c.txt": b"c\n"}
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: MemoryTree(before))
    after = {**before, "vllm/a.json": b"1\n2\n4\n", "vllm/b.bin": b"\0new", "vllm/d.bin": b"\0d"}
    del after["vllm/c.txt"]
    paths = sorted({*before, *after})
    changes = [Change(path, before.get(path), after.get(path)) for path in paths]
    (tmp_path / "data.diff").write_bytes(render(changes))
    first = cli("import", tmp_path / "data.diff", "--id", "count-runs", "--patches", tmp_path / "p")
    assert first.exit == 0, first.out + first.err
    _, result = written(cli, tmp_path / "p")
    assert result.exit == 0, result.out + result.err
    made, again = reimported(cli, tmp_path / "out.mbox")
    assert made.exit == 0, made.out + made.err
    for folder in (tmp_path / "p", again):
        planned = plan(load([folder]), MemoryTree(before), Version(tuple(RELEASES)[-1]))
        assert {each.path: each.after for each in planned.changes} == {
            path: after.get(path) for path in paths
        }


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
