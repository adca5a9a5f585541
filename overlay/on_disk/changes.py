"""Compute the writes that an apply or a revert needs from the present files; write nothing.

What an apply records of itself (ledger, pristine copies, the overlay's rows in RECORD) is among
them; ``assemble`` brings all into their order, and an ``Intent`` has its journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import overlay
from overlay._features.model import Feature
from overlay.errors import PlanOutdated, RevertRefused, TransactionError, command
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import (
    Condition,
    condition,
    conditions,
    keep_edit,
    void,
    was_replaced,
)
from overlay.on_disk.files import Form, Site
from overlay.on_disk.journal import Journal, Step
from overlay.on_disk.ledger import Entry, Ledger, LedgerFeature, LedgerLost, RecordEntry, hash_of
from overlay.package import Package, ReadOnce, Tree
from overlay.results import Change, FeatureResult, HunkResult, Plan, State
from overlay.targets.installations import Row, our_rows, release_part, with_rows, without_rows
from overlay.untrusted import all_unreadable, sha256


def state_files(
    site: Site, old: Ledger | None, new: Ledger | None, changes: Iterable[Change]
) -> list[Change]:
    """Compute the changes of RECORD and of the overlay's own folder."""
    writes, package = [], site.package
    contents: dict[str, bytes] = {}
    if new is not None:
        contents[package.ledger_path] = ledgers.encode(new)
        for change in changes:
            if change.before is not None:
                contents[f"{package.pristine_folder}/{sha256(change.before)}"] = change.before
        if new.record is None:
            contents[package.ignore_path] = b"*\n"
    for path in sorted(site.state_files() | set(contents)):
        now, after = site.read(path), contents.get(path)
        if now != after:
            writes.append(Change(path, now, after))
    for path, after in _records(site, old, new).items():
        now = site.read(path)
        if now is not None and now != after:
            writes.append(Change(site.real(path), now, after))
    return writes


def _records(site: Site, old: Ledger | None, new: Ledger | None) -> dict[str, bytes]:
    """Map the path of RECORD to its bytes: with the overlay's rows where there is a new ledger."""
    contents: dict[str, bytes] = {}
    package = site.package
    if old is not None and old.record is not None:
        now = site.read(old.record.path)
        if now is not None:
            ours = [row.path for row in _rows(old, package)]
            contents[old.record.path] = without_rows(now, old.record.before, ours, package)
    if new is not None and new.record is not None:
        path = new.record.path
        base = contents.get(path) or site.read(path)
        if base is not None:
            contents[path] = with_rows(base, _rows(new, package), package)
    return contents


def _rows(ledger: Ledger, package: Package) -> list[Row]:
    copies = sorted({entry.before for entry in ledger.entries if entry.before is not None})
    rows = [Row(f"{package.pristine_folder}/{copy}", copy) for copy in copies]
    rows += [
        Row(entry.path, entry.after, entry.size) for entry in ledger.entries if entry.before is None
    ]
    return rows


def new_ledger(
    site: Site,
    plan: Plan,
    features: Sequence[Feature],
    release: str,
    record_file: Path | None,
    old: Ledger | None,
) -> Ledger:
    """Build the ledger of a target in which ``plan`` is applied.

    :param old: the present ledger.
    """
    entries = []
    for change in sorted(plan.changes):
        old_entry = old.entry(change.path) if old else None
        mode = old_entry.mode if old_entry else site.form(site.real(change.path)).mode
        size = len(change.after or b"")
        entries.append(
            Entry(change.path, hash_of(change.before), hash_of(change.after), mode, size)
        )
    added = [entry.path for entry in entries if entry.before is None]
    folders = {folder for path in added for folder in site.missing_folders(path)}
    if old is not None:
        folders |= {f for f in old.folders if any(path.startswith(f + "/") for path in added)}
    by_name = {feature.id: feature for feature in features}
    new = Ledger(
        overlay=overlay.__version__,
        release=release,
        features=tuple(
            LedgerFeature(feature.digest, feature.origin, as_applied(result), feature.source)
            for result in plan.features
            for feature in (by_name[result.feature],)
        ),
        entries=tuple(entries),
        folders=tuple(sorted(folders)),
        record=None,
    )
    return new._replace(record=_record_entry(site, record_file, old, new))


def record_path(site: Site, record_file: Path | None) -> str | None:
    """Path of RECORD in the target; ``None`` where it is not beside the package."""
    if record_file is None or record_file.parent.parent.resolve() != site.root:
        return None
    return f"{record_file.parent.name}/{record_file.name}"


def _record_entry(
    site: Site, record_file: Path | None, old: Ledger | None, new: Ledger
) -> RecordEntry | None:
    path = record_path(site, record_file)
    now = None if path is None else site.read(path)
    if path is None or now is None:
        return None
    package = site.package
    base = release_part(now, package)
    if old is not None and old.record is not None and old.record.path == path:
        rows = [row.path for row in _rows(old, package)]
        base = without_rows(now, old.record.before, rows, package)
    after = with_rows(base, _rows(new, package), package)
    return RecordEntry(path, sha256(base), sha256(after))


def same(old: Ledger, new: Ledger) -> bool:
    """Whether two ledgers differ in the version of the overlay only."""

    def essence(ledger: Ledger) -> tuple[object, ...]:
        features = [
            (entry.result.feature, entry.digest, entry.result.state) for entry in ledger.features
        ]
        return ledger.entries, ledger.folders, ledger.record, ledger.release, features

    return essence(old) == essence(new)


def as_applied(result: FeatureResult) -> FeatureResult:
    """Result of a feature after its changes were written."""
    return result._replace(
        state=_applied(result.state),
        files=tuple(
            file._replace(state=_applied(file.state), hunks=tuple(map(_applied_hunk, file.hunks)))
            for file in result.files
        ),
    )


def _applied_hunk(hunk: HunkResult) -> HunkResult:
    return hunk._replace(state=_applied(hunk.state))


def _applied(state: State) -> State:
    return State.APPLIED if state is State.PRISTINE else state


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
