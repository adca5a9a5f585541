"""Find the target of a command, its packages, and the features that are for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay._features.model import packages_of
from overlay.errors import Absent, OverlayError, UsageError
from overlay.package import VLLM, Package
from overlay.report.progress import doing
from overlay.results import FeatureResult, Reason, State
from overlay.results.invocation import NOTHING_NAMED, Invocation, command
from overlay.targets import resolution

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.commands.request import Request
    from overlay.report.model import TargetReport
    from overlay.targets.target import Target


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
