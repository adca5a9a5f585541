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
