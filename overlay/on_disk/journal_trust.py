"""Refuse a journal that an overlay of this user's could not have written.

Ending a transaction renames and removes files by the names in its journal, so a journal that
somebody else may have placed there is refused before anything is done.
"""

from __future__ import annotations

import stat
from pathlib import Path

from overlay.errors import TransactionError
from overlay.on_disk.journal import Journal
from overlay.on_disk.site import unwritable
from overlay.package import Package
from overlay.results.invocation import command
from overlay.untrusted import problem_of_owner


def require_own(root: Path, transaction: Journal, package: Package) -> None:
    """Refuse a journal that somebody else could have written.

    :raises TransactionError: saying whose it is, and what to do.
    """
    for place in (package.state_folder, package.journal_path):
        try:
            problem = problem_of_owner(root / place, allow_group=True)
        except OSError as error:
            raise unwritable(error, "Nothing was changed.") from error
        if problem is not None:
            raise TransactionError(
                f"an interrupted {transaction.action} waits to be ended in {root}, but {problem}. "
                f"Nothing was changed; run {command('apply')} or {command('revert')} as the user "
                f"who owns {root / package.name}, and let nobody else write to "
                f"{root / package.state_folder}"
            )


def require_plain(root: Path, opened: Journal, package: Package) -> None:
    """Refuse a journal that names what is reached through a symbolic link.

    An apply resolves links before it writes its journal, so none that it wrote does.

    :raises TransactionError: naming the link.
    """
    folders = {path.rpartition("/")[0] for path in (*opened.made, *opened.dropped)}
    for folder in sorted(folders | {step.path.rpartition("/")[0] for step in opened.steps}):
        place = root
        for name in folder.split("/") if folder else ():
            place /= name
            try:
                mode = place.lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                break
            except OSError as error:
                raise unwritable(error, "Nothing was changed.") from error
            if stat.S_ISLNK(mode):
                raise TransactionError(
                    f"the journal of an interrupted {opened.action} in {root} names files below "
                    f"{place}, which is a symbolic link: no overlay writes that. Nothing was "
                    f"changed; remove {root / package.state_folder} and reinstall {package.title}"
                )
