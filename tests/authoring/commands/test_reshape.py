"""``overlay edit --rename``, ``--fold`` and ``--split``: another form, the same bytes."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay.planning.planner import plan
from overlay.results import Change
from tests.support.cli import Cli
from tests.support.patches import MemoryTree, hunk, patch_text
from tests.support.releases import know

SCHEMA = json.loads(
    resources.files("overlay.report").joinpath("schema-2.json").read_text(encoding="utf-8")
)
NAMES = ("0.20.0", "0.21.0", "0.22.0")
PATH, OTHER = "vllm/v1/a.py", "vllm/v1/b.py"
BASE = b"def f():\n    one = 1\n    return one\n\n\ndef g():\n    two = 2\n    return two\n"
TREE = MemoryTree({PATH: BASE, OTHER: BASE})
HEADERS = "Description: A test\nOrigin: the tests\nLast-Update: 2026-11-20\nBase: 0.21.0\n\n"


def feature(ours: Path, id_: str, **topics: tuple[str, str]) -> None:
    """A feature with a hunk a topic: name -> path and function."""
    place = ours / id_
    place.mkdir(parents=True)
    toml = f'id = "{id_}"\ntitle = "Title of {id_}"\nwhy = "w"\nreleases = "0.20.0..0.22.0"\n'
    for name, (path, function) in topics.items():
        number = {"f": ("one", 1), "g": ("two", 2)}[function]
        line = f"    {number[0]} = {number[1]}"
        text = patch_text(
            path,
            hunk([f" {line}", f"+    note_{id_.replace('-', '_')}()"], function),
            headers=HEADERS,
        )
        folder = name.replace("_", "-").removeprefix("t")
        (place / folder).mkdir()
        (place / folder / "0.20.0..0.22.0.patch").write_text(text)
        toml += f'\n[[upstreamed]]\npath = "{path}"\nscope = "{function}"\n'
        toml += f'lines = [\n    "note_{id_.replace("-", "_")}()",\n]\nshare = 0.6\n'
    (place / "feature.toml").write_text(toml)


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    know(monkeypatch, NAMES)
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: TREE)
    ours = tmp_path / "ours"
    feature(ours, "alpha", t10_a=(PATH, "f"), t20_b=(OTHER, "f"))
    feature(ours, "beta", t10_a=(PATH, "g"))
    return ours


def applied(ours: Path) -> set[Change]:
    """What a release gets of all features."""
    result = plan(load([ours]), TREE, Version("0.21.0"))
    assert result.changes
    return {*result.changes}


def tree(ours: Path) -> dict[str, bytes]:
    return {
        path.relative_to(ours).as_posix(): path.read_bytes()
        for path in sorted(ours.rglob("*"))
        if path.is_file()
    }


def test_a_feature_is_renamed(cli: Cli, ours: Path) -> None:
    before = applied(ours)
    toml = ours / "beta/feature.toml"
    toml.write_text('needs = ["alpha"]\n' + toml.read_text())
    result = cli("edit", "alpha", "--rename", "zeta", "--patches", ours, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    assert (result.exit, result.json["code"]) == (0, "reshaped")
    features = load([ours])
    assert [each.id for each in features] == ["beta", "zeta"]
    assert features[0].needs == ("zeta",)
    assert applied(ours) == before


def test_two_features_are_folded_and_split_again(cli: Cli, ours: Path) -> None:
    before = applied(ours)
    folded = cli("edit", "beta", "--fold", "alpha", "--patches", ours)
    assert folded.exit == 0, folded.err
    (feature,) = load([ours])
    assert (feature.id, feature.title) == ("beta", "Title of beta")
    assert [topic.name for topic in feature.topics] == ["10-a", "20-b", "30-a"]
    assert [len(topic.upstream_tests) for topic in feature.topics] == [1, 1, 1]
    assert feature.upstream_tests == ()
    assert applied(ours) == before
    words = ("--split", "10-a", "--split", "20-b", "--into", "alpha", "--patches", ours)
    assert cli("edit", "beta", *words).exit == 0
    alpha, beta = load([ours])
    assert [topic.name for topic in alpha.topics] == ["10-a", "20-b"]
    assert [topic.name for topic in beta.topics] == ["30-a"]
    assert applied(ours) == before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("alpha", "--rename", "beta"), "found one"),
        (("alpha", "--rename", "../x"), "--rename"),
        (("alpha", "--fold", "alpha"), "expected another feature"),
        (("alpha", "--fold", "gamma"), "gamma: expected one of"),
        (("alpha", "--split", "30-c", "--into", "new"), "10-a, 20-b"),
        (("alpha", "--split", "10-a", "--split", "20-b", "--into", "new"), "found all"),
        (("alpha", "--split", "10-a"), "give ID and one of"),
        (("alpha", "--rename", "new", "--fold", "beta"), "give ID and one of"),
        (("--rename", "new"), "give ID and one of"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(
    cli: Cli, ours: Path, words: tuple[str, ...], why: str
) -> None:
    before = tree(ours)
    result = cli("edit", *words, "--patches", ours)
    assert (result.exit, why in result.err) == (2, True), result.err
    assert tree(ours) == before


def test_what_holds_for_one_feature_alone_is_not_folded(cli: Cli, ours: Path) -> None:
    toml = ours / "alpha/feature.toml"
    toml.write_text("required = true\n" + toml.read_text())
    result = cli("edit", "beta", "--fold", "alpha", "--patches", ours)
    assert (result.exit, "required" in result.err) == (2, True)
    toml.write_text(toml.read_text().replace("required = true", 'merged = "0.23.0"'))
    result = cli("edit", "beta", "--fold", "alpha", "--patches", ours)
    assert (result.exit, "upstream has one of them" in result.err) == (2, True), result.err


def test_another_order_that_changes_bytes_is_refused(cli: Cli, ours: Path) -> None:
    feature(ours, "delta", t10_a=(PATH, "f"))
    patch = ours / "delta/10-a/0.20.0..0.22.0.patch"
    patch.write_text(patch.read_text().replace("     one = 1", "     note_alpha()"))
    before = tree(ours)
    result = cli("edit", "delta", "--rename", "aaa", "--patches", ours)
    assert (result.exit, "another order" in result.err) == (2, True), result.err
    assert tree(ours) == before
