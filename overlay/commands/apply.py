"""``overlay apply``: all of the features that are meant, or nothing.

Load the features, resolve the target, examine their state in it, decide, write, report.  Between
the plan and the transaction another command may apply or revert something; the plan is made again
then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.commands.assess import (
    Examination,
    Outlook,
    examine,
    outlook,
    release_of,
    until_current,
)
from overlay.commands.next_process import with_plugin
from overlay.commands.request import Request, resolve_writable
from overlay.commands.required import expect_known, with_required
from overlay.commands.status import by_ledger
from overlay.commands.target_report import notices, only
from overlay.errors import UsageError
from overlay.on_disk import transaction as commit
from overlay.on_disk.recovery import recover
from overlay.report.changes import ApplyReport
from overlay.report.codes import Verdict
from overlay.report.model import TargetReport
from overlay.report.outcomes import (
    applied,
    not_applied,
    required_missing,
    untested_refused,
    would_apply,
)

if TYPE_CHECKING:
    from overlay.features.model import Feature
    from overlay.targets.target import Target


@dataclass(frozen=True)
class _Job:
    """What an ``apply`` has to do, however often it has to begin again."""

    request: Request
    target: Target
    root: Path
    features: tuple[Feature, ...]
    meant: tuple[Feature, ...]
    named: bool
    dry_run: bool
    untested: bool


def apply(
    request: Request, name: str | None = None, *, dry_run: bool = False, untested: bool = False
) -> ApplyReport:
    """Apply what is meant, beside what is applied already.

    :param dry_run: do everything but write.
    :param untested: also apply to a release that no patch was tested on.
    :raises UsageError: if the target is a file or a release, or a feature does not exist.
    :raises OverlayError: if the features, the target or its ledger cannot be read or written.
    """
    target, root = resolve_writable(request, name, "apply")
    features = request.load()
    meant = request.select(features)
    expect_known(request.require, features)
    job = _Job(request, target, root, features, meant, name is not None, dry_run, untested)
    said = None if dry_run else recover(root)
    return until_current(lambda: _attempt(job, said))


def _attempt(job: _Job, said: str | None) -> ApplyReport:
    """Plan and apply once.

    :param said: what ending an interrupted transaction had to say.
    :raises PlanOutdated: if another command changed what is applied in between.
    """
    found = _noted(examine(job.target, job.features, job.meant), said)
    decision = outlook(found, job.target, untested=job.untested)
    target = decision.report
    if decision.outlook is Outlook.REFUSE or (job.dry_run and target.interrupted):
        return ApplyReport(not_applied(target), target)
    if decision.outlook is Outlook.UNTESTED:
        return ApplyReport(untested_refused(target, decision.untested), target)
    if job.dry_run:
        target = with_required(target, job.request.require, found.everything, planned=True)
        changes = found.plan.changes
        paths = tuple(change.path for change in changes)
        return _finished(target, would_apply(target, changes), paths)
    outcome = commit.apply(
        job.root,
        found.plan,
        found.features,
        release=release_of(job.target),
        record_file=job.target.record_file,
        basis=found.basis,
    )
    _keep_receipt(job.target)
    everything = by_ledger(job.target, job.features)
    everything = everything or examine(job.target, job.features).report
    target = only(everything, job.meant)
    ended = (said,) if said else ()
    noted = (*notices((*ended, *outcome.warnings)), *found.plan.notices, *target.notices)
    target = replace(target, notices=tuple(dict.fromkeys(noted)))
    verdict = applied(target, len(outcome.changed), wrote=outcome.wrote)
    if job.request.features:
        target = with_plugin(target, everything, job.features, named=job.named)
    target = with_required(target, job.request.require, everything)
    return _finished(target, verdict, outcome.changed)


def _keep_receipt(target: Target) -> None:
    """Write the receipt that spares the next process of this environment a plan."""
    from overlay import settings
    from overlay.on_disk.process_decision import keep_applied

    try:
        switches = settings.read()
    except UsageError:
        return  # no process would start with such a variable
    keep_applied(target, switches)


def _finished(target: TargetReport, verdict: Verdict, changed: tuple[str, ...]) -> ApplyReport:
    """The report of an apply that went through, or would; a missing requirement overrules it."""
    if target.obstacles:
        verdict = required_missing(target, verdict)
    return ApplyReport(verdict, target, changed)


def _noted(found: Examination, said: str | None) -> Examination:
    """What was found, with what ending an interrupted transaction had to say."""
    if said is None:
        return found

    def noted(report: TargetReport) -> TargetReport:
        return replace(report, notices=(*notices([said]), *report.notices))

    return found._replace(report=noted(found.report), everything=noted(found.everything))
