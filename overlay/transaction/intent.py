"""What an apply or a revert has to write, worked out from what stands.  Reads, never writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import overlay
from overlay.errors import PlanOutdated, RevertRefused, TransactionError
from overlay.model import Change, Feature, FeatureResult, HunkResult, Plan
from overlay.standing import Condition, condition, conditions, void
from overlay.states import State
from overlay.transaction import ledger as ledgers
from overlay.transaction.files import Form, sha256
from overlay.transaction.journal import Journal, Step
from overlay.transaction.ledger import (
    IGNORE_PATH,
    LEDGER_PATH,
    PRISTINE_FOLDER,
    Entry,
    Ledger,
    LedgerFeature,
    LedgerLost,
    Rebuilt,
    RecordEntry,
)
from overlay.transaction.record_rows import (
    Row,
    our_rows,
    release_part,
    with_rows,
    without_rows,
)
from overlay.transaction.site import Site


@dataclass(frozen=True)
class Write:
    """What becomes of one file: ``None`` stands for no file."""

    path: str
    before: bytes | None
    after: bytes | None
    form: Form


@dataclass(frozen=True)
class Intent:
    """A whole transaction, ready to be written.

    :ivar writes: in the order in which they are taken; none, and there is nothing to do.
    :ivar changed: the files of vLLM among them, as the ledger calls them.
    """

    action: str
    writes: tuple[Write, ...] = ()
    made: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def journal(self) -> Journal:
        """The journal of this transaction."""
        steps = (Step(w.path, _hash(w.before), _hash(w.after)) for w in self.writes)
        return Journal(self.action, overlay.__version__, tuple(steps), self.made, self.dropped)


@dataclass(frozen=True)
class Request:
    """What ``apply`` is asked for.

    :ivar known: ids of what was applied when the plan was made; ``None``: whatever is applied by
        now and not in the plan is to go.
    """

    plan: Plan
    features: Sequence[Feature]
    release: str
    record_file: Path | None
    known: frozenset[str] | None = None


def to_apply(site: Site, request: Request) -> Intent:
    """What brings the target from what stands to what the plan wants.

    :raises PlanOutdated: if something was applied that the plan does not know of.
    :raises TransactionError: if a file is neither as the plan found it nor as the ledger left it.
    """
    old = ledgers.load(site.root)
    _expect_known(site, old, request)
    drafts, left_alone = _files(site, old, request.plan.changes, request.release)
    edited = [draft.path for draft in drafts if draft.problem]
    if edited:
        raise _changed_meanwhile(edited)
    if not request.plan.changes:
        if any(result.state is State.APPLIED for result in request.plan.features):
            raise ValueError("the plan says what is applied, and not how: make it from pristine")
        return _removal("apply", site, old, drafts, left_alone)
    new = _new_ledger(site, request, old)
    if old is not None and _same(old, new) and not any(draft.write for draft in drafts):
        return Intent("apply")
    state = _state_files(site, old, new, request.plan.changes)
    writes = [*(draft.write for draft in drafts if draft.write), *state]
    return _intent("apply", site, writes, old, new, drafts, left_alone)


def _expect_known(site: Site, old: Ledger | None, request: Request) -> None:
    if old is None or request.known is None:
        return
    planned = {feature.id for feature in request.features}
    applied = {one.result.feature for one in old.applied}
    news = sorted(applied - planned - request.known)
    if news and void(old, conditions(old, site.read), request.release) is None:
        raise PlanOutdated(
            f"{site.root}: another command has applied {', '.join(news)} meanwhile. Nothing was "
            "changed; run the command again"
        )


def to_revert(
    site: Site,
    release: str | None = None,
    record_file: Path | None = None,
    rebuild: Callable[[], Rebuilt] | None = None,
) -> Intent:
    """What brings the target back to its pristine bytes.

    :param release: the release that stands, as far as it is known.
    :param record_file: RECORD, where one lies beside ``vllm/``.
    :param rebuild: how to work out a ledger that is lost.
    :raises RevertRefused: if somebody edited a file after us.
    """
    try:
        old = ledgers.load(site.root)
    except LedgerLost:
        if rebuild is None:
            raise
        return _to_revert_without_ledger(site, record_file, rebuild())
    if old is None and rebuild is not None and _is_listed(site, record_file):
        return _to_revert_without_ledger(site, record_file, rebuild())
    drafts, left_alone = _files(site, old, (), release)
    edited = tuple(draft.path for draft in drafts if draft.problem)
    if edited:
        raise RevertRefused(
            f"edited after the overlay applied: {', '.join(edited)}. Reverting would lose the "
            "edit, so nothing was changed. Put the edit aside and take it out again, or reinstall "
            "vLLM",
            edited,
        )
    return _removal("revert", site, old, drafts, left_alone)


def _changed_meanwhile(paths: Sequence[str]) -> TransactionError:
    return TransactionError(
        f"{', '.join(paths)}: changed by somebody else, since the plan was made or since the "
        "overlay applied. Nothing was changed; run the command again, and see 'overlay status'"
    )


def _is_listed(site: Site, record_file: Path | None) -> bool:
    """Whether RECORD still has our rows."""
    path = _record_path(site, record_file)
    return path is not None and bool(our_rows(site.read(path) or b""))


def _to_revert_without_ledger(site: Site, record_file: Path | None, rebuilt: Rebuilt) -> Intent:
    """As ``to_revert``, by a ledger that was worked out anew and has no RECORD in it."""
    old = rebuilt.ledger
    writes = []
    for entry in old.entries:
        now = site.read(entry.path)
        if condition(entry, now) is not Condition.OURS:
            raise _changed_meanwhile([entry.path])
        after = None if entry.before is None else rebuilt.pristine[entry.before]
        real = site.real(entry.path)
        writes.append(Write(real, now, after, site.form(real)))
    drafts = [_Draft(entry.path, write) for entry, write in zip(old.entries, writes, strict=True)]
    path = _record_path(site, record_file)
    if path is not None:
        record = site.read(path)
        rows = our_rows(record or b"")
        if record is not None and rows:
            after = without_rows(record, None, [row.path for row in rows])
            writes.append(Write(site.real(path), record, after, site.form(path)))
    intent = _removal("revert", site, old, drafts, [], writes)
    said = "the ledger was lost: what it said was worked out from RECORD and the patches at hand"
    return replace(intent, warnings=(said, *intent.warnings))


@dataclass(frozen=True)
class _Draft:
    """What is to be done about one file of vLLM."""

    path: str
    write: Write | None = None
    problem: bool = False


def _files(
    site: Site, old: Ledger | None, changes: Iterable[Change], release: str | None
) -> tuple[list[_Draft], list[str]]:
    """What is to be done about each file, and the files that a dead ledger has no claim on."""
    wanted = {change.path: change for change in changes}
    drafts = [_wanted(site, old, change) for change in wanted.values()]
    left_alone: list[str] = []
    if old is None:
        return drafts, left_alone
    found = conditions(old, site.read)
    dead = void(old, found, release) is not None
    for entry in old.entries:
        if entry.path in wanted:
            continue
        stand = found[entry.path]
        if stand is Condition.OURS or (stand is Condition.GONE and not dead):
            drafts.append(_Draft(entry.path, _restore(site, entry)))
        elif stand is Condition.EDITED and not dead:
            drafts.append(_Draft(entry.path, problem=True))
        elif stand is Condition.EDITED:
            left_alone.append(entry.path)
    return drafts, left_alone


def _wanted(site: Site, old: Ledger | None, change: Change) -> _Draft:
    if change.after is None:
        raise ValueError(f"{change.path}: a feature patches and adds files, it never removes one")
    now = site.read(change.path)
    entry = old.entry(change.path) if old else None
    ours = entry is not None and condition(entry, now) is Condition.OURS
    if entry is not None and ours and entry.before != _hash(change.before):
        return _Draft(change.path, problem=True)
    if ours and now == change.after:
        return _Draft(change.path)
    if ours or now == change.before:
        real = site.real(change.path)
        return _Draft(change.path, Write(real, now, change.after, site.form(real)))
    return _Draft(change.path, problem=True)


def _restore(site: Site, entry: Entry) -> Write:
    after = None if entry.before is None else ledgers.copies(site.root)(entry.before)
    real = site.real(entry.path)
    now = site.read(entry.path)
    form = site.form(real)
    return Write(real, now, after, form if now is not None else replace(form, mode=entry.mode))


def _removal(
    action: str,
    site: Site,
    old: Ledger | None,
    drafts: Sequence[_Draft],
    left_alone: Sequence[str],
    writes: Sequence[Write] | None = None,
) -> Intent:
    """The intent that leaves nothing of ours."""
    if old is None:
        return Intent(action)
    if writes is None:
        writes = [draft.write for draft in drafts if draft.write]
    writes = [*writes, *_state_files(site, old, None, ())]
    return _intent(action, site, writes, old, None, drafts, left_alone)


def _state_files(
    site: Site, old: Ledger | None, new: Ledger | None, changes: Iterable[Change]
) -> list[Write]:
    """The writes to RECORD and to our own folder."""
    writes = []
    wanted: dict[str, bytes] = {}
    if new is not None:
        wanted[LEDGER_PATH] = ledgers.encode(new)
        for change in changes:
            if change.before is not None:
                wanted[f"{PRISTINE_FOLDER}/{sha256(change.before)}"] = change.before
        if new.record is None:
            wanted[IGNORE_PATH] = b"*\n"
    for path in sorted(site.state_files() | set(wanted)):
        now, after = site.read(path), wanted.get(path)
        if now != after:
            writes.append(Write(path, now, after, site.form(path)))
    for path, after in _records(site, old, new).items():
        now = site.read(path)
        if now is not None and now != after:
            writes.append(Write(site.real(path), now, after, site.form(path)))
    return writes


def _records(site: Site, old: Ledger | None, new: Ledger | None) -> dict[str, bytes]:
    """RECORD, path to bytes: with our rows where there is a new ledger, without where not."""
    wanted: dict[str, bytes] = {}
    if old is not None and old.record is not None:
        now = site.read(old.record.path)
        if now is not None:
            ours = [row.path for row in _rows(old)]
            wanted[old.record.path] = without_rows(now, old.record.before, ours)
    if new is not None and new.record is not None:
        path = new.record.path
        base = wanted.get(path)
        if base is None:
            base = release_part(site.read(path) or b"")
        wanted[path] = with_rows(base, _rows(new))
    return wanted


def _rows(ledger: Ledger) -> list[Row]:
    copies = sorted({entry.before for entry in ledger.entries if entry.before is not None})
    rows = [Row(f"{PRISTINE_FOLDER}/{copy}", copy) for copy in copies]
    rows += [Row(e.path, e.after, e.size) for e in ledger.entries if e.before is None]
    return rows


def _new_ledger(site: Site, request: Request, old: Ledger | None) -> Ledger:
    entries = []
    for change in sorted(request.plan.changes, key=lambda one: one.path):
        known = old.entry(change.path) if old else None
        mode = known.mode if known else site.form(site.real(change.path)).mode
        after = change.after or b""
        entries.append(Entry(change.path, _hash(change.before), sha256(after), mode, len(after)))
    added = [entry.path for entry in entries if entry.before is None]
    folders = {folder for path in added for folder in site.missing_folders(path)}
    if old is not None:
        folders |= {f for f in old.folders if any(path.startswith(f + "/") for path in added)}
    by_name = {feature.id: feature for feature in request.features}
    new = Ledger(
        overlay=overlay.__version__,
        release=request.release,
        features=tuple(
            LedgerFeature(
                by_name[result.feature].digest, by_name[result.feature].origin, _as_applied(result)
            )
            for result in request.plan.features
        ),
        entries=tuple(entries),
        folders=tuple(sorted(folders)),
        record=None,
    )
    return replace(new, record=_record_entry(site, request.record_file, old, new))


def _record_path(site: Site, record_file: Path | None) -> str | None:
    """RECORD's path in the target, if it lies beside ``vllm/``."""
    if record_file is None or record_file.parent.parent.resolve() != site.root:
        return None
    return f"{record_file.parent.name}/{record_file.name}"


