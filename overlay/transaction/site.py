"""The files of a target as a transaction sees them: where they really lie, and their forms."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from overlay.errors import TransactionError
from overlay.transaction import files
from overlay.transaction.journal import DRAFT_PATH
from overlay.transaction.ledger import JOURNAL_PATH, STATE_FOLDER


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
        full = self.root / path
        real = os.path.realpath(full)
        if not real.startswith(str(self.root).rstrip(os.sep) + os.sep):
            raise TransactionError(
                f"{full} leads out of the target, to {real}: writing there would change what "
                "others use. Nothing was changed; replace the link by a copy (with uv: reinstall "
                "vLLM with --link-mode copy), or name the folder that holds the real files"
            )
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
            return files.read(self.root / self.real(path))
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
    import errno

    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    where = names[-1] if names else "the target"
    advice = {
        errno.EACCES: _permission(where),
        errno.EPERM: _permission(where),
        errno.EROFS: "The file system is read-only: apply where it is not, such as while the image "
        "is built.",
        errno.ENOSPC: "The disk is full: free some space, and run the command again.",
        errno.EDQUOT: "Your disk quota is used up: free some space, and run the command again.",
        errno.EIO: "The disk reports a fault: check it before you run the command again.",
        errno.ENOTDIR: "A file stands where a folder is expected: reinstall vLLM.",
        errno.EBUSY: "It is in use, or mounted by itself: patch the file that is mounted there.",
    }.get(error.errno or 0, "Remove the cause, and run the command again.")
    return TransactionError(f"{where}: {error.strerror or error}. {state} {advice}")


def _permission(where: str) -> str:
    owner = ""
    path = Path(where)
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        import pwd

        owner = f", {pwd.getpwuid(path.stat().st_uid).pw_name}"
    except (ImportError, KeyError, OSError):
        owner = ""
    return f"Run the command as the user that owns this vLLM{owner}."
