"""``overlay apply``: all of the features that are meant, or nothing.

Load the features, resolve the target, examine their state in it, decide, write, report.  Between
the plan and the transaction another command may apply or revert something; the plan is made again
then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from overlay.commands.assess import (
    Decision,
    Examination,
    Outlook,
    examine,
    outlook,
    until_current,
)
from overlay.commands.request import Request, expect_known
from overlay.commands.scene import (
    OneTarget,
    Scene,
    ended,
    only,
    with_notices,
    with_requirements,
    with_runner,
    writable,
)
from overlay.commands.status import by_ledger, with_plugin, with_running
from overlay.on_disk import transaction as commit
from overlay.report.codes import Verdict
from overlay.report.model import TargetReport
from overlay.report.wording import (
    applied,
    not_applied,
    required_missing,
    together,
    untested_refused,
    with_idle,
    would_apply,
)


@dataclass(frozen=True)
class ApplyReport(OneTarget):
    """What ``apply`` did, or would do.

    :ivar changed: the files of the package that were written or removed, sorted.
    """

    _command: ClassVar[str] = "apply"
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Job:
    """What an ``apply`` has to do, however often it has to begin again."""

    request: Request
    scene: Scene
    explicit: bool
    dry_run: bool
    untested: bool


def apply(request: Request, *, dry_run: bool = False, untested: bool = False) -> ApplyReport:
    """Apply what is meant, beside what is applied already: to no package unless to all of them.

    :param dry_run: do everything but write.
    :param untested: also apply to a release that no patch was tested on.
    :raises UsageError: if the target is a file or a release, or a feature does not exist.
    :raises OverlayError: if the features, the target or its ledger cannot be read or written.
    """
    scene = writable(request, "apply")
    expect_known(request.require, scene.features)
    job = _Job(request, scene, request.target is not None, dry_run, untested)
    recovery = None if dry_run else ended(scene.targets)
    return until_current(lambda: _attempt(job, recovery))


def _attempt(job: _Job, recovery: str | None) -> ApplyReport:
    """Plan and apply once.

    :param recovery: what ending an interrupted transaction had to say.
    :raises PlanOutdated: if another command changed what is applied in between.
    """
    scene = job.scene
    examinations = [examine(target, scene.features, scene.selection) for target in scene.targets]
    if recovery is not None:
        first = examinations[0]
        examinations[0] = first._replace(
            report=with_notices(first.report, [recovery]),
            everything=with_notices(first.everything, [recovery]),
        )
    decisions = [outlook(examination, untested=job.untested) for examination in examinations]
    if (refusal := _refusal(job, decisions)) is not None:
        return refusal
    if job.dry_run:
        return _would_apply(job, examinations, decisions)
    works = [
        commit.applying(each.target, each.plan, each.features, each.basis) for each in examinations
    ]
    outcomes = commit.carry_out(works)
    everything = [
        by_ledger(target, scene.features) or examine(target, scene.features).report
        for target in scene.targets
    ]
    everything = list(scene.with_absent(everything))
    return _applied(job, examinations, outcomes, everything, recovery)


def _refusal(job: _Job, decisions: Sequence[Decision]) -> ApplyReport | None:
    """The report of an apply that something prevents in one of the packages; ``None``: nothing."""
    reports = job.scene.with_absent([decision.report for decision in decisions])
    refused = [
        decision.outlook is Outlook.REFUSE or (job.dry_run and report.interrupted)
        for decision, report in zip(decisions, reports, strict=True)
    ]
    verdicts = []
    for decision, report, no in zip(decisions, reports, refused, strict=True):
        if no:
            verdicts.append(not_applied(report))
        elif decision.outlook is Outlook.UNTESTED and not any(refused):
            verdicts.append(untested_refused(report, decision.untested))
    if not verdicts:
        return None
    return ApplyReport(together(verdicts), reports[0], others=reports[1:])


def _would_apply(
    job: _Job, examinations: Sequence[Examination], decisions: Sequence[Decision]
) -> ApplyReport:
    """The report of an apply that would go through."""
    reports = job.scene.with_absent([decision.report for decision in decisions])
    everything = job.scene.with_absent([examination.everything for examination in examinations])
    reports = with_requirements(
        job.scene, _with_runner(job, reports), job.request.require, everything, dry_run=True
    )
    verdicts = [
        _overruled(report, would_apply(report, examination.plan.changes))
        for report, examination in zip(reports, examinations, strict=True)
    ]
    paths = tuple(
        change.path for examination in examinations for change in examination.plan.changes
    )
    return ApplyReport(together(verdicts), reports[0], paths, others=reports[1:])


def _applied(
    job: _Job,
    examinations: Sequence[Examination],
    outcomes: Sequence[commit.TransactionResult],
    everything: Sequence[TargetReport],
    recovery: str | None,
) -> ApplyReport:
    """The report of an apply that went through.

    :param everything: the packages as they are now, with the state of every feature.
    """
    scene = job.scene
    absent_ids = {feature.id for feature in scene.absent}
    reports, verdicts = [], []
    for examination, outcome, whole in zip(examinations, outcomes, everything, strict=True):
        absent = [entry for entry in whole.features if entry.feature in absent_ids]
        report = only(whole, scene.selection)
        there = [entry for entry in report.features if entry.feature not in absent_ids]
        notices = (*examination.plan.notices, *report.notices)
        report = replace(report, features=(*there, *absent), notices=notices)
        before = [recovery] if recovery and examination is examinations[0] else []
        report = with_notices(report, [*before, *outcome.warnings])
        verdicts.append(applied(report, len(outcome.changed), wrote=outcome.wrote))
        if outcome.wrote:
            report = with_running(report)
        if job.request.features:
            report = with_plugin(report, whole, scene.features, explicit=job.explicit)
        reports.append(report)
    final = with_requirements(scene, _with_runner(job, reports), job.request.require, everything)
    verdicts = [
        _overruled(report, verdict) for report, verdict in zip(final, verdicts, strict=True)
    ]
    changed = tuple(path for outcome in outcomes for path in outcome.changed)
    return ApplyReport(together(verdicts), final[0], changed, others=final[1:])


def _with_runner(job: _Job, reports: Sequence[TargetReport]) -> list[TargetReport]:
    """The packages, each with what its release runs by default."""
    scene = job.scene
    return [
        with_runner(report, scene.features, target.release)
        for report, target in zip(reports, scene.targets, strict=True)
    ]


def _overruled(target: TargetReport, verdict: Verdict) -> Verdict:
    """The verdict of an apply that went through, or would; a missing requirement overrules it."""
    return required_missing(target, verdict) if target.obstacles else with_idle(target, verdict)
