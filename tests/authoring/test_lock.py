"""Commands that write into one folder of patches at once: each that ends well is whole."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from overlay._features.sources import SWITCH, entries
from overlay.authoring import disk
from overlay.authoring.disk import NewFolder, replace_features
from overlay.errors import OverlayError, UsageError
from tests.support.faults import end_of_child, start_child

#: What a file system without such locks answers.
UNSUPPORTED = ("EBADF", "EINVAL", "ENOLCK", "ENOSYS", "EOPNOTSUPP", "ENOTSUP")

#: A feature large enough for others to come between.
FILES: dict[str, bytes | None] = {f"files/vllm/m{n}.py": b"x = 1\n" for n in range(40)}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refusing(number: int, *, folders_only: bool = True) -> Callable[[int, int], None]:
    """``flock`` of a system that has no locks for folders, or none at all."""
    real = fcntl.flock

    def flock(handle: int, mode: int) -> None:
        if not folders_only or os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(number, os.strerror(number))
        real(handle, mode)

    return flock


def at_once(patches: Path, names: list[str]) -> dict[str, int]:
    """Write a feature of each name, in processes of their own; their exit statuses."""

    def work(name: str) -> None:
        try:
            replace_features(patches, [NewFolder(name, {"feature.toml": b"x", **FILES})])
        except OverlayError:
            os._exit(2)

    # Mypy types no lambda with a default.
    children = {n: start_child(lambda n=n: work(n)) for n in names}  # type: ignore[misc]
    return {name: end_of_child(child) for name, child in children.items()}


@pytest.mark.parametrize("number", [None, *UNSUPPORTED])
def test_what_eight_write_at_once_is_whole_where_folders_have_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str | None
) -> None:
    if number is not None:
        monkeypatch.setattr(fcntl, "flock", refusing(getattr(errno, number)))
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    patches, names = tmp_path / "ours", [f"f{n}" for n in range(8)]
    assert at_once(patches, names) == dict.fromkeys(names, 0)
    for name in names:
        assert len(disk.files_below(patches / name)) == 1 + len(FILES)
    assert sorted(os.listdir(patches)) == names


def test_where_nothing_has_locks_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", refusing(errno.ENOLCK, folders_only=False))
    patches, names = tmp_path / "ours", ["f1", "f2", "f3"]
    assert at_once(patches, names) == dict.fromkeys(names, 2)
    assert list(patches.iterdir()) == []
    with pytest.raises(OverlayError, match=r"cannot be locked either .*set XDG_CACHE_HOME"):
        replace_features(patches, [NewFolder("f1", {})])


def test_any_other_answer_of_the_system_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", refusing(errno.EIO))
    with pytest.raises(OverlayError, match=r"cannot be locked \(Input/output error\)"):
        replace_features(tmp_path / "ours", [NewFolder("f1", {})])


@pytest.mark.parametrize("number", [None, "ENOLCK"])
def test_who_comes_second_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str | None
) -> None:
    monkeypatch.setattr(disk, "SECONDS", 0.01)
    if number is not None:
        monkeypatch.setattr(fcntl, "flock", refusing(getattr(errno, number)))
    with (
        disk.only_writer(tmp_path),
        pytest.raises(OverlayError, match="is being written by another"),
        disk.only_writer(tmp_path),
    ):
        pass
    with disk.only_writer(tmp_path):
        pass


def test_a_file_is_not_a_folder_of_patches(tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("")
    with pytest.raises(UsageError, match="found a file"), disk.only_writer(tmp_path / "ours"):
        pass


@pytest.mark.parametrize(
    "parts",
    [
        *([], ["new"], ["gone"], ["new", "gone"], ["new", "old"], ["new/f1"]),
        *(["new/.git", "gone", "old"], ["new", "gone/.git", "old"], ["new/A b", "gone", "old"]),
    ],
    ids=str,
)
def test_what_is_no_switch_is_kept_and_stops_nothing(tmp_path: Path, parts: list[str]) -> None:
    """By hand, of an older overlay without locks, or of a stranger's checkout."""
    patches = tmp_path / "ours"
    replace_features(patches, [NewFolder("f1", {"feature.toml": b"1"})])
    (patches / ".git").mkdir()
    (patches / ".git/config").write_text("ours")
    (patches / SWITCH).mkdir()
    for part in parts:
        (patches / SWITCH / part).mkdir(parents=True)
    assert "f1" in entries(patches)
    assert entries(patches)["f1"] == patches / "f1"
    assert not disk.finish_switch(patches)
    for name in ("f2", "f3"):
        replace_features(patches, [NewFolder(name, {"feature.toml": b"2"})])
    (aside,) = patches.glob(".overlay-put-aside-*")
    assert all((aside / part).is_dir() for part in parts)
    assert (patches / ".git/config").read_text() == "ours"
    assert {"f1", "f2", "f3"} <= entries(patches).keys()


def test_a_link_in_the_place_of_a_switch_moves_nothing_from_where_it_leads(tmp_path: Path) -> None:
    patches, theirs = tmp_path / "ours", tmp_path / "theirs"
    for part in ("new/f1", "gone", "old"):
        (theirs / part).mkdir(parents=True)
    patches.mkdir()
    (patches / SWITCH).symlink_to(theirs)
    replace_features(patches, [NewFolder("f2", {"feature.toml": b"2"})])
    assert (theirs / "new/f1").is_dir()
    assert list(entries(patches)) == [next(patches.glob(".overlay-put-aside-*")).name, "f2"]
