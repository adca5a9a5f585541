"""Resolve and read the files of a target for a transaction, refusing links that leave it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from overlay.errors import TransactionError, described
from overlay.on_disk import files
from overlay.on_disk.ledger import is_pristine_copy
from overlay.package import VLLM, Package, file_problem, folder_problem
from overlay.untrusted import UnfitFile, kind, problem_of_owner, read_below, user_name, way_out


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
    def owner(self) -> files.Owner | None:
        """Owner of new files: that of the package's folder, where this process may set it."""
        folder = files.form(self.root, self.package.name)
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

    def form(self, path: str) -> files.Form:
        """The form of ``path``, which holds no link; where it is new, the form that it will get."""
        return files.form(self.root, path) or files.inherited(self.root, path.rpartition("/")[0])

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
