"""System calls that change a target; no other module of the overlay writes into one.

Every call names a file by the target's ``root`` and a ``path`` below it, and works in the opened
folder that holds the file, reached through no symbolic link (``untrusted.parent_below``): whatever
links are below a target, and whoever exchanges folders for links meanwhile, nothing outside it can
be changed from here.  The calls are written ``os.<name>``, so that the fault tests can fail or kill
at each of them.  All functions raise ``OSError`` with the full path; which state an error leaves
the target in, only the transaction knows."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from overlay.untrusted import UnfitFile, parent_below, read_below, read_regular

FILE_MODE = 0o644

FOLDER_MODE = 0o755

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NOFOLLOW


class Owner(NamedTuple):
    """A user and a group, by number."""

    user: int
    group: int


class Form(NamedTuple):
    """Permission bits of a file and, for root, who may set it, its owner."""

    mode: int = FILE_MODE
    owner: Owner | None = None


@contextmanager
def _folder_of(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """Open the folder that holds ``path``; errors inside the block name the whole path.

    :yields: the folder's descriptor, and the last part of ``path``.
    """
    folder, last = os.path.split(os.path.join(root, path))
    try:
        with parent_below(root, path) as place:
            yield place
    except OSError as error:
        # Calls in an open folder know the last part of a name, calls on an open file know none.
        name = os.fsdecode(error.filename or last)
        error.filename = folder if name == "." else os.path.join(folder, name)
        if error.filename2 is not None:
            error.filename2 = os.path.join(folder, os.fsdecode(error.filename2))
        raise


def form(root: Path, path: str) -> Form | None:
    """The form of a file or folder, or ``None`` where there is none."""
    try:
        with _folder_of(root, path) as (folder, name):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Form(stat.S_IMODE(status.st_mode), _owner(status))


def inherited(root: Path, folder: str) -> Form:
    """The form of a file that is added to ``folder``: that folder's owner, where root adds it."""
    while folder and not os.path.lexists(os.path.join(root, folder)):
        folder = folder.rpartition("/")[0]
    return Form(FILE_MODE, _owner(os.lstat(os.path.join(root, folder))))


