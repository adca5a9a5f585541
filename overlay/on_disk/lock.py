"""Locks that admit one writer, or many readers, to a target.

The lock is ``flock`` on the folder of the package (``vllm/``) itself: nothing is left behind, a
read-only target can be locked, and the lock dies with its process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overlay.cache import WITHOUT_LOCKS, flocked, lock_file, open_lock, release
from overlay.errors import TransactionError
from overlay.package import VLLM, Package

#: Seconds that a command waits for others.
TIMEOUT = 60.0


@contextmanager
def exclusive(root: Path, timeout: float = TIMEOUT, package: Package = VLLM) -> Iterator[None]:
    """Hold a package in ``root`` as its only user.

    :param timeout: seconds to wait.
    :raises TransactionError: if the lock is not free in that time, or cannot be taken at all.
    """
    with _locked(root, package, writer=True, timeout=timeout):
        yield


@contextmanager
def shared(root: Path, timeout: float = TIMEOUT, package: Package = VLLM) -> Iterator[None]:
    """Hold a package in ``root`` beside other readers.

    :param timeout: seconds to wait.
    :raises TransactionError: if a writer holds it for longer than that.
    """
    with _locked(root, package, writer=False, timeout=timeout):
        yield


@contextmanager
def _locked(root: Path, package: Package, *, writer: bool, timeout: float) -> Iterator[None]:
    import fcntl

    folder = root / package.name
    try:
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError as error:
        raise TransactionError(
            f"{folder} cannot be opened to lock it ({error.strerror}): expected the folder of an "
            f"installed {package.title} that you may read. Nothing was changed"
        ) from error
    try:
        mode = fcntl.LOCK_EX if writer else fcntl.LOCK_SH
        if not _acquire(handle, mode, folder, timeout):
            with _beside(root, package, timeout):
                yield
            return
        try:
            yield
        finally:
            # Unlock explicitly: a child forked meanwhile shares the descriptor and would keep it.
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _acquire(handle: int, mode: int, folder: Path, timeout: float) -> bool:
    """Lock ``handle``; ``False`` where the file system has no such locks."""
    try:
        free = flocked(handle, mode, timeout)
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            return False
        raise TransactionError(
            f"{folder} cannot be locked ({error.strerror}). Nothing was changed"
        ) from error
    if not free:
        raise _busy(folder, os.fstat(handle).st_ino, timeout)
    return True


@contextmanager
def _beside(root: Path, package: Package, timeout: float) -> Iterator[None]:
    """Hold a lock file in the user's cache, for file systems that cannot lock a folder."""
    folder = root / package.name
    # An overlay that knew no other package named vLLM's lock by the root alone.
    path = lock_file(os.path.realpath(root if package == VLLM else folder))
    try:
        descriptor = open_lock(path, timeout)
    except OSError as error:
        raise TransactionError(
            f"{folder} lies on a file system without locks, and the lock file {path} "
            f"cannot be made either ({error.strerror}). Nothing was changed; set XDG_CACHE_HOME "
            "to a folder that you may write"
        ) from error
    if descriptor is None:
        raise TransactionError(
            f"{folder} is in use by another overlay command, which holds {path}: waited "
            f"{timeout:g} s. Nothing was changed; run the command again when that one is done"
        )
    try:
        yield
    finally:
        release(descriptor)


def _busy(folder: Path, inode: int, timeout: float) -> TransactionError:
    holders = _holders(inode)
    by = f" (process {', '.join(holders)})" if holders else ""
    return TransactionError(
        f"{folder} is in use by another overlay command{by}: waited {timeout:g} s. "
        "Nothing was changed; run the command again when that one is done"
    )


def _holders(inode: int) -> list[str]:
    """The processes that hold a flock on ``inode``, as far as the kernel lists them."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    holders = []
    for line in lines:
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK" or not fields[5].endswith(f":{inode}"):
            continue
        try:
            command = Path(f"/proc/{fields[4]}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            command = b""
        words = command.decode("utf-8", "replace").strip()[:120]
        holders.append(f"{fields[4]}: {words}" if words else fields[4])
    return holders
