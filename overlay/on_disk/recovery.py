"""End an interrupted transaction: finish it, or undo it.

Both directions replace each file atomically, can be interrupted themselves, and decide by the
hashes of the files on the disk:

* it can be *finished* where every file has its new bytes, or its old bytes while the new ones wait
  beside it;
* it can be *undone* where every file has its old bytes, or its new bytes while the old ones are
  kept beside it.

A file that has other bytes than both was written by somebody else since (pip, say); it is left as
it is, and the rest is undone rather than finished."""

from __future__ import annotations

import stat
from contextlib import suppress
from enum import Enum
from pathlib import Path

from overlay.errors import LedgerError, TransactionError, command
from overlay.on_disk import files, journal
from overlay.on_disk.files import unwritable
from overlay.on_disk.journal import Journal, Step
from overlay.package import VLLM, Package
from overlay.untrusted import UnfitFile, problem_of_owner, read_below, sha256


class Content(Enum):
    """Bytes that a file of a transaction has."""

    BEFORE = "before"
    AFTER = "after"
    FOREIGN = "foreign"


def recover(root: Path, timeout: float = journal.TIMEOUT, package: Package = VLLM) -> str | None:
    """End a transaction that was interrupted in ``root``; commands that write call this first.

    A transaction that still runs is waited for.

    :param timeout: seconds to wait for it.
    :param package: the one in ``root`` that is meant.
    :returns: what was done; ``None`` where nothing had to be done.
    :raises LedgerError: if a journal is damaged, or a newer overlay wrote it.
    :raises TransactionError: if another command holds the target for longer than ``timeout``, the
        journal may be somebody else's, this user may not write there, or the target can neither
        be finished nor undone.
    """
    root = root.resolve()
    if not journal.pending(root, package):
        return None
    with journal.exclusive(root, timeout, package):
        return recover_locked(root, package)


def recover_locked(root: Path, package: Package = VLLM) -> str | None:
    """End what was interrupted, as ``recover`` does; the caller holds the exclusive lock."""
    transaction = journal.read(root, package)
    if transaction is None:
        # An empty folder on a read-only disk is not a transaction, and hides nothing.
        with suppress(OSError):
            journal.sweep(root, package)
        return None
    require_own(root, transaction, package)
    require_plain(root, transaction, package)
    try:
        return _end(root, transaction, package)
    except OSError as error:
        state_now = state(root, transaction, package)
        outcome = f"The interrupted {transaction.action} could not be ended here. {state_now}"
        raise unwritable(error, outcome) from error


def _end(root: Path, transaction: Journal, package: Package) -> str:
    """Finish or undo a transaction.

    :returns: what was done, in a sentence.
    :raises OSError: if the target cannot be written.
    """
    contents = survey(root, transaction)
    foreign = [path for path, content in contents.items() if content is Content.FOREIGN]
    back = can_undo(root, transaction, contents)
    if can_finish(root, transaction, contents) and (not foreign or not back):
        try:
            finish(root, transaction, package)
            outcome = "finished"
        except OSError:
            if not can_undo(root, transaction, survey(root, transaction)):
                raise
            undo(root, transaction, package)
            outcome = "undone"
    elif back:
        undo(root, transaction, package)
        outcome = "undone"
    else:
        raise TransactionError(
            f"an interrupted {transaction.action} can neither be finished nor undone: {root} is "
            "patched in part, and the bytes kept beside its files are gone. Reinstall "
            f"{package.title} (pip install --force-reinstall --no-deps ...) and remove "
            f"{root / package.state_folder}"
        )
    message = f"an interrupted {transaction.action} was {outcome} in {root}"
    if foreign:
        message += f"; changed by others since, and left alone: {', '.join(foreign)}"
    return message


def settle(root: Path, transaction: Journal, package: Package = VLLM) -> None:
    """End a transaction that failed: undo it where that is possible, else finish it.

    Where that fails, too, the journal remains, and the next command ends the transaction.
    """
    try:
        if not journal.exists(root, package):
            journal.sweep(root, package)
        elif can_undo(root, transaction, survey(root, transaction)):
            undo(root, transaction, package)
        else:
            finish(root, transaction, package)
    except OSError:
        return


def survey(root: Path, transaction: Journal) -> dict[str, Content]:
    """Find out which bytes every file of a transaction has, by path."""
    return {step.path: _content(root, step) for step in transaction.steps}


