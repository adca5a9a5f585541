"""Compute the writes that an apply or a revert needs from the present files; write nothing."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from overlay._features.model import Feature
from overlay.errors import PlanOutdated, RevertRefused, TransactionError
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.bookkeeping import new_ledger, record_path, same, state_files
from overlay.on_disk.disk_state import (
    Condition,
    condition,
    conditions,
    keep_edit,
    void,
    was_replaced,
)
from overlay.on_disk.ledger import Entry, Ledger, LedgerLost
from overlay.on_disk.site import Site
from overlay.on_disk.writes import Intent, assemble, hash_of
from overlay.package import ReadOnce, Tree
from overlay.results import Change, Plan, State
from overlay.results.invocation import command
from overlay.targets.installations import our_rows, release_part
from overlay.untrusted import all_unreadable


class Rebuilt(NamedTuple):
    """A reconstructed ledger, with the pristine bytes that it names, by sha256."""

    ledger: Ledger
    pristine: Mapping[str, bytes]


class Application(NamedTuple):
    """Inputs of an apply.

    :ivar basis: digest of the ledger that the plan was made from (``ledger.digest``); ``None``: the
        plan is carried out on any ledger, and removes what it does not want.
    """

    plan: Plan
    features: Sequence[Feature]
    release: str
    record_file: Path | None
    basis: str | None = None


def to_apply(site: Site, request: Application) -> Intent:
    """Compute the transaction that brings the present files to what the plan wants.

    :raises PlanOutdated: if the ledger is not the one that the plan was made from.
    :raises TransactionError: if a file is neither as the plan found it nor as the ledger left it.
    """
    old = ledgers.load(site.root, site.package)
    _require_basis(site, old, request.basis)
    needed = _needed(site, old, request.plan.changes, request.release)
    if needed.edited:
        raise _changed_meanwhile(needed.edited)
    if not request.plan.changes:
        if any(result.state is State.APPLIED for result in request.plan.features):
            raise ValueError("the plan has no changes for what is applied: make it from pristine")
        return _removal("apply", site, old, needed)
    new = new_ledger(
        site, request.plan, request.features, request.release, request.record_file, old
    )
    if old is not None and same(old, new) and not needed.writes:
        return Intent("apply")
    writes = [*needed.writes.values(), *state_files(site, old, new, request.plan.changes)]
    return assemble(
        "apply", site, writes, old, new, [*needed.writes], needed.left_alone, needed.modes
    )


def to_adopt(site: Site, request: Application, folders: tuple[str, ...]) -> Intent:
    """Compute the transaction that writes the missing ledger of the present bytes.

    :param request: its plan's changes end in those bytes.
    :param folders: the folders that were made for added modules, outermost first.
    :raises TransactionError: if a file has other bytes.
    """
    try:
        if ledgers.load(site.root, site.package) is not None:
            return Intent("apply")
    except LedgerLost:
        pass  # The damaged ledger is replaced.
    other = [
        change.path for change in request.plan.changes if site.read(change.path) != change.after
    ]
    if other:
        raise _changed_meanwhile(other)
    new = new_ledger(
        site, request.plan, request.features, request.release, request.record_file, None
    )
    new = new._replace(folders=folders)
    writes = state_files(site, None, new, request.plan.changes)
    return assemble("apply", site, writes, None, new, (), ())


def _require_basis(site: Site, old: Ledger | None, basis: str | None) -> None:
    """Refuse a plan that was made from another ledger than the present one.

    :raises PlanOutdated: if another command has changed the ledger since.
    """
    if basis is not None and basis != ledgers.digest(old):
        raise PlanOutdated(
            f"{site.root}: expected the ledger that the plan was made from, found that another "
            "command has changed what is applied since. Nothing was changed; run the command again"
        )


def to_revert(
    site: Site,
    release: str | None = None,
    record_file: Path | None = None,
    rebuild: Callable[[], Rebuilt] | None = None,
    basis: str | None = None,
    edits: Sequence[Change] = (),
) -> Intent:
    """Compute the transaction that brings the target back to its pristine bytes.

    :param release: the installed release, as far as it is known.
    :param record_file: RECORD, where one lies beside the package.
    :param rebuild: reconstructs a ledger that is lost.
    :param basis: digest of the ledger that is to be reverted; ``None``: of any.
    :param edits: edited files that are saved elsewhere, from their present bytes to the pristine
        ones; they are put back too.
    :raises PlanOutdated: if the ledger is another one.
    :raises RevertRefused: if somebody edited another file, or one of these once more.
    """
    try:
        old = ledgers.load(site.root, site.package)
    except LedgerLost:
        if rebuild is None:
            raise
        return _to_revert_without_ledger(site, record_file, rebuild())
    if old is None and rebuild is not None and _is_listed(site, record_file):
        return _to_revert_without_ledger(site, record_file, rebuild())
    _require_basis(site, old, basis)
    needed = _needed(site, old, (), release)
    for change in edits:
        _put_back(site, needed, change)
    if needed.edited:
        step = keep_edit(site.package)
        raise RevertRefused(
            f"edited after the overlay applied: {', '.join(needed.edited)}. Reverting would lose "
            f"the edit, so nothing was changed. {step[0].upper()}{step[1:]}",
            tuple(needed.edited),
        )
    return _removal("revert", site, old, needed)


def _put_back(site: Site, needed: _Needed, change: Change) -> None:
    """Take an edit out that is saved elsewhere, unless the file was edited once more."""
    if (write := needed.writes.pop(change.path, None)) is not None:
        needed.modes.pop(write.path, None)
    if change.path in needed.edited:
        needed.edited.remove(change.path)
    now = site.read(change.path)
    if now == change.before:
        needed.write(site, change.path, now, change.after)
    elif now != change.after:
        needed.edited.append(change.path)


def _changed_meanwhile(paths: Sequence[str]) -> TransactionError:
    return TransactionError(
        f"{', '.join(paths)}: changed by somebody else, since the plan was made or since the "
        f"overlay applied. Nothing was changed; run the command again, and see {command('status')}"
    )


def _is_listed(site: Site, record_file: Path | None) -> bool:
    """Whether RECORD still has the overlay's rows."""
    path = record_path(site, record_file)
    return path is not None and bool(our_rows(site.read(path) or b"", site.package))


