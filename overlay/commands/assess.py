"""Load, resolve, assess, decide: what every command that plans has in common.

``examine`` holds a target still and gives the state of features there; ``outlook`` says what an
``apply`` would do about it.  ``check``, ``apply --dry-run`` and ``apply`` all ask the same two, so
that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from overlay._features.model import of_package, paths_of
from overlay.commands.target_report import report, with_features
from overlay.commands.unrecorded import recognise
from overlay.commands.ways_on import ways_on, with_ways
from overlay.errors import PlanOutdated
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import PristineView, assess, conditions, void
from overlay.on_disk.journal import reading
from overlay.planning.advice import for_malformed
from overlay.planning.planner import below
from overlay.planning.planner import plan as make_plan
from overlay.planning.scope_cache import Memo
from overlay.report.codes import Code
from overlay.report.model import Obstacle, Pending, TargetReport
from overlay.report.words import is_are
from overlay.results import FeatureResult, Plan, Reason, State
from overlay.results.invocation import command
from overlay.untrusted import all_unreadable

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.on_disk.ledger import Ledger
    from overlay.targets.target import Target

Result = TypeVar("Result")


class Examination(NamedTuple):
    """The state of features in one target.

    :ivar features: those that were planned: the ones that are meant, and those that are applied.
    :ivar plan: from the pristine text, whatever the files hold now.
    :ivar report: the features that are meant, in their present state.
    :ivar everything: the same with those that are applied beside them.
    :ivar ledger: what the overlay did to the target, as far as that still holds.
    :ivar basis: digest of the ledger that was there, whether or not it still holds.
    """

    target: Target
    features: tuple[Feature, ...]
    plan: Plan
    report: TargetReport
    everything: TargetReport
    ledger: Ledger | None = None
    basis: str | None = None


#: How often other commands may change a target between a plan and its transaction: as many of
#: them as may well be started at once on one machine, each of which changes it once.
_ATTEMPTS = 20


def until_current(attempt: Callable[[], Result]) -> Result:
    """Plan and write, and do so again where another command was faster.

    :param attempt: raises ``PlanOutdated`` where the ledger changed since its plan was made.
    :raises PlanOutdated: if that happens every time.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(PlanOutdated):
            return attempt()
    return attempt()


class Outlook(Enum):
    """What an ``apply`` would do."""

    WRITE = "write"
    NOTHING = "nothing to write"
    UNTESTED = "refuse a release that the features were not tested on"
    REFUSE = "refuse, because something has to be settled first"


class Decision(NamedTuple):
    """What an ``apply`` would do, and what to show for it.

    :ivar report: the target; where it is refused, with everything that prevents it.
    :ivar untested: the features that were not tested on this release.
    """

    outlook: Outlook
    report: TargetReport
    untested: tuple[FeatureResult, ...] = ()


def examine(
    target: Target, features: tuple[Feature, ...], selection: Sequence[Feature] | None = None
) -> Examination:
    """Plan the features that are meant, together with those that the ledger says are applied.

    :param features: all features, in order; :param selection: some of them (default: all).
    :raises LedgerError: if the ledger, the journal or a pristine copy is damaged.
    :raises TransactionError: if another command holds the target for too long.
    :raises TargetError: if a file cannot be read.
    """
    selection = of_package(features if selection is None else selection, target.package)
    features = of_package(features, target.package)
    if target.root is None:
        return _examine_release(target, selection)
    with reading(target.root, package=target.package) as interrupted:
        ledger = ledgers.load(target.root, target.package)
        basis = ledgers.digest(ledger)
        subjects = with_applied(features, selection, ledger)
        copies = ledgers.copies(target.root, target.package)
        view = PristineView(target, ledger, copies, target.public)
        with all_unreadable(needed(target, subjects, ledger), target.read):
            plan = make_plan(subjects, view, target.release, target.record, Memo())
            unrecorded: tuple[str, ...] = ()
            if ledger is None:
                plan, unrecorded = recognise(plan, features, target)
            present = conditions(ledger, target.read) if ledger is not None else {}
            in_force = ledger
            if ledger is not None and void(ledger, present, target.public):
                in_force = None
            ways = ways_on(
                subjects,
                plan,
                lambda some: make_plan(some, view, target.release, target.record, Memo()),
                in_force,
            )
            plan = with_ways(plan, ways, read_only=False)
            current = assess(plan, ledger, target, subjects, target.public, present)
            ledger = in_force
    strangers = absent(ledger, features)

    def about(group: Sequence[Feature]) -> TargetReport:
        answer = replace(
            report(target, current, group, interrupted),
            unrecorded=unrecorded,
            left_out=next(iter(ways), ()),
        )
        return with_strangers(_with_malformed(answer, group), strangers)

    return Examination(target, subjects, plan, about(selection), about(subjects), ledger, basis)


def _with_malformed(target: TargetReport, features: Sequence[Feature]) -> TargetReport:
    """A target with what keeps patches that are applied from being compared with their files."""
    states = {result.feature: result.state for result in target.features}
    obstacles = tuple(
        Obstacle(
            Code.NEEDS_ATTENTION,
            f"{feature.id} is applied, and {feature.title}",
            Reason("; ".join(feature.malformed), for_malformed(feature)),
        )
        for feature in features
        if feature.malformed and states.get(feature.id) is State.APPLIED
    )
    return replace(target, obstacles=(*target.obstacles, *obstacles)) if obstacles else target


