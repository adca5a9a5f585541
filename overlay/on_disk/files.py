"""The system calls that change a target; nothing else in the overlay writes into one.

They are called as ``os.<name>``, so that the fault tests can fail or kill at each of them.  All of
them raise ``OSError``: what the target's state is after one, only the transaction knows."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

FILE_MODE = 0o644

FOLDER_MODE = 0o755


@dataclass(frozen=True)
class Owner:
    """A user and a group, by number."""

    user: int
    group: int


@dataclass(frozen=True)
class Form:
    """What a file has beside its bytes: its permission bits and, where we may set it, its owner."""

    mode: int = FILE_MODE
    owner: Owner | None = None


def form(path: Path) -> Form | None:
    """The form of a file, or ``None`` where there is none."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Form(stat.S_IMODE(status.st_mode), _owner(status))


def inherited(folder: Path) -> Form:
    """The form of a file that is added below ``folder``: only root may give it another's owner."""
    while not folder.exists():
        folder = folder.parent
    return Form(FILE_MODE, _owner(os.stat(folder)))


def create(path: Path, data: bytes, wanted: Form) -> None:
    """Write a new file and bring it to the disk.

    The mode and the owner are set before the bytes are written: a file with the right hash is
    right in everything.  What already has this name is a leftover of ours, and makes room.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        file = os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)
        file = os.open(path, flags, 0o600)
    try:
        if wanted.owner is not None and wanted.owner != _owner(os.fstat(file)):
            os.fchown(file, wanted.owner.user, wanted.owner.group)
        os.fchmod(file, wanted.mode)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    except OSError as error:
        # Calls on an open file do not know its name.
        error.filename = error.filename or str(path)
        raise
    finally:
        os.close(file)


def keep(source: Path, kept: Path, data: bytes, wanted: Form) -> None:
    """Make ``kept`` a second name of ``source``; a copy where hard links are not to be had.

    A second name costs no space, and gives back the very file that was there.
    """
    try:
        os.link(source, kept, follow_symlinks=False)
    except FileExistsError:
        os.unlink(kept)
        os.link(source, kept, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        create(kept, data, wanted)


_NO_LINKS = {
    errno.EPERM,
    errno.EACCES,
    errno.EMLINK,
    errno.EXDEV,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
}


def replace(source: Path, destination: Path) -> None:
    """Put ``source`` in the place of ``destination`` at one stroke."""
    os.replace(source, destination)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return


def make_folder(path: Path, owner: Owner | None = None) -> None:
    """Make one folder, readable for everybody whatever the umask, if it is not there."""
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir() or path.is_symlink():
            raise
    status = os.stat(path)
    if stat.S_IMODE(status.st_mode) & FOLDER_MODE != FOLDER_MODE:
        os.chmod(path, FOLDER_MODE)
    if owner is not None and owner != _owner(status):
        os.chown(path, owner.user, owner.group)


def remove_folder(path: Path) -> bool:
    """Remove a folder if it is there and empty; whether it is gone now."""
    try:
        os.rmdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def sync_folder(path: Path) -> None:
    """Bring a folder's names to the disk, if the folder is there."""
    try:
        folder = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network file systems do not know how to sync a folder.
        if error.errno != errno.EINVAL:
            error.filename = error.filename or str(path)
            raise
    finally:
        os.close(folder)


def remove_bytecode(source: Path, coming: Path | None) -> None:
    """Remove what Python compiled from ``source``, and its ``__pycache__`` if that leaves it empty.

    Bytecode that cannot be removed is left where Python itself will not believe it.

    :param coming: the file that takes the place of ``source``; ``None`` for no file.
    :raises OSError: if it cannot be removed and would be run, or will have no source any more.
    """
    cache = source.parent / "__pycache__"
    try:
        names = os.listdir(cache)
    except (FileNotFoundError, NotADirectoryError):
        return
    stale = [n for n in names if n.startswith(source.stem + ".") and n.endswith(".pyc")]
    for name in stale:
        try:
            remove(cache / name)
        except OSError:
            if coming is None or _believed(cache / name, coming):
                raise
    if stale and len(stale) == len(names):
        remove_folder(cache)


def _believed(bytecode: Path, source: Path) -> bool:
    """Whether Python would run ``bytecode`` for ``source``."""
    with open(bytecode, "rb") as file:
        header = file.read(16)
    status = os.stat(source)
    flags = int.from_bytes(header[4:8], "little")
    if flags & 1:
        # By hash: with the second bit Python compares the source's hash before it believes.
        return not flags & 2
    stamp = int.from_bytes(header[8:12], "little"), int.from_bytes(header[12:16], "little")
    return stamp == (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)


def _owner(status: os.stat_result) -> Owner | None:
    if os.geteuid() != 0:
        return None
    return Owner(status.st_uid, status.st_gid)
