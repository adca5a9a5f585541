"""``overlay cache``: what it counts and removes, and what it leaves alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.cli import Cli


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache that lies beside something of the user's."""
    made = tmp_path / "cache"
    for name in (
        "releases/vllm-0.26.0.zip",
        "releases/notes.txt",
        "modules/" + "a" * 64 + "/x.py",
        "syntax/1-0.1.0-cpython-311/ab",
        "mine/photo.jpg",
    ):
        file = made / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")
    return made


def test_dir_prints_the_path_and_nothing_else(cli: Cli, tmp_path: Path) -> None:
    result = cli("cache", "dir")
    assert (result.exit, result.out) == (0, f"{tmp_path / 'cache'}\n")


def test_size_counts_what_the_overlay_made(cli: Cli, folder: Path) -> None:
    result = cli("cache", "size", "--json")
    assert (result.exit, result.json["code"]) == (0, "cache")
    parts = {one["name"]: (one["entries"], one["bytes"]) for one in result.json["cache"]["parts"]}
    assert parts == {"releases": (1, 5), "modules": (1, 5), "syntax": (1, 5), "receipts": (0, 0)}
    assert "3 entries" in cli("cache", "size").last


def test_clean_removes_that_and_leaves_the_rest(cli: Cli, folder: Path) -> None:
    result = cli("cache", "clean")
    assert (result.exit, result.last) == (0, f"Removed 3 entries, 0.0 MB from {folder}.")
    left = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
    assert left == ["mine/photo.jpg", "releases/notes.txt"]
    assert cli("cache", "clean").last == f"Removed 0 entries, 0.0 MB from {folder}."


def test_clean_follows_no_link_and_trusts_no_open_folder(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "vllm-1.zip").write_text("x")
    (folder / "releases/vllm-0.26.0.zip").unlink()
    (folder / "releases/vllm-0.27.0.zip").symlink_to(victim)
    (folder / "modules").rename(tmp_path / "moved")
    (folder / "modules").symlink_to(victim)
    assert cli("cache", "clean").exit == 0
    assert (victim / "vllm-1.zip").exists()
    (folder / "releases/vllm-0.26.0.zip").write_text("x")
    (folder / "releases").chmod(0o777)
    refused = cli("cache", "clean")
    assert (refused.exit, "can be written by others" in refused.err) == (2, True)


def test_an_unknown_word_is_a_usage_error(cli: Cli) -> None:
    assert "'dir', 'size', 'clean'" in cli("cache", "sise").err


@pytest.mark.parametrize("action", ["clean", "size"])
@pytest.mark.parametrize("kind", ["device", "file", "file above", "pipe", "part"])
def test_what_is_no_folder_is_not_called_clean(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, kind: str
) -> None:
    place = tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "part":
        place.mkdir()
        (place / "modules").write_text("")
    elif kind != "device":
        place.write_text("")
    named = {"device": Path("/dev/null"), "file above": place / "cache"}.get(kind, place)
    monkeypatch.setenv("OVERLAY_CACHE", str(named))
    told = cli("cache", action)
    assert (told.exit, "expected a folder of the cache, found a" in told.err) == (2, True)
    assert cli("cache", "dir").exit == 0


def test_the_actions_are_told_in_one_line(cli: Cli) -> None:
    assert "Choose from: dir, size, clean" in " ".join(cli("cache").err.split())
    assert "\\t" not in cli("cache").err


@pytest.mark.parametrize("name", ["unapply", "undo"])
def test_a_name_like_that_of_the_opposite_is_not_taken_for_it(cli: Cli, name: str) -> None:
    assert "Did you mean 'revert'?" in cli(name).err


def test_an_id_that_was_misspelt_is_guessed(cli: Cli) -> None:
    assert "did you mean demo? Or name the folder" in cli("log", "dem").err
    assert "did you mean" not in cli("log", "quite-another").err


@pytest.mark.parametrize(
    "line",
    [
        "check SITE --feature dem",
        "check SITE --without dem",
        "apply SITE --require dem",
        "status SITE --require dem",
        "revert SITE --feature dem",
        "diff SITE --feature dem",
        "show dem",
        "edit dem",
        "edit demo --fold team-captur",
        "export dem",
        "port dem --releases 0.26.0",
    ],
)
def test_every_command_guesses_an_id(cli: Cli, site: Path, line: str) -> None:
    words = [str(site) if word == "SITE" else word for word in line.split()]
    result = cli("--patches", cli.team, *words)
    assert result.exit == 2
    meant = "team-capture" if "team" in line else "demo"
    assert f"did you mean {meant}?" in result.err


@pytest.mark.parametrize("option", ["--model", "--force", "--yes", "--target", "--log"])
def test_an_option_that_resembles_none_has_no_suggestion(cli: Cli, option: str) -> None:
    """click compares with the dashes, and meant ``--pre`` where somebody wrote ``--yes``."""
    error = cli("check", option).err
    assert f"No such option '{option}'.\n" in error
    assert "Did you mean" not in error


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("check", "--releases", "0.26.1..0.27.9"), "there are 0.26.0, 0.27.0, 0.27.1, 0.28.0"),
        (("chekc",), "Did you mean 'check'?"),
        (("check", "--featur", "x"), "'--feature'"),
        (("check", "--relaeses", "all"), "Did you mean '--releases'?"),
    ],
)
def test_a_release_a_command_or_an_option_that_was_misspelt(
    cli: Cli, words: tuple[str, ...], hint: str
) -> None:
    result = cli(*words)
    assert (result.exit, hint in result.err) == (2, True), result.err
