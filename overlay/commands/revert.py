"""``overlay revert``: the exact bytes that apply found, and nothing of the overlay left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay._features.model import of_package
from overlay.commands import wings
from overlay.commands.next_process import with_running
from overlay.commands.scene import ended, refuse_release, root_of, scene_of
from overlay.commands.status import of_files, with_next_process
from overlay.commands.take_off import take_off
from overlay.commands.target_report import notices
from overlay.commands.unrecorded import is_changed
from overlay.errors import LedgerError, OverlayError, RevertRefused, UsageError
from overlay.on_disk import ledger as ledgers
from overlay.on_disk import transaction as commit
from overlay.on_disk.disk_state import from_ledger
from overlay.on_disk.journal import reading
from overlay.on_disk.rebuild import rebuild
from overlay.report.codes import Code
from overlay.report.model import TargetReport
from overlay.report.outcomes import (
    adopt_first,
    also_kept,
    left_as_it_is,
    not_kept,
    not_reverted,
    reverted,
)
from overlay.report.targets import RevertReport
from overlay.report.wording import together
from overlay.results import Change, FeatureResult, FileResult, Plan, State

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.commands.request import Request
    from overlay.on_disk.changes import Rebuilt
    from overlay.on_disk.ledger import Ledger
    from overlay.report.base import Report
    from overlay.targets.target import Target


class Keep(NamedTuple):
    """How edits are kept: the id of their feature, and the folder of patches that it is in."""

    id: str
    patches: Path


class Kept(NamedTuple):
    """The edits of a target's packages, and what holds them.

    :ivar edits: name of a package -> its edits, which are taken out.
    :ivar report: on the feature that holds them; ``None`` where nothing was edited.
    :ivar folder: of that feature; ``None`` where there is none.
    :ivar target: the package of that feature.
    :ivar notes: what else is to be said, in sentences without a full stop.
    :ivar beside: path and change of each file that is no module; it stays as it is.
    :ivar titles: the packages that have it.
    """

    edits: Mapping[str, Sequence[Change]]
    report: Report | None
    folder: Path | None
    target: Target
    notes: tuple[str, ...]
    beside: tuple[tuple[str, str], ...] = ()
    titles: str = ""


def revert(request: Request, keep_as: Keep | None = None) -> RevertReport:
    """Take everything off, or only the features of ``request`` while the others stay.

    To take everything off no patches are needed: the ledger knows what was done.  Only where it is
    lost, it is worked out again from the patches and RECORD.

    :param keep_as: make a feature of what was edited since, and take the edits out as well.
    :raises LedgerError: if it is lost, and cannot be proven what it said.
    :raises UsageError: if the target is a file or a release, or a feature does not exist, or
        edits are to be kept where the wing that makes features is not installed.
    :raises TargetError: if the target does not exist.
    :raises TransactionError: if it cannot be written.
    """
    targets = _targets(request)
    recovery = ended(targets)
    explicit = request.names_target
    if request.features and keep_as is not None:
        raise UsageError("--keep-as takes everything off, the edits included: omit --feature")
    if request.features:
        return take_off(request, recovery, explicit=explicit)
    if keep_as is None:
        return _everything(request, targets, recovery, explicit=explicit)
    edits: Kept = wings.load(wings.KEEP_EDITS, "--keep-as").keep(request, targets, keep_as)
    recovery = "; ".join(text for text in (recovery, *edits.notes) if text)
    if edits.report is None:
        report = _everything(request, targets, recovery, explicit=explicit, edits=edits.edits)
        return _amend(report, edits)
    if edits.folder is None:
        answers = [_report(target, Plan(())) for target in targets]
        verdict = not_kept(_report(edits.target, Plan(())), edits.report.verdict)
        return RevertReport(
            verdict, answers[0], others=tuple(answers[1:]), kept=edits.report, beside=edits.beside
        )
    report = _everything(request, targets, recovery, explicit=explicit, edits=edits.edits)
    if not report.exit:
        report = replace(report, conclusion=also_kept(report, edits.folder))
    return replace(_amend(report, edits), kept=edits.report)


def _amend(report: RevertReport, edits: Kept) -> RevertReport:
    """A report that names what is neither kept nor put back."""
    report = replace(report, beside=edits.beside)
    if report.exit or not edits.beside:
        return report
    return replace(report, conclusion=left_as_it_is(report, edits.beside, edits.titles))


def _targets(request: Request) -> tuple[Target, ...]:
    """The packages of a target; patches that cannot be read do not keep them from being reverted.

    :raises UsageError: if it is a file or a release.
    :raises TargetError: if the target does not exist.
    """
    refuse_release(request.target, "revert")
    try:
        features = request.at_hand()
    except OverlayError:
        features = ()
    # A feature that is named and does not exist is reported where it is known what is applied.
    targets = scene_of(request._replace(features=(), require=()), features).targets
    for target in targets:
        root_of(target, "revert")
    return targets


def _everything(
    request: Request,
    targets: Sequence[Target],
    recovery: str | None,
    *,
    explicit: bool,
    edits: Mapping[str, Sequence[Change]] | None = None,
) -> RevertReport:
    """Take everything off, in no package unless in all of them.

    :param recovery: what ending an interrupted transaction had to say.
    :param edits: name of a package -> edits that a feature holds, and that are taken out too.
    """
    before = [_ledger(target) for target in targets]
    works = [
        commit.reverting(
            target,
            rebuild=_rebuild(request, target),
            edits=() if edits is None else edits.get(target.package.name, ()),
        )
        for target in targets
    ]
    try:
        outcomes = commit.carry_out(works)
    except RevertRefused as refusal:
        return _refused(targets, before, refusal)
    answers, verdicts = [], []
    for target, ledger, outcome in zip(targets, before, outcomes, strict=True):
        results = () if ledger is None else tuple(_reverted(e.result) for e in ledger.applied)
        warnings = (*((recovery,) if recovery and target is targets[0] else ()), *outcome.warnings)
        answer = _report(target, Plan(results, (), notices(dict.fromkeys(warnings))))
        removed = sum(target.read(path) is None for path in outcome.changed)
        restored = len(outcome.changed) - removed
        unrecorded = None if outcome.wrote else _unrecorded(target, _at_hand(request))
        if unrecorded is not None:
            answers.append(unrecorded)
            verdicts.append(adopt_first(unrecorded))
            continue
        verdicts.append(reverted(answer, restored, removed, wrote=outcome.wrote))
        answer = with_next_process(answer, target, _at_hand(request), explicit=explicit)
        answers.append(with_running(answer) if outcome.wrote else answer)
    changed = tuple(path for outcome in outcomes for path in outcome.changed)
    main = [verdict for verdict, outcome in zip(verdicts, outcomes, strict=True) if outcome.wrote]
    main += [verdict for verdict in verdicts if verdict.code is Code.UNRECORDED]
    return RevertReport(together(main or verdicts), answers[0], changed, others=tuple(answers[1:]))


def _rebuild(request: Request, target: Target) -> Callable[[], Rebuilt]:
    """What reconstructs a lost ledger of a target."""

    def reconstruct() -> Rebuilt:
        features = of_package(request.at_hand(), target.package)
        features = tuple(feature for feature in features if not feature.malformed)
        about = target.release, target.record, target.package
        return rebuild(features, target, *about, root=target.root)

    return reconstruct


def _unrecorded(target: Target, features: tuple[Feature, ...]) -> TargetReport | None:
    """The report of a target that has patches without a ledger; ``None`` where it has none."""
    own = of_package(features, target.package)
    if target.record is None or not is_changed(own, target, target.record):
        return None
    report = of_files(target, features)
    return report if report.unrecorded else None


def _at_hand(request: Request) -> tuple[Feature, ...]:
    """The features at hand, for what the plugin will add; none where their folders are broken."""
    try:
        return request.at_hand()
    except OverlayError:
        return ()  # revert needs no patches, and `overlay list` says what is wrong with them


def _ledger(target: Target) -> Ledger | None:
    """The ledger, for the report only: whether a damaged one can be reverted is decided later."""
    assert target.root is not None
    with reading(target.root, package=target.package):
        try:
            return ledgers.load(target.root, target.package)
        except LedgerError:
            return None


def _refused(
    targets: Sequence[Target], before: Sequence[Ledger | None], refusal: RevertRefused
) -> RevertReport:
    """The report of a revert that would lose somebody's edits in one of the packages."""
    answers, verdicts = [], []
    for target, ledger in zip(targets, before, strict=True):
        judged = None if ledger is None else from_ledger(ledger, target, target.public)
        plan = judged or Plan(())
        edited = [path for path in refusal.paths if path.startswith(f"{target.package.name}/")]
        if edited:
            plan = plan._replace(notices=(*plan.notices, *notices([str(refusal)])))
        answers.append(_report(target, plan))
        if edited:
            verdicts.append(not_reverted(answers[-1], edited))
    return RevertReport(together(verdicts), answers[0], others=tuple(answers[1:]))


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
        package=target.package.name,
    )
