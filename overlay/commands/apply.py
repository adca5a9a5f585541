"""``overlay apply``: all of the features that are meant, or nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.commands.assess import Examination, examine
from overlay.commands.request import Request, notices, resolve_writable, with_features
from overlay.commands.status import by_ledger
from overlay.errors import PlanOutdated, UsageError
from overlay.on_disk import transaction as commit
from overlay.on_disk.recovery import recover
from overlay.report.model import ATTENTION, OK, Report, TargetReport
from overlay.report.wording import applied, not_applied, untested_refused, would_apply
from overlay.results import FeatureResult, State
from overlay.targets.target import public

if TYPE_CHECKING:
    from overlay.features.model import Feature
    from overlay.targets.target import Target


#: How often other commands may apply something of theirs between a plan and its transaction.
_ATTEMPTS = 5


@dataclass(frozen=True)
class _Job:
    """What an ``apply`` has to do, however often it has to begin anew."""

    target: Target
    root: Path
    features: tuple[Feature, ...]
    meant: tuple[Feature, ...]
    dry_run: bool
    untested: bool


def apply(
    request: Request, name: str | None = None, *, dry_run: bool = False, untested: bool = False
) -> Report:
    """Apply what is meant, beside what is applied already.

    :param dry_run: do everything but write.
    :param untested: also apply to a release that no patch was tested on.
    :raises UsageError: if the target is a file or a release, or a feature does not exist.
    :raises OverlayError: if the features, the target or its ledger cannot be read or written.
    """
    target, root = resolve_writable(request, name, "apply")
    features = request.load()
    job = _Job(target, root, features, request.select(features), dry_run, untested)
    said = None if dry_run else recover(root)
    for _ in range(_ATTEMPTS - 1):
        with suppress(PlanOutdated):
            return _attempt(job, said)
    return _attempt(job, said)


def _attempt(job: _Job, said: str | None) -> Report:
    """Plan and apply once.

    :param said: what ending an interrupted transaction had to say.
    :raises PlanOutdated: if another command applied something in between.
    """
    found = _noted(examine(job.target, job.features, job.meant), said)
    _refuse_strangers(found)
    if blocked := _blocked(found):
        return Report("apply", ATTENTION, not_applied(blocked), (blocked,))
    if not job.untested and (new := _untested(found)):
        return Report("apply", ATTENTION, untested_refused(found.report, new), (found.report,))
    if job.dry_run and found.report.interrupted:
        return Report("apply", ATTENTION, not_applied(found.report), (found.report,))
    if job.dry_run:
        verdict = would_apply(found.report, found.plan.changes)
        return Report("apply", OK, verdict, (found.report,))
    target = job.target
    outcome = commit.apply(
        job.root,
        found.plan,
        found.features,
        release=public(target) or target.vllm or "unknown",
        record_file=target.record_file,
        known=found.applied,
    )
    stands = by_ledger(target, job.features, job.meant)
    stands = stands or examine(target, job.features, job.meant).report
    ended = (said,) if said else ()
    noted = (*notices((*ended, *outcome.warnings)), *found.plan.notices, *stands.notices)
    stands = replace(stands, notices=tuple(dict.fromkeys(noted)))
    verdict = applied(stands, len(outcome.changed), wrote=outcome.wrote)
    return Report("apply", OK, verdict, (stands,))


def _noted(found: Examination, said: str | None) -> Examination:
    """What was found, with what ending an interrupted transaction had to say."""
    if said is None:
        return found

    def noted(report: TargetReport) -> TargetReport:
        return replace(report, notices=(*notices([said]), *report.notices))

    return replace(found, report=noted(found.report), everything=noted(found.everything))


def _refuse_strangers(found: Examination) -> None:
    """Refuse to take out what is applied and not among the patches at hand.

    A team's own patches would otherwise vanish with the first apply that does not name them.

    :raises UsageError: naming each such feature and where it came from.
    """
    at_hand = {feature.id for feature in found.features}
    on_disk = found.ledger.applied if found.ledger is not None else ()
    strange = [one for one in on_disk if one.result.feature not in at_hand]
    if strange:
        names = ", ".join(f"{one.result.feature} (from {one.origin})" for one in strange)
        raise UsageError(
            f"{found.report.root}: applied there, and not among these patches: {names}. Name its "
            "folder with --patches DIR before the command to keep it, or run `overlay revert` "
            "first to take everything off"
        )


def _blocked(found: Examination) -> TargetReport | None:
    """The target with everything that stands in the way of applying, or ``None``.

    What is applied and was partly put back counts as something that applying mends; what was
    edited since does not, and neither does a form of a patch that does not fit any more.
    """
    stands = {one.feature: one for one in found.everything.features}
    results: list[FeatureResult] = []
    bad = False
    for planned in found.plan.features:
        now = stands[planned.feature]
        if planned.state.needs_attention and not now.state.needs_attention:
            now = planned
        bad = bad or planned.state.needs_attention or now.state is State.DRIFTED
        results.append(now)
    return with_features(found.everything, results) if bad else None


def _untested(found: Examination) -> list[FeatureResult]:
    """What would be applied to a release that it was never tested on."""
    return [
        one
        for one in found.everything.features
        if one.untested and one.state not in (State.APPLIED, State.UPSTREAMED, State.INAPPLICABLE)
    ]