def create(root: Path, path: str, data: bytes, form_of_file: Form) -> None:
    """Write a new file and sync it.

    The mode and the owner are set before the bytes are written: a file with the right hash is
    right in everything.  What already has this name is left over from an interrupted transaction,
    and is removed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
    with _folder_of(root, path) as (folder, name):
        try:
            file = os.open(name, flags, 0o600, dir_fd=folder)
        except FileExistsError:
            os.unlink(name, dir_fd=folder)
            file = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            if form_of_file.owner is not None and form_of_file.owner != _owner(os.fstat(file)):
                os.fchown(file, form_of_file.owner.user, form_of_file.owner.group)
            os.fchmod(file, form_of_file.mode)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        finally:
            os.close(file)


def keep(root: Path, source: str, copy: str, data: bytes, form: Form) -> None:
    """Make ``copy``, in the same folder, a second name of ``source``.

    A hard link costs no space, and is the very file that was there; falls back to a copy where hard
    links are not supported.
    """
    with _folder_of(root, source) as (folder, name):
        second = copy.rpartition("/")[2]
        try:
            _link(name, second, folder)
        except FileExistsError:
            os.unlink(second, dir_fd=folder)
            _link(name, second, folder)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            create(root, copy, data, form)


def _link(name: str, second: str, folder: int) -> None:
    os.link(name, second, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)


_NO_LINKS = {
    errno.EPERM,
    errno.EACCES,
    errno.EMLINK,
    errno.EXDEV,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
}


def replace(root: Path, source: str, destination: str) -> None:
    """Atomically replace ``destination`` with ``source``, which lies in the same folder."""
    with _folder_of(root, destination) as (folder, name):
        os.replace(source.rpartition("/")[2], name, src_dir_fd=folder, dst_dir_fd=folder)


def remove(root: Path, path: str) -> None:
    """Remove a file, if it is there."""
    try:
        with _folder_of(root, path) as (folder, name):
            os.unlink(name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return


def make_folder(root: Path, path: str, owner: Owner | None = None) -> None:
    """Make a folder, readable for everybody whatever the umask, if it is not there."""
    with _folder_of(root, path) as (above, name):
        try:
            os.mkdir(name, FOLDER_MODE, dir_fd=above)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
                raise
        folder = os.open(name, _FOLDER, dir_fd=above)
        try:
            status = os.fstat(folder)
            if stat.S_IMODE(status.st_mode) & FOLDER_MODE != FOLDER_MODE:
                os.fchmod(folder, FOLDER_MODE)
            if owner is not None and owner != _owner(status):
                os.fchown(folder, owner.user, owner.group)
        finally:
            os.close(folder)


def remove_folder(root: Path, path: str) -> bool:
    """Remove a folder if it is there and empty.

    :returns: whether no folder is there now.
    """
    try:
        with _folder_of(root, path) as (above, name):
            os.rmdir(name, dir_fd=above)
    except (FileNotFoundError, NotADirectoryError):
        return not os.path.lexists(os.path.join(root, path))
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def sync_folder(root: Path, path: str) -> None:
    """Sync a folder, if it is there, so that the names in it are on the disk.

    :param path: empty for ``root`` itself.
    """
    try:
        with _folder_of(root, f"{path}/." if path else ".") as (above, name):
            folder = os.open(name, _FOLDER, dir_fd=above)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        # Some network file systems cannot sync a folder.
        if error.errno != errno.EINVAL or isinstance(error, UnfitFile):
            raise


def remove_bytecode(root: Path, source: str, coming: str | None) -> None:
    """Remove the bytecode of ``source``, and its ``__pycache__`` if that leaves it empty.

    Bytecode that cannot be deleted is left if Python will reject it as stale; so is bytecode in a
    ``__pycache__`` that is a symbolic link, because it may be outside the target.

    :param coming: the file that takes the place of ``source``; ``None`` for no file.
    :raises OSError: if it cannot be removed and would be run, or will have no source any more.
    """
    above, _, module = source.rpartition("/")
    cache = f"{above}/__pycache__" if above else "__pycache__"
    try:
        with _folder_of(root, f"{cache}/.") as (folder, _):
            names = _names(folder)
            stale = _compiled(names, module)
            for name in stale:
                _remove_compiled(root, cache, name, folder, coming)
    except (FileNotFoundError, NotADirectoryError):
        return
    except UnfitFile as error:
        _refuse_believed(root, cache, module, coming, error)
        return
    if stale and len(stale) == len(names):
        remove_folder(root, cache)


def _names(folder: int) -> list[str]:
    """The names in an opened folder."""
    listing = os.open(".", _FOLDER, dir_fd=folder)
    try:
        return os.listdir(listing)
    finally:
        os.close(listing)


def _compiled(names: list[str], module: str) -> list[str]:
    """The names of a module's bytecode files."""
    stem = module.removesuffix(".py") + "."
    return [name for name in names if name.startswith(stem) and name.endswith(".pyc")]


def _remove_compiled(root: Path, cache: str, name: str, folder: int, coming: str | None) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError as error:
        error.filename = os.path.join(root, cache, name)
        if coming is None or _believed(read_below(root, f"{cache}/{name}"), root, coming):
            raise


def _refuse_believed(
    root: Path, cache: str, module: str, coming: str | None, error: UnfitFile
) -> None:
    """Refuse bytecode behind a link that would run in the place of ``coming``."""
    place = os.path.join(root, cache)
    try:
        names = os.listdir(place)
    except OSError:
        return  # the link leads nowhere: Python finds no bytecode there either
    for name in _compiled(names, module):
        if coming and _believed(read_regular(os.path.join(place, name)), root, coming):
            raise error


def _believed(bytecode: bytes | None, root: Path, source: str) -> bool:
    """Whether Python would run ``bytecode`` for ``source``."""
    if bytecode is None:
        return False
    status = os.stat(os.path.join(root, source))
    flags = int.from_bytes(bytecode[4:8], "little")
    if flags & 1:
        # By hash: with the second bit Python compares the hash of the source before it runs it.
        return not flags & 2
    stamp = int.from_bytes(bytecode[8:12], "little"), int.from_bytes(bytecode[12:16], "little")
    return stamp == (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)


def _owner(status: os.stat_result) -> Owner | None:
    if os.geteuid() != 0:
        return None
    return Owner(status.st_uid, status.st_gid)
