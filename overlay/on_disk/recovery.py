"""Ends an interrupted transaction: finishes it, or undoes it.

Both directions take each file in one stroke, can be interrupted themselves, and decide by the
hashes of what stands on the disk:

* it can be *finished* where every file has its new bytes, or its old bytes while the new ones wait
  beside it;
* it can be *undone* where every file has its old bytes, or its new bytes while the old ones are
  kept beside it.

A file that has other bytes than both was written by somebody else since (pip, say); it is left as
it is, and the rest is undone rather than finished."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from overlay import untrusted as reading
from overlay.errors import TransactionError, described
from overlay.on_disk import files, journal, lock
from overlay.on_disk.journal import Journal, Step
from overlay.package import STATE_FOLDER


class Stand(Enum):
    """Which bytes a file has."""

    BEFORE = "before"
    AFTER = "after"
    FOREIGN = "foreign"


def recover(root: Path, timeout: float = lock.TIMEOUT) -> str | None:
    """End a transaction that was interrupted in ``root``; every command calls this first.

    A transaction that still runs is waited for.

    :param timeout: seconds to wait for it.
    :returns: what was done, or why it could not be done by this user; ``None``: nothing to do.
    :raises LedgerError: if the journal is damaged, or a newer overlay wrote it.
    :raises TransactionError: if another command holds the target for longer than ``timeout``, or
        the target can neither be finished nor undone.
    """
    root = root.resolve()
    if not journal.pending(root):
        return None
    with lock.exclusive(root, timeout):
        try:
            return recover_locked(root)
        except OSError as error:
            return (
                f"an interrupted transaction could not be ended here: {described(error)}. "
                f"{state(root)} Run 'overlay status' as a user that may write there"
            )


def recover_locked(root: Path) -> str | None:
    """As ``recover``, for whoever holds the target.

    :raises OSError: if the target cannot be written.
    """
    begun = journal.read(root)
    if begun is None:
        try:
            journal.sweep(root)
        except OSError:
            # An empty folder on a read-only disk is no transaction, and hides nothing.
            return None
        return None
    stands = survey(root, begun)
    foreign = [path for path, stand in stands.items() if stand is Stand.FOREIGN]
    forward = can_finish(root, begun, stands)
    back = can_undo(root, begun, stands)
    if forward and (not foreign or not back):
        try:
            finish(root, begun)
            done = "finished"
        except OSError:
            if not can_undo(root, begun, survey(root, begun)):
                raise
            undo(root, begun)
            done = "undone"
    elif back:
        undo(root, begun)
        done = "undone"
    else:
        raise TransactionError(
            f"an interrupted {begun.action} can neither be finished nor undone: {root} is patched "
            "in part, and what was kept beside its files is gone. Reinstall vLLM (pip install "
            f"--force-reinstall --no-deps ...) and remove {root / STATE_FOLDER}"
        )
    message = f"an interrupted {begun.action} was {done} in {root}"
    if foreign:
        message += f"; changed by others since, and left alone: {', '.join(foreign)}"
    return message


def survey(root: Path, begun: Journal) -> dict[str, Stand]:
    """Which bytes every file of a transaction has."""
    return {step.path: _stand(root, step) for step in begun.steps}


def can_finish(root: Path, begun: Journal, stands: dict[str, Stand]) -> bool:
    """Whether the new bytes of every file that still has its old ones wait beside it."""
    return all(
        step.after is None or reading.digest(root / step.new) == step.after
        for step in begun.steps
        if stands[step.path] is Stand.BEFORE
    )


def can_undo(root: Path, begun: Journal, stands: dict[str, Stand]) -> bool:
    """Whether the old bytes of every file that has its new ones are kept beside it."""
    return all(
        step.before is None or reading.digest(root / step.old) == step.before
        for step in begun.steps
        if stands[step.path] is Stand.AFTER
    )


def finish(root: Path, begun: Journal) -> None:
    """Bring every file to its new bytes, then forget the old ones."""
    stands = survey(root, begun)
    # Bytecode goes first: where it cannot, nothing was touched yet, and undoing is easy.
    for step in begun.steps:
        if stands[step.path] is Stand.BEFORE:
            _drop_bytecode(root, step, step.new if step.after else None)
        elif stands[step.path] is Stand.AFTER:
            _drop_bytecode(root, step, step.path if step.after else None)
    for step in begun.steps:
        if _stand(root, step) is not Stand.BEFORE:
            continue
        if step.after is None:
            files.remove(root / step.path)
            # Once more, for somebody may have imported it meanwhile.
            _drop_bytecode(root, step, None)
        else:
            files.replace(root / step.new, root / step.path)
    sync(root, begun)
    for step in begun.steps:
        files.remove(root / step.old)
        files.remove(root / step.new)
    for folder in begun.dropped:
        files.remove_folder(root / folder)
    sync(root, begun)
    journal.remove(root)


def undo(root: Path, begun: Journal) -> None:
    """Bring every file back to its old bytes, then forget the new ones."""
    stands = survey(root, begun)
    taken = [step for step in reversed(begun.steps) if stands[step.path] is Stand.AFTER]
    # First of all the new bytes: without them nobody goes forward again from here.
    for step in begun.steps:
        files.remove(root / step.new)
    for step in taken:
        _drop_bytecode(root, step, step.old if step.before else None)
    for step in taken:
        if step.before is None:
            files.remove(root / step.path)
            _drop_bytecode(root, step, None)
        else:
            files.replace(root / step.old, root / step.path)
    sync(root, begun)
    for step in begun.steps:
        files.remove(root / step.old)
    for folder in reversed(begun.made):
        files.remove_folder(root / folder)
    sync(root, begun)
    journal.remove(root)


def state(root: Path, begun: Journal | None = None) -> str:
    """In a sentence, what stands in ``root`` now that a transaction stopped.

    :param begun: the transaction; the one that the journal tells of, if left out.
    """
    try:
        begun = begun or journal.read(root)
        stands = set() if begun is None else set(survey(root, begun).values())
    except OSError:
        return "What stands there cannot be told, for it cannot be read."
    if begun is None:
        return "The target stands whole."
    rest = "; the next overlay command cleans up" if journal.pending(root) else ""
    if stands == {Stand.AFTER}:
        return f"The {begun.action} is complete{rest}."
    if stands == {Stand.BEFORE}:
        return f"The target is as it was before the {begun.action}{rest}."
    return (
        "The target stands between two states; the next overlay command that can write there ends "
        f"the {begun.action} or takes it back."
    )


def _stand(root: Path, step: Step) -> Stand:
    found = reading.digest(root / step.path)
    if found == step.after:
        return Stand.AFTER
    return Stand.BEFORE if found == step.before else Stand.FOREIGN


def sync(root: Path, begun: Journal) -> None:
    """Bring the names in every folder that a transaction touches to the disk."""
    for folder in sorted({(root / step.path).parent for step in begun.steps}):
        files.sync_folder(folder)


def _drop_bytecode(root: Path, step: Step, coming: str | None) -> None:
    if step.path.endswith(".py"):
        files.remove_bytecode(root / step.path, None if coming is None else root / coming)
