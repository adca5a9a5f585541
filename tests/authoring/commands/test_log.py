"""``overlay log``: a line a release, who and when, what upstream merged; the feature matrix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from overlay.package import KNOWN_RELEASES
from overlay.targets import resolution
from tests.authoring.commands.test_import import SCHEMA
from tests.authoring.test_importing import BASE, PATCHED, PATH, RELEASES, diff
from tests.support import fake_vllm
from tests.support.cli import CAPTURE, Cli
from tests.support.git_repository import Repository, needs_git
from tests.support.patches import write_feature
from tests.support.releases import know
from tests.support.shipped_features import RETIRED

MAIL = b"From " + b"1" * 40 + b" Mon Sep 17 00:00:00 2001\nFrom: Ada Love <ada@example.com>\n"
MAIL += b"Subject: [PATCH] Count runs (#12345)\n\n---\n\n"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli) -> Path:
    """Small releases in the place of the known ones, and a folder with an imported feature."""

    def opened(release: str, **_: object) -> object:
        folder = tmp_path / "releases" / release
        if not folder.exists():
            fake_vllm.tree(folder, release)
            (folder / PATH).parent.mkdir(parents=True, exist_ok=True)
            (folder / PATH).write_bytes(RELEASES[release])
        return real(str(folder))

    original = resolution.resolve

    def real(name: str) -> object:
        return replace(original(name), name=Path(name).name, root=None)

    know(monkeypatch, RELEASES)
    for module in ("log", "matrix"):
        monkeypatch.setattr(
            f"overlay.authoring.commands.{module}.releases", lambda *_, **__: (*RELEASES,)
        )
    monkeypatch.setattr(resolution, "resolve", opened)
    monkeypatch.setattr(resolution, "resolve_each", lambda name, *_, **__: (opened(name),))
    change = tmp_path / "fix.mbox"
    change.write_bytes(MAIL + diff(PATH, BASE, PATCHED))
    place = tmp_path / "ours"
    result = cli("import", change, "--id", "count-runs", "--patches", place)
    assert result.exit == 0, result.err
    return place


def test_a_clash_is_called_one_and_its_cause_is_told_once(cli: Cli, world: Path) -> None:
    for id_ in ("mine", "yours"):
        text = CAPTURE.replace("(1, 2, 4, 8):", f"(1, 2):  # {id_}")
        write_feature(world, {"10-capture/0.20.0..0.33.0.patch": text}, id=id_)
    result = cli("log", "yours", "--patches", world)
    assert result.exit == 1
    assert result.out.count("clash !") == len(RELEASES)
    assert result.out.count("touch the same lines") == 1
    assert "on:  0.20.0..0.24.0" in result.out


def test_each_release_has_a_line(cli: Cli, world: Path) -> None:
    result = cli("log", "count-runs", "--patches", world)
    assert result.exit == 0, result.out + result.err
    rows = {line.split()[0]: line.split() for line in result.out.splitlines() if line[:2] == "0."}
    assert list(rows) == list(RELEASES)
    assert rows["0.20.0"][1] == "inapplicable"
    assert rows["0.21.0"][1:6] == ["pristine", "0.21.0..0.22.0", "0.22.0", "Ada", "Love"]
    assert rows["0.23.0"][1:3] == ["upstreamed", "memory"]
    assert rows["0.24.0"][1:3] == ["upstreamed", "memory"]
    assert result.last == (
        "count-runs: applies to 0.21.0..0.22.0; upstream has it in 0.23.0..0.24.0."
    )
    answer = cli("log", "count-runs", "--patches", world, "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    assert answer["log"]["upstream"].endswith("/pull/12345")


def edit_toml(world: Path, *gone: str) -> None:
    """Take keys and tables out of ``feature.toml``."""
    toml = world / "count-runs/feature.toml"
    text = toml.read_text()
    if "[[upstreamed]]" in gone:
        text = text.partition("[[upstreamed]]")[0]
    lines = [line for line in text.splitlines() if not line.startswith(gone)]
    toml.write_text("\n".join(lines) + "\n")


def test_lines_and_images_are_told_apart(cli: Cli, world: Path) -> None:
    def means() -> list[str | None]:
        result = cli("log", "count-runs", "--patches", world, "--json")
        return [entry["means"] for entry in result.json["log"]["releases"]]

    edit_toml(world, "merged")
    assert means() == [None, None, None, "lines", None]
    edit_toml(world, "merged", "[[upstreamed]]")
    assert means()[3] in ("images", "lines")
    result = cli("log", "count-runs", "--patches", world)
    assert result.exit == 1
    assert result.last == "Action needed: count-runs does not apply to 0.24.0."


@needs_git
def test_the_history_of_the_folder_is_told(cli: Cli, world: Path) -> None:
    assert cli("log", "count-runs", "--patches", world, "--json").json["log"]["edits"] == []
    repository = Repository.create(world)
    repository.commit("Import count-runs", {})
    repository.commit("Something else", {"README.md": b"ours\n"})
    result = cli("log", "count-runs", "--patches", world)
    assert "2026-11-03  Ada  Import count-runs" in result.out
    assert "Something else" not in result.out


@needs_git
def test_upstreams_merge_is_found_with_what_differs(cli: Cli, world: Path, tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "vllm")
    repository.commit("Base", {PATH: BASE})
    repository("tag", "v0.22.0")
    otherwise = PATCHED.replace(b"self.note_run(size)", b"self.note_run(size, 1)")
    commit = repository.commit(
        "[Core] Count runs (#12345)", {PATH: otherwise, "tests/a.py": b"1\n"}
    )
    repository("tag", "v0.23.0rc1")
    repository("tag", "v0.23.0")
    repository.commit('Revert "[Core] Count runs (#12345)" (#23456)', {PATH: BASE})
    repository("tag", "v0.24.0")
    words = ("log", "count-runs", "--patches", world, "--upstream", repository.folder)
    result = cli(*words)
    assert f"#12345 as {commit[:9]} on 2026-11-03, first in 0.23.0" in result.out
    assert 'also:     Revert "[Core] Count runs (#12345)" (#23456)' in result.out
    assert "2 lines differ" in result.out
    assert "- +        self.note_run(size)\n" in result.out
    assert "+ +        self.note_run(size, 1)\n" in result.out
    answer = cli(*words, "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    assert answer["log"]["merge"]["commit"] == commit


@needs_git
def test_a_merge_as_it_is_carried_and_none_at_all(cli: Cli, world: Path, tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "vllm")
    repository.commit("Base", {PATH: BASE})
    words = ("log", "count-runs", "--patches", world, "--upstream", repository.folder)
    assert "no commit of the checkout ends with (#12345)" in cli(*words).out
    repository.commit("Count runs (#12345)", {PATH: PATCHED})
    assert "upstream merged the lines that this feature carries" in cli(*words).out
    refused = cli(*words[:-1], tmp_path / "nowhere")
    assert (refused.exit, "no such folder" in refused.err) == (2, True)


def test_usage(cli: Cli, world: Path) -> None:
    for words, said in (
        ((), "give the ID of a feature, or --matrix"),
        (("count-runs", "--matrix"), "give the ID of a feature, or --matrix"),
        (("nothing",), "ID nothing: expected one of demo, count-runs"),
        (("--matrix", "--upstream", "x"), "speaks of one feature"),
        (("demo", "--upstream", "x"), "expected the URL of a pull request"),
    ):
        result = cli("log", *words, "--patches", world)
        assert (result.exit, said in result.err) == (2, True), result.err


def test_the_matrix_has_a_letter_for_each_release(cli: Cli, world: Path) -> None:
    result = cli("log", "--matrix", "--patches", world)
    assert result.exit == 0, result.out + result.err
    rows = dict(line.split() for line in result.out.splitlines() if line.startswith(("c", "d")))
    assert rows["count-runs"] == "cPPUU"
    assert rows["demo"] == "PPPPP"
    assert "P  applies" in result.out
    answer = cli("log", "--matrix", "--patches", world, "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    assert answer["matrix"]["releases"] == list(RELEASES)
    edit_toml(world, "merged", "[[upstreamed]]")
    needy = cli("log", "--matrix", "--patches", world)
    assert needy.exit == 1
    assert needy.last == "Action needed on count-runs: 1 of 10 cells."


@pytest.mark.network
def test_the_shipped_features_apply_to_every_known_release(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from overlay.cli.run import run

    assert run(["log", "--matrix", "--json"]) == 0
    import json

    matrix = json.loads(capsys.readouterr().out)["matrix"]
    assert matrix["releases"] == list(KNOWN_RELEASES)
    first = [KNOWN_RELEASES.index(last) + 1 for last in RETIRED.values()]
    retired = {"P" * fitting + "U" * (19 - fitting) for fitting in first}
    assert {row["letters"] for row in matrix["features"]} == {"P" * 19, "U" * 19, *retired}


def variants_of(world: Path, texts: dict[str, str]) -> None:
    """A feature with a topic of several variants, by range."""
    write_feature(world, {f"10-capture/{span}.patch": text for span, text in texts.items()}, id="v")


WIDER = CAPTURE.replace("(1, 2, 4, 8):", "(1, 2, 4, 8, 16):")


def test_a_variant_stands_beside_the_one_that_it_came_from(cli: Cli, world: Path) -> None:
    ported = WIDER.replace("Last-Update:", "Ported-From: 0.20.0 merged\nLast-Update:", 1)
    variants_of(
        world,
        {"0.20.0..0.21.0": CAPTURE, "0.22.0..0.22.0": WIDER, "0.23.0..0.33.0": ported},
    )
    plain = cli("log", "v", "--patches", world)
    result = cli("log", "v", "--variants", "--patches", world)
    assert result.out.startswith(plain.out.partition("\n\nv:")[0])
    views = result.out[result.out.index("10-capture 0.22.0..0.22.0") :].splitlines()
    assert views[0].strip() == "10-capture 0.22.0..0.22.0  beside 0.20.0..0.21.0"
    second = views.index("10-capture 0.23.0..0.33.0  beside 0.20.0..0.21.0  ".rstrip())
    for view in (views[1:second], views[second:]):
        assert "  -+        for size in (1, 2, 4, 8):" in view
        assert "  ++        for size in (1, 2, 4, 8, 16):" in view
        assert "   -        for size in (1, 2, 4):" in view  # what both take out
    answer = cli("log", "v", "--variants", "--json", "--patches", world).json
    jsonschema.validate(answer, SCHEMA)
    assert [(each["releases"], each["origin"]) for each in answer["log"]["variants"]] == [
        ("0.22.0..0.22.0", "0.20.0..0.21.0"),
        ("0.23.0..0.33.0", "0.20.0..0.21.0"),
    ]
    assert "variants" not in cli("log", "v", "--json", "--patches", world).json["log"]


def test_variants_that_are_the_same_say_so(cli: Cli, world: Path) -> None:
    variants_of(world, {"0.20.0..0.21.0": CAPTURE, "0.22.0..0.33.0": CAPTURE})
    result = cli("log", "v", "--variants", "--patches", world)
    assert "10-capture 0.22.0..0.33.0  beside 0.20.0..0.21.0  the same hunks" in result.out


@pytest.mark.parametrize("base", ["a checkout", "nonsense", "0.99.0"])
def test_a_variant_of_no_known_origin_stands_beside_the_one_before(
    cli: Cli, world: Path, base: str
) -> None:
    ported = WIDER.replace("Last-Update:", f"Ported-From: {base} merged\nLast-Update:", 1)
    variants_of(world, {"0.20.0..0.21.0": CAPTURE, "0.22.0..0.33.0": ported})
    result = cli("log", "v", "--variants", "--patches", world)
    assert "10-capture 0.22.0..0.33.0  beside 0.20.0..0.21.0" in result.out, result.err


def test_variants_are_of_one_feature(cli: Cli, world: Path) -> None:
    result = cli("log", "--matrix", "--variants", "--patches", world)
    assert (result.exit, "--variants speaks of one feature" in result.err) == (2, True)
    variants_of(world, {"0.20.0..0.33.0": CAPTURE})
    assert "beside" not in cli("log", "v", "--variants", "--patches", world).out
