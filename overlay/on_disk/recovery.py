"""End an interrupted transaction: finish it, or undo it.

Both directions replace each file atomically, can be interrupted themselves, and decide by the
hashes of the files on the disk:

* it can be *finished* where every file has its new bytes, or its old bytes while the new ones wait
  beside it;
* it can be *undone* where every file has its old bytes, or its new bytes while the old ones are
  kept beside it.

A transaction over several packages is ended in all of them, in one direction: each condition holds
for their files taken together.  Where a partner has no journal of it any more, the transaction was
over before it came to be ended, or had not begun: all new bytes are kept, and anything else is
undone.

A file that has other bytes than both was written by somebody else since (pip, say); it is left as
it is, and the rest is undone rather than finished."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from overlay.errors import LedgerError, TransactionError
from overlay.on_disk import files, journal, lock
from overlay.on_disk.journal import Journal, Member, Step
from overlay.on_disk.journal_trust import require_own, require_plain
from overlay.on_disk.members import held
from overlay.on_disk.site import unwritable
from overlay.package import VLLM, Package
from overlay.untrusted import UnfitFile, read_below, sha256


class Content(Enum):
    """Bytes that a file of a transaction has."""

    BEFORE = "before"
    AFTER = "after"
    FOREIGN = "foreign"


class Part(NamedTuple):
    """What a transaction does to one package."""

    root: Path
    begun: Journal
    package: Package = VLLM

    def __str__(self) -> str:
        return f"{self.package.title} in {self.root}"


def recover(root: Path, timeout: float = lock.TIMEOUT, package: Package = VLLM) -> str | None:
    """End a transaction that was interrupted in ``root``; commands that write call this first.

    A transaction that still runs is waited for.  One over several packages is ended in all.

    :param timeout: seconds to wait for it.
    :param package: the one in ``root`` that is meant.
    :returns: what was done; ``None`` where nothing had to be done.
    :raises LedgerError: if a journal is damaged, or a newer overlay wrote it.
    :raises TransactionError: if another command holds a target for longer than ``timeout``, a
        journal may be somebody else's, this user may not write there, or the targets can neither
        be finished nor undone.
    """
    member = Member(root.resolve(), package)
    if not journal.pending(*member):
        return None
    with held([member], timeout) as members:
        return recover_locked(members)


def recover_locked(members: Sequence[Member]) -> str | None:
    """End what was interrupted, as ``recover`` does.

    :param members: packages of which the caller holds the exclusive locks, with all partners of
        their transactions (``held``).
    """
    transactions: dict[object, list[Part]] = {}
    for member in members:
        begun = journal.read(*member)
        if begun is None:
            try:
                journal.sweep(*member)
            except OSError:
                # An empty folder on a read-only disk is not a transaction, and hides nothing.
                continue
        else:
            transactions.setdefault(begun.id or member, []).append(
                Part(member.root, begun, member.package)
            )
    return "; ".join(_end(parts) for parts in transactions.values()) or None


def _end(parts: Sequence[Part]) -> str:
    """End one transaction.

    :returns: what was done, in a sentence.
    """
    for part in parts:
        require_own(*part)
        require_plain(*part)
    action = parts[0].begun.action
    try:
        return _ended(parts)
    except OSError as error:
        outcome = f"The interrupted {action} could not be ended here. {state_of(parts)}"
        raise unwritable(error, outcome) from error


def _ended(parts: Sequence[Part]) -> str:
    """Finish or undo a transaction.

    :returns: what was done, in a sentence.
    :raises OSError: if a target cannot be written.
    """
    action = parts[0].begun.action
    contents = [survey(part.root, part.begun) for part in parts]
    foreign = [
        path for found in contents for path, content in found.items() if content is Content.FOREIGN
    ]
    forward, back = all_can_finish(parts), all_can_undo(parts)
    if _lacks_partner(parts) and back:
        forward = forward and _all_after(parts)
    if forward and (not foreign or not back):
        try:
            finish(parts)
            done = "finished"
        except OSError:
            if _lacks_partner(parts) or not all_can_undo(parts):
                raise
            undo(parts)
            done = "undone"
    elif back:
        undo(parts)
        done = "undone"
    else:
        title, folder = parts[0].package.title, parts[0].root / parts[0].package.state_folder
        raise TransactionError(
            f"an interrupted {action} can neither be finished nor undone: {_places(parts)} is "
            "patched in part, and the bytes kept beside its files are gone. Reinstall "
            f"{title} (pip install --force-reinstall --no-deps ...) and remove {folder}"
        )
    message = f"an interrupted {action} was {done} in {_places(parts)}"
    if foreign:
        message += f"; changed by others since, and left alone: {', '.join(foreign)}"
    return message


def _places(parts: Sequence[Part]) -> str:
    """The places of a transaction, for messages."""
    if len(parts) == 1:
        return str(parts[0].root)
    return " and ".join(map(str, parts))


def _lacks_partner(parts: Sequence[Part]) -> bool:
    """Whether a package of the transaction has no journal of it."""
    return len(parts) <= len(parts[0].begun.partners)


def _all_after(parts: Sequence[Part]) -> bool:
    return all(
        content is Content.AFTER
        for part in parts
        for content in survey(part.root, part.begun).values()
    )


def all_can_finish(parts: Sequence[Part]) -> bool:
    """Whether every part of a transaction can be finished."""
    return all(can_finish(p.root, p.begun, survey(p.root, p.begun)) for p in parts)


def all_can_undo(parts: Sequence[Part]) -> bool:
    """Whether every part of a transaction can be undone."""
    return all(can_undo(p.root, p.begun, survey(p.root, p.begun)) for p in parts)


def settle(parts: Sequence[Part]) -> None:
    """End a transaction that failed: undo it where that is possible, else finish it.

    Where that fails, too, the journals remain, and the next command ends the transaction.
    """
    try:
        begun = [part for part in parts if journal.begun(part.root, part.package)]
        for part in parts:
            if part not in begun:
                journal.sweep(part.root, part.package)
        over = len(begun) < len(parts) and _all_after(begun)
        if not over and all_can_undo(begun):
            undo(begun)
        else:
            finish(begun)
    except OSError:
        return


def survey(root: Path, begun: Journal) -> dict[str, Content]:
    """Find out which bytes every file of a transaction has, by path."""
    return {step.path: _content(root, step) for step in begun.steps}


def can_finish(root: Path, begun: Journal, contents: dict[str, Content]) -> bool:
    """Whether the new bytes of every file that still has its old ones wait beside it."""
    return all(
        step.after is None or _digest(root, step.new) == step.after
        for step in begun.steps
        if contents[step.path] is Content.BEFORE
    )


def can_undo(root: Path, begun: Journal, contents: dict[str, Content]) -> bool:
    """Whether the old bytes of every file that has its new ones are kept beside it."""
    return all(
        step.before is None or _digest(root, step.old) == step.before
        for step in begun.steps
        if contents[step.path] is Content.AFTER
    )


def finish(parts: Sequence[Part]) -> None:
    """Give every file its new bytes, then remove what was kept beside it, and the journals."""
    # Bytecode goes first: where it cannot be removed, no file was replaced yet.
    for part in parts:
        _drop_stale(part)
    for part in parts:
        _put_in(part)
    for root, begun, _ in parts:
        for step in begun.steps:
            files.remove(root, step.old)
            files.remove(root, step.new)
        for folder in begun.dropped:
            files.remove_folder(root, folder)
        sync(root, begun)
    for root, _, package in parts:
        journal.remove(root, package)


def _drop_stale(part: Part) -> None:
    """Remove the bytecode of what the new bytes replace, or have replaced."""
    root, begun, _ = part
    contents = survey(root, begun)
    for step in begun.steps:
        if contents[step.path] is Content.BEFORE:
            _drop_bytecode(root, step, step.new if step.after else None)
        elif contents[step.path] is Content.AFTER:
            _drop_bytecode(root, step, step.path if step.after else None)


def _put_in(part: Part) -> None:
    """Give the files of one package their new bytes."""
    root, begun, _ = part
    for step in begun.steps:
        if _content(root, step) is not Content.BEFORE:
            continue
        if step.after is None:
            files.remove(root, step.path)
            # Once more: somebody may have imported the module meanwhile.
            _drop_bytecode(root, step, None)
        else:
            files.replace(root, step.new, step.path)
    sync(root, begun)


def undo(parts: Sequence[Part]) -> None:
    """Give every file its old bytes back, then remove the journals."""
    taken = [_taken(part) for part in parts]
    # Delete the staged files first, so that a crash here can only be rolled back.
    for root, begun, _ in parts:
        for step in begun.steps:
            files.remove(root, step.new)
    for part, steps in zip(parts, taken, strict=True):
        for step in steps:
            _drop_bytecode(part.root, step, step.old if step.before else None)
    for part, steps in zip(parts, taken, strict=True):
        _put_back(part, steps)
    for root, begun, _ in parts:
        for step in begun.steps:
            files.remove(root, step.old)
        for folder in reversed(begun.made):
            files.remove_folder(root, folder)
        sync(root, begun)
    for root, _, package in parts:
        journal.remove(root, package)


def _taken(part: Part) -> list[Step]:
    """The steps of one package that were taken, the last one first."""
    contents = survey(part.root, part.begun)
    return [step for step in reversed(part.begun.steps) if contents[step.path] is Content.AFTER]


def _put_back(part: Part, steps: Sequence[Step]) -> None:
    """Give the files of one package their old bytes."""
    for step in steps:
        if step.before is None:
            files.remove(part.root, step.path)
            _drop_bytecode(part.root, step, None)
        else:
            files.replace(part.root, step.old, step.path)
    sync(part.root, part.begun)


def state_of(parts: Sequence[Part]) -> str:
    """Describe the state of the packages after a transaction over them stopped."""
    if len(parts) == 1:
        return state(*parts[0])
    return " ".join(f"{part}: {state(*part)}" for part in parts)


def state(root: Path, begun: Journal | None = None, package: Package = VLLM) -> str:
    """Describe the state of ``root`` after a transaction stopped, in a sentence.

    :param begun: the transaction; default: that of the journal.
    """
    try:
        begun = begun or journal.read(root, package)
        contents = set() if begun is None else set(survey(root, begun).values())
    except (OSError, LedgerError):
        return "The state of the target is unknown, because it cannot be read."
    if begun is None:
        return "The target is whole."
    rest = "; the next overlay command cleans up" if journal.pending(root, package) else ""
    if contents == {Content.AFTER}:
        return f"The {begun.action} is complete{rest}."
    if contents == {Content.BEFORE}:
        return f"The target is as it was before the {begun.action}{rest}."
    return (
        "The target is between two states; the next overlay command that can write there ends "
        f"the {begun.action} or takes it back."
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


def sync(root: Path, begun: Journal) -> None:
    """Sync every folder in which a transaction changes names."""
    for folder in sorted({step.path.rpartition("/")[0] for step in begun.steps}):
        files.sync_folder(root, folder)


def _drop_bytecode(root: Path, step: Step, coming: str | None) -> None:
    if step.path.endswith(".py"):
        files.remove_bytecode(root, step.path, coming)
