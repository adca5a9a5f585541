"""``overlay check``: would the patches go on?  Nothing is written to any target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from overlay.commands.assess import examine, outlook
from overlay.commands.parallel import cores, in_processes, in_threads, stepped
from overlay.commands.request import Request, words_of
from overlay.commands.scene import Scene, scene_of, with_runner
from overlay.errors import (
    NOTHING_NAMED,
    Invocation,
    OverlayError,
    ReleaseError,
    current,
    described,
    invoked,
)
from overlay.report import Report
from overlay.report.lines import enumeration
from overlay.report.model import TargetFailure, TargetReport
from overlay.report.progress import counting
from overlay.report.wording import checked, nothing_new
from overlay.results import State
from overlay.targets.resolution import packages_meant, releases

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.targets import Target


@dataclass(frozen=True)
class CheckReport(Report):
    """Whether features can be applied to targets.

    :ivar checked: the targets that could be read.
    :ivar failures: those that could not.
    """

    _command: ClassVar[str] = "check"
    checked: tuple[TargetReport, ...]
    failures: tuple[TargetFailure, ...] = ()

    @property
    def targets(self) -> tuple[TargetReport, ...]:
        """The targets that could be read."""
        return self.checked

    @property
    def error(self) -> str | None:
        """Why some targets could not be read."""
        shared: dict[str, list[TargetFailure]] = {}
        for failure in self.failures:
            shared.setdefault(failure.cause or failure.error, []).append(failure)
        return "\n".join(_cause(cause, failures) for cause, failures in shared.items()) or None


def _cause(cause: str, failures: list[TargetFailure]) -> str:
    """What kept targets from being read, once."""
    if len(failures) == 1 or failures[0].cause is None:
        return failures[0].error
    names = [str(failure.target) for failure in failures]
    return f"releases {enumeration(names, most=len(names))}: {cause}"


#: Below this many targets a second process costs more than it saves.
_WORTH_A_POOL = 4

#: How many releases are fetched at a time.
_FETCHES = 2


def check(
    request: Request,
    names: Sequence[str],
    span: str | None = None,
    *,
    pre: bool = False,
) -> CheckReport:
    """The state of the features in every target that is named, and in every release of ``span``.

    A target that cannot be read is an error of the whole, and the others are answered all the
    same.

    :param names: targets; none and no ``span`` is the vLLM that this Python would import.
    :param span: releases as ``--releases`` takes them.
    :param pre: whether ``new`` in ``span`` holds pre-releases, too.
    :raises UsageError: if ``span`` is none, or a feature that is meant does not exist.
    :raises PatchFormatErrors: if a folder of patches is malformed.
    """
    features = request.at_hand()
    request.select(features)
    targets: list[str | None] = [*names]
    package = request.package(features)
    if span is not None:
        targets += releases(span, pre=pre, package=package)
    if (not targets and span is None) or request.python is not None:
        targets.insert(0, None)
    if not targets:
        return CheckReport(nothing_new(packages_meant(span or "new", package)), ())
    answers = every_target(request, list(dict.fromkeys(targets)), features)
    reports = tuple(answer for answer in answers if isinstance(answer, TargetReport))
    failures = tuple(answer for answer in answers if isinstance(answer, TargetFailure))
    return CheckReport(checked(reports, failures), reports, failures)


def every_target(
    request: Request, names: Sequence[str | None], features: tuple[Feature, ...]
) -> list[TargetReport | TargetFailure]:
    """A report or a failure for each package that a name leads to, in the order of the names."""
    invocation = current() or NOTHING_NAMED

    def survey_name(name: str | None) -> Scene | TargetFailure:
        for_target = invocation._replace(target=words_of(name, request.python))
        with invoked(for_target):
            return _scene_or_failure(request._replace(target=name), features, for_target)

    workers = min(cores(), len(names))
    if len(names) < _WORTH_A_POOL or workers < 2 or not hasattr(os, "fork"):
        one_by_one = (_answer(survey_name(name)) for name in names)
        with counting(request.progress, "checked", len(names), "target") as step:
            answers = stepped(one_by_one, step)
    else:
        with counting(request.progress, "read", len(names), "target") as step:
            scenes = in_threads(survey_name, names, _FETCHES, step)
        with counting(request.progress, "checked", len(names), "target") as step:
            answers = in_processes(_answer, scenes, workers, step, alike=True)
    return [answer for each in answers for answer in each]


def _answer(scene: Scene | TargetFailure) -> list[TargetReport | TargetFailure]:
    """What there is to say of everything that a name leads to."""
    if isinstance(scene, TargetFailure):
        return [scene]
    with invoked(scene.invocation):
        answers = [_examined(target, scene) for target in scene.targets]
    if isinstance(answers[0], TargetReport):
        answers[:1] = scene.with_absent([answers[0]])
    return answers


def _scene_or_failure(
    request: Request, features: tuple[Feature, ...], invocation: Invocation
) -> Scene | TargetFailure:
    name = request.target
    try:
        return scene_of(request, features)._replace(invocation=invocation)
    except ReleaseError as error:
        return TargetFailure(name, str(error), error.cause)
    except OverlayError as error:
        return TargetFailure(name, str(error))
    except OSError as error:
        return TargetFailure(name, described(error))


def _examined(target: Target, scene: Scene) -> TargetReport | TargetFailure:
    try:
        examination = examine(target, scene.features, scene.selection)
        answer = outlook(examination, untested=True).report
        return with_runner(_with_faults(answer, scene.features), scene.features, target.release)
    except OverlayError as error:
        lines = (
            line if line.startswith(f"{target.name}: ") else f"{target.name}: {line}"
            for line in str(error).split("\n")
        )
        return TargetFailure(target.name, "\n".join(lines))
    except OSError as error:
        return TargetFailure(target.name, described(error))


def _with_faults(answer: TargetReport, features: Sequence[Feature]) -> TargetReport:
    """A target with the faults that its release has, of mends that could be applied."""
    symptoms = {feature.id: feature.fault.symptom for feature in features if feature.fault}
    faults = tuple(
        (result.feature, symptoms[result.feature])
        for result in answer.features
        if result.state is State.PRISTINE and result.feature in symptoms
    )
    return replace(answer, faults=faults)
