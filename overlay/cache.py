"""Folders of the user's cache: private, bounded, and written whole file by whole file.

``cache_folder`` says where everything that the overlay caches lies; ``PrivateFolder`` is one folder
of it.  What others could have written is not believed: the rule is that of ``overlay.untrusted``.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from overlay.untrusted import MAX_BYTES, NotPrivate, read_regular, require_private

#: Seconds after which an unfinished file was left by a process that was killed.
ABANDONED_AFTER = 3600.0

_UNFINISHED = ".new"


def cache_folder() -> Path:
    """The folder of everything that the overlay caches: ``OVERLAY_CACHE``, or the user's cache."""
    if folder := os.environ.get("OVERLAY_CACHE"):
        return Path(os.path.abspath(os.path.expanduser(folder)))
    return user_cache_folder()


def user_cache_folder() -> Path:
    """The user's cache of the overlay, wherever ``OVERLAY_CACHE`` may lead.

    Used where all processes of a user must agree on the path, such as locks.  A user without a home
    folder has a place that nothing can be written to, as a home that is read-only.
    """
    import platformdirs

    try:
        return Path(platformdirs.user_cache_path("vllm-overlay", appauthor=False))
    except RuntimeError:
        return Path(os.devnull, "vllm-overlay")


#: What ``flock`` answers where a file system has no such locks.
WITHOUT_LOCKS = frozenset(
    (
        *(errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS),
        *(errno.EOPNOTSUPP, errno.ENOTSUP),
    )
)


def flocked(handle: int, mode: int, timeout: float) -> bool:
    """Lock an open file or folder; whether it was free within ``timeout`` seconds.

    :param mode: ``fcntl.LOCK_EX`` or ``fcntl.LOCK_SH``.
    :raises OSError: if it cannot be locked; of ``WITHOUT_LOCKS`` where its file system has none.
    """
    deadline = time.monotonic() + timeout
    pause = 0.002
    while True:
        try:
            fcntl.flock(handle, mode | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EINTR):
                raise
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


def lock_file(place: str) -> Path:
    """The file in the user's cache that is locked for a place whose file system has no locks.

    Not below ``OVERLAY_CACHE``: a process with another cache has to meet the same lock.
    """
    name = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()
    return user_cache_folder() / "locks" / f"{name[:32]}.lock"