def can_finish(root: Path, transaction: Journal, contents: dict[str, Content]) -> bool:
    """Whether the new bytes of every file that still has its old ones wait beside it."""
    return all(
        step.after is None or _digest(root, step.new) == step.after
        for step in transaction.steps
        if contents[step.path] is Content.BEFORE
    )


def can_undo(root: Path, transaction: Journal, contents: dict[str, Content]) -> bool:
    """Whether the old bytes of every file that has its new ones are kept beside it."""
    return all(
        step.before is None or _digest(root, step.old) == step.before
        for step in transaction.steps
        if contents[step.path] is Content.AFTER
    )


def finish(root: Path, transaction: Journal, package: Package = VLLM) -> None:
    """Give every file its new bytes, then remove what was kept beside it, and the journal."""
    # Bytecode goes first: where it cannot be removed, no file was replaced yet.
    contents = survey(root, transaction)
    for step in transaction.steps:
        if contents[step.path] is Content.BEFORE:
            _drop_bytecode(root, step, step.new if step.after else None)
        elif contents[step.path] is Content.AFTER:
            _drop_bytecode(root, step, step.path if step.after else None)
    for step in transaction.steps:
        if _content(root, step) is not Content.BEFORE:
            continue
        if step.after is None:
            files.remove(root, step.path)
            # Once more: somebody may have imported the module meanwhile.
            _drop_bytecode(root, step, None)
        else:
            files.replace(root, step.new, step.path)
    sync(root, transaction)
    for step in transaction.steps:
        files.remove(root, step.old)
        files.remove(root, step.new)
    for folder in transaction.dropped:
        files.remove_folder(root, folder)
    sync(root, transaction)
    journal.remove(root, package)


def undo(root: Path, transaction: Journal, package: Package = VLLM) -> None:
    """Give every file its old bytes back, then remove the journal."""
    contents = survey(root, transaction)
    replaced_steps = [
        step for step in reversed(transaction.steps) if contents[step.path] is Content.AFTER
    ]
    # Delete the staged files first, so that a crash here can only be rolled back.
    for step in transaction.steps:
        files.remove(root, step.new)
    for step in replaced_steps:
        _drop_bytecode(root, step, step.old if step.before else None)
    for step in replaced_steps:
        if step.before is None:
            files.remove(root, step.path)
            _drop_bytecode(root, step, None)
        else:
            files.replace(root, step.old, step.path)
    sync(root, transaction)
    for step in transaction.steps:
        files.remove(root, step.old)
    for folder in reversed(transaction.made):
        files.remove_folder(root, folder)
    sync(root, transaction)
    journal.remove(root, package)


def state(root: Path, transaction: Journal | None = None, package: Package = VLLM) -> str:
    """Describe the state of ``root`` after a transaction stopped, in a sentence.

    :param transaction: the transaction; default: that of the journal.
    """
    try:
        transaction = transaction or journal.read(root, package)
        contents = set() if transaction is None else set(survey(root, transaction).values())
    except (OSError, LedgerError):
        return "The state of the target is unknown, because it cannot be read."
    if transaction is None:
        return "The target is whole."
    rest = "; the next overlay command cleans up" if journal.pending(root, package) else ""
    if contents == {Content.AFTER}:
        return f"The {transaction.action} is complete{rest}."
    if contents == {Content.BEFORE}:
        return f"The target is as it was before the {transaction.action}{rest}."
    return (
        "The target is between two states; the next overlay command that can write there ends "
        f"the {transaction.action} or takes it back."
    )


def _content(root: Path, step: Step) -> Content:
    digest = _digest(root, step.path)
    if digest == step.after:
        return Content.AFTER
    return Content.BEFORE if digest == step.before else Content.FOREIGN


def _digest(root: Path, path: str) -> str | None:
    """The sha256 of a file; ``None`` for no file, and words for anything that is not a file."""
    try:
        data = read_below(root, path)
    except UnfitFile:
        return "not a plain file"
    return None if data is None else sha256(data)


def sync(root: Path, transaction: Journal) -> None:
    """Sync every folder in which a transaction changes names."""
    for folder in sorted({step.path.rpartition("/")[0] for step in transaction.steps}):
        files.sync_folder(root, folder)


def _drop_bytecode(root: Path, step: Step, coming: str | None) -> None:
    if step.path.endswith(".py"):
        files.remove_bytecode(root, step.path, coming)


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