def _record_entry(
    site: Site, record_file: Path | None, old: Ledger | None, new: Ledger
) -> RecordEntry | None:
    path = _record_path(site, record_file)
    now = None if path is None else site.read(path)
    if path is None or now is None:
        return None
    base = release_part(now)
    if old is not None and old.record is not None and old.record.path == path:
        base = without_rows(now, old.record.before, [row.path for row in _rows(old)])
    return RecordEntry(path, sha256(base), sha256(with_rows(base, _rows(new))))


def _intent(
    action: str,
    site: Site,
    writes: list[Write],
    old: Ledger | None,
    new: Ledger | None,
    drafts: Sequence[_Draft],
    left_alone: Sequence[str],
) -> Intent:
    real = [write.path for write in writes]
    twice = sorted({path for path in real if real.count(path) > 1})
    if twice:
        raise TransactionError(
            f"{', '.join(twice)}: two files of the patches are one file here, by a link. Nothing "
            "was changed; replace the link by a copy"
        )
    ordered = sorted(writes, key=lambda write: (_rank(write, new), write.path))
    made: list[str] = []
    for write in ordered:
        if write.after is not None:
            made += [one for one in site.missing_folders(write.path) if one not in made]
    kept = set(new.folders) if new else set()
    dropped = [folder for folder in (old.folders if old else ()) if folder not in kept]
    return Intent(
        action=action,
        writes=tuple(ordered),
        made=tuple(one for one in made if one != ledgers.STATE_FOLDER),
        dropped=(
            *reversed(dropped),
            *(() if new and _rows_need_copies(new) else (PRISTINE_FOLDER,)),
        ),
        changed=tuple(sorted(draft.path for draft in drafts if draft.write)),
        warnings=tuple(
            f"{path} is not what the overlay wrote, and belongs to the vLLM that was installed "
            "since: left as it is"
            for path in left_alone
        ),
    )


