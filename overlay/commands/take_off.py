"""``overlay revert --feature ID``: one feature goes, the others stay as they are.

What is left is byte for byte what applying the others alone would have made, ledger included: they
are planned again on the pristine text and applied.  So each feature that stays has to be at hand,
in the form in which it was applied, and has to fit without the one that goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from overlay._features.model import of_package
from overlay.commands.assess import absent, needed, until_current
from overlay.commands.next_process import with_running
from overlay.commands.scene import scene_of
from overlay.commands.status import with_next_process
from overlay.commands.target_report import report, with_notices
from overlay.errors import UsageError, did_you_mean
from overlay.on_disk import ledger as ledgers
from overlay.on_disk import transaction as commit
from overlay.on_disk.bookkeeping import as_applied
from overlay.on_disk.disk_state import Condition, PristineView, conditions, keep_edit, void
from overlay.on_disk.journal import reading
from overlay.planning.planner import plan as make_plan
from overlay.planning.scope_cache import Memo
from overlay.report.codes import Code
from overlay.report.model import Obstacle
from overlay.report.outcomes import not_taken_off, taken_off
from overlay.report.targets import RevertReport
from overlay.report.wording import together
from overlay.report.words import enumeration, is_are, was_were
from overlay.results import FeatureResult, Plan, Reason, State
from overlay.results.invocation import command
from overlay.untrusted import all_unreadable

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.commands.request import Request
    from overlay.on_disk.ledger import Ledger
    from overlay.report.model import TargetReport
    from overlay.targets.target import Target


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
        return _refused(removals, answers)
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


def _refused(removals: Sequence[_Removal], answers: Sequence[TargetReport]) -> RevertReport:
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
