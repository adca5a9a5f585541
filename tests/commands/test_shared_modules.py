"""``shared/`` of a folder of patches through the life of a patch: no command writes into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay._features.folder import load
from tests.authoring.test_pruning import NAMES, TYPICAL, Tree
from tests.support import port_world, releases
from tests.support.cli import ADDED, RUNNER, Cli, digest, edit
from tests.support.patches import write_feature

SHARED = "vllm/v1/shared_by_two.py"


def share(patches: Path, *ids: str) -> Path:
    """Let features of a folder name a shared module; its file."""
    module = patches / "shared/files" / SHARED
    module.parent.mkdir(parents=True)
    module.write_text("SHARED = 1\n")
    for id_ in ids:
        toml = patches / id_ / "feature.toml"
        head, _, rest = toml.read_text().partition("releases = ")
        toml.write_text(f'{head}shared = ["{SHARED}"]\nreleases = {rest}')
    return module


def named(patches: Path) -> dict[str, tuple[str, ...]]:
    return {feature.id: feature.shared for feature in load([patches])}


@pytest.fixture
def team(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """``team-capture`` and ``team-other`` share a module."""
    releases.install(monkeypatch)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    write_feature(cli.team, {"files/vllm/v1/other.py": "OTHER = 1\n"}, id="team-other")
    share(cli.team, "team-capture", "team-other")
    return cli


# On a target


def test_it_is_laid_once_and_stays_while_one_feature_needs_it(team: Cli, site: Path) -> None:
    words = ("--patches", team.team, site)
    assert team("apply", *words).exit == 0
    assert (site / SHARED).read_text() == "SHARED = 1\n"
    assert team("status", *words).exit == 0
    assert team("revert", "--feature", "team-capture", *words).exit == 0
    assert (site / SHARED).exists()
    assert team("revert", "--feature", "team-other", *words).exit == 0
    assert not (site / SHARED).exists()


def test_it_is_listed_with_each_feature(team: Cli) -> None:
    answer = team("list", "--patches", team.team, "--json").json
    added = {each["feature"]: each["added"] for each in answer["features"]}
    assert added["team-capture"] == [SHARED]
    assert added["team-other"] == ["vllm/v1/other.py", SHARED]
    assert added["demo"] == [ADDED]
    assert "shared" not in added


def test_what_was_applied_before_a_module_was_shared_is_as_it_was(team: Cli, site: Path) -> None:
    """Another build of the patches keeps the same module apart; the bytes are the same."""
    for feature in load([team.team]):
        for path, content in feature.shared_modules().items():
            place = team.team / feature.id / "files" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        toml = team.team / feature.id / "feature.toml"
        toml.write_text(toml.read_text().replace(f'shared = ["{SHARED}"]\n', ""))
    words = ("--patches", team.team, site)
    assert team("apply", *words).exit == 0
    before = digest(site)
    for feature in load([team.team]):
        (team.team / feature.id / "files" / SHARED).unlink()
        toml = team.team / feature.id / "feature.toml"
        toml.write_text(toml.read_text().replace("why = ", f'shared = ["{SHARED}"]\nwhy = '))
    for command in ("status", "check", "apply"):
        result = team(command, *words)
        assert result.exit == 0, (command, result.out)
    assert {name: data for name, data in digest(site).items() if "ledger" not in name} == {
        name: data for name, data in before.items() if "ledger" not in name
    }
    assert team("revert", site).exit == 0


def test_another_module_of_its_name_is_a_clash_that_names_its_file(team: Cli, site: Path) -> None:
    write_feature(team.team, {f"files/{SHARED}": "OTHER = 2\n"}, id="zz-own")
    result = team("check", "--patches", team.team, site)
    assert result.exit == 1
    assert f"team-capture (shared/files/{SHARED}) and zz-own touch" in result.out


# Edited


def begun(cli: Cli, *more: str) -> Path:
    words = ("edit", "team-capture", "--release", "0.26.0", "--patches", cli.team)
    result = cli(*words, *more)
    assert result.exit == 0, result.err
    return Path("team-capture@0.26.0")


def test_a_session_leaves_it_where_it_is(team: Cli) -> None:
    shared = digest(team.team / "shared")
    folder = begun(team)
    assert not (folder / SHARED).exists()
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2, 4, 8, 16)")
    assert team("edit", "--commit", folder).exit == 0
    assert digest(team.team / "shared") == shared
    assert named(team.team) == {"team-capture": (SHARED,), "team-other": (SHARED,)}
    assert not (team.team / "team-capture/files").exists()


def test_a_session_says_where_it_is_to_be_edited(team: Cli) -> None:
    words = ("edit", "team-capture", "--release", "0.26.0", "--patches", team.team)
    refused = team(*words, "--file", SHARED)
    folder = begun(team)
    (folder / SHARED).parent.mkdir(exist_ok=True)
    (folder / SHARED).write_text("SHARED = 2\n")
    before = digest(team.team)
    committed = team("edit", "--commit", folder)
    for result in (refused, committed):
        assert result.exit == 2
        assert f"{SHARED} is not team-capture's own" in result.err
        assert f"shared/files/{SHARED} of {team.team}" in result.err
    assert digest(team.team) == before
    (folder / SHARED).unlink()
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    assert team("edit", "--commit", folder).exit == 0


def test_a_session_ends_with_what_it_was_made_on(team: Cli) -> None:
    folder = begun(team)
    edit(folder, RUNNER, "(1, 2, 4, 8)", "(1, 2)")
    (team.team / "shared/files" / SHARED).write_text("SHARED = 2\n")
    result = team("edit", "--commit", folder)
    assert (result.exit, "team-capture changed since" in result.err) == (2, True)


# Carried, pruned


def test_a_port_carries_the_key(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    releases.know(monkeypatch, port_world.NAMES)
    monkeypatch.setattr(
        "overlay.targets.resolution.resolve", lambda name, **_: port_world.Tree(name)
    )
    monkeypatch.chdir(tmp_path)
    port_world.write(tmp_path / "ours")
    module = share(tmp_path / "ours", "replay")
    done = cli("port", "replay", "--releases", "0.22.0", "--write", "--patches", tmp_path / "ours")
    assert done.exit == 0, done.err
    (feature,) = load([tmp_path / "ours"])
    assert (str(feature.releases), feature.shared) == ("0.21.0..0.22.0", (SHARED,))
    assert module.read_text() == "SHARED = 1\n"
    assert not (tmp_path / "ours/replay/files").exists()


def test_pruning_keeps_the_key_and_the_module(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases.serve(monkeypatch, NAMES)
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: Tree(TYPICAL, name))
    ours = tmp_path / "ours"
    TYPICAL.write(ours)
    share(ours, "f0")
    shared = digest(ours / "shared")
    words = ("prune", "--releases", "0.22.0", "--patches", ours)
    done = cli(*words, "--write", "--json")
    assert (done.exit, done.json["code"]) == (0, "pruned")
    assert named(ours) == {"f0": (SHARED,)}
    assert digest(ours / "shared") == shared


# New features


def test_no_new_feature_is_called_shared(team: Cli, site: Path, tmp_path: Path) -> None:
    diff = tmp_path / "change.diff"
    diff.write_text("no diff")
    before = digest(team.team)
    for words in (
        ("new", "shared", "--file", RUNNER),
        ("new", "shared", site, "--from-edits"),
        ("import", diff, "--id", "shared"),
    ):
        result = team(*words, "--patches", team.team)
        assert result.exit == 2
        assert "'shared' cannot be the id of a feature" in result.err
    assert digest(team.team) == before


def test_a_feature_of_edits_stands_beside_it(team: Cli, site: Path) -> None:
    """``revert --keep-as`` of an edit of the module in a target."""
    assert team("apply", "--patches", team.team, site).exit == 0
    edit(site, SHARED, "SHARED = 1", "SHARED = 2")
    shared = digest(team.team / "shared")
    kept = team("revert", site, "--keep-as", "zz-mine", "--patches", team.team)
    assert kept.exit == 0, kept.out + kept.err
    assert digest(team.team / "shared") == shared
    assert team("apply", "--patches", team.team, site).exit == 0
    assert (site / SHARED).read_text() == "SHARED = 2\n"
