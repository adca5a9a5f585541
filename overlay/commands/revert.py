"""``overlay revert``: the exact bytes that apply found, and nothing of ours left."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.commands.request import notices, resolve_writable
from overlay.errors import LedgerError, RevertRefused
from overlay.on_disk import ledger as ledgers
from overlay.on_disk import transaction as commit
from overlay.on_disk.disk_state import from_ledger
from overlay.on_disk.recovery import recover
from overlay.report.model import RevertReport, TargetReport
from overlay.report.wording import not_reverted, reverted
from overlay.results import FeatureResult, FileResult, Plan, State
from overlay.targets.target import public

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.commands.request import Request
    from overlay.on_disk.changes import Rebuilt
    from overlay.on_disk.ledger import Ledger
    from overlay.targets.target import Target


def revert(request: Request, name: str | None = None) -> RevertReport:
    """Take everything off.  No patches are needed for it: the ledger knows what was done.

    Only where the ledger is lost, it is worked out anew from the patches and RECORD.

    :raises LedgerError: if it is lost, and cannot be proven what it said.
    :raises UsageError: if the target is a file or a release.
    :raises TargetError: if there is no such target.
    :raises TransactionError: if it cannot be written.
    """
    target, root = resolve_writable(request, name, "revert")
    said = recover(root)
    before = _ledger(root)

    def rebuild() -> Rebuilt:
        from overlay.on_disk.rebuild import rebuild

        return rebuild(request.load(), target, target.release, target.record)

    try:
        outcome = commit.revert(
            root, release=public(target), record_file=target.record_file, rebuild=rebuild
        )
    except RevertRefused as refusal:
        return _refused(target, before, refusal)
    results = () if before is None else tuple(_reverted(one.result) for one in before.applied)
    warnings = (*((said,) if said else ()), *outcome.warnings)
    answer = _report(target, Plan(results, (), notices(dict.fromkeys(warnings))))
    removed = sum(target.read(path) is None for path in outcome.changed)
    restored = len(outcome.changed) - removed
    verdict = reverted(answer, restored, removed, wrote=outcome.wrote)
    return RevertReport(verdict, answer, outcome.changed)


def _ledger(root: Path) -> Ledger | None:
    """The ledger, for the report only: whether a damaged one can be reverted is decided later."""
    with commit.reading(root):
        try:
            return ledgers.load(root)
        except LedgerError:
            return None


def _refused(target: Target, ledger: Ledger | None, refusal: RevertRefused) -> RevertReport:
    found = None if ledger is None else from_ledger(ledger, target, public(target))
    plan = found or Plan(())
    answer = _report(target, replace(plan, notices=(*plan.notices, *notices([str(refusal)]))))
    return RevertReport(not_reverted(answer, refusal.paths), answer)


def _reverted(result: FeatureResult) -> FeatureResult:
    files = tuple(FileResult(file.path, State.PRISTINE, file.patch) for file in result.files)
    return FeatureResult(result.feature, State.PRISTINE, files)


def _report(target: Target, plan: Plan) -> TargetReport:
    return TargetReport(
        target=target.name,
        vllm=target.vllm,
        root=target.root,
        features=plan.features,
        notices=(*notices(target.warnings), *plan.notices),
    )
