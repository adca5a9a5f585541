"""The journal: the changes of a transaction, written before the first of them is made.

The journal needs no phases: for every file it lists the hashes before and after, and both contents
are kept beside the file (``new`` and ``old``) until all is done.  Which way an interrupted
transaction can go follows from the files on the disk, however often it was interrupted.

The lock admits one writer, or many readers, to a target.  It is ``flock`` on the folder of the
package (``vllm/``) itself: nothing is left behind, a read-only target can be locked, and the lock
dies with its process.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from overlay.cache import WITHOUT_LOCKS, flocked, lock_file, open_lock, release
from overlay.errors import LedgerError, TransactionError, described, says_nothing_of_files
from overlay.on_disk import files
from overlay.on_disk.files import require_plain_state
from overlay.on_disk.ledger import (
    MAX_STATE_BYTES,
    is_pristine_copy,
    is_record,
    require_sha256,
)
from overlay.package import (
    VLLM,
    Package,
    file_problem,
    folder_problem,
    inside,
    require_list,
    require_text,
)
from overlay.untrusted import parse_json, read_below

#: Seconds that a command waits for others.
TIMEOUT = 60.0


@contextmanager
def exclusive(root: Path, timeout: float = TIMEOUT, package: Package = VLLM) -> Iterator[None]:
    """Hold a package in ``root`` as its only user.

    :param timeout: seconds to wait.
    :raises TransactionError: if the lock is not free in that time, or cannot be taken at all.
    """
    with _locked(root, package, writer=True, timeout=timeout):
        yield


@contextmanager
def shared(root: Path, timeout: float = TIMEOUT, package: Package = VLLM) -> Iterator[None]:
    """Hold a package in ``root`` beside other readers.

    :param timeout: seconds to wait.
    :raises TransactionError: if a writer holds it for longer than that.
    """
    with _locked(root, package, writer=False, timeout=timeout):
        yield


@contextmanager
def _locked(root: Path, package: Package, *, writer: bool, timeout: float) -> Iterator[None]:
    import fcntl

    folder = root / package.name
    try:
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError as error:
        raise TransactionError(
            f"{folder} cannot be opened to lock it ({error.strerror}): expected the folder of an "
            f"installed {package.title} that you may read. Nothing was changed"
        ) from error
    try:
        mode = fcntl.LOCK_EX if writer else fcntl.LOCK_SH
        if not _acquire(handle, mode, folder, timeout):
            with _by_file(root, package, timeout):
                yield
            return
        try:
            yield
        finally:
            # Unlock explicitly: a child forked meanwhile shares the descriptor and would keep it.
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _acquire(handle: int, mode: int, folder: Path, timeout: float) -> bool:
    """Lock ``handle``; ``False`` where the file system has no such locks."""
    try:
        free = flocked(handle, mode, timeout)
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            return False
        raise TransactionError(
            f"{folder} cannot be locked ({error.strerror}). Nothing was changed"
        ) from error
    if not free:
        raise _busy(folder, os.fstat(handle).st_ino, timeout)
    return True


@contextmanager
def _by_file(root: Path, package: Package, timeout: float) -> Iterator[None]:
    """Hold a lock file in the user's cache, for file systems that cannot lock a folder."""
    folder = root / package.name
    # An overlay that knew no other package named vLLM's lock by the root alone.
    path = lock_file(os.path.realpath(root if package == VLLM else folder))
    try:
        descriptor = open_lock(path, timeout)
    except OSError as error:
        raise TransactionError(
            f"{folder} lies on a file system without locks, and the lock file {path} "
            f"cannot be made either ({error.strerror}). Nothing was changed; set XDG_CACHE_HOME "
            "to a folder that you may write"
        ) from error
    if descriptor is None:
        raise TransactionError(
            f"{folder} is in use by another overlay command, which holds {path}: waited "
            f"{timeout:g} s. Nothing was changed; run the command again when that one is done"
        )
    try:
        yield
    finally:
        release(descriptor)


def _busy(folder: Path, inode: int, timeout: float) -> TransactionError:
    holders = _holders(inode)
    by = f" (process {', '.join(holders)})" if holders else ""
    return TransactionError(
        f"{folder} is in use by another overlay command{by}: waited {timeout:g} s. "
        "Nothing was changed; run the command again when that one is done"
    )


def _holders(inode: int) -> list[str]:
    """The processes that hold a flock on ``inode``, as far as the kernel lists them."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    holders = []
    for line in lines:
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK" or not fields[5].endswith(f":{inode}"):
            continue
        try:
            command = Path(f"/proc/{fields[4]}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            command = b""
        words = command.decode("utf-8", "replace").strip()[:120]
        holders.append(f"{fields[4]}: {words}" if words else fields[4])
    return holders


SCHEMA = 1

#: That of a former overlay's transaction over several packages, with a journal in each of them that
#: names the others.  What it says of its own package is as in ``SCHEMA``, and is all that is read:
#: whichever call such a transaction died at, the part of each package can be ended by itself.
_JOINT_SCHEMA = 2

ACTIONS = ("apply", "revert")


class Step(NamedTuple):
    """Change of one file: sha256 before and after, ``None`` for no file."""

    path: str
    before: str | None
    after: str | None

    @property
    def new(self) -> str:
        """The path at which the new bytes are staged until they take the file's place."""
        return _beside(self.path, "new")

    @property
    def old(self) -> str:
        """The path at which the old bytes are kept until all is done."""
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


