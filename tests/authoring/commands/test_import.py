"""``overlay import``, as a user calls it: what it says, writes, and ends with."""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay._features.model import Feature
from overlay.planning.planner import _Planner, plan
from tests.authoring.test_importing import BASE, CHANGE, MODE, PATH, RELEASES, Tree, diff
from tests.support.cli import Cli
from tests.support.patches import MemoryTree
from tests.support.releases import serve

SCHEMA = json.loads(
    resources.files("overlay.report").joinpath("schema-2.json").read_text(encoding="utf-8")
)


@pytest.fixture(autouse=True)
def releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases that are small and need no network."""
    serve(monkeypatch, RELEASES)
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: Tree(name))


@pytest.fixture
def change(tmp_path: Path) -> Path:
    file = tmp_path / "fix.diff"
    file.write_bytes(CHANGE)
    return file


def call(cli: Cli, change: Path, *more: str) -> Any:
    return cli("import", change, "--id", "count-runs", "--patches", change.parent / "ours", *more)


def test_it_writes_a_feature_and_says_where_it_lands(cli: Cli, change: Path) -> None:
    result = call(cli, change)
    assert result.exit == 0
    assert "0.21.0..0.22.0" in result.last
    assert f"{PATH}  1 hunk, made on 0.21.0..0.22.0" in result.out
    assert "0.23.0..0.24.0    upstream has it" in result.out
    listed = cli("list", "--patches", change.parent / "ours")
    assert "from 0.23.0 on" in listed.out


def test_the_json_is_as_the_schema_says(cli: Cli, change: Path) -> None:
    result = call(cli, change, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    assert result.json["code"] == "imported"
    assert result.json["import"]["outcomes"]["0.20.0"] == "conflict"


def test_what_is_there_is_not_overwritten(cli: Cli, change: Path) -> None:
    assert call(cli, change).exit == 0
    refused = call(cli, change)
    assert refused.exit == 2
    assert "--update" in refused.err
    assert call(cli, change, "--update").exit == 0


@pytest.mark.parametrize("words", [(), ("--update",)])
def test_the_id_of_a_shipped_feature_is_refused(
    cli: Cli, change: Path, words: tuple[str, ...]
) -> None:
    ours = change.parent / "ours"
    refused = cli("import", change, "--id", "demo", "--patches", ours, *words)
    assert refused.exit == 2
    assert "comes with the overlay" in refused.err
    assert not ours.exists()


@pytest.mark.parametrize("words", [(), ("--update",)])
def test_what_is_no_feature_is_never_replaced(
    cli: Cli, change: Path, words: tuple[str, ...]
) -> None:
    ours = change.parent / "ours"
    place = ours / "count-runs"
    place.mkdir(parents=True)
    (place / "notes.txt").write_bytes(b"mine")
    refused = call(cli, change, *words)
    assert refused.exit == 2
    assert "found a folder without feature.toml" in refused.err
    assert (place / "notes.txt").read_bytes() == b"mine"
    (place / "notes.txt").unlink()
    place.rmdir()
    place.write_bytes(b"mine")
    refused = call(cli, change, *words)
    assert refused.exit == 2
    assert "found a file" in refused.err
    assert place.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "name", ["README.md", "NOTES.txt", "10-runs/NOTES.md", "12 notes/a.patch.txt", "origin/why.txt"]
)
def test_an_update_loses_no_file_of_somebodys(cli: Cli, change: Path, name: str) -> None:
    assert call(cli, change).exit == 0
    own = change.parent / "ours/count-runs" / name
    own.parent.mkdir(exist_ok=True)
    own.write_bytes(b"mine")
    refused = call(cli, change, "--update")
    assert refused.exit == 2
    assert name in refused.err
    assert own.read_bytes() == b"mine"
    own.unlink()
    (change.parent / "ours/count-runs/.DS_Store").write_bytes(b"")
    assert call(cli, change, "--update").exit == 0


def test_an_update_does_not_forget_what_is_said_by_hand(cli: Cli, change: Path) -> None:
    assert call(cli, change).exit == 0
    toml = change.parent / "ours/count-runs/feature.toml"
    before = toml.read_bytes()
    by_hand = (
        b'needs = ["transformers"]\nrequired = true\n'
        + before
        + b'\n[[upstreamed]]\npath = "vllm/a.py"\nscope = "A"\ncontains = "b"\n'
    )
    toml.write_bytes(by_hand)
    refused = call(cli, change, "--update")
    assert refused.exit == 2
    assert "needs, required, [[upstreamed]] without lines stands there alone" in refused.err
    assert toml.read_bytes() == by_hand


def test_an_update_does_not_forget_which_modules_are_shared(cli: Cli, change: Path) -> None:
    assert call(cli, change).exit == 0
    module = change.parent / "ours/shared/files/vllm/v1/shared.py"
    module.parent.mkdir(parents=True)
    module.write_bytes(b"SHARED = 1\n")
    toml = change.parent / "ours/count-runs/feature.toml"
    before = toml.read_bytes()
    toml.write_bytes(b'shared = ["vllm/v1/shared.py"]\n' + before)
    refused = call(cli, change, "--update")
    assert refused.exit == 2
    assert "shared stands there alone" in refused.err
    assert toml.read_bytes() != before
    toml.write_bytes(before)
    assert call(cli, change, "--update").exit == 0
    assert module.read_bytes() == b"SHARED = 1\n"


@pytest.mark.parametrize(
    ("data", "exit_code", "word"),
    [
        (b"", 2, "found no file"),
        (b"hello\n", 2, "found no file"),
        (CHANGE.replace(b" import", b"?import", 1)[:200], 2, "fix.diff:"),
        (CHANGE + MODE, 2, "changes the mode"),
        (diff("tests/a.py", None, b"a = 1\n"), 2, "nothing to import"),
        (diff(PATH, BASE.replace(b"[1, 2, 4]", b"[9]"), BASE), 2, "--base"),
    ],
)
def test_nothing_is_written_where_it_cannot_be_carried(
    cli: Cli, change: Path, data: bytes, exit_code: int, word: str
) -> None:
    change.write_bytes(data)
    result = call(cli, change)
    assert result.exit == exit_code
    assert word in result.out + result.err
    assert not (change.parent / "ours").exists()


def test_a_folder_to_write_to_must_be_named(cli: Cli, change: Path) -> None:
    result = cli("import", change, "--id", "count-runs")
    assert result.exit == 2
    assert "--patches" in result.err
    missing = cli("import", "nowhere.diff", "--id", "a", "--patches", change.parent / "ours")
    assert missing.exit == 2
    assert "no such file" in missing.err


def test_the_paths_of_a_copy_are_found_and_said(cli: Cli, tmp_path: Path) -> None:
    change = tmp_path / "fix.diff"
    change.write_bytes(CHANGE.replace(b" a/vllm/", b" a/lib/site-packages/vllm.orig/"))
    result = call(cli, change, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    assert result.json["import"]["prefixes"] == {"lib/site-packages/vllm.orig/": "vllm/"}
    assert call(cli, change, "--update").exit == 0


def test_a_change_on_top_of_a_feature_of_the_folder(cli: Cli, tmp_path: Path) -> None:
    module = diff("vllm/ours.py", None, b"a = 1\n")
    (tmp_path / "1.diff").write_bytes(module)
    (tmp_path / "2.diff").write_bytes(diff("vllm/ours.py", b"a = 1\n", b"a = 2\n"))
    for number, id_ in ((1, "b"), (2, "a")):
        result = cli(
            "import", tmp_path / f"{number}.diff", "--id", id_, "--patches", tmp_path / "p"
        )
    assert result.exit == 2  # it would come before the feature that it needs
    result = cli("import", tmp_path / "2.diff", "--id", "c", "--patches", tmp_path / "p", "--json")
    assert result.json["import"]["below"] == ["b"]
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)


def test_a_series_on_top_of_a_feature_of_the_folder(cli: Cli, tmp_path: Path) -> None:
    before, between, after = (b"a = %d\n" % number for number in (1, 2, 3))
    (tmp_path / "1.diff").write_bytes(diff("vllm/ours.py", None, before))
    mail = b"From %s Mon Sep 17 00:00:00 2001\nSubject: [PATCH] A change\n\n---\n%s-- \n2.39\n\n"
    mails = ((b"1" * 40, before, between), (b"2" * 40, between, after))
    series = b"".join(mail % (id_, diff("vllm/ours.py", *texts)) for id_, *texts in mails)
    (tmp_path / "2.mbox").write_bytes(series)
    patches = ("--patches", tmp_path / "p")
    cli("import", tmp_path / "1.diff", "--id", "b", *patches)
    for more in ((), ("--update",)):
        result = cli("import", tmp_path / "2.mbox", "--each", "--id", "c", *patches, *more)
        assert result.exit == 0, result.out + result.err
    planned = plan(load([tmp_path / "p"]), MemoryTree({}), Version("0.22.0"))
    assert [change.after for change in planned.changes] == [after]
    refused = cli("import", tmp_path / "2.mbox", "--each", "--id", "a", *patches)
    assert refused.exit == 2  # they would come before the feature that they need
    assert not list((tmp_path / "p").glob("a-*"))


def test_of_a_long_series_each_feature_is_laid_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a mail of a hundred takes about as long as one alone; it is said how far it is."""
    laid: Counter[str] = Counter()
    texts = [b"".join(b"a%d = %d\n" % (at, at < n) for at in range(12)) for n in range(12)]
    mail = b"From %040d Mon Sep 17 00:00:00 2001\nSubject: [PATCH] A %d\n\n---\n%s-- \n2.39\n\n"
    pairs = zip([None, *texts], texts, strict=False)
    parts = (mail % (n, n, diff("vllm/ours.py", *pair)) for n, pair in enumerate(pairs))
    (tmp_path / "s.mbox").write_bytes(b"".join(parts))
    add = _Planner.add

    def counted(planner: _Planner, feature: Feature) -> None:
        laid[feature.id] += 1
        add(planner, feature)

    monkeypatch.setattr(_Planner, "add", counted)
    monkeypatch.setattr("overlay.report.progress.PATIENCE", 0.0)
    monkeypatch.setattr("overlay.report.progress.BETWEEN_LINES", 0.0)
    result = cli("import", tmp_path / "s.mbox", "--each", "--id", "s", "--patches", tmp_path / "p")
    assert result.exit == 0, result.err
    assert laid.total() <= 3 * len(texts) * len(RELEASES)  # of all before, again: 12 * 12 / 2
    assert "made 12 of 12 features" in result.err
