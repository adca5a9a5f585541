"""The files of a target as a transaction sees them: where they really lie, and their forms."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from overlay import untrusted as reading
from overlay.errors import TransactionError, described
from overlay.on_disk import files
from overlay.on_disk.journal import DRAFT_PATH
from overlay.on_disk.ledger import JOURNAL_PATH
from overlay.package import STATE_FOLDER
from overlay.untrusted import way_out


class Site:
    """The folder that holds ``vllm/``.

    Every path is checked before it is used: a link that leaves the target is refused.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        folder = self.root / STATE_FOLDER
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise TransactionError(
                f"{folder}: expected the overlay's own folder, found a link or a file. Nothing was "
                "changed; move it away"
            )

    def real(self, path: str) -> str:
        """``path`` with the links inside the target resolved.

        :raises TransactionError: if it leads out of the target, or to something that is no file.
        """
        out = way_out(self.root, path)
        if out is not None:
            raise TransactionError(
                f"{out[0]} leads out of the target, to {out[1]}: writing there would change what "
                "others use. Nothing was changed; replace the link by a copy (with uv: reinstall "
                "vLLM with --link-mode copy), or name the folder that holds the real files"
            )
        full = self.root / path
        real = os.path.realpath(full)
        try:
            mode = os.stat(real).st_mode
        except (FileNotFoundError, NotADirectoryError):
            mode = None
        except OSError as error:
            raise unwritable(error, "Nothing was changed.") from error
        if mode is not None and not stat.S_ISREG(mode):
            raise TransactionError(f"{full}: expected a plain file. Nothing was changed")
        return os.path.relpath(real, self.root).replace(os.sep, "/")

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``, or ``None`` where there is no such file."""
        try:
            return reading.read(self.root / self.real(path))
        except OSError as error:
            raise unwritable(error, "Nothing was changed.") from error

    def state_files(self) -> set[str]:
        """Every file in our own folder, but not the journal of a transaction."""
        found = {
            path.relative_to(self.root).as_posix()
            for path in (self.root / STATE_FOLDER).rglob("*")
            if not path.is_dir() or path.is_symlink()
        }
        return found - {JOURNAL_PATH, DRAFT_PATH}

    def form(self, path: str) -> files.Form:
        """The form that ``path`` has, or shall have where it is new."""
        full = self.root / path
        return files.form(full) or files.inherited(full.parent)

    def missing_folders(self, path: str) -> list[str]:
        """The folders above ``path`` that are not there, outermost first.

        :raises TransactionError: if something else than a folder stands in their place.
        """
        missing: list[str] = []
        folder = path.rpartition("/")[0]
        while folder and not os.path.lexists(self.root / folder):
            missing.append(folder)
            folder = folder.rpartition("/")[0]
        if folder and not (self.root / folder).is_dir():
            raise TransactionError(
                f"{self.root / folder}: expected a folder for {path}, found something else. "
                "Nothing was changed; reinstall vLLM"
            )
        return missing[::-1]


def unwritable(error: OSError, state: str) -> TransactionError:
    """The error to end a command with where the operating system refused something.

    :param state: in a sentence, what stands in the target now.
    """
    return TransactionError(f"{described(error)}. {state}{_belongs(error)}")


def _belongs(error: OSError) -> str:
    """Whose the place is where permission is missing."""
    if error.errno not in (errno.EACCES, errno.EPERM) or error.filename is None:
        return ""
    place = Path(os.fsdecode(error.filename))
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        user = place.stat().st_uid
    except OSError:
        return ""
    return f" {place} belongs to {_name(user)}."


def _name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