def write(root: Path, journal: Journal, owner: files.Owner | None, package: Package = VLLM) -> None:
    """Begin a transaction: from now on, an interruption is noticed."""
    files.make_folder(root, package.state_folder, owner)
    files.sync_folder(root, "")
    document: dict[str, Any] = {
        "schema": SCHEMA,
        **journal._asdict(),
        "steps": [step._asdict() for step in journal.steps],
    }
    data = (json.dumps(document, indent=1) + "\n").encode()
    draft = draft_path(package)
    files.create(root, draft, data, files.Form(files.FILE_MODE, owner))
    files.replace(root, draft, package.journal_path)
    files.sync_folder(root, package.state_folder)


def draft_path(package: Package) -> str:
    """The path at which a journal is written before it takes its place."""
    return f"{package.journal_path}.overlay-new"


def read(root: Path, package: Package = VLLM) -> Journal | None:
    """The journal of an interrupted transaction, or ``None``.

    It is accepted only as far as an apply or a revert could have written it: it names modules
    of the package, RECORD, and the overlay's own files, each by a plain path.

    :raises LedgerError: if it is damaged, names anything else, or a newer overlay wrote it.
    """
    path = root / package.journal_path
    try:
        data = read_below(root, package.journal_path, MAX_STATE_BYTES)
        return None if data is None else _decoded(parse_json(data), package)
    except OSError as error:
        if says_nothing_of_files(error) or isinstance(error, PermissionError):
            raise LedgerError(described(error)) from error
        raise _unreadable(path, error.strerror or str(error), package) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}", package) from error


@contextmanager
def reading(
    root: Path, timeout: float = TIMEOUT, package: Package = VLLM
) -> Iterator[Journal | None]:
    """Hold the lock of a package in ``root`` while it is read; nothing is written.

    A transaction that still runs is waited for.

    :yields: the transaction that was interrupted there, if there is one; the files are as it left
        them, and the next command that writes ends it.
    :raises TransactionError: if another command holds the target for longer than ``timeout``.
    :raises LedgerError: if the journal is damaged.
    """
    root = root.resolve()
    with shared(root, timeout, package):
        require_plain_state(root, package)
        yield read(root, package)


def _unreadable(path: Path, problem: str, package: Package) -> LedgerError:
    return LedgerError(
        f"{path} cannot be read ({problem}): it describes a transaction that was interrupted, "
        "which cannot be ended without it. Nothing was changed; use the overlay that wrote it, or "
        f"reinstall {package.title} and remove the folder {path.parent}"
    )


def _decoded(document: Mapping[str, Any], package: Package) -> Journal:
    """The journal that a JSON document describes.

    :raises ValueError, KeyError, TypeError, AttributeError: if it describes none.
    """
    schema = document["schema"]
    if schema not in (SCHEMA, _JOINT_SCHEMA) or isinstance(schema, bool):
        raise ValueError(
            f"schema is {schema!r} of vllm-overlay {document.get('overlay')}, expected {SCHEMA} or "
            f"{_JOINT_SCHEMA}"
        )
    action = document["action"]
    if action not in ACTIONS:
        raise ValueError(f"action is {action!r}, expected apply or revert")
    steps = tuple(_step(step, package) for step in require_list(document["steps"]))
    paths = [step.path for step in steps]
    if len(set(paths)) < len(paths):
        raise ValueError("it lists a path twice")
    if sum(map(is_record, paths)) > 1:
        raise ValueError("it lists more than one RECORD")
    return Journal(
        action=action,
        overlay=require_text(document["overlay"]),
        steps=steps,
        made=tuple(_folder(folder, package) for folder in require_list(document["made"])),
        dropped=tuple(_folder(folder, package) for folder in require_list(document["dropped"])),
    )


def _step(step: Mapping[str, Any], package: Package) -> Step:
    path = inside(step["path"])
    own = path in (package.ledger_path, package.ignore_path) or is_pristine_copy(path, package)
    if not (own or is_record(path)) and (problem := file_problem(path, package)):
        raise ValueError(f"{problem}, and a transaction could not have changed it")
    before = None if step["before"] is None else require_sha256(step["before"])
    after = None if step["after"] is None else require_sha256(step["after"])
    if before == after:
        raise ValueError(f"the step of {path!r} changes nothing")
    return Step(path, before, after)


def _folder(folder: object, package: Package) -> str:
    path = inside(folder)
    if path != package.pristine_folder and (problem := folder_problem(path, package)):
        raise ValueError(f"{problem}, and a transaction could not have made or removed it")
    return path


def remove(root: Path, package: Package = VLLM) -> None:
    """Remove the journal, which ends a transaction."""
    files.remove(root, package.journal_path)
    files.sync_folder(root, package.state_folder)
    sweep(root, package)


def sweep(root: Path, package: Package = VLLM) -> None:
    """Remove what has no use without a journal: a draft of it, and an empty state folder."""
    files.remove(root, draft_path(package))
    if not os.path.lexists(root / package.ledger_path):
        files.remove_folder(root, package.state_folder)
        files.sync_folder(root, "")


def exists(root: Path, package: Package = VLLM) -> bool:
    """Whether a transaction is running, or was interrupted."""
    return os.path.lexists(root / package.journal_path)


def pending(root: Path, package: Package = VLLM) -> bool:
    """Whether a transaction has to be ended, or its leftovers removed."""
    if exists(root, package) or os.path.lexists(root / draft_path(package)):
        return True
    try:
        folder = os.lstat(root / package.state_folder)
    except OSError:
        return False
    return stat.S_ISDIR(folder.st_mode) and not os.path.lexists(root / package.ledger_path)


def _beside(path: str, word: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.overlay-{word}" if folder else f".{name}.overlay-{word}"
