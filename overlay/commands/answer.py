"""What the commands share that needs no planning: targets, and a target's part of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import UsageError
from overlay.model import Plan, TargetReport
from overlay.states import worst

if TYPE_CHECKING:
    from overlay.model import Feature, FeatureResult
    from overlay.targets import Target


def report(
    target: Target, plan: Plan, meant: Sequence[Feature], said: str | None = None
) -> TargetReport:
    """A target's part of the answer.

    :param meant: the features that the user asked about; a plan can hold others.
    :param said: what recovery had to say.
    """
    ids = {feature.id for feature in meant}
    found = tuple(one for one in plan.features if one.feature in ids)
    return TargetReport(
        target=target.name,
        vllm=target.vllm,
        root=None if target.root is None else str(target.root),
        state=worst(one.state for one in found),
        features=found,
        warnings=(*((said,) if said else ()), *target.warnings, *plan.warnings),
    )


def public(target: Target) -> str | None:
    """The release of a target as the ledger writes it; ``None`` where nobody can tell."""
    return None if target.release is None else str(target.release)


def with_features(target: TargetReport, features: Sequence[FeatureResult]) -> TargetReport:
    """The same target with other results."""
    return replace(
        target, features=tuple(features), state=worst(feature.state for feature in features)
    )


def resolve_writable(name: str | None, command: str) -> tuple[Target, Path]:
    """The target of a command that writes, and its root.

    A release is refused before anything of it is fetched.

    :raises UsageError: if it is a file or a release.
    :raises TargetError: if there is no such target.
    """
    from overlay.releases import parse_release
    from overlay.targets import resolve

    if name is not None:
        with suppress(ValueError):
            parse_release(name)
            raise read_only(name, command)
    target = resolve(name)
    if target.root is None:
        raise read_only(target.name, command)
    return target, target.root


def read_only(name: str, command: str) -> UsageError:
    """The error of a command that writes, asked to write to what is not a folder."""
    return UsageError(
        f"{name}: expected an installed vLLM or a folder that holds vllm/, found a file or a "
        f"release, which {command} cannot write to; `overlay check {name}` says how the patches "
        f"stand there, `overlay diff {name}` prints the change"
    )
