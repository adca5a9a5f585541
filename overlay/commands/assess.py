"""Load, resolve, assess, decide: what every command that plans has in common.

``examine`` holds a target still and gives the state of features there; ``outlook`` says what an
``apply`` would do about it.  ``check``, ``apply --dry-run`` and ``apply`` all ask the same two, so
that they cannot disagree.

Patches without a ledger are recognised where RECORD proves them.  A vLLM that was patched with
``overlay diff | git apply``, or whose ``.vllm-overlay`` was lost, has exactly the bytes that
``apply`` writes.  That is proven by undoing the patches: they are ours where the result is what
RECORD lists, and where planning the features on it gives the bytes that are there.  Nothing is
guessed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from itertools import combinations
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from overlay._features.model import of_package, paths_of
from overlay.commands.scene import report, with_features
from overlay.errors import NOTHING_NAMED, LedgerError, PlanOutdated, command, current
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import PristineView, assess, conditions, void
from overlay.on_disk.journal import reading
from overlay.planning.advice import for_malformed
from overlay.planning.planner import below
from overlay.planning.planner import plan as make_plan
from overlay.planning.scope_cache import Memo
from overlay.report.codes import Code
from overlay.report.lines import is_are
from overlay.report.model import Obstacle, Pending, TargetReport
from overlay.report.problems import CLASH, word
from overlay.results import Clash, FeatureResult, Plan, Reason, State
from overlay.untrusted import all_unreadable, sha256

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.on_disk.ledger import Ledger
    from overlay.package import Tree
    from overlay.targets import Target


class Unrecorded(NamedTuple):
    """Features whose bytes are in a target without a ledger.

    :ivar features: them, in their own order.
    :ivar plan: made from the pristine text; its changes end in the bytes that are there.
    :ivar folders: those that hold added modules and nothing of the release, outermost first.
    :ivar pristine: the target without them.
    """

    features: tuple[Feature, ...]
    plan: Plan
    folders: tuple[str, ...]
    pristine: Tree


def prove(features: Sequence[Feature], target: Target) -> Unrecorded:
    """The features that are in ``target``, worked out from RECORD.

    :param features: those at hand, in their order.
    :raises LedgerError: naming every file of which it cannot be proven what it was.
    """
    from overlay.on_disk.rebuild import Overlaid, rebuild

    package, root = target.package, target.root
    lost = root is not None and os.path.lexists(root / package.state_folder)
    about = target.release, target.record, package
    rebuilt = rebuild(features, target, *about, lost=lost, root=root)
    entries = {entry.path: entry for entry in rebuilt.ledger.entries}
    befores = {
        path: None if entry.before is None else rebuilt.pristine[entry.before]
        for path, entry in entries.items()
    }
    pristine = Overlaid(target, befores)
    candidates = [feature for feature in features if _may_stand(feature, entries, target)]
    plan = make_plan(candidates, pristine, target.release, target.record, Memo())
    present = [
        feature
        for feature, result in zip(candidates, plan.features, strict=True)
        if result.state is State.PRISTINE
    ]
    if len(present) != len(candidates):
        plan = make_plan(present, pristine, target.release, target.record, Memo())
    contents = {change.path: change.after for change in plan.changes}
    differ = sorted(
        path
        for path in {*contents, *entries}
        if contents.get(path, b"") != (target.read(path) or b"")
    )
    if differ or not contents:
        raise LedgerError(
            f"{', '.join(differ) or 'no file'}: expected the bytes that applying these patches "
            "writes, found others. Nothing was changed; name the folder of further patches with "
            f"--patches, or run {command('revert')}, which takes out what it can prove to be the "
            "overlay's"
        )
    return Unrecorded(tuple(present), plan, rebuilt.ledger.folders, pristine)


def is_changed(features: Sequence[Feature], tree: Tree, record: Mapping[str, str]) -> bool:
    """Whether a file that some feature patches or adds is not the release's own.

    :param record: sha256 (hex) of the release's own files by path.
    """
    for feature in features:
        for path in feature.patched_paths & record.keys():
            data = tree.read(path)
            if data is not None and sha256(data) != record[path]:
                return True
        for module in feature.added:
            if module.path not in record and tree.read(module.path) is not None:
                return True
    return False


def _may_stand(feature: Feature, entries: Mapping[str, object], tree: Tree) -> bool:
    """Whether every file of a feature was changed, and its modules are there."""
    modules = (module for module in feature.added if module.path not in entries)
    if any(tree.read(module.path) != module.content for module in modules):
        return False
    topics = [{variant.patch.path for variant in topic.variants} for topic in feature.topics]
    return bool(topics or feature.added) and all(paths & entries.keys() for paths in topics)


def recognise(
    plan: Plan, features: Sequence[Feature], target: Target
) -> tuple[Plan, tuple[str, ...]]:
    """Plan a target without a ledger, and name the features that are proven to be in it.

    :param plan: for the target as it is.
    :returns: the plan, and the ids of the features that are there.
    """
    suspicious = any(
        result.state.needs_attention or (result.state is State.UPSTREAMED and result.files)
        for result in plan.features
    )
    if not suspicious or target.record is None:
        return plan, ()
    try:
        proven = prove(features, target)
    except LedgerError:
        return plan, ()  # the lines are not ours as they are: the plan says how they differ
    proven_results = {result.feature: result for result in proven.plan.features}
    # The others are told by the release's own text: they may share modules with what is there.
    ids = {result.feature for result in plan.features}
    candidates = [feature for feature in features if feature.id in ids]
    pristine_plan = make_plan(candidates, proven.pristine, target.release, target.record, Memo())
    results = tuple(
        _unrecorded(proven_results[result.feature]) if result.feature in proven_results else result
        for result in pristine_plan.features
    )
    ours = {change.path for change in proven.plan.changes}
    notices = tuple(notice for notice in plan.notices if notice.path not in ours)
    return Plan(results, (), notices), tuple(proven_results)


def _unrecorded(result: FeatureResult) -> FeatureResult:
    files = tuple(
        file._replace(
            state=State.APPLIED,
            hunks=tuple(hunk._replace(state=State.APPLIED) for hunk in file.hunks),
        )
        for file in result.files
    )
    reason = Reason(
        "applied without the overlay: RECORD says that its files were edited, they are byte for "
        "byte what the overlay writes, and no ledger says so",
        f"run {command('adopt')} to take them over; then {command('revert')} can take them out",
    )
    return result._replace(state=State.PARTIAL, files=files, reason=reason)


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


#: How many ways are planned; behind that all that clash are left out.
_TRIES = 16

#: How many ways are named.
_NAMED = 4


def ways_on(
    features: Sequence[Feature],
    plan: Plan,
    try_on: Callable[[Sequence[Feature]], Plan],
    ledger: Ledger | None = None,
) -> tuple[tuple[str, ...], ...]:
    """The ids of the features without which an ``apply`` of the others would go on, by way.

    What is applied stays applied, and what vLLM must not start without is not left out.

    :param try_on: plans features on the target.
    :returns: the ways that leave out the fewest; none where no way is left.
    """
    needy = {entry.feature for entry in plan.features if entry.state.needs_attention}
    applied = {entry.result.feature for entry in (ledger.applied if ledger is not None else ())}
    bound = applied | {feature.id for feature in features if feature.required}
    clashing = {entry.feature for entry in plan.features if word(entry) == CLASH}
    drifted = needy - clashing
    if not needy or drifted & bound:
        return ()

    paths = {feature.id: {*paths_of([feature])} for feature in features}
    states = {entry.feature: entry.state for entry in plan.features}

    def goes_on(left_out: frozenset[str]) -> bool:
        remaining = [feature for feature in features if feature.id not in left_out]
        # What shares no file with those left out stays as it is, and is not planned again.
        apart = set().union(*(paths[id_] for id_ in left_out))
        changed = {feature.id for feature in remaining if not apart.isdisjoint(paths[feature.id])}
        beside = set().union(*(paths[id_] for id_ in changed))
        group = [each for each in remaining if not beside.isdisjoint(paths[each.id])]
        again = try_on(group).features if changed else ()
        now = states | {each.feature: each.state for each in again if each.feature in changed}
        outlook = [now[feature.id] for feature in remaining]
        return State.PRISTINE in outlook and not any(state.needs_attention for state in outlook)

    ways: list[frozenset[str]] = []
    for way in _candidates(drifted, sorted(clashing - bound), all_of=needy - bound):
        if ways and len(way) > len(ways[0]):
            break
        if goes_on(way):
            ways.append(way)
    return tuple(tuple(each.id for each in features if each.id in way) for way in ways)


def _candidates(
    always: set[str], clashing: Sequence[str], all_of: set[str]
) -> Iterator[frozenset[str]]:
    """What could be left out, the fewest first, and at last everything."""
    tries = 0
    for size in range(1 if clashing else 0, len(clashing)):
        for some in combinations(clashing, size):
            if (tries := tries + 1) > _TRIES:
                break
            yield frozenset({*always, *some})
    yield frozenset(all_of)


def _without(way: Sequence[str]) -> list[str]:
    return [word for id_ in way for word in ("--without", id_)]


def with_ways(plan: Plan, ways: Sequence[tuple[str, ...]], *, read_only: bool) -> Plan:
    """A plan whose clashes name the ways out, each of which is one command.

    :param read_only: whether the target is a file or a release, to which no command writes.
    """
    clashing = {entry.feature for entry in plan.features if word(entry) == CLASH}
    if not ways or not clashing:
        return plan
    caller = current() or NOTHING_NAMED
    commands = [
        str(caller.command("apply", *_without(way), read_only=read_only)) for way in ways[:_NAMED]
    ]
    number = len(clashing & {*ways[0]})
    step = (
        f"leave {'one' if number == 1 else number} of them out, {' or '.join(commands)}, "
        f"or make one patch of {'both' if number == 1 else 'them'}"
    )

    def with_step(reason: object) -> Clash | None:
        return reason._replace(next_step=step) if isinstance(reason, Clash) else None

    features = []
    for entry in plan.features:
        files = []
        for file in entry.files:
            hunks = tuple(
                hunk._replace(reason=with_step(hunk.reason) or hunk.reason) for hunk in file.hunks
            )
            files.append(file._replace(hunks=hunks, reason=with_step(file.reason) or file.reason))
        features.append(entry._replace(files=tuple(files)))
    return plan._replace(features=tuple(features))