def _to_revert_without_ledger(site: Site, record_file: Path | None, rebuilt: Rebuilt) -> Intent:
    """Compute what ``to_revert`` does from a reconstructed ledger, which does not name RECORD."""
    old = rebuilt.ledger
    needed = _Needed()
    for entry in old.entries:
        now = site.read(entry.path)
        if condition(entry, now) is not Condition.OURS:
            raise _changed_meanwhile([entry.path])
        after = None if entry.before is None else rebuilt.pristine[entry.before]
        needed.write(site, entry.path, now, after)
    rows_out = []
    path = record_path(site, record_file)
    if path is not None:
        record = site.read(path) or b""
        without = release_part(record, site.package)
        if without != record:
            rows_out.append(Change(path, record, without))
    intent = _removal("revert", site, old, needed, rows_out)
    warning = "the ledger was lost: it was reconstructed from RECORD and the patches at hand"
    return intent._replace(warnings=(warning, *intent.warnings))


class _Needed:
    """What the files of a package need.

    :ivar writes: by the path that the ledger has; :ivar modes: of those that come back, by theirs.
    :ivar edited: files with bytes of somebody else, so that they cannot be written.
    :ivar left_alone: such files that a void ledger lists and no longer owns.
    """

    def __init__(self) -> None:
        self.writes: dict[str, Change] = {}
        self.modes: dict[str, int] = {}
        self.edited: list[str] = []
        self.left_alone: list[str] = []

    def write(self, site: Site, path: str, now: bytes | None, after: bytes | None) -> None:
        """Add a write to a file that has the bytes ``now``."""
        self.writes[path] = Change(site.real(path), now, after)

    def restore(self, site: Site, entry: Entry) -> None:
        """Add the write that restores a file: its bytes, and its mode where it was removed."""
        copies = ledgers.copies(site.root, site.package)
        now = site.read(entry.path)
        self.write(site, entry.path, now, None if entry.before is None else copies(entry.before))
        if now is None:
            self.modes[self.writes[entry.path].path] = entry.mode


def _needed(
    site: Site, old: Ledger | None, changes: Iterable[Change], release: str | None
) -> _Needed:
    """What the changes of a plan need, and the files that only the ledger lists."""
    changes_by_path = {change.path: change for change in changes}
    listed = [entry.path for entry in old.entries] if old is not None else []
    tree, needed = ReadOnce(site), _Needed()
    with all_unreadable({*changes_by_path, *listed}, tree.read):
        for change in changes_by_path.values():
            _bring_about(site, tree, old, change, needed, release)
        if old is not None:
            _take_out(site, tree, old, release, changes_by_path, needed)
    return needed


def _take_out(
    site: Site,
    tree: Tree,
    old: Ledger,
    release: str | None,
    changed_paths: Container[str],
    needed: _Needed,
) -> None:
    """Restore the files that only the ledger lists."""
    present = conditions(old, tree.read)
    dead = void(old, present, release) is not None
    for entry in old.entries:
        if entry.path in changed_paths:
            continue
        now = present[entry.path]
        if dead and entry.after is None:
            continue  # nothing of the overlay's is there
        if now is Condition.OURS or (now is Condition.GONE and not dead):
            needed.restore(site, entry)
        elif now is Condition.EDITED:
            (needed.left_alone if dead else needed.edited).append(entry.path)


def _bring_about(
    site: Site,
    tree: Tree,
    old: Ledger | None,
    change: Change,
    needed: _Needed,
    release: str | None,
) -> None:
    """Make one change of a plan."""
    now = tree.read(change.path)
    entry = old.entry(change.path) if old else None
    if old is not None and entry is not None and entry.after is None and was_replaced(old, release):
        entry = None  # that it is not there is the other release's doing
    ours = entry is not None and condition(entry, now) is Condition.OURS
    if entry is not None and ours and entry.before != hash_of(change.before):
        needed.edited.append(change.path)
    elif ours and now == change.after:
        return
    elif ours or now == change.before:
        needed.write(site, change.path, now, change.after)
    else:
        needed.edited.append(change.path)


def _removal(
    action: str, site: Site, old: Ledger | None, needed: _Needed, more: Sequence[Change] = ()
) -> Intent:
    """Build the transaction that removes everything of the overlay.

    :param more: writes to files that are not the package's, beside those of its state.
    """
    writes = [*needed.writes.values(), *more]
    if old is not None:
        writes += state_files(site, old, None, ())
    elif not writes:
        return Intent(action)
    return assemble(
        action, site, writes, old, None, [*needed.writes], needed.left_alone, needed.modes
    )
