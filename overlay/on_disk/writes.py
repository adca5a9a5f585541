"""Order the writes of a transaction, and build its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import overlay
from overlay.errors import TransactionError
from overlay.on_disk.files import Form
from overlay.on_disk.journal import Journal, Step
from overlay.on_disk.ledger import Ledger
from overlay.on_disk.site import Site
from overlay.package import Package
from overlay.results import Change
from overlay.untrusted import sha256


class Intent(NamedTuple):
    """A transaction that is ready to be written.

    :ivar writes: changes in the order in which they are made, each path as it is without links;
        none: there is nothing to do.
    :ivar forms: the mode and owner of each file that is written, by its path.
    :ivar changed: the files of the package among them, as the ledger calls them.
    """

    action: str
    writes: tuple[Change, ...] = ()
    forms: Mapping[str, Form] = MappingProxyType({})
    added_folders: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def journal(self) -> Journal:
        """Build the journal of this transaction."""
        steps = (Step(w.path, hash_of(w.before), hash_of(w.after)) for w in self.writes)
        return Journal(
            self.action, overlay.__version__, tuple(steps), self.added_folders, self.dropped
        )


def assemble(
    action: str,
    site: Site,
    writes: Sequence[Change],
    old: Ledger | None,
    new: Ledger | None,
    changed: Sequence[str],
    left_alone: Sequence[str],
    modes: Mapping[str, int] = MappingProxyType({}),
) -> Intent:
    """Order writes into a transaction.

    :param old: the present ledger; :param new: the next one, ``None``: everything is removed.
    :param changed: the files of the package among the writes, as the ledger calls them.
    :param left_alone: files that a void ledger lists and no longer owns.
    :param modes: of files that come back and are not there to say it, by their paths.
    :raises TransactionError: if two writes are to one file.
    """
    package = site.package
    counted = Counter(write.path for write in writes)
    twice = sorted(path for path, times in counted.items() if times > 1)
    if twice:
        raise TransactionError(
            f"{', '.join(twice)}: two files of the patches are one file here, by a link. Nothing "
            "was changed; replace the link by a copy"
        )
    ordered = sorted(writes, key=lambda write: (_rank(write, new, package), write.path))
    forms = {write.path: site.form(write.path) for write in ordered}
    forms |= {path: forms[path]._replace(mode=mode) for path, mode in modes.items()}
    missing_folders: dict[str, None] = {}
    for write in ordered:
        if write.after is not None:
            missing_folders |= dict.fromkeys(site.missing_folders(write.path))
    new_folders = set(new.folders) if new else set()
    unused_folders = [
        folder for folder in (old.folders if old else ()) if folder not in new_folders
    ]
    # Links inside the target are resolved; a folder that leads out of it is not removed.
    dropped = [real for folder in unused_folders if (real := site.real_folder(folder))]
    return Intent(
        action=action,
        writes=tuple(ordered),
        forms=forms,
        added_folders=tuple(folder for folder in missing_folders if folder != package.state_folder),
        dropped=(
            *reversed(dropped),
            *(() if new and _has_copies(new) else (package.pristine_folder,)),
        ),
        changed=tuple(sorted(changed)),
        warnings=tuple(
            f"{path} is not what the overlay wrote, and belongs to the {package.title} that was "
            "installed since: left as it is"
            for path in left_alone
        ),
    )


def _has_copies(ledger: Ledger) -> bool:
    return any(entry.before is not None for entry in ledger.entries)


def _rank(write: Change, new: Ledger | None, package: Package) -> int:
    """Position of a write in the order of steps.

    RECORD lists a file as long as it may be there; modules come before the call sites that need
    them, and go after; the ledger is last to come.
    """
    if write.path.endswith("/RECORD"):
        return 0 if new else 7
    if write.path == package.ledger_path:
        return 5
    if write.path.startswith(package.state_folder):
        return 6 if write.after is None else 1
    if write.before is None:
        return 2
    return 4 if write.after is None else 3


def hash_of(data: bytes | None) -> str | None:
    """The sha256 of a file's bytes; ``None`` for no file."""
    return None if data is None else sha256(data)
