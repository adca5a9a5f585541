"""overlay.toml and pyproject.toml: the patches folders that a project names once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.cli import Cli


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "inner/deep").mkdir(parents=True)
    monkeypatch.chdir(folder / "inner/deep")
    return folder


def ids(cli: Cli, *options: str | Path) -> list[str]:
    return [one["feature"] for one in cli("list", *options, "--json").json["features"]]


def test_the_nearest_file_at_or_above_names_folders_relative_to_itself(
    cli: Cli, project: Path
) -> None:
    assert ids(cli) == ["demo"]
    (project / "overlay.toml").write_text('patches = ["../team"]\n')
    assert ids(cli) == ["demo", "team-capture"]
    assert ids(cli, "--patches", cli.team) == ["demo", "team-capture"]
    (project / "inner/overlay.toml").write_text("patches = []\n")
    assert ids(cli) == ["demo"]


def test_a_table_in_pyproject_does_too(cli: Cli, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.vllm-overlay]\npatches = ["../team"]\n')
    assert ids(cli) == ["demo", "team-capture"]


def test_a_pyproject_without_the_table_is_nobody_s_business(cli: Cli, project: Path) -> None:
    (project / "inner/pyproject.toml").write_text("not toml [")
    (project / "overlay.toml").write_text('patches = ["../team"]\n')
    assert ids(cli) == ["demo", "team-capture"]


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("patches = [\n", 2, "expected TOML"),
        ("# ours\npatchs = []\n", 2, "expected the key patches, found patchs"),
        ('patches = "./team"\n', 1, "expected a list"),
        ("patches = [1]\n", 1, "expected a list"),
        ('patches = [""]\n', 1, "expected a list"),
        ('\n\npatches = ["./none"]\n', 3, "expected a folder of features"),
    ],
)
def test_a_malformed_file_is_an_error_with_file_and_line(
    cli: Cli, project: Path, text: str, line: int, word: str
) -> None:
    file = project / "overlay.toml"
    file.write_text(text)
    result = cli("list")
    assert result.exit == 2
    assert f"{file}:{line}: " in result.err
    assert word in result.err


def test_what_is_no_small_file_of_ours_is_refused(cli: Cli, project: Path) -> None:
    file = project / "overlay.toml"
    os.mkfifo(file)
    assert "expected a plain file, found a pipe" in cli("list").err
    file.unlink()
    file.write_bytes(b"#" * 2_000_000)
    assert "expected a file of at most" in cli("list").err
    file.write_text("patches = []\n")
    file.chmod(0o666)
    refused = cli("list")
    assert (refused.exit, "can be written by others" in refused.err) == (2, True)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")

NOBODY = 65534


def test_folders_are_beside_the_file_and_not_beside_a_link_to_it(
    cli: Cli, project: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "our-patches").mkdir(parents=True)
    (elsewhere / "overlay.toml").write_text('patches = ["our-patches"]\n')
    (project / "our-patches").symlink_to(cli.team)
    (project / "overlay.toml").symlink_to(elsewhere / "overlay.toml")
    assert ids(cli) == ["demo"]


@as_root
@pytest.mark.parametrize("name", ["overlay.toml", "pyproject.toml"])
@pytest.mark.parametrize(
    "what",
    ["file", "link", "link of theirs", "folder", "patches", "hard link", "link to patches of ours"],
)
def test_what_somebody_else_could_have_written_is_refused(
    cli: Cli, project: Path, tmp_path: Path, name: str, what: str
) -> None:
    """The file, a link to a file of root's, their folder, the folders of patches that it names."""
    table = "[tool.vllm-overlay]\n" if name == "pyproject.toml" else ""
    file, own = project / name, tmp_path / "own" / name
    own.parent.mkdir()
    (tmp_path / "own/ours").mkdir()
    (project / "ours").mkdir()
    for place in (file, own):
        place.write_text(f'{table}patches = ["./ours"]\n')
    if what == "file":
        os.chown(file, NOBODY, NOBODY)
    elif what in ("folder", "hard link"):
        os.chown(project, NOBODY, NOBODY)
        if what == "hard link":
            file.unlink()
            os.link(own, file)
    elif what == "patches":
        os.chown(project / "ours", NOBODY, NOBODY)
    elif what == "link to patches of ours":
        (project / "ours").rmdir()
        (project / "ours").symlink_to(tmp_path / "own/ours")
        os.lchown(project / "ours", NOBODY, NOBODY)
    else:
        file.unlink()
        os.chown(own if what == "link" else tmp_path / "own/ours", NOBODY, NOBODY)
        file.symlink_to(own)
        if what == "link of theirs":
            os.chown(tmp_path / "own/ours", 0, 0)
            os.lchown(file, NOBODY, NOBODY)
    told = cli("list")
    assert (told.exit, "belongs to nobody" in told.err) == (2, True)


@as_root
@pytest.mark.parametrize("kind", ["file", "table", "malformed", "pipe", "folder", "link"])
def test_what_somebody_left_where_everybody_may_is_passed_over(
    cli: Cli, project: Path, tmp_path: Path, kind: str
) -> None:
    """A stranger's /tmp/pyproject.toml stopped every command below /tmp."""
    public = project / "inner"
    public.chmod(0o1777)
    file = public / ("pyproject.toml" if kind == "table" else "overlay.toml")
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "link":
        file.symlink_to("/etc/passwd")
    else:
        table = "[tool.vllm-overlay]\n" if kind == "table" else ""
        file.write_text("x" if kind == "malformed" else f'{table}patches = ["/etc"]\n')
    os.lchown(file, NOBODY, NOBODY)
    (project / "overlay.toml").write_text('patches = ["../team"]\n')
    told = cli("list", "--json")
    assert [one["feature"] for one in told.json["features"]] == ["demo", "team-capture"]
    assert told.err.count(f"warning: {file} is not your own") == 1


def test_a_home_of_nobody_is_a_folder_that_is_not_there(cli: Cli, project: Path) -> None:
    file = project / "overlay.toml"
    file.write_text('patches = ["~nosuchuser/x"]\n')
    told = cli("list")
    assert (told.exit, f"{file}:1: expected a folder of features at" in told.err) == (2, True)


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "9" * 5000,
        "x = 0x" + "f" * 5000,
        "a" + ".a" * 20_000 + " = 1",
        "[" * 5000,
        'patches = ["\\u0000"]',
        "patches = 1979-05-27",
        "\0",
        "patches = [nan, inf, 1e999]",
    ],
)
def test_no_text_ends_in_a_traceback(cli: Cli, project: Path, text: str) -> None:
    (project / "overlay.toml").write_text(text)
    told = cli("list")
    assert (told.exit, "overlay.toml" in told.err, "Traceback" in told.err) == (2, True, False)
    assert max(map(len, told.err.splitlines())) < 2000
