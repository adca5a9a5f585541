"""Compute the writes that an apply or a revert needs from the present files; write nothing."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from overlay.errors import PlanOutdated, RevertRefused, TransactionError
from overlay.features.model import Feature
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.bookkeeping import new_ledger, record_path, same, state_files
from overlay.on_disk.disk_state import Condition, condition, conditions, keep_edit, void
from overlay.on_disk.ledger import Entry, Ledger, LedgerLost
from overlay.on_disk.site import Site
from overlay.on_disk.writes import Intent, Write, assemble, hash_of
from overlay.package import ReadOnce, Tree
from overlay.results import Change, Plan, State
from overlay.results.invocation import command
from overlay.targets.record import our_rows, release_part
from overlay.untrusted import all_unreadable


class Rebuilt(NamedTuple):
    """A reconstructed ledger, with the pristine bytes that it names, by sha256."""

    ledger: Ledger
    pristine: Mapping[str, bytes]


class Request(NamedTuple):
    """Inputs of an apply.

    :ivar basis: digest of the ledger that the plan was made from (``ledger.digest``); ``None``: the
        plan is carried out on any ledger, and removes what it does not want.
    """

    plan: Plan
    features: Sequence[Feature]
    release: str
    record_file: Path | None
    basis: str | None = None


def to_apply(site: Site, request: Request) -> Intent:
    """Compute the transaction that brings the present files to what the plan wants.

    :raises PlanOutdated: if the ledger is not the one that the plan was made from.
    :raises TransactionError: if a file is neither as the plan found it nor as the ledger left it.
    """
    old = ledgers.load(site.root, site.package)
    _require_basis(site, old, request.basis)
    drafts, left_alone = _files(site, old, request.plan.changes, request.release)
    edited = [draft.path for draft in drafts if draft.problem]
    if edited:
        raise _changed_meanwhile(edited)
    if not request.plan.changes:
        if any(result.state is State.APPLIED for result in request.plan.features):
            raise ValueError("the plan has no changes for what is applied: make it from pristine")
        return _removal("apply", site, old, drafts, left_alone)
    new = new_ledger(
        site, request.plan, request.features, request.release, request.record_file, old
    )
    if old is not None and same(old, new) and not any(draft.write for draft in drafts):
        return Intent("apply")
    state = state_files(site, old, new, request.plan.changes)
    writes = [*(draft.write for draft in drafts if draft.write), *state]
    return assemble("apply", site, writes, old, new, _changed(drafts), left_alone)


def to_adopt(site: Site, request: Request, folders: tuple[str, ...]) -> Intent:
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
    drafts, left_alone = _files(site, old, (), release)
    saved = {change.path for change in edits}
    drafts = [
        *(draft for draft in drafts if draft.path not in saved),
        *(_put_back(site, change) for change in edits),
    ]
    edited = tuple(draft.path for draft in drafts if draft.problem)
    if edited:
        step = keep_edit(site.package)
        raise RevertRefused(
            f"edited after the overlay applied: {', '.join(edited)}. Reverting would lose the "
            f"edit, so nothing was changed. {step[0].upper()}{step[1:]}",
            edited,
        )
    return _removal("revert", site, old, drafts, left_alone)


def _put_back(site: Site, change: Change) -> _Draft:
    """The write that takes an edit out; a problem where the file was edited once more."""
    now = site.read(change.path)
    if now == change.after:
        return _Draft(change.path)
    if now != change.before:
        return _Draft(change.path, problem=True)
    real = site.real(change.path)
    return _Draft(change.path, Write(real, now, change.after, site.form(real)))


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
    drafts = []
    for entry in old.entries:
        now = site.read(entry.path)
        if condition(entry, now) is not Condition.OURS:
            raise _changed_meanwhile([entry.path])
        after = None if entry.before is None else rebuilt.pristine[entry.before]
        real = site.real(entry.path)
        drafts.append(_Draft(entry.path, Write(real, now, after, site.form(real))))
    rows_out = []
    path = record_path(site, record_file)
    if path is not None:
        record = site.read(path) or b""
        without = release_part(record, site.package)
        if without != record:
            rows_out.append(Write(path, record, without, site.form(path)))
    intent = _removal("revert", site, old, drafts, [], rows_out)
    warning = "the ledger was lost: it was reconstructed from RECORD and the patches at hand"
    return intent._replace(warnings=(warning, *intent.warnings))


class _Draft(NamedTuple):
    """The write that one file of the package needs.

    :ivar write: ``None`` where the file needs none.
    :ivar problem: whether the file has bytes of somebody else, so that it cannot be written.
    """

    path: str
    write: Write | None = None
    problem: bool = False


def _files(
    site: Site, old: Ledger | None, changes: Iterable[Change], release: str | None
) -> tuple[list[_Draft], list[str]]:
    """Compute the write each file needs, and the files that a void ledger no longer owns."""
    wanted = {change.path: change for change in changes}
    listed = [entry.path for entry in old.entries] if old is not None else []
    tree = ReadOnce(site)
    with all_unreadable({*wanted, *listed}, tree.read):
        drafts = [_wanted(site, tree, old, change) for change in wanted.values()]
        return _with_listed(site, tree, old, release, wanted, drafts)


def _with_listed(
    site: Site,
    tree: Tree,
    old: Ledger | None,
    release: str | None,
    wanted: Container[str],
    drafts: list[_Draft],
) -> tuple[list[_Draft], list[str]]:
    """Add to ``drafts`` the writes of files that only the ledger lists."""
    left_alone: list[str] = []
    if old is None:
        return drafts, left_alone
    present = conditions(old, tree.read)
    dead = void(old, present, release) is not None
    for entry in old.entries:
        if entry.path in wanted:
            continue
        now = present[entry.path]
        if now is Condition.OURS or (now is Condition.GONE and not dead):
            drafts.append(_Draft(entry.path, _restore(site, entry)))
        elif now is Condition.EDITED and not dead:
            drafts.append(_Draft(entry.path, problem=True))
        elif now is Condition.EDITED:
            left_alone.append(entry.path)
    return drafts, left_alone


def _wanted(site: Site, tree: Tree, old: Ledger | None, change: Change) -> _Draft:
    """Compute the write that one change of a plan needs."""
    if change.after is None:
        raise ValueError(f"{change.path}: a feature patches and adds files, it never removes one")
    now = tree.read(change.path)
    entry = old.entry(change.path) if old else None
    ours = entry is not None and condition(entry, now) is Condition.OURS
    if entry is not None and ours and entry.before != hash_of(change.before):
        return _Draft(change.path, problem=True)
    if ours and now == change.after:
        return _Draft(change.path)
    if ours or now == change.before:
        real = site.real(change.path)
        return _Draft(change.path, Write(real, now, change.after, site.form(real)))
    return _Draft(change.path, problem=True)


def _restore(site: Site, entry: Entry) -> Write:
    """Compute the write that restores a file: its bytes, and its mode where it was removed."""
    after = None if entry.before is None else ledgers.copies(site.root, site.package)(entry.before)
    real = site.real(entry.path)
    now = site.read(entry.path)
    form = site.form(real)
    return Write(real, now, after, form if now is not None else form._replace(mode=entry.mode))


def _removal(
    action: str,
    site: Site,
    old: Ledger | None,
    drafts: Sequence[_Draft],
    left_alone: Sequence[str],
    more: Sequence[Write] = (),
) -> Intent:
    """Build the transaction that removes everything of the overlay.

    :param more: writes to files that are not the package's, beside those of its state.
    """
    writes = [*(draft.write for draft in drafts if draft.write), *more]
    if old is not None:
        writes += state_files(site, old, None, ())
    elif not writes:
        return Intent(action)
    return assemble(action, site, writes, old, None, _changed(drafts), left_alone)


def _changed(drafts: Sequence[_Draft]) -> list[str]:
    return [draft.path for draft in drafts if draft.write]
