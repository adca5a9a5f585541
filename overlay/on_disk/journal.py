"""The journal: the changes of a transaction, written before the first of them is made.

The journal needs no phases: for every file it lists the hashes before and after, and both contents
are kept beside the file (``new`` and ``old``) until all is done.  Which way an interrupted
transaction can go follows from the files on the disk, however often it was interrupted."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from overlay.errors import LedgerError
from overlay.on_disk import files, lock
from overlay.on_disk.ledger import (
    IGNORE_PATH,
    JOURNAL_PATH,
    MAX_STATE_BYTES,
    PRISTINE_FOLDER,
    is_pristine_copy,
    is_record,
    require_sha256,
)
from overlay.on_disk.site import require_plain_state
from overlay.package import (
    LEDGER_PATH,
    STATE_FOLDER,
    folder_problem,
    inside,
    path_problem,
    require_text,
)
from overlay.untrusted import parse_json, read_below

SCHEMA = 1

ACTIONS = ("apply", "revert")

DRAFT_PATH = f"{JOURNAL_PATH}.overlay-new"


class Step(NamedTuple):
    """Change of one file: sha256 before and after, ``None`` for no file."""

    path: str
    before: str | None
    after: str | None

    @property
    def new(self) -> str:
        """Where the new bytes are staged until they take the file's place."""
        return _beside(self.path, "new")

    @property
    def old(self) -> str:
        """Where the old bytes are kept until all is done."""
        return _beside(self.path, "old")


class Journal(NamedTuple):
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
    """Begin a transaction: from now on, an interruption is noticed."""
    files.make_folder(root, STATE_FOLDER, owner)
    files.sync_folder(root, "")
    steps = [step._asdict() for step in journal.steps]
    document = {"schema": SCHEMA, **journal._asdict(), "steps": steps}
    data = (json.dumps(document, indent=1) + "\n").encode()
    files.create(root, DRAFT_PATH, data, files.Form(files.FILE_MODE, owner))
    files.replace(root, DRAFT_PATH, JOURNAL_PATH)
    files.sync_folder(root, STATE_FOLDER)


def read(root: Path) -> Journal | None:
    """The journal of an interrupted transaction, or ``None``.

    It is accepted only as far as an apply or a revert could have written it: it names modules
    in ``vllm/``, RECORD, and the overlay's own files, each by a plain path.

    :raises LedgerError: if it is damaged, names anything else, or a newer overlay wrote it.
    """
    path = root / JOURNAL_PATH
    try:
        data = read_below(root, JOURNAL_PATH, MAX_STATE_BYTES)
        return None if data is None else _decoded(parse_json(data))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error


@contextmanager
def reading(root: Path, timeout: float = lock.TIMEOUT) -> Iterator[Journal | None]:
    """Hold the lock of the target in ``root`` while it is read; nothing is written.

    A transaction that still runs is waited for.

    :yields: the transaction that was interrupted there, if there is one; the files are as it left
        them, and the next command that writes ends it.
    :raises TransactionError: if another command holds the target for longer than ``timeout``.
    :raises LedgerError: if the journal is damaged.
    """
    root = root.resolve()
    with lock.shared(root, timeout):
        require_plain_state(root)
        yield read(root)


def _unreadable(path: Path, problem: str) -> LedgerError:
    return LedgerError(
        f"{path} cannot be read ({problem}): it describes a transaction that was interrupted, "
        "which cannot be ended without it. Nothing was changed; use the overlay that wrote it, or "
        f"reinstall vLLM and remove the folder {path.parent}"
    )


def _decoded(document: Mapping[str, Any]) -> Journal:
    """The journal that a JSON document describes.

    :raises ValueError, KeyError, TypeError, AttributeError: if it describes none.
    """
    schema = document["schema"]
    if schema != SCHEMA:
        raise ValueError(
            f"schema is {schema!r} of vllm-overlay {document.get('overlay')}, expected {SCHEMA}"
        )
    action = document["action"]
    if action not in ACTIONS:
        raise ValueError(f"action is {action!r}, expected apply or revert")
    steps = tuple(_step(step) for step in document["steps"])
    paths = [step.path for step in steps]
    if len(set(paths)) < len(paths):
        raise ValueError("it lists a path twice")
    if sum(map(is_record, paths)) > 1:
        raise ValueError("it lists more than one RECORD")
    return Journal(
        action=action,
        overlay=require_text(document["overlay"]),
        steps=steps,
        made=tuple(_folder(folder) for folder in document["made"]),
        dropped=tuple(_folder(folder) for folder in document["dropped"]),
    )


def _step(step: Mapping[str, Any]) -> Step:
    path = inside(step["path"])
    ours = path in (LEDGER_PATH, IGNORE_PATH) or is_pristine_copy(path) or is_record(path)
    if not ours and (problem := path_problem(path)):
        raise ValueError(f"{problem}, and a transaction could not have changed it")
    before = None if step["before"] is None else require_sha256(step["before"])
    after = None if step["after"] is None else require_sha256(step["after"])
    if before == after:
        raise ValueError(f"the step of {path!r} changes nothing")
    return Step(path, before, after)


def _folder(folder: object) -> str:
    path = inside(folder)
    if path != PRISTINE_FOLDER and (problem := folder_problem(path)):
        raise ValueError(f"{problem}, and a transaction could not have made or removed it")
    return path


def remove(root: Path) -> None:
    """Remove the journal, which ends a transaction."""
    files.remove(root, JOURNAL_PATH)
    files.sync_folder(root, STATE_FOLDER)
    sweep(root)


def sweep(root: Path) -> None:
    """Remove what has no use without a journal: a draft of it, and an empty state folder."""
    files.remove(root, DRAFT_PATH)
    if not os.path.lexists(root / LEDGER_PATH):
        files.remove_folder(root, STATE_FOLDER)
        files.sync_folder(root, "")


def begun(root: Path) -> bool:
    """Whether a transaction is running, or was interrupted."""
    return os.path.lexists(root / JOURNAL_PATH)


def pending(root: Path) -> bool:
    """Whether a transaction has to be ended, or its leftovers removed."""
    if begun(root) or os.path.lexists(root / DRAFT_PATH):
        return True
    try:
        folder = os.lstat(root / STATE_FOLDER)
    except OSError:
        return False
    return stat.S_ISDIR(folder.st_mode) and not os.path.lexists(root / LEDGER_PATH)


def _beside(path: str, word: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.overlay-{word}" if folder else f".{name}.overlay-{word}"
