"""Compute the files that record an apply: ledger, pristine copies, the overlay's rows in RECORD."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import overlay
from overlay._features.model import Feature
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.ledger import Entry, Ledger, LedgerFeature, RecordEntry
from overlay.on_disk.site import Site
from overlay.on_disk.writes import hash_of
from overlay.package import Package
from overlay.results import Change, FeatureResult, HunkResult, Plan, State
from overlay.targets.installations import Row, release_part, with_rows, without_rows
from overlay.untrusted import sha256


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
