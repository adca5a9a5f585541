"""What a transaction is about to do, written down before it does it.

The journal needs no phases: for every file it says which bytes were there and which shall be, and
both are kept beside the file (``new`` and ``old``) until all is done.  Which way an interrupted
transaction can go follows from what stands on the disk, however often it was interrupted."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from overlay import untrusted as reading
from overlay.errors import LedgerError
from overlay.on_disk import files
from overlay.on_disk.ledger import JOURNAL_PATH
from overlay.package import LEDGER_PATH, STATE_FOLDER, inside

SCHEMA = 1

DRAFT_PATH = f"{JOURNAL_PATH}.overlay-new"


@dataclass(frozen=True)
class Step:
    """What becomes of one file; sha256 before and after, ``None`` for no file."""

    path: str
    before: str | None
    after: str | None

    @property
    def new(self) -> str:
        """Where the bytes to come wait until they take the file's place."""
        return _beside(self.path, "new")

    @property
    def old(self) -> str:
        """Where the bytes that were there are kept until all is done."""
        return _beside(self.path, "old")


@dataclass(frozen=True)
class Journal:
    """A transaction.

    :ivar action: ``apply`` or ``revert``; :ivar overlay: version of the overlay that runs it.
    :ivar steps: in the order in which they are taken.
    :ivar made: folders that are made for it, outermost first.
    :ivar dropped: folders that are removed at its end where nothing is left in them, innermost
        first.
    """

    action: str
    overlay: str
    steps: tuple[Step, ...]
    made: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def write(root: Path, journal: Journal, owner: files.Owner | None) -> None:
    """Begin a transaction: from here on, an interruption is noticed."""
    files.make_folder(root / STATE_FOLDER, owner)
    files.sync_folder(root)
    document = {"schema": SCHEMA, **asdict(journal)}
    data = (json.dumps(document, indent=1) + "\n").encode()
    files.create(root / DRAFT_PATH, data, files.Form(files.FILE_MODE, owner))
    files.replace(root / DRAFT_PATH, root / JOURNAL_PATH)
    files.sync_folder(root / STATE_FOLDER)


def read(root: Path) -> Journal | None:
    """The journal of an interrupted transaction, or ``None``.

    :raises LedgerError: if it is damaged, or a newer overlay wrote it.
    """
    path = root / JOURNAL_PATH
    data = reading.read(path)
    if data is None:
        return None
    try:
        document = json.loads(data)
        schema = document["schema"]
        if schema != SCHEMA:
            raise ValueError(
                f"schema is {schema!r} of vllm-overlay {document.get('overlay')}, expected {SCHEMA}"
            )
        return Journal(
            action=str(document["action"]),
            overlay=str(document["overlay"]),
            steps=tuple(
                Step(inside(one["path"]), one["before"], one["after"]) for one in document["steps"]
            ),
            made=tuple(inside(one) for one in document["made"]),
            dropped=tuple(inside(one) for one in document["dropped"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(
            f"{path} cannot be read ({type(error).__name__}: {error}): it describes a transaction "
            "that was interrupted, and only with it can that be ended. Nothing was changed; use "
            "the overlay that wrote it, or reinstall vLLM and remove the folder "
            f"{root / STATE_FOLDER}"
        ) from error


def remove(root: Path) -> None:
    """End a transaction: what stands now is the target."""
    files.remove(root / JOURNAL_PATH)
    files.sync_folder(root / STATE_FOLDER)
    sweep(root)


def sweep(root: Path) -> None:
    """Remove what is of no use without a journal: a draft of one, and an empty state folder."""
    files.remove(root / DRAFT_PATH)
    if not os.path.lexists(root / LEDGER_PATH):
        files.remove_folder(root / STATE_FOLDER)
        files.sync_folder(root)


def begun(root: Path) -> bool:
    """Whether a transaction runs, or was interrupted."""
    return os.path.lexists(root / JOURNAL_PATH)


def pending(root: Path) -> bool:
    """Whether something waits to be ended or swept; a few looks at the disk."""
    if begun(root) or os.path.lexists(root / DRAFT_PATH):
        return True
    folder = root / STATE_FOLDER
    return not os.path.lexists(root / LEDGER_PATH) and folder.is_dir() and not folder.is_symlink()


def _beside(path: str, word: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.overlay-{word}" if folder else f".{name}.overlay-{word}"