def _examine_release(target: Target, selection: Sequence[Feature]) -> Examination:
    """Plan features for a target that nothing can have been applied to: a release or an archive."""
    memo = Memo()

    def try_on(some: Sequence[Feature]) -> Plan:
        return make_plan(some, target, target.release, target.record, memo)

    plan = try_on(selection)
    ways = ways_on(selection, plan, try_on)
    plan = with_ways(plan, ways, read_only=True)
    answer = replace(report(target, plan, selection), left_out=next(iter(ways), ()))
    return Examination(target, tuple(selection), plan, answer, answer)


def outlook(examination: Examination, *, untested: bool = False) -> Decision:
    """What an ``apply`` would do with what was found in a target.

    :param untested: whether a release that the features were not tested on may be patched.
    :raises TransactionError: where an ``apply`` would end with it before it writes anything.
    """
    if examination.everything.obstacles:
        return Decision(Outlook.REFUSE, examination.everything)
    if blocked := _blocked(examination):
        return Decision(Outlook.REFUSE, blocked)
    if not untested and (new := _untested(examination)):
        return Decision(Outlook.UNTESTED, examination.report, new)
    return _writes(examination)


def _writes(examination: Examination) -> Decision:
    """What an ``apply`` would write, where nothing is in its way."""
    report, target = examination.report, examination.target
    settled = (State.APPLIED, State.UPSTREAMED, State.INAPPLICABLE)
    results = examination.everything.features
    if report.interrupted or target.root is None:
        return Decision(Outlook.WRITE, report)
    from overlay.on_disk import transaction  # status asks nothing of it

    if not transaction.would_apply(target, examination.plan, examination.features):
        return Decision(Outlook.NOTHING, report)
    pending = None
    if report.needs_attention:
        pending = Pending.COMPLETE
    elif all(result.state in settled for result in results):
        applied = any(result.state is State.APPLIED for result in results)
        pending = Pending.UPDATE if applied else Pending.REMOVE
    return Decision(Outlook.WRITE, replace(report, pending=pending))


def _blocked(examination: Examination) -> TargetReport | None:
    """The target with everything that prevents applying, or ``None``.

    What is applied and was partly put back counts as something that applying mends; what was
    edited since does not, and neither does a form of a patch that does not fit any more.
    """
    current = {result.feature: result for result in examination.everything.features}
    results: list[FeatureResult] = []
    bad = False
    for plan_result in examination.plan.features:
        now = current[plan_result.feature]
        if plan_result.state.needs_attention and not now.state.needs_attention:
            now = plan_result
        bad = bad or plan_result.state.needs_attention or now.state is State.DRIFTED
        results.append(now)
    return with_features(examination.everything, results) if bad else None


def _untested(examination: Examination) -> tuple[FeatureResult, ...]:
    """What would be applied to a release that it was never tested on."""
    settled = (State.APPLIED, State.UPSTREAMED, State.INAPPLICABLE)
    return tuple(
        result
        for result in examination.everything.features
        if result.untested and result.state not in settled
    )


def absent(ledger: Ledger | None, features: Sequence[Feature]) -> tuple[tuple[str, str], ...]:
    """The id and the patches folder of each feature that is applied and not at hand."""
    at_hand = {feature.id for feature in features}
    return tuple(
        (entry.result.feature, entry.origin)
        for entry in (ledger.applied if ledger is not None else ())
        if entry.result.feature not in at_hand
    )


def with_strangers(target: TargetReport, strangers: Sequence[tuple[str, str]]) -> TargetReport:
    """A target with the features that are applied there and not at hand.

    They are shown as applied, and ``apply`` refuses to go on without their folders: a team's own
    patches would otherwise vanish with the first apply that does not name them.
    """
    if not strangers:
        return target
    results = tuple(
        FeatureResult(name, State.APPLIED, reason=Reason(f"applied from {origin}"))
        for name, origin in strangers
    )
    names = ", ".join(f"{name} (from {origin})" for name, origin in strangers)
    folders = " ".join(f"--patches {quote(o)}" for o in dict.fromkeys(o for _, o in strangers))
    which = "the folder" if len({origin for _, origin in strangers}) == 1 else "the folders"
    obstacle = Obstacle(
        Code.NOT_AT_HAND,
        f"{names} {is_are(strangers)} applied and not among these patches",
        Reason(
            f"{which} of patches that {'it' if len(strangers) == 1 else 'they'} came from was not "
            "named, so nothing can be applied beside it",
            f"name it ({folders}, or in overlay.toml), or run {command('revert')} to take "
            "everything off",
        ),
    )
    return replace(
        target,
        features=(*target.features, *results),
        obstacles=(*target.obstacles, obstacle),
    )


def needed(target: Target, features: Sequence[Feature], ledger: Ledger | None) -> list[str]:
    """The files that matter to features and to what was done to a target before."""
    release = target.release
    fitting = [f for f in features if release is None or not below(release, f.releases)]
    return [*paths_of(fitting), *(entry.path for entry in (ledger.entries if ledger else ()))]


def with_applied(
    features: Sequence[Feature], selection: Sequence[Feature], ledger: Ledger | None
) -> tuple[Feature, ...]:
    """The features that are meant and those that are applied, in their own order."""
    ids = {feature.id for feature in selection}
    if ledger is not None:
        ids |= {entry.result.feature for entry in ledger.applied}
    return tuple(feature for feature in features if feature.id in ids)
