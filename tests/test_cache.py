"""The folders of the cache: whole files, nobody else's, bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import filelock
import pytest

from overlay.cache import ABANDONED_AFTER, PrivateFolder, cache_folder, user_cache_folder
from overlay.untrusted import NotPrivate, UnfitFile


@pytest.fixture
def folder(tmp_path: Path) -> PrivateFolder:
    return PrivateFolder(tmp_path / "a" / "b")


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_what_is_written_is_read_back(folder: PrivateFolder) -> None:
    assert folder.read("x") is None
    folder.write("x", b"1")
    folder.write("x", b"2", durable=True)
    assert folder.read("x") == b"2"
    assert folder.entries() == ["x"]


@pytest.mark.usefixtures("open_umask")
def test_only_the_user_can_write_to_what_it_makes(folder: PrivateFolder, tmp_path: Path) -> None:
    folder.write("x", b"1")
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "a", folder.path)]
    assert modes == [0o700, 0o700]
    assert (folder.path / "x").stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("open_umask")
def test_a_folder_for_all_readers(tmp_path: Path) -> None:
    shared = PrivateFolder(tmp_path / "shared", mode=0o755)
    shared.write("x", b"1")
    assert shared.path.stat().st_mode & 0o777 == 0o755
    assert (shared.path / "x").stat().st_mode & 0o777 == 0o644


def test_its_owner_can_use_it_whatever_the_umask(folder: PrivateFolder, tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        folder.write("x", b"1")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", folder.path)] == [0o700] * 2


def test_a_block_that_fails_leaves_the_file_as_it_was(folder: PrivateFolder) -> None:
    folder.write("x", b"old")

    def cut_off() -> None:
        with folder.writing("x") as file:
            file.write(b"ne")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        cut_off()
    assert folder.read("x") == b"old"
    assert [path.name for path in folder.path.iterdir()] == ["x"]


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o720])
def test_a_folder_that_others_can_write_to_is_refused(folder: PrivateFolder, mode: int) -> None:
    folder.write("x", b"1")
    folder.path.chmod(mode)
    again = PrivateFolder(folder.path)
    for action in (lambda: again.read("x"), lambda: again.open("x"), lambda: again.write("x", b"")):
        with pytest.raises(NotPrivate, match="can be written by others"):
            action()


def test_a_link_in_the_place_of_the_folder_is_refused(folder: PrivateFolder) -> None:
    folder.write("x", b"1")
    link = folder.path.with_name("link")
    link.symlink_to(folder.path)
    with pytest.raises(NotPrivate, match="symbolic link"):
        PrivateFolder(link).read("x")


def test_what_is_no_plain_file_is_refused_without_waiting(folder: PrivateFolder) -> None:
    folder.make()
    os.mkfifo(folder.path / "pipe")
    (folder.path / "zero").symlink_to("/dev/zero")
    (folder.path / "folder").mkdir()
    for name in ("pipe", "zero", "folder"):
        with pytest.raises(UnfitFile):
            folder.read(name)
        with pytest.raises(NotPrivate):
            folder.open(name)


def test_a_file_that_is_too_large_is_refused(folder: PrivateFolder) -> None:
    folder.write("x", b"123")
    with pytest.raises(UnfitFile, match="at most 2 bytes"):
        folder.read("x", limit=2)


def test_the_oldest_go_first_and_one_is_kept(folder: PrivateFolder) -> None:
    for number in range(6):
        folder.write(str(number), bytes(10))
        os.utime(folder.path / str(number), (number, number))
    folder.make_room(4)
    assert folder.entries() == ["2", "3", "4", "5"]
    folder.make_room(4, most_bytes=20, keep="2")
    assert folder.entries() == ["2", "5"]


def test_folders_are_entries_too(folder: PrivateFolder) -> None:
    for number in range(3):
        inner = PrivateFolder(folder.path / str(number))
        inner.write("x", bytes(10))
        os.utime(inner.path, (number, number))
    folder.make_room(3, most_bytes=20)
    assert folder.entries() == ["1", "2"]


def test_only_what_was_abandoned_is_swept(folder: PrivateFolder) -> None:
    folder.write("x", b"1")
    old, young = folder.path / ".x.1.new", folder.path / ".x.2.new"
    for path in (old, young):
        path.write_bytes(b"")
    long_ago = time.time() - 2 * ABANDONED_AFTER
    os.utime(old, (long_ago, long_ago))
    folder.sweep()
    assert not old.exists()
    assert young.exists()
    assert folder.read("x") == b"1"


def test_a_lock_is_there_only_while_it_is_held(folder: PrivateFolder) -> None:
    with folder.lock("x", 1):
        assert (folder.path / "x.lock").exists()
        with pytest.raises(filelock.Timeout), folder.lock("x", 0.01):
            raise AssertionError("held twice")
    assert folder.entries() == []


def test_overlay_cache_moves_the_cache_and_an_empty_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLAY_CACHE", "")
    assert cache_folder() == user_cache_folder()
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here" != user_cache_folder()
