"""The files of a target: read without a link that leaves it, and the system calls that change them.

No other module of the overlay writes into a target.  Every call names a file by the target's
``root`` and a ``path`` below it, and works in the opened folder that holds the file, reached
through no symbolic link (``untrusted.parent_below``): whatever links are below a target, and
whoever exchanges folders for links meanwhile, nothing outside it can be changed from here.  The
calls are written ``os.<name>``, so that the fault tests can fail or kill at each of them.  All
functions raise ``OSError`` with the full path; which state an error leaves the target in, only the
transaction knows.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from overlay.errors import TransactionError, described
from overlay.on_disk.ledger import is_pristine_copy
from overlay.package import VLLM, Package, file_problem, folder_problem
from overlay.untrusted import (
    UnfitFile,
    kind,
    parent_below,
    problem_of_owner,
    read_below,
    read_regular,
    user_name,
    way_out,
)

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
        try:
            folder = os.open(name, _FOLDER, dir_fd=above)
        except PermissionError:  # the umask may keep it from its owner, too
            with suppress(ValueError):  # the system cannot but follow a link
                os.chmod(name, FOLDER_MODE, dir_fd=above, follow_symlinks=False)
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


class Site:
    """A package in the folder that holds it.

    Every path is checked before it is used: a link that leaves the target is refused.
    """

    def __init__(self, root: Path, package: Package = VLLM) -> None:
        self.root, self.package = root.resolve(), package
        require_plain_state(self.root, package)

    def __str__(self) -> str:
        return f"{self.package.title} in {self.root}"

    @property
    def owner(self) -> Owner | None:
        """Owner of new files: that of the package's folder, where this process may set it."""
        folder = form(self.root, self.package.name)
        return folder.owner if folder else None

    def real(self, path: str) -> str:
        """``path`` with the links inside the target resolved.

        :raises TransactionError: if it leads out of the target or of the package, or to something
            that is not a file.
        """
        full = self.root / path
        real = os.path.realpath(full)
        out = way_out(self.root, path, real)
        if out is not None:
            raise TransactionError(
                f"{out[0]} leads out of the target, to {out[1]}: writing there would change what "
                "others use. Nothing was changed; replace the link by a copy (with uv: reinstall "
                f"{self.package.title} with --link-mode copy), or name the folder that holds the "
                "real files"
            )
        try:
            mode = os.stat(real).st_mode
        except (FileNotFoundError, NotADirectoryError):
            mode = None
        except OSError as error:
            raise unwritable(error, "Nothing was changed.") from error
        if mode is not None and not stat.S_ISREG(mode):
            raise TransactionError(
                f"{full}: expected a plain file, found {kind(mode)}. Nothing was changed"
            )
        relative = os.path.relpath(real, self.root).replace(os.sep, "/")
        if relative != path and file_problem(relative, self.package):
            raise TransactionError(
                f"{full} leads to {real}: expected a file inside "
                f"{self.root / self.package.name}, or no link. Nothing was changed; replace "
                "the link by a copy"
            )
        return relative

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``, or ``None`` if the file does not exist.

        :raises TransactionError: if it cannot be read, or is not a plain file of bounded size.
        """
        try:
            return read_below(self.root, self.real(path))
        except UnfitFile as error:
            raise TransactionError(
                f"{error.filename}: {error.strerror}. Nothing was changed"
            ) from error
        except OSError as error:
            raise unwritable(error, "Nothing was changed.") from error

    def state_files(self) -> set[str]:
        """The overlay's own files that are there: ledger, ``.gitignore`` and pristine copies.

        Anything else in the folder is somebody else's and is left alone.
        """
        package = self.package
        paths = {package.ledger_path, package.ignore_path} | {
            path
            for name in self._names(package.pristine_folder)
            if is_pristine_copy(path := f"{package.pristine_folder}/{name}", package)
        }
        return {path for path in paths if os.path.lexists(self.root / path)}

    def _names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self.root / folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unwritable(error, "Nothing was changed.") from error

    def real_folder(self, path: str) -> str | None:
        """A folder inside the package, links to it resolved; ``None`` if they lead elsewhere."""
        if way_out(self.root, path) is not None:
            return None
        real = os.path.relpath(os.path.realpath(self.root / path), self.root).replace(os.sep, "/")
        return None if folder_problem(real, self.package) else real

    def form(self, path: str) -> Form:
        """The form of ``path``, which holds no link; where it is new, the form that it will get."""
        return form(self.root, path) or inherited(self.root, path.rpartition("/")[0])

    def missing_folders(self, path: str) -> list[str]:
        """The folders above ``path`` that are not there, outermost first.

        :raises TransactionError: if something other than a folder is in their place.
        """
        missing: list[str] = []
        folder = path.rpartition("/")[0]
        while folder and not os.path.lexists(self.root / folder):
            missing.append(folder)
            folder = folder.rpartition("/")[0]
        if folder and not (self.root / folder).is_dir():
            raise TransactionError(
                f"{self.root / folder}: expected a folder for {path}, found something else. "
                f"Nothing was changed; reinstall {self.package.title}"
            )
        return missing[::-1]


def require_plain_state(root: Path, package: Package = VLLM) -> None:
    """Refuse anything but folders where the overlay keeps its own files.

    :raises TransactionError: naming what is there instead.
    """
    for folder in (root / package.state_folder, root / package.pristine_folder):
        try:
            mode = os.lstat(folder).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise unwritable(error, "Nothing was changed.") from error
        if not stat.S_ISDIR(mode):
            raise TransactionError(
                f"{folder}: expected a folder of the overlay's own, found {kind(mode)}. Nothing "
                "was changed; move it away"
            )


def foreign_state(root: Path, package: Package = VLLM) -> str | None:
    """Why the ledger in ``root`` may not be the overlay's own; ``None`` where nothing says so.

    Whoever owns the package may have patched it, so the ledger may be theirs.
    """
    try:
        owner = os.lstat(root / package.name).st_uid
        folder = root / package.state_folder
        problem = problem_of_owner(folder, allow_group=True, trusted=(owner,))
    except OSError:
        return None  # nothing is there, or whoever reads it reports the error
    return problem and f"{problem}; what it says of this {package.title} may not be true"


def unwritable(error: OSError, state: str) -> TransactionError:
    """The error to end a command with where the operating system refused something.

    :param state: the state of the target now, in a sentence.
    """
    return TransactionError(f"{described(error)}. {state}{_belongs(error)}")


def _belongs(error: OSError) -> str:
    """Name the owner of the place where permission is missing, or of the nearest one above."""
    if error.errno not in (errno.EACCES, errno.EPERM) or error.filename is None:
        return ""
    path = Path(os.fsdecode(error.filename))
    for place in (path, *path.parents):
        try:
            owner = os.stat(place).st_uid
        except OSError:  # it is not there, or what is in its folder is hidden from this user
            continue
        return f" {place} belongs to {user_name(owner)}."
    return ""
