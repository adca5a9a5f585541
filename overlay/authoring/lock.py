"""A lock that admits one overlay command at a time to a folder that it writes into.

The lock is ``flock`` on the folder itself.  On a file system without such locks it is a file in the
user's cache, as for a target (``overlay.on_disk.lock``).  Where that has no locks either, nothing
is written: two commands that tidy and switch at once leave half a feature.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overlay.cache import WITHOUT_LOCKS, flocked, lock_file, open_lock, release
from overlay.errors import OverlayError, UsageError

#: Seconds that a command waits for another one that writes into the same folder.
SECONDS = 20.0


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a folder as the only overlay command that writes into it.

    :raises OverlayError: if another command holds it for too long, or it cannot be locked at all.
    :raises UsageError: if it is not a folder.
    """
    handle = _locked(folder)
    try:
        yield
    finally:
        release(handle)


def _locked(folder: Path) -> int:
    """The descriptor that holds the lock."""
    try:
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise UsageError(f"{folder}: expected a folder of patches, found a file") from error
    is_locked = False
    try:
        is_locked = flocked(handle, fcntl.LOCK_EX, SECONDS)
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise OverlayError(
                f"{folder} cannot be locked ({error.strerror}). Nothing was changed"
            ) from error
        return _beside(folder)
    finally:
        if not is_locked:
            os.close(handle)
    if not is_locked:
        raise _busy(folder, "")
    return handle


def _beside(folder: Path) -> int:
    """The same for a folder on a file system without locks."""
    path = lock_file(os.path.realpath(folder))
    try:
        handle = open_lock(path, SECONDS)
    except OSError as error:
        raise OverlayError(
            f"{folder} lies on a file system without locks, and the lock file {path} cannot be "
            f"locked either ({error.strerror}). Nothing was changed; set XDG_CACHE_HOME to a "
            "folder on a local disk"
        ) from error
    if handle is None:
        raise _busy(folder, f", which holds {path}")
    return handle


def _busy(folder: Path, by: str) -> OverlayError:
    return OverlayError(
        f"{folder} is being written by another overlay command{by}: waited {SECONDS:g} s. Nothing "
        "was changed; run the command again when that one is done"
    )
