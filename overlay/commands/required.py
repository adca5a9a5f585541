"""``--require ID``: a command ends with 1 unless the feature is in the target afterwards.

For image builds and probes, where a patch that silently does nothing is what is feared.  A feature
that the release has itself (``upstreamed``) satisfies, because its change is there.  One that is
not made for the release (``inapplicable``) does not, unless it is required by ``all`` only, which
means every feature that is made for the release, and at least one.

What is required is the code in the files.  Where the release runs that code for no model by default
(``features.model_runners``), a warning and the last line say so; ``status --live --require`` asks
the processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.commands.request import FURTHER
from overlay.errors import UsageError, did_you_mean
from overlay.report.codes import Code
from overlay.report.lines import vllm
from overlay.report.model import Obstacle, TargetReport
from overlay.report.wording import idle_by_default
from overlay.results import Notice, Reason, State
from overlay.results.invocation import command

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.commands.scene import Scene

EVERY = "all"

_SATISFIED = frozenset({State.APPLIED, State.UPSTREAMED})

#: States that an apply which goes through turns into ``applied``.
_COMING = frozenset({State.PRISTINE, State.PARTIAL})


def expect_known(require: Sequence[str], features: Sequence[Feature]) -> None:
    """Refuse a required feature that does not exist.

    :raises UsageError: naming every unknown id, and the known ones.
    """
    ids = [feature.id for feature in features]
    unknown = [name for name in dict.fromkeys(require) if name not in (*ids, EVERY)]
    if unknown:
        raise UsageError(
            f"--require {', '.join(unknown)}: expected {EVERY} or one of "
            f"{', '.join(ids) or 'none'}{did_you_mean(unknown, ids, FURTHER)}"
        )


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
