"""Make a target's part of a report, and change what it holds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.on_disk.site import foreign_state
from overlay.package import VLLM
from overlay.report.model import TargetReport
from overlay.report.wording import was_interrupted
from overlay.results import Notice, Plan, State
from overlay.results.invocation import NOTHING_NAMED, current

if TYPE_CHECKING:
    from packaging.version import Version

    from overlay._features.model import Feature
    from overlay.on_disk.journal import Journal
    from overlay.results import FeatureResult
    from overlay.targets.target import Target


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
    from overlay._features.model_runners import has_ascend, note_on, runner_of

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
    from overlay._features.early_modules import not_in_memory

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