def open_lock(path: Path, timeout: float) -> int | None:
    """Lock a file of the cache, which is made where it is missing.

    It does not admit several readers, and separates only processes of this user on this machine.

    :returns: its descriptor, to be given to ``release``; ``None`` if it was not free in that time.
    :raises OSError: if it cannot be made or locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    locked = False
    try:
        locked = flocked(handle, fcntl.LOCK_EX, timeout)
    finally:
        if not locked:
            os.close(handle)
    return handle if locked else None


def release(handle: int) -> None:
    """Give a lock back, also where a child that was forked meanwhile shares the descriptor."""
    try:
        fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


class PrivateFolder:
    """A folder of this user (or of root) that nobody else can write to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = PrivateFolder(Path(place) / "new")
    ...     folder.write("answer", b"42")
    ...     folder.read("answer"), folder.read("question")
    (b'42', None)

    :param path: where it lies; the first write makes it, and the folders above that are missing.
    :param mode: of the folders that are made; files get it without the right to execute.
    :param allow_group: as for ``overlay.untrusted.problem_of_owner``.
    """

    def __init__(self, path: Path, *, mode: int = 0o700, allow_group: bool = False) -> None:
        self.path = path
        self._mode = mode
        self._allow_group = allow_group
        self._private = False

    def require(self) -> None:
        """Refuse a folder that somebody else could have written; asked once, then remembered.

        :raises FileNotFoundError: if it is not there.
        :raises NotPrivate: saying whose it is, and what to do.
        """
        if not self._private:
            os.lstat(self.path)
            require_private(self.path, allow_group=self._allow_group)
            self._private = True

    def make(self) -> None:
        """Make the folder where it is missing.

        :raises OSError: if it cannot be made; :raises NotPrivate: if somebody else could write it.
        """
        if not self._private:
            make_folders(self.path, self._mode)
            self.require()

    def read(self, name: str, limit: int = MAX_BYTES) -> bytes | None:
        """The bytes of a file, or ``None`` where there is none.

        :param limit: the most bytes that are read.
        :raises NotPrivate: if somebody else could have written the folder.
        :raises OSError: if it cannot be read; ``UnfitFile`` if it is not a plain file that small.
        """
        try:
            self.require()
        except FileNotFoundError:
            return None
        return read_regular(self.path / name, limit, follow=False)

    def open(self, name: str) -> int:
        """A descriptor for reading a file that this user or root wrote.

        :raises NotPrivate: if somebody else could have written the folder or the file, or it is
            not a plain file.
        :raises OSError: if it is not there, or cannot be read.
        """
        self.require()
        path = self.path / name
        os.lstat(path)
        require_private(path, allow_group=True)
        # Without O_NONBLOCK, opening a pipe waits for somebody to write into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise NotPrivate(f"{path}: expected a plain file; remove what lies there")
        return descriptor

    def write(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Write a file, whole or not at all; see ``writing``."""
        with self.writing(name, durable=durable) as file:
            file.write(data)

    @contextmanager
    def writing(self, name: str, *, durable: bool = False) -> Iterator[IO[bytes]]:
        """Write a file, whole or not at all: it takes its name when the block ends.

        :param durable: whether the bytes have to survive a loss of power.
        :yields: the open file.
        :raises OSError: if it cannot be written.
        :raises NotPrivate: if somebody else could write to the folder.
        """
        import tempfile

        self.make()
        descriptor, unfinished = tempfile.mkstemp(
            prefix=f".{name}.", suffix=_UNFINISHED, dir=self.path
        )
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), self._mode & 0o666)
                if durable:
                    os.fsync(file.fileno())
            os.replace(unfinished, self.path / name)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished)
            raise

    @contextmanager
    def lock(self, name: str, seconds: float) -> Iterator[None]:
        """Hold the lock ``name``, which lies in the folder only while somebody holds it.

        Keeps processes from doing the same work twice.  It is not there to keep files whole:
        somebody who waited for a lock file that was removed meanwhile works beside the next one.

        :param seconds: how long to wait for another process.
        :raises filelock.Timeout: if another process holds it for longer.
        :raises OSError, NotImplementedError: if nothing can be locked there.
        """
        import filelock

        self.make()
        path = self.path / f"{name}.lock"
        with filelock.FileLock(path, timeout=seconds):
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def entries(self) -> list[str]:
        """The names of the finished files and folders in it; none where it is not there."""
        try:
            with os.scandir(self.path) as entries:
                return sorted(entry.name for entry in entries if not entry.name.startswith("."))
        except FileNotFoundError:
            return []

    def make_room(self, most: int, most_bytes: int | None = None, keep: str | None = None) -> None:
        """Remove the entries that were changed longest ago, down to the limits.

        :param most: how many entries may stay; :param most_bytes: how large all may be together.
        :param keep: an entry that stays even if it is over a limit by itself.
        """
        stamped = []
        for name in self.entries():
            with suppress(FileNotFoundError):  # another process makes room, too
                changed = os.lstat(self.path / name).st_mtime
                stamped.append((name == keep, changed, name))
        size = 0
        for number, (stays, _, name) in enumerate(sorted(stamped, reverse=True), 1):
            if most_bytes is not None:
                size += size_of(self.path / name)
            if not stays and (number > most or (most_bytes is not None and size > most_bytes)):
                remove(self.path / name)

    def sweep(self) -> None:
        """Remove the unfinished files of processes that were killed."""
        with suppress(OSError):
            for path in self.path.glob(f".*{_UNFINISHED}"):
                with suppress(OSError):
                    if time.time() - path.lstat().st_mtime > ABANDONED_AFTER:
                        path.unlink()


def size_of(place: Path) -> int:
    """The bytes of a file, or of all files in a folder, as far as they are there."""
    total = 0
    with suppress(FileNotFoundError):
        status = os.lstat(place)
        if not stat.S_ISDIR(status.st_mode):
            return status.st_size
    for folder, _, names in os.walk(place):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def make_folders(folder: Path, mode: int) -> None:
    """Make a folder and those above it that are missing, all with the same mode.

    ``mkdir(parents=True)`` would give the folders above the mode that the umask leaves.
    """
    if not folder.is_dir():
        if folder.parent != folder:
            make_folders(folder.parent, mode)
        with suppress(FileExistsError):
            folder.mkdir(mode=mode)
            folder.chmod(folder.lstat().st_mode | stat.S_IRWXU)  # whatever the umask


def remove(place: Path) -> None:
    """Remove a file, a link or a folder with all that it holds, as far as the system lets."""
    import shutil

    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        with suppress(OSError):
            place.unlink()
