"""The target of a command, its packages and features, and the target's part of the report.

``--require ID``: a command ends with 1 unless the feature is in the target afterwards.  For image
builds and probes, where a patch that silently does nothing is what is feared.  A feature that the
release has itself (``upstreamed``) satisfies, because its change is there.  One that is not made
for the release (``inapplicable``) does not, unless it is required by ``all`` only, which means
every feature that is made for the release, and at least one.

What is required is the code in the files.  Where the release runs that code for no model by default
(``_features.vllm_defaults``), a warning and the last line say so; ``status --live --require`` asks
the processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay._features.model import packages_of
from overlay.commands.request import EVERY
from overlay.errors import (
    NOTHING_NAMED,
    Absent,
    Invocation,
    OverlayError,
    UsageError,
    command,
    current,
)
from overlay.on_disk.files import foreign_state
from overlay.package import VLLM, Package
from overlay.report import Report
from overlay.report.codes import Code
from overlay.report.lines import vllm
from overlay.report.model import Obstacle, TargetReport
from overlay.report.progress import doing
from overlay.report.wording import idle_by_default, was_interrupted
from overlay.results import FeatureResult, Notice, Plan, Reason, State
from overlay.targets import resolution

if TYPE_CHECKING:
    from packaging.version import Version

    from overlay._features.model import Feature
    from overlay.commands.request import Request
    from overlay.on_disk.journal import Journal
    from overlay.report.model import TargetReport
    from overlay.results import FeatureResult
    from overlay.targets import Target


@dataclass(frozen=True)
class OneTarget(Report):
    """Answer that speaks of one target.

    :ivar target: vLLM there, or the one package that is meant.
    :ivar others: the other packages there that features are for.
    """

    target: TargetReport
    others: tuple[TargetReport, ...] = field(default=(), kw_only=True)

    @property
    def targets(self) -> tuple[TargetReport, ...]:
        """The target, and the other packages there."""
        return (self.target, *self.others)


def resolve(request: Request, package: Package = VLLM) -> Target:
    """The target that the user named, or that of ``python``.

    :param package: the one that is meant there; default: vLLM.
    :raises TargetError: if the target does not exist.
    :raises PackageIndexError: if a release cannot be fetched.
    """
    with _reading(request):
        return resolution.resolve(
            request.target, python=request.python, progress=request.progress, package=package
        )


def _reading(request: Request) -> AbstractContextManager[None]:
    """Says what is read, where that was named and takes long."""
    if request.target is None:
        return nullcontext()
    return doing(request.progress, f"reading {request.target}")


class Scene(NamedTuple):
    """The features of a command and the packages that they are for.

    :ivar features: every feature, whether it is meant or not.
    :ivar selection: those that are meant.
    :ivar targets: the packages, at least one.
    :ivar absent: features that were named although their package is not there.
    :ivar invocation: by which arguments the user meant this target, where there are several.
    """

    features: tuple[Feature, ...]
    selection: tuple[Feature, ...]
    targets: tuple[Target, ...]
    absent: tuple[Feature, ...] = ()
    invocation: Invocation = NOTHING_NAMED

    def with_absent(self, reports: Sequence[TargetReport]) -> tuple[TargetReport, ...]:
        """The reports on the targets, the first with the features whose package is not there."""
        first, *rest = reports
        results = tuple(
            FeatureResult(
                feature.id,
                State.INAPPLICABLE,
                reason=Reason(f"{feature.package.title} is not installed here"),
            )
            for feature in self.absent
        )
        return (replace(first, features=(*first.features, *results)), *rest)


def survey(request: Request) -> Scene:
    """The features, and the packages of a target that they are for.

    Without ``--feature`` these are all that have features at hand, or patches of the overlay;
    with it those that are meant.  What is not installed is passed over.

    :raises OverlayError: if the features or the target cannot be read.
    """
    try:
        features = request.at_hand()
        request.select(features)
    except OverlayError:
        resolve(request)  # what is wrong with the target is said first
        raise
    return scene_of(request, features)


def scene_of(request: Request, features: tuple[Feature, ...]) -> Scene:
    """The same of features that were loaded."""
    selection = request.select(features)
    packages = packages_of(selection if request.features else features) or (VLLM,)
    try:
        targets = _targets(request, packages)
    except Absent as error:  # a feature that cannot be read may be for what is there
        problems = (problem for feature in selection for problem in feature.malformed)
        raise Absent("\n".join((str(error), *problems))) from error
    there = {target.package for target in targets}
    ids = {*request.features, *request.require} - {*request.without}
    absent = tuple(
        feature for feature in features if feature.id in ids and feature.package not in there
    )
    return Scene(features, selection, targets, absent)


def _targets(request: Request, packages: Sequence[Package]) -> tuple[Target, ...]:
    def each(packages: Sequence[Package]) -> tuple[Target, ...]:
        return resolution.resolve_each(
            request.target,
            packages,
            python=request.python,
            patched=not request.features,
            progress=request.progress,
        )

    with _reading(request):
        try:
            return each(packages)
        except Absent:
            if VLLM in packages:
                raise
            return each((VLLM,))  # where features for something else have nothing to do


def writable(request: Request, command: str) -> Scene:
    """The features, and the packages of a target that a command writes to.

    :raises UsageError: if it is a file or a release, or a feature does not exist.
    :raises OverlayError: if the features or the target cannot be read.
    """
    refuse_release(request.target, command)
    scene = survey(request)
    for target in scene.targets:
        root_of(target, command)
    return scene


def ended(targets: Sequence[Target]) -> str | None:
    """End the transactions that were interrupted in targets; what was done, or ``None``.

    :raises OverlayError: as ``overlay.on_disk.recovery.recover``.
    """
    from overlay.on_disk.recovery import recover  # what reads ends no transaction

    outcomes = [
        recover(each.root, package=each.package) for each in targets if each.root is not None
    ]
    return "; ".join(text for text in outcomes if text) or None


def refuse_release(name: str | None, command: str) -> None:
    """Refuse a release as the target of a command that writes.

    :raises UsageError: if ``name`` is one.
    """
    if name is not None and resolution.target_release(name) is not None:
        raise read_only(name, command)


def root_of(target: Target, command: str) -> Path:
    """The root of a target that a command writes to.

    :raises UsageError: if it is a file or a release.
    """
    if target.root is None:
        raise read_only(target.name, command)
    return target.root


def read_only(name: str, verb: str) -> UsageError:
    """The error of a command that writes, asked to write to what is not a folder."""
    return UsageError(
        f"{name}: expected an installed vLLM or a folder that holds vllm/, found a file or a "
        f"release, which {verb} cannot write to; {command('check')} says whether the "
        f"patches fit there, {command('diff')} prints the change"
    )


def report(
    target: Target, plan: Plan, selection: Sequence[Feature], interrupted: Journal | None = None
) -> TargetReport:
    """A target's part of the answer.

    :param selection: the features that the user asked about; a plan can hold others.
    :param interrupted: the transaction that was interrupted there, if one was.
    """
    ids = {feature.id for feature in selection}
    return TargetReport(
        target=target.name,
        vllm=target.vllm,
        root=target.root,
        features=tuple(result for result in plan.features if result.feature in ids),
        package=target.package.name,
        notices=(
            *notices(_of_state_folder(target, interrupted)),
            *notices(target.warnings),
            *plan.notices,
        ),
        interrupted=interrupted is not None,
        invocation=current() or NOTHING_NAMED,
    )


def notices(texts: Iterable[str]) -> tuple[Notice, ...]:
    """Notices about a target as a whole."""
    return tuple(Notice(None, text) for text in texts)


def with_runner(
    target: TargetReport, features: Iterable[Feature], release: Version | None
) -> TargetReport:
    """A target with what its release runs of the features that are or would be there.

    That is what it runs by default, and what cannot be patched in memory.

    :param features: all that the command knows of; where one names no model runner, its files tell.
    :param release: of the package of the target.
    """
    target = _with_early(target, features, release)
    if target.package != VLLM.name:
        return target  # other packages choose by rules of their own
    from overlay._features.vllm_defaults import has_ascend, note_on, runner_of

    ascend = has_ascend(target.root)
    declared = {feature.id: feature.model_runner for feature in features}
    runners = {
        result.feature: runner
        for result in target.features
        if result.state not in (State.UPSTREAMED, State.INAPPLICABLE)
        and (
            runner := declared.get(result.feature)
            or runner_of(result.places, release, ascend=ascend)
        )
    }
    if not runners:
        return target
    return replace(target, runner=note_on(runners, release, os.environ, ascend=ascend))


def _with_early(
    target: TargetReport, features: Iterable[Feature], release: Version | None
) -> TargetReport:
    """A target with the features that can be patched on disk only, where they are not yet."""
    waiting = [result for result in target.features if result.state is State.PRISTINE]
    own = [feature for feature in features if not feature.shipped]
    if not waiting or not own:
        return target
    from overlay._features.vllm_defaults import not_in_memory

    reasons = not_in_memory(waiting, own, release, target.package)
    return replace(target, early=tuple(reasons.items()))


def with_notices(target: TargetReport, texts: Iterable[str]) -> TargetReport:
    """A target with further notices about it as a whole, before its own."""
    return replace(target, notices=tuple(dict.fromkeys((*notices(texts), *target.notices))))


def only(target: TargetReport, selection: Sequence[Feature]) -> TargetReport:
    """A target with the features that are meant, and no others."""
    ids = {feature.id for feature in selection}
    return with_features(target, [result for result in target.features if result.feature in ids])


def _of_state_folder(target: Target, interrupted: Journal | None) -> Iterator[str]:
    """What to say of an interrupted transaction, and of a ledger that others could have written."""
    if target.root is None:
        return
    if interrupted is not None:
        yield was_interrupted(interrupted.action, target.root)
    if (problem := foreign_state(target.root, target.package)) is not None:
        yield problem


def with_features(target: TargetReport, features: Sequence[FeatureResult]) -> TargetReport:
    """The same target with other results."""
    return replace(target, features=tuple(features))


_SATISFIED = frozenset({State.APPLIED, State.UPSTREAMED})

#: States that an apply which goes through turns into ``applied``.
_COMING = frozenset({State.PRISTINE, State.PARTIAL})


def with_required(
    target: TargetReport, require: Sequence[str], everything: TargetReport, *, dry_run: bool = False
) -> TargetReport:
    """A target with an obstacle for each required feature that is not in it.

    :param everything: the same target with every feature that the command knows of.
    :param dry_run: whether the command is a dry run, so that what would be applied counts.
    """
    good = _SATISFIED | _COMING if dry_run else _SATISFIED
    states = {result.feature: result.state for result in everything.features}
    missing = [
        name
        for name in dict.fromkeys(require)
        if name != EVERY and states.get(name, State.MISSING) not in good
    ]
    if EVERY in require:
        usable = {name: state for name, state in states.items() if state is not State.INAPPLICABLE}
        missing += [name for name, state in usable.items() if state not in good | {*missing}]
        if not usable:
            missing += list(states)
    obstacles = tuple(_obstacle(name, states.get(name)) for name in dict.fromkeys(missing))
    names = [*require, *states] if EVERY in require else require
    unmet = {*missing}
    return replace(
        _with_idle(target, [name for name in dict.fromkeys(names) if name not in unmet]),
        obstacles=(*target.obstacles, *obstacles),
    )


def _with_idle(target: TargetReport, names: Sequence[str]) -> TargetReport:
    """A target with a warning of the required features that its release runs for no model.

    The files are as they are required to be, so it is no obstacle: an image is built without the
    variable that lets it serve.
    """
    runs = {} if target.runner is None else target.runner.runs
    idle = tuple(name for name in names if runs.get(name) == "no")
    if not idle:
        return target
    target = replace(target, idle=idle)
    notice = Notice(None, f"{vllm(target)}: {idle_by_default(target)}")
    return replace(target, notices=(*target.notices, notice))


def with_requirements(
    scene: Scene,
    targets: Sequence[TargetReport],
    require: Sequence[str],
    everything: Sequence[TargetReport],
    *,
    dry_run: bool = False,
) -> tuple[TargetReport, ...]:
    """The packages of a scene, each with its obstacles as ``with_required`` has them.

    A feature is required of the package that it is for, or of the first one where that is not
    there; ``all`` of those packages that any feature is made for.
    """
    places = {target.package: at for at, target in enumerate(scene.targets)}
    homes = {feature.id: places.get(feature.package, 0) for feature in scene.features}
    made_for = [
        at
        for at, target in enumerate(everything)
        if any(result.state is not State.INAPPLICABLE for result in target.features)
    ]
    requirements: list[list[str]] = [[] for _ in targets]
    for name in require:
        for at in (made_for or places.values()) if name == EVERY else (homes.get(name, 0),):
            requirements[at].append(name)
    return tuple(
        with_required(target, names, whole, dry_run=dry_run)
        for target, names, whole in zip(targets, requirements, everything, strict=True)
    )


def _obstacle(name: str, state: State | None) -> Obstacle:
    why = (
        "it is not among the features of this command" if state is None else f"it is {state.value}"
    )
    step = f"run {command('apply', '--feature', name)}"
    if state is State.INAPPLICABLE:
        step = "remove the requirement, or install a release that the feature is made for"
    elif state is not None and state.needs_attention:
        step = f"settle what is said about it, then run {command('apply')}"
    return Obstacle(
        Code.REQUIRED_MISSING, f"{name} is required and not applied", Reason(f"{name}: {why}", step)
    )
