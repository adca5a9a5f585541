"""Another package than vLLM: found, and refused, in the same places as vLLM."""

from __future__ import annotations

import json
import sys
import zipfile
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from overlay.errors import Absent, TargetError
from overlay.package import VLLM, Package, package_named
from overlay.targets import Target
from overlay.targets.installations import owns, with_rows, without_rows
from overlay.targets.resolution import patched_in, resolve, resolve_each
from tests.support import fake_vllm

ASCEND = package_named("vllm_ascend")

TEAM = package_named("acme_models")


@pytest.fixture(params=[VLLM, ASCEND, TEAM], ids=lambda package: package.name)
def package(request: pytest.FixtureRequest) -> Package:
    found = request.param
    assert isinstance(found, Package)
    return found


def install(folder: Path, package: Package, distribution: str = "") -> Path:
    """Install a package, by default with the distribution of its name."""
    name = distribution or package.distribution
    return fake_vllm.site_packages(folder, "1.2.3", distribution=name, package=package.name)


def on_path(monkeypatch: pytest.MonkeyPatch, package: Package, *folders: Path) -> Target:
    """The package that a process with this import path would import."""
    monkeypatch.setattr(sys, "path", [str(folder) for folder in folders])
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    target = resolve(None, package=package)
    assert package.name not in sys.modules
    return target


def test_it_is_found_by_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Package
) -> None:
    site = install(tmp_path, package, "some-other-name")
    target = on_path(monkeypatch, package, site)
    assert (target.vllm, target.root, target.package) == ("1.2.3", site, package)
    assert target.record is not None
    assert f"{package.name}/v1/__init__.py" in target.record
    assert target.record_file is not None
    with pytest.raises(TargetError, match="expected a path inside"):
        target.read("elsewhere/v1/__init__.py")


def test_twice_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Package
) -> None:
    install(install(tmp_path, package), package, f"{package.distribution}-cpu")
    with pytest.raises(TargetError, match=f"one distribution that owns {package.name}/, found 2"):
        on_path(monkeypatch, package, tmp_path)


@pytest.mark.parametrize("record", [None, b"elsewhere/module.py,,\n"], ids=["none", "of-others"])
def test_metadata_that_was_left_behind_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Package, record: bytes | None
) -> None:
    install(tmp_path, package)
    assert on_path(monkeypatch, package, tmp_path).warnings == ()
    old = tmp_path / f"{package.name}-1.0.0.dist-info"
    old.mkdir()
    if record is not None:
        (old / "RECORD").write_bytes(record)
    (tmp_path / f"{package.name}_other-1.0.0.dist-info").mkdir()
    target = on_path(monkeypatch, package, tmp_path)
    assert target.vllm == "1.2.3"
    [warning] = target.warnings
    assert f"and {old.name}: " in warning
    assert f"because only its RECORD lists {package.name}/" in warning
    assert f"reinstall {package.title}" in warning


def test_twice_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Package
) -> None:
    first, second = install(tmp_path / "a", package), install(tmp_path / "b", package)
    target = on_path(monkeypatch, package, first, second)
    assert target.root == first
    assert str(second) in target.warnings[0]


@pytest.mark.parametrize("name", ["package.zip", "package-1.2.3-py3.11.egg"])
def test_in_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Package, name: str
) -> None:
    archive = tmp_path / name
    with zipfile.ZipFile(archive, "w") as file:
        for path, data in fake_vllm.files("1.2.3", package=package.name).items():
            file.writestr(path, data)
    with pytest.raises(TargetError, match="from inside the archive"):
        on_path(monkeypatch, package, archive)


@pytest.mark.parametrize("told", [True, False])
def test_an_editable_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Package, told: bool
) -> None:
    """Without a version it is judged by content, as vLLM is."""
    nothing = {f"{package.name}/_version.py": None}
    tree = fake_vllm.tree(tmp_path / "checkout", extra=nothing, package=package.name)
    site = tmp_path / "site"
    info = site / f"{package.distribution.replace('-', '_')}-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: x\nVersion: 9.9\n")
    (info / "RECORD").write_text("__editable__.x.pth,,\n")
    if told:
        url = {"url": tree.as_uri(), "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(url))
    target = on_path(monkeypatch, package, site, tree)
    assert (target.root, target.vllm) == (tree, "9.9" if told else None)


def test_packages_of_one_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = install(tmp_path / "a", VLLM), install(tmp_path / "b", ASCEND)
    monkeypatch.setattr(sys, "path", [str(first), str(second)])
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    found = resolve_each(None, (VLLM, ASCEND, TEAM))
    assert [(target.package, target.root) for target in found] == [(VLLM, first), (ASCEND, second)]
    with pytest.raises(Absent, match="no acme_models: expected a package acme_models"):
        resolve_each(None, (TEAM,))
    (second / ".acme_models-overlay").mkdir()
    assert patched_in([str(first), str(second), "/no/such/place", "a\0b"]) == (TEAM,)


def test_a_distribution_with_two_packages_has_the_rows_of_one(tmp_path: Path) -> None:
    """A RECORD holds one block of the overlay's rows, so that taking it out is exact."""
    extra = {"acme_tools/__init__.py": b"", "acme_tools/a.py": b""}
    site = fake_vllm.site_packages(
        tmp_path, "1.2.3", extra, distribution="acme-models", package="acme_models"
    )
    targets = resolve_each(str(site), (TEAM, package_named("acme_tools")))
    assert [target.record_file is not None for target in targets] == [True, False]
    assert [target.vllm for target in targets] == ["1.2.3", "1.2.3"]


def test_rows_of_two_packages_in_two_records_are_apart() -> None:
    record = b"vllm_ascend/__init__.py,,\n"
    assert owns(record, ASCEND)
    assert not owns(record, VLLM)
    patched = with_rows(record, (), ASCEND)
    assert patched.endswith(b".vllm_ascend-overlay/ledger.json,,\n")
    assert without_rows(patched, None, (), VLLM) == patched
    assert without_rows(patched, None, (), ASCEND) == record


def test_an_sdist_that_keeps_its_package_below_src(tmp_path: Path) -> None:
    files = {
        f"src/{path}": data
        for path, data in fake_vllm.files("1.2.3", package="acme_models").items()
    }
    gone = dict.fromkeys(fake_vllm.files("1.2.3"))
    sdist = fake_vllm.sdist(tmp_path, "1.2.3", {**gone, **files}, distribution="acme-models")
    target = resolve(str(sdist), package=TEAM)
    assert target.vllm == "1.2.3"
    assert target.read("acme_models/v1/__init__.py") == b""
