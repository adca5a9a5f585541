"""``overlay revert``: the exact bytes that apply found, and nothing of the overlay left.

With ``--feature ID`` one feature goes, and the others stay as they are.  What is left is byte for
byte what applying the others alone would have made, ledger included: they are planned again on the
pristine text and applied.  So each feature that stays has to be at hand, in the form in which it
was applied, and has to fit without the one that goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from overlay._features.model import of_package
from overlay.commands import KEEP_EDITS, load
from overlay.commands.assess import absent, is_changed, needed, until_current
from overlay.commands.scene import (
    OneTarget,
    ended,
    notices,
    refuse_release,
    report,
    root_of,
    scene_of,
    with_notices,
)
from overlay.commands.status import of_files, with_next_process, with_running
from overlay.errors import (
    LedgerError,
    OverlayError,
    RevertRefused,
    UsageError,
    command,
    did_you_mean,
)
from overlay.on_disk import ledger as ledgers
from overlay.on_disk import transaction as commit
from overlay.on_disk.changes import as_applied
from overlay.on_disk.disk_state import (
    Condition,
    PristineView,
    conditions,
    from_ledger,
    keep_edit,
    void,
)
from overlay.on_disk.journal import reading
from overlay.on_disk.rebuild import rebuild
from overlay.planning.planner import plan as make_plan
from overlay.planning.scope_cache import Memo
from overlay.report import Report
from overlay.report.codes import Code
from overlay.report.lines import Line, enumeration, is_are, was_were
from overlay.report.model import Obstacle, TargetReport
from overlay.report.target_text import beside_lines
from overlay.report.wording import (
    adopt_first,
    also_kept,
    left_as_it_is,
    not_kept,
    not_reverted,
    not_taken_off,
    reverted,
    taken_off,
    together,
)
from overlay.results import Change, FeatureResult, FileResult, Plan, Reason, State
from overlay.untrusted import all_unreadable

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.commands.request import Request
    from overlay.on_disk.changes import Rebuilt
    from overlay.on_disk.ledger import Ledger
    from overlay.report import Report
    from overlay.report.model import TargetReport
    from overlay.targets import Target


@dataclass(frozen=True)
class RevertReport(OneTarget):
    """What ``revert`` did.

    :ivar changed: the files of the package that were written or removed, sorted.
    :ivar kept: the feature that holds the edits, where there were any and they were to be kept.
    :ivar beside: path and change of each file that no feature carries; not kept, not put back.
    """

    _command: ClassVar[str] = "revert"
    changed: tuple[str, ...] = ()
    kept: Report | None = None
    beside: tuple[tuple[str, str], ...] = ()

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """The text of the feature that holds the edits, and what no feature holds."""
        if self.kept is not None:
            yield from self.kept.own_lines(verbose=verbose)
        if self.beside:
            feature_beside = getattr(self.kept, "beside", ())
            yield from beside_lines([each for each in self.beside if each not in feature_beside])

    def own_data(self) -> dict[str, Any]:
        """The feature that holds the edits, under ``kept``."""
        feature_data = {} if self.kept is None else self.kept.own_data()
        data = {"kept": feature_data["new"]} if "new" in feature_data else {}
        if self.beside:
            data["beside"] = [{"path": path, "what": what} for path, what in self.beside]
        return data


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
    edits: Kept = load(KEEP_EDITS, "--keep-as").keep(request, targets, keep_as)
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


def take_off(request: Request, recovery: str | None, *, explicit: bool) -> RevertReport:
    """Take off the features of ``request``; refuse where the others could not stay as they are.

    Of several packages none is changed unless all can be.

    :param recovery: what ending an interrupted transaction had to say.
    :raises UsageError: if a feature is neither applied nor at hand.
    :raises OverlayError: if the patches or the ledger cannot be read, or the target not written.
    """
    features = request.at_hand()
    targets = scene_of(request._replace(features=(), require=()), features).targets
    return until_current(lambda: _attempt(request, targets, features, recovery, explicit=explicit))


@dataclass(frozen=True)
class _Removal:
    """What is to go from one package, and what stays there.

    :ivar applied: ids of the features that are applied; :ivar going: those that are taken off.
    :ivar staying: the features that stay; :ivar plan: of these, or of all where none goes.
    :ivar obstacles: what keeps them from staying as they are.
    """

    target: Target
    applied: list[str]
    going: list[str]
    staying: tuple[Feature, ...]
    plan: Plan
    obstacles: tuple[Obstacle, ...]
    basis: str

    @property
    def refused(self) -> bool:
        """Whether it cannot be done."""
        return bool(self.obstacles) or self.plan.state.needs_attention

    def work(self) -> commit.Work:
        """The transaction that does it."""
        if any(result.state is State.PRISTINE for result in self.plan.features):
            return commit.applying(self.target, self.plan, self.staying, self.basis)
        return commit.reverting(self.target, basis=self.basis)


def _attempt(
    request: Request,
    targets: Sequence[Target],
    features: tuple[Feature, ...],
    recovery: str | None,
    *,
    explicit: bool,
) -> RevertReport:
    """Plan what stays, and apply that.

    :raises PlanOutdated: if another command changed what is applied in between.
    """
    removals = [_removal(request, target, features) for target in targets]
    _expect_known(request.features, removals, features)
    # A package without any of the features is left alone, unless no package has one.
    removals = [each for each in removals if each.going] or removals[:1]
    answers = [report(each.target, each.plan, each.staying) for each in removals]
    if any(each.refused for each in removals):
        return _none_taken_off(removals, answers)
    works = [each.work() for each in removals if each.going]
    outcomes: Sequence[commit.TransactionResult] = [commit.TransactionResult("revert")]
    if works:
        outcomes = commit.carry_out(works)
    verdicts = []
    for at, (each, outcome) in enumerate(zip(removals, outcomes, strict=True)):
        staying = tuple(
            as_applied(result) if result.state is State.PRISTINE else result
            for result in each.plan.features
        )
        removed = tuple(FeatureResult(name, State.PRISTINE) for name in each.going)
        before = [recovery] if recovery and not at else []
        answer = replace(answers[at], features=(*removed, *staying))
        answer = with_notices(answer, [*before, *outcome.warnings])
        answer = with_next_process(answer, each.target, features, explicit=explicit)
        answers[at] = with_running(answer) if outcome.wrote else answer
        verdicts.append(taken_off(answers[at], each.going, request.features, len(outcome.changed)))
    changed = tuple(path for outcome in outcomes for path in outcome.changed)
    return RevertReport(together(verdicts), answers[0], changed, others=tuple(answers[1:]))


def _removal(request: Request, target: Target, features: tuple[Feature, ...]) -> _Removal:
    """What is to go from one package, and a plan of what stays."""
    root = target.root
    assert root is not None, "a release is refused before"
    features = of_package(features, target.package)
    with reading(root, package=target.package):
        present = ledgers.load(root, target.package)
        ledger = _in_force(present, target)
        applied = [] if ledger is None else [entry.result.feature for entry in ledger.applied]
        going = [name for name in applied if name in request.features]
        staying = _staying(ledger, features, going)
        obstacles = () if ledger is None else _obstacles(ledger, target, features, staying, going)
        plan = Plan(() if ledger is None else tuple(entry.result for entry in ledger.applied))
        if ledger is not None and going and not obstacles:
            view = PristineView(target, ledger, ledgers.copies(root, target.package))
            with all_unreadable(needed(target, staying, ledger), target.read):
                plan = make_plan(staying, view, target.release, target.record, Memo())
    basis = ledgers.digest(present)
    return _Removal(target, applied, going, staying, plan, obstacles, basis)


def _none_taken_off(removals: Sequence[_Removal], answers: Sequence[TargetReport]) -> RevertReport:
    """The report of a removal without which the other features could not stay."""
    verdicts, reports = [], []
    for each, answer in zip(removals, answers, strict=True):
        reports.append(replace(answer, obstacles=each.obstacles, features=each.plan.features))
        if each.refused:
            verdicts.append(not_taken_off(reports[-1], each.going))
    return RevertReport(together(verdicts), reports[0], others=tuple(reports[1:]))


def _in_force(ledger: Ledger | None, target: Target) -> Ledger | None:
    """The ledger, unless it says nothing about this vLLM any more."""
    if ledger is None or void(ledger, conditions(ledger, target.read), target.public):
        return None
    return ledger


def _expect_known(
    ids: Sequence[str],
    removals: Sequence[_Removal],
    features: Sequence[Feature],
) -> None:
    """Refuse a feature that is neither applied nor at hand.

    :raises UsageError: naming those that are.
    """
    applied = [name for each in removals for name in each.applied]
    possible = list(dict.fromkeys([*applied, *(feature.id for feature in features)]))
    unknown = [name for name in dict.fromkeys(ids) if name not in possible]
    if unknown:
        raise UsageError(
            f"--feature {', '.join(unknown)}: expected one of {', '.join(possible) or 'none'}"
            f"{did_you_mean(unknown, possible)}"
        )


def _staying(
    ledger: Ledger | None, features: tuple[Feature, ...], going: Sequence[str]
) -> tuple[Feature, ...]:
    """The features of the ledger that stay, in the order in which they are applied."""
    listed = {entry.result.feature for entry in ledger.features} if ledger is not None else set()
    return tuple(feature for feature in features if feature.id in listed.difference(going))


def _obstacles(
    ledger: Ledger,
    target: Target,
    features: tuple[Feature, ...],
    staying: Sequence[Feature],
    going: Sequence[str],
) -> tuple[Obstacle, ...]:
    """What keeps the others from staying as they are."""
    if not going:
        return ()
    obstacles = []
    strangers = [(name, origin) for name, origin in absent(ledger, features) if name not in going]
    if strangers:
        names = ", ".join(f"{name} (from {origin})" for name, origin in strangers)
        obstacles.append(
            Obstacle(
                Code.NOT_AT_HAND,
                f"{names} would have to stay and {is_are(strangers)} not among these patches",
                Reason(
                    "what stays is planned again, for which its patches are needed",
                    f"name the folder with --patches, or run {command('revert')} to take "
                    "everything off",
                ),
            )
        )
    obstacles += _in_another_form(ledger, staying)
    now = conditions(ledger, target.read)
    edited = [path for path, state in now.items() if state is Condition.EDITED]
    if edited:
        obstacles.append(
            Obstacle(
                Code.REVERT_REFUSED,
                f"{enumeration(edited)} {was_were(edited)} edited after the overlay applied",
                Reason(
                    "taking the feature off would lose the edit",
                    keep_edit(ledger.package),
                ),
            )
        )
    return tuple(obstacles)


def _in_another_form(ledger: Ledger, staying: Sequence[Feature]) -> list[Obstacle]:
    """The obstacle that patches of what stays are not those that were applied, where it is so."""
    digests = {entry.result.feature: entry.digest for entry in ledger.applied}
    changed = [each.id for each in staying if digests.get(each.id, each.digest) != each.digest]
    if not changed:
        return []
    return [
        Obstacle(
            Code.REVERT_REFUSED,
            f"{enumeration(changed)} would have to stay and {was_were(changed)} applied in another "
            "form",
            Reason(
                "the patches at hand are not those that were applied",
                f"run {command('apply')} first, which writes them again",
            ),
        )
    ]
