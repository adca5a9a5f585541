"""One writer or many readers, by ``flock`` on the package's folder, or by a lock file elsewhere."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from overlay.errors import TransactionError
from overlay.on_disk import journal
from overlay.package import VLLM, package_named

Holder = Callable[..., AbstractContextManager[None]]

#: What a file system without such locks answers.
UNSUPPORTED = ("EBADF", "EINVAL", "ENOLCK", "ENOSYS", "EOPNOTSUPP", "ENOTSUP")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("vllm", "vllm_ascend"):
        (tmp_path / "root" / name).mkdir(parents=True)
    return tmp_path / "root"


def failing(number: int, times: int = 1000) -> Callable[[int, int], None]:
    """``flock`` on a folder fails that many times; on a file it is the real one."""
    real, left = fcntl.flock, [times]

    def flock(handle: int, mode: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}") and left[0] and mode != fcntl.LOCK_UN:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        real(handle, mode)

    return flock


def test_only_readers_share(root: Path) -> None:
    both: tuple[Holder, Holder] = (journal.shared, journal.exclusive)
    for first in both:
        for second in both:
            with first(root):
                if first is second is journal.shared:
                    with second(root, timeout=0):
                        pass
                    continue
                with pytest.raises(TransactionError, match="waited 0 s"), second(root, timeout=0):
                    pass
            with second(root, timeout=0):
                pass


def test_who_holds_it_is_named(root: Path) -> None:
    with (
        journal.exclusive(root),
        pytest.raises(TransactionError) as caught,
        journal.shared(root, timeout=0),
    ):
        pass
    assert f"(process {os.getpid()}: " in str(caught.value)
    assert "Nothing was changed" in str(caught.value)


def test_it_is_waited_for_as_long_as_was_said(root: Path) -> None:
    with journal.exclusive(root):
        begin = time.monotonic()
        with pytest.raises(TransactionError), journal.exclusive(root, timeout=0.05):
            pass
        assert time.monotonic() - begin >= 0.05


def test_a_copy_of_the_descriptor_does_not_keep_the_lock(root: Path) -> None:
    """A child that was forked meanwhile has one."""
    with journal.exclusive(root):
        (handle,) = (
            int(name)
            for name in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{name}")
            and os.path.samefile(f"/proc/self/fd/{name}", root / "vllm")
        )
        copy = os.dup(handle)
    with journal.exclusive(root, timeout=0):
        pass
    os.close(copy)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_lock_file_serves_where_folders_cannot_be_locked(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(getattr(errno, name)))
    with (
        journal.shared(root),
        pytest.raises(TransactionError, match=r"which holds .*\.lock: waited"),
        journal.shared(root, timeout=0),  # such a file admits one
    ):
        pass
    with journal.exclusive(root, timeout=0):
        pass


def test_lock_files_are_told_apart_by_package_and_not_by_the_way_to_a_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    link = root.parent / "link"
    link.symlink_to(root)
    ascend = package_named("vllm_ascend")
    with journal.exclusive(root), journal.exclusive(root, timeout=0, package=ascend):
        for package in (VLLM, ascend):
            with (
                pytest.raises(TransactionError),
                journal.exclusive(link, timeout=0, package=package),
            ):
                pass


def test_a_lock_file_that_cannot_be_made_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    (root.parent / "cache").write_text("a file in the place of the folder")
    with pytest.raises(TransactionError, match="set XDG_CACHE_HOME"), journal.exclusive(root):
        pass


def test_an_interrupted_call_is_made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.EINTR, times=2))
    with journal.exclusive(root, timeout=5):
        monkeypatch.undo()
        with pytest.raises(TransactionError), journal.shared(root, timeout=0):
            pass


def test_any_other_failure_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))
    with (
        pytest.raises(TransactionError, match="cannot be locked"),
        journal.exclusive(root, timeout=0),
    ):
        pass


def test_a_package_that_is_not_there_is_told(root: Path) -> None:
    (root / "vllm").rmdir()
    told = "expected the folder of an installed vLLM"
    with pytest.raises(TransactionError, match=told), journal.exclusive(root):
        pass


def test_the_pauses_grow_to_a_tenth_of_a_second_and_end_at_the_deadline(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] = 1.0 if len(pauses) == 12 else now[0]

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(journal, "_holders", lambda inode: [])
    with journal.exclusive(root), pytest.raises(TransactionError) as caught:
        journal.exclusive(root, timeout=1.0).__enter__()
    assert pauses == pytest.approx([min(0.002 * 1.5**n, 0.1) for n in range(12)])
    assert str(caught.value) == (
        f"{root / 'vllm'} is in use by another overlay command: waited 1 s. Nothing was changed; "
        "run the command again when that one is done"
    )


def test_only_flocks_of_that_folder_are_named_with_what_the_kernel_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "Path", lambda place: tmp_path / place.lstrip("/"))
    assert journal._holders(77) == []
    (tmp_path / "proc/33").mkdir(parents=True)
    (tmp_path / "proc/33/cmdline").write_bytes(b"overlay\0apply\0\xff" + b"x" * 200)
    (tmp_path / "proc/locks").write_text(
        "1: POSIX  ADVISORY  WRITE 11 00:2d:77 0 EOF\n"
        "a line of another kernel\n"
        "2: FLOCK  ADVISORY  WRITE 22 00:2d:78 0 EOF\n"
        "3: FLOCK  ADVISORY  WRITE 33 00:2d:77 0 EOF\n"
        "4: FLOCK  ADVISORY  READ 44 00:2d:77 0 EOF\n"
    )
    shown = "overlay apply \N{REPLACEMENT CHARACTER}" + "x" * 105
    assert journal._holders(77) == [f"33: {shown}", "44"]
