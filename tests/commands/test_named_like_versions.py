"""A folder, an environment or a file that is called like a version is meant by that name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import fake_vllm
from tests.support.cli import Cli

NAMES = ("v32", "0.26.0", "3", "0.34.0")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def environment(folder: Path) -> Path:
    """A virtual environment with the fake vLLM."""
    packages = folder / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.4\n")
    fake_vllm.site_packages(packages)
    return packages


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [environment, fake_vllm.site_packages])
def test_each_command_means_the_place(cli: Cli, here: Path, name: str, make: object) -> None:
    assert callable(make)
    make(here / name)
    for command in ("check", "diff", "status", "apply", "status", "check", "revert"):
        result = cli(command, name)
        assert result.exit == 0, result.out + result.err
        assert "is read as that place; the release is vllm==" in result.out + result.err
    assert not list(here.rglob(".vllm-overlay"))
    for command in ("check", "apply"):
        assert "read as" not in cli(command, f"./{name}").out
    # What is said to be the next step means it as well, wherever it is typed.
    assert f"{here / name}" in cli("revert", name).out + cli("status", name).out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["check", "diff", "status", "apply", "revert"])
def test_a_place_without_vllm_is_named_with_the_rule(
    cli: Cli, here: Path, name: str, command: str
) -> None:
    (here / name).mkdir()
    result = cli(command, name)
    assert result.exit == 2
    assert "is here, so it is read as that place; the release is vllm==" in result.err


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_release_that_is_written_to_is_still_refused(cli: Cli, here: Path, command: str) -> None:
    fake_vllm.site_packages(here / "0.26.0")
    result = cli(command, "vllm==0.26.0")
    assert result.exit == 2
    assert "found a file or a release" in result.err
