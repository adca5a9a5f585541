"""Edits that are ended inside their folder, hold links, or are somebody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.authoring.commands.test_edit import index, snapshot, team
from tests.support.cli import RUNNER, Cli, edit

__all__ = ["index", "team"]  # the fixtures

STRANGER = 12345

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")

SESSION = Path("team-capture@0.26.0")


@pytest.fixture
def begun(team: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An edit session, begun with a path that is relative to the working folder."""
    began = team("edit", "team-capture", "--release", "0.26.0", "--patches", "../team")
    assert began.exit == 0, began.err
    return SESSION.resolve()


def test_a_session_is_committed_and_aborted_from_inside(
    team: Cli, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(begun, RUNNER, "(1, 2, 4, 8)", "(1, 2, 4, 8, 16)")
    monkeypatch.chdir(begun / "vllm/v1")
    result = team("edit", "--commit", "../..", "--patches", "../../../../team")
    assert result.exit == 0, result.err
    assert not begun.exists()
    assert list(begun.parent.iterdir()) == []
    os.chdir(begun.parent)
    assert team("edit", "team-capture", "--release", "0.26.0", "--patches", "../team").exit == 0
    os.chdir(begun)
    assert team("edit", "--commit", ".").exit == 1  # nothing was edited
    assert team("edit", "--abort", ".").exit == 0
    os.chdir(begun.parent)
    assert os.listdir() == []


@as_root
@pytest.mark.parametrize("place", ["", "session.toml", ".base", "patches"])
def test_an_edit_that_a_stranger_could_have_made_is_refused(
    team: Cli, begun: Path, place: str
) -> None:
    given = team.team if place == "patches" else begun / place
    if place == ".base":
        given = begun / ".base" / RUNNER
    edit(begun, RUNNER, "(1, 2, 4, 8)", "(1, 2, 4, 8, 16)")
    os.chown(given, STRANGER, STRANGER)
    before, session = snapshot(team.team), snapshot(begun)
    refused = team("edit", "--commit", begun)
    assert refused.exit == 2
    assert f"{given} belongs to user {STRANGER}: expected" in refused.err
    assert (snapshot(team.team), snapshot(begun)) == (before, session)
    os.chown(given, 0, 0)
    assert team("edit", "--commit", begun).exit == 0


@as_root
@pytest.mark.parametrize("of", ["patches", "session"])
def test_a_link_of_a_strangers_to_what_is_the_users_own_is_refused(
    team: Cli, begun: Path, tmp_path: Path, of: str
) -> None:
    edit(begun, RUNNER, "(1, 2, 4, 8)", "(1, 2, 4, 8, 16)")
    link = tmp_path / "link"
    if of == "session":
        link.symlink_to(begun)
    else:
        link.symlink_to(team.team)
        document = begun / "session.toml"
        document.write_text(document.read_text().replace(str(team.team), str(link)))
    os.lchown(link, STRANGER, STRANGER)
    before = snapshot(team.team)
    refused = team("edit", "--commit", link if of == "session" else begun)
    assert refused.exit == 2
    assert f"{link} belongs to user {STRANGER}: expected" in refused.err
    assert snapshot(team.team) == before


@as_root
def test_a_session_for_somebody_elses_patches_does_not_begin(team: Cli) -> None:
    os.chown(team.team, STRANGER, STRANGER)
    words = ["--release", "0.26.0", "--patches", str(team.team)]
    for command in (["edit", "team-capture"], ["new", "fix", "--file", RUNNER]):
        refused = team(*command, *words)
        assert refused.exit == 2
        assert f"{team.team} belongs to user {STRANGER}" in refused.err
    assert os.listdir() == []


@as_root
def test_a_session_of_somebody_elses_in_the_place_of_a_new_one_is_named(
    team: Cli, begun: Path
) -> None:
    os.chown(begun, STRANGER, STRANGER)
    os.chdir(begun.parent)
    refused = team("edit", "team-capture", "--release", "0.26.0", "--patches", "../team")
    assert refused.exit == 2
    assert f"{begun.name} belongs to user {STRANGER}" in refused.err


def test_links_in_a_session_that_grows_lead_nowhere(team: Cli, tmp_path: Path) -> None:
    """`new` and `edit --file` lay further files into what is there."""
    out = tmp_path / "out"
    (out / "vllm/v1/spec_decode").mkdir(parents=True)
    more = "vllm/v1/spec_decode/proposer.py"
    words = ["--release", "0.26.0", "--patches", str(team.team)]
    assert team("new", "fix", "--file", RUNNER, *words).exit == 0
    for link, to in (("vllm/v1/spec_decode", "vllm/v1/spec_decode"), (".base", "")):
        place = Path("fix@0.26.0", link)
        if place.exists():
            place.rename(tmp_path / f"aside{len(link)}")
        place.symlink_to(out / to)
        refused = team("new", "fix", "--file", more, *words)
        assert refused.exit == 2
        assert "found a symbolic link" in refused.err
        place.unlink()
    assert snapshot(out) == {}
