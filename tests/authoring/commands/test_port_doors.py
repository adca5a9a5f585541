"""Ports that are ended inside their folder, hold links, or are somebody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.authoring.commands.test_port import files, ours, releases
from tests.support import port_world as world
from tests.support.cli import Cli

__all__ = ["ours", "releases"]  # the fixtures

STRANGER = 12345

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.mark.parametrize("folder", [None, ".", "../port-0.24.0"])
@pytest.mark.parametrize("words", [["--continue"], ["--abort"], ["--skip", "replay"]], ids=str)
def test_a_port_is_ended_from_inside(
    cli: Cli, ours: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], folder: str | None
) -> None:
    assert cli("port", "replay", "--releases", "0.24.0", "--patches", "../ours").exit == 1
    place = Path("port-0.24.0").resolve()
    (place / "replay/10-runner" / world.PATH).write_bytes(world.PATCHED)
    os.chdir(place)
    named = [] if folder is None else [folder]
    ended = cli("port", *words, *named, "--patches", "../../ours")
    if folder is None:
        assert ended.exit == 2
        assert "name its folder" in ended.err
        return
    assert ended.exit in (0, 1), ended.err
    assert not place.exists()
    assert list(place.parent.iterdir()) == []


@as_root
def test_a_port_that_a_stranger_laid_into_the_working_folder_is_refused(
    cli: Cli, ours: Path, tmp_path: Path
) -> None:
    assert cli("port", "replay", "--releases", "0.24.0", "--patches", ours).exit == 1
    (Path("port-0.24.0/replay/10-runner") / world.PATH).write_bytes(world.PATCHED)
    os.chmod(".", 0o1777)
    os.chown("port-0.24.0", STRANGER, STRANGER)
    before, session = files(ours), files(Path("port-0.24.0"))
    again = ["replay", "--releases", "0.24.0", "--patches", str(ours)]
    for words in (["--continue"], ["--show"], ["--abort"], ["--skip", "replay"], again):
        refused = cli("port", *words)
        assert refused.exit == 2
        assert f"port-0.24.0 belongs to user {STRANGER}" in refused.err
    assert (files(ours), files(Path("port-0.24.0"))) == (before, session)
    os.chown("port-0.24.0", 0, 0)
    os.chown(ours, STRANGER, STRANGER)
    os.rename("port-0.24.0", "mine")
    for words in (["--continue", "mine"], ["replay", "0.24.0", "--patches", str(ours)]):
        refused = cli("port", *words)
        assert refused.exit == 2
        assert f"{ours} belongs to user {STRANGER}" in refused.err
    assert os.listdir() == ["mine"]


def test_a_port_skips_no_file_of_another_installation(cli: Cli, ours: Path, tmp_path: Path) -> None:
    assert cli("port", "replay", "--releases", "0.24.0", "--patches", ours).exit == 1
    theirs = tmp_path / "site"
    (theirs / world.PATH).parent.mkdir(parents=True)
    (theirs / world.PATH).write_bytes(b"theirs\n")
    topic = Path("port-0.24.0/replay/10-runner")
    topic.rename(tmp_path / "aside")
    topic.symlink_to(theirs)
    for words in (["--skip", "replay"], ["--continue"], ["--abort"]):
        cli("port", *words, "--patches", ours)
        assert (theirs / world.PATH).read_bytes() == b"theirs\n"