def _rows_need_copies(ledger: Ledger) -> bool:
    return any(entry.before is not None for entry in ledger.entries)


def _rank(write: Write, new: Ledger | None) -> int:
    """The place of a write in the order of steps.

    RECORD lists a file as long as it may be there; modules come before the call sites that need
    them, and go after; the ledger is last to come.
    """
    if write.path.endswith("/RECORD"):
        return 0 if new else 7
    if write.path == LEDGER_PATH:
        return 5
    if write.path.startswith(ledgers.STATE_FOLDER):
        return 6 if write.after is None else 1
    if write.before is None:
        return 2
    return 4 if write.after is None else 3


def _same(old: Ledger, new: Ledger) -> bool:
    """Whether nothing but the version of the overlay differs."""

    def essence(ledger: Ledger) -> tuple[object, ...]:
        features = [(one.result.feature, one.digest, one.result.state) for one in ledger.features]
        return ledger.entries, ledger.folders, ledger.record, ledger.release, features

    return essence(old) == essence(new)


def _as_applied(result: FeatureResult) -> FeatureResult:
    """A feature's result once its changes stand."""
    return replace(
        result,
        state=_applied(result.state),
        files=tuple(
            replace(file, state=_applied(file.state), hunks=tuple(map(_applied_hunk, file.hunks)))
            for file in result.files
        ),
    )


def _applied_hunk(hunk: HunkResult) -> HunkResult:
    return replace(hunk, state=_applied(hunk.state))


def _applied(state: State) -> State:
    return State.APPLIED if state is State.PRISTINE else state


def _hash(data: bytes | None) -> str | None:
    return None if data is None else sha256(data)
