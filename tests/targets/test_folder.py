"""Folders as targets: what counts as a vLLM, how its version is told, and what is not read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import TargetError
from overlay.package import VLLM, check_path
from overlay.targets import MAX_FILE_BYTES
from overlay.targets.installations import file_reader, modules_below
from overlay.targets.resolution import resolve
from tests.support import fake_vllm

_PATH = "vllm/v1/spec_decode/proposer.py"


def test_site_packages(tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path, "0.32.0+cpu")

    target = resolve(str(site))

    assert (target.name, target.vllm, target.root) == (str(site), "0.32.0+cpu", site)
    assert target.read(_PATH) == fake_vllm.files()[_PATH]
    assert target.read("vllm/v1/none.py") is None
    assert target.read("vllm/py.typed/none.py") is None


def test_a_relative_folder_keeps_the_name_the_user_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_vllm.tree(tmp_path / "checkout")
    monkeypatch.chdir(tmp_path)

    target = resolve("checkout")

    assert (target.name, target.root) == ("checkout", tmp_path / "checkout")


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"vllm/_version.py": b"__version__ = version = '0.30.0'\n"}, "0.30.0"),
        ({"vllm/_version.py": b'version = "0.30.0"\n', "PKG-INFO": b"Version: 1\n"}, "0.30.0"),
        ({"vllm/_version.py": b"version: str\n", "PKG-INFO": b"Version: 0.29.0\n\nx"}, "0.29.0"),
        ({"PKG-INFO": b"Metadata-Version: 2.4\r\nVersion: 0.29.0\r\n\r\nVersion: 9"}, "0.29.0"),
        ({"vllm.egg-info/PKG-INFO": b"Version: 0.28.0\n"}, "0.28.0"),
        ({"version.txt": b"0.27.0\n"}, "0.27.0"),
        ({"vllm/version.txt": b"0.27.1 extra\n"}, "0.27.1"),
        ({}, None),
    ],
)
def test_the_version_of_a_source_tree(
    tmp_path: Path, files: dict[str, bytes], version: str | None
) -> None:
    fake_vllm.tree(tmp_path, extra={"vllm/_version.py": None, **files})

    assert resolve(str(tmp_path)).vllm == version


@pytest.mark.parametrize("inside", ["vllm", "vllm/v1", "vllm/v1/spec_decode"])
def test_the_package_itself_is_answered_with_its_parent(tmp_path: Path, inside: str) -> None:
    fake_vllm.tree(tmp_path)

    with pytest.raises(TargetError, match=f"inside the package itself: name {tmp_path}$"):
        resolve(str(tmp_path / inside))


def test_a_virtual_environment_is_answered_with_its_site_packages(tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path / "lib" / "python3.11" / "site-packages")

    with pytest.raises(TargetError, match=f"further down: name {site}$"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("left_over", [False, True])
def test_a_folder_that_is_no_vllm(tmp_path: Path, left_over: bool) -> None:
    if left_over:
        (tmp_path / "vllm").mkdir()

    with pytest.raises(TargetError, match=r"holds vllm/__init__\.py") as caught:
        resolve(str(tmp_path))

    assert ("uninstalled vLLM leaves behind" in str(caught.value)) == left_over


@pytest.mark.parametrize("name", ["", "  ", "no/such/place", "nothing-here", "a\0b", "x" * 5000])
def test_names_that_mean_nothing(name: str) -> None:
    with pytest.raises(TargetError):
        resolve(name)


def test_a_file_may_not_be_read_through_a_link_that_leaves_the_target(tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("secret")
    site = fake_vllm.site_packages(tmp_path / "site", extra={_PATH: None})
    (site / _PATH).symlink_to(outside)

    with pytest.raises(TargetError, match="leads out of the target") as caught:
        resolve(str(site)).read(_PATH)

    assert str(outside) in str(caught.value)


def test_a_folder_link_that_leaves_the_target_is_refused_too(tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path / "site")
    (site / "vllm" / "v1").rename(tmp_path / "v1")
    (site / "vllm" / "v1").symlink_to(tmp_path / "v1")

    with pytest.raises(TargetError, match="leads out of the target"):
        resolve(str(site)).read(_PATH)


def test_a_target_beside_one_with_a_longer_name_is_still_outside(tmp_path: Path) -> None:
    other = fake_vllm.tree(tmp_path / "site-other")
    site = fake_vllm.site_packages(tmp_path / "site", extra={_PATH: None})
    (site / _PATH).symlink_to(other / _PATH)

    with pytest.raises(TargetError, match="leads out of the target"):
        resolve(str(site)).read(_PATH)


def test_a_link_inside_the_target_is_read(tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path)
    (site / "vllm" / "alias.py").symlink_to(site / _PATH)

    assert resolve(str(site)).read("vllm/alias.py") == fake_vllm.files()[_PATH]


def test_a_dangling_link_is_not_a_missing_file(tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path)
    (site / "vllm" / "gone.py").symlink_to(site / "vllm" / "nowhere.py")

    with pytest.raises(TargetError, match="where nothing is"):
        resolve(str(site)).read("vllm/gone.py")


def test_only_plain_files_of_a_sane_size_are_read(tmp_path: Path) -> None:
    read = file_reader(fake_vllm.tree(tmp_path), VLLM)
    os.mkfifo(tmp_path / "vllm" / "pipe.py")
    with open(tmp_path / "vllm" / "huge.py", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)

    with pytest.raises(TargetError, match="found a pipe"):
        read("vllm/pipe.py")
    with pytest.raises(TargetError, match="found a folder"):
        read("vllm/v1")
    with pytest.raises(TargetError, match=f"found {MAX_FILE_BYTES + 1}"):
        read("vllm/huge.py")


@pytest.mark.parametrize("path", ["vllm/_version.py", "vllm-0.26.0.dist-info/RECORD", _PATH])
def test_a_file_that_this_user_may_not_read_is_named(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = fake_vllm.site_packages(tmp_path)
    original = os.open

    def refuse(name: str, *arguments: int, dir_fd: int | None = None) -> int:
        if name in (str(site / path), os.path.basename(path)):
            raise PermissionError(13, "Permission denied", name)
        return original(name, *arguments, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)  # root may read everything: chmod would not test it

    with pytest.raises(TargetError, match="Permission denied; run overlay as a user") as caught:
        resolve(str(site)).read(_PATH)

    assert str(site / path) in str(caught.value)


@given(
    st.lists(
        st.sampled_from(["vllm", "v1", "..", ".", "", "a.py", "a\\b", "x\0y"]), max_size=5
    ).map("/".join)
)
def test_a_path_is_read_only_where_it_plainly_lies_inside_vllm(path: str) -> None:
    plain = (
        path.startswith("vllm/")
        and path == os.path.normpath(path)
        and "\\" not in path
        and "\0" not in path
    )
    try:
        check_path(path, VLLM)
    except TargetError:
        assert not plain
    else:
        assert plain


def test_an_installation_without_a_version_file_contradicts_nothing(tmp_path: Path) -> None:
    """Its metadata alone say which release it is."""
    site = fake_vllm.site_packages(tmp_path, "0.32.0", extra={"vllm/_version.py": None})
    assert not (site / "vllm/_version.py").exists()

    target = resolve(str(site))

    assert (target.vllm, target.warnings) == ("0.32.0", ())


# The files of a folder without RECORD, for the hint where upstream moved one


def test_listing_a_folder_follows_no_link_and_opens_nothing(tmp_path: Path) -> None:
    tree = fake_vllm.tree(tmp_path / "tree")
    expected = [path for path in fake_vllm.files() if path.endswith(".py")]
    (tmp_path / "else/deep").mkdir(parents=True)
    (tmp_path / "else/outside.py").write_text("")
    (tree / "vllm/linked").symlink_to(tmp_path / "else")
    (tree / "vllm/linked.py").symlink_to(tmp_path / "else/outside.py")
    (tree / "vllm/round").symlink_to(tree / "vllm")
    os.mkfifo(tree / "vllm/pipe.py")
    (tree / "vllm/folder.py").mkdir()
    closed = tree / "vllm/closed"
    closed.mkdir()
    closed.chmod(0)
    assert sorted(resolve(str(tree)).paths()) == sorted(expected)
    closed.chmod(0o700)


def test_a_folder_without_end_is_listed_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = fake_vllm.tree(tmp_path / "tree")
    for number in range(40):
        (tree / f"vllm/many/d{number}").mkdir(parents=True)
        (tree / f"vllm/many/d{number}/a.py").write_text("")
    monkeypatch.setattr("overlay.targets.installations.MOST_ENTRIES", 30)
    looked = []
    scandir = os.scandir
    monkeypatch.setattr("os.scandir", lambda place: looked.append(place) or scandir(place))
    assert len(modules_below(tree, VLLM)) < 30
    assert len(looked) <= 31
