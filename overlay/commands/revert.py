"""``overlay revert``: the exact bytes that apply found, and nothing of ours left."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.commands.answer import public, resolve_writable
from overlay.errors import LedgerError, RevertRefused
from overlay.model import FeatureResult, FileResult, Plan, TargetReport
from overlay.report import ATTENTION, Report
from overlay.standing import from_ledger
from overlay.states import State, worst
from overlay.transaction import commit
from overlay.transaction import ledger as ledgers
from overlay.verdicts import reverted, vllm

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.targets import Target
    from overlay.transaction.ledger import Ledger


def revert(name: str | None = None) -> Report:
    """Take everything off.  No patches are needed for it: the ledger knows what was done.

    :raises UsageError: if the target is a file or a release.
    :raises TargetError: if there is no such target.
    :raises TransactionError: if it cannot be written.
    """
    target, root = resolve_writable(name, "revert")
    before = _ledger(root)
    try:
        outcome = commit.revert(root, release=public(target))
    except RevertRefused as refusal:
        return _refused(target, before, refusal)
    results = () if before is None else tuple(_reverted(one.result) for one in before.applied)
    answer = _report(target, Plan(results, (), outcome.warnings))
    entries = () if before is None else before.entries
    ours = {entry.path for entry in entries if entry.before is None}
    removed = sum(path in ours for path in outcome.changed)
    restored = len(outcome.changed) - removed
    code, verdict = reverted(answer, restored, removed, wrote=outcome.wrote)
    return Report("revert", code, verdict, (answer,))


def _ledger(root: Path) -> Ledger | None:
    """The ledger, for the report only; whether a damaged one can be reverted is decided later."""
    with commit.reading(root):
        try:
            return ledgers.load(root)
        except LedgerError:
            return None


def _refused(target: Target, ledger: Ledger | None, refusal: RevertRefused) -> Report:
    found = None if ledger is None else from_ledger(ledger, target, public(target))
    plan = found or Plan(())
    answer = _report(target, replace(plan, warnings=(*plan.warnings, str(refusal))))
    paths = ", ".join(refusal.paths)
    verdict = f"Nothing was reverted in {vllm(answer)}: {paths} edited after the overlay applied."
    return Report("revert", ATTENTION, verdict, (answer,))


def _reverted(result: FeatureResult) -> FeatureResult:
    files = tuple(FileResult(file.path, State.PRISTINE, file.patch) for file in result.files)
    return FeatureResult(result.feature, State.PRISTINE, files)


def _report(target: Target, plan: Plan) -> TargetReport:
    return TargetReport(
        target=target.name,
        vllm=target.vllm,
        root=str(target.root),
        state=worst(one.state for one in plan.features),
        features=plan.features,
        warnings=(*target.warnings, *plan.warnings),
    )
