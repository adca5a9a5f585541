"""A change that adds modules: each release is read before it is said how the change lands there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from overlay.errors import PackageIndexError
from tests.authoring.test_importing import BASE, CHANGE, PATCHED, PATH, diff
from tests.support import fake_vllm
from tests.support.cli import Cli
from tests.support.patches import MemoryTree, write_feature
from tests.support.releases import serve

MODULE = "vllm/v1/counter.py"
OURS, THEIRS = b"COUNT = 1\n", b"COUNT = 'theirs'\n"
ADDS = diff(MODULE, None, OURS)
RELEASES = ("0.20.0", "0.21.0", "0.22.0", "0.23.0")


def world(monkeypatch: pytest.MonkeyPatch, modules: Mapping[str, bytes]) -> list[str]:
    """Releases of which some have a file of the module's name; those that were opened."""
    serve(monkeypatch, RELEASES)
    opened: list[str] = []

    def opening(name: str, **_: object) -> MemoryTree:
        opened.append(name)
        if name not in RELEASES:
            raise PackageIndexError(f"release {name}: there is none")
        there = {MODULE: modules[name]} if name in modules else {}
        return MemoryTree({PATH: BASE, **there})

    monkeypatch.setattr("overlay.targets.resolution.resolve", opening)
    return opened


def called(cli: Cli, folder: Path, data: bytes, *more: str) -> tuple[int, str, Mapping[str, str]]:
    """Exit code, text and outcomes of an import."""
    (folder / "c.diff").write_bytes(data)
    words = ("import", folder / "c.diff", "--id", "c", "--patches", folder / "p", *more)
    told = cli(*words)
    answer = cli(*words, "--update", "--json").json
    outcomes = answer["import"]["outcomes"] if "import" in answer else {}
    return int(told.exit), told.out + told.err, outcomes


@pytest.mark.parametrize("data", [ADDS, CHANGE + ADDS])
def test_a_name_that_each_release_has_is_a_conflict(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    world(monkeypatch, dict.fromkeys(RELEASES, THEIRS))
    code, told, outcomes = called(cli, tmp_path, data)
    assert code == 1
    assert set(outcomes.values()) == {"conflict"}
    assert f"{MODULE} is a file of its own there: give the added module another name" in told
    assert not (tmp_path / "p").exists()


def test_a_module_that_a_package_hides_is_a_conflict(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"{MODULE.removesuffix('.py')}/__init__.py"
    serve(monkeypatch, RELEASES)
    monkeypatch.setattr(
        "overlay.targets.resolution.resolve",
        lambda name, **_: MemoryTree({PATH: BASE, **({package: b""} if name > "0.21" else {})}),
    )
    code, told, outcomes = called(cli, tmp_path, ADDS)
    assert code == 0
    assert [outcomes[name] for name in RELEASES] == ["exact"] + ["conflict"] * 3
    assert "give the added module another name" in told or f"taken     {MODULE}" in told
    monkeypatch.chdir(tmp_path)
    port = cli("port", "c", "--releases", "0.22.0", "--patches", tmp_path / "p")
    assert port.exit == 1
    assert "a package of that name, which hides it" in port.out


def test_a_module_that_a_package_hides_is_not_written(cli: Cli, tmp_path: Path) -> None:
    package = f"{MODULE.removesuffix('.py')}/__init__.py"
    write_feature(tmp_path / "q", {f"files/{MODULE}": OURS}, id="q")
    site = fake_vllm.site_packages(tmp_path / "site", "0.22.0", {package: b""})
    answer = cli("apply", site, "--patches", tmp_path / "q", "--feature", "q")
    assert answer.exit == 1
    assert f"found {package}: Python imports that" in answer.out
    assert not (site / MODULE).exists()


@pytest.mark.parametrize("data", [ADDS, CHANGE + ADDS])
def test_the_releases_without_the_name_are_served(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    world(monkeypatch, {"0.20.0": THEIRS, "0.23.0": THEIRS})
    code, told, outcomes = called(cli, tmp_path, data)
    assert code == 0
    assert list(outcomes.values()) == ["conflict", "exact", "exact", "conflict"]
    assert "for 0.21.0..0.22.0" in told
    assert f"{MODULE}  another file in 0.20.0 and 0.23.0" in told


def test_a_module_that_is_there_byte_for_byte_is_upstreams(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world(monkeypatch, {"0.22.0": OURS, "0.23.0": OURS})
    code, told, outcomes = called(cli, tmp_path, ADDS)
    assert code == 0
    assert list(outcomes.values()) == ["exact", "exact", "upstream", "upstream"]
    assert "for 0.20.0..0.21.0" in told


def test_of_a_module_and_an_edit_a_release_may_have_one(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world(monkeypatch, {"0.23.0": OURS})
    code, _, outcomes = called(cli, tmp_path, diff(PATH, BASE, PATCHED) + ADDS)
    assert code == 0
    assert outcomes["0.23.0"] == "partly upstream"


@pytest.mark.parametrize("releases", ["0.99.0", "0.21.0,0.99.0", "torch==0.99.0"])
@pytest.mark.parametrize("data", [ADDS, CHANGE + ADDS])
def test_a_release_that_is_not_there_ends_with_2(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, releases: str, data: bytes
) -> None:
    opened = world(monkeypatch, {})
    if "torch" in releases:
        data = data.replace(b"vllm/", b"torch/")
    code, told, _ = called(cli, tmp_path, data, "--releases", releases)
    assert code == 2
    assert "0.99.0: there is none" in told
    assert any("0.99.0" in name for name in opened)
    assert not (tmp_path / "p").exists()
