"""How features stand in one target, held still meanwhile: what every command that plans needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import UsageError
from overlay.model import Plan, TargetReport
from overlay.planning import plan as make_plan
from overlay.standing import assess, conditions, pristine_view, void
from overlay.states import worst
from overlay.transaction import ledger as ledgers
from overlay.transaction.commit import reading

if TYPE_CHECKING:
    from overlay.model import Feature, FeatureResult
    from overlay.targets import Target
    from overlay.transaction.ledger import Ledger


@dataclass(frozen=True)
class Examination:
    """What was found in one target.

    :ivar features: those that were planned: the ones that are meant, and those that are applied.
    :ivar plan: from the pristine text, whatever stands there now.
    :ivar report: the features that are meant, as they stand.
    :ivar everything: the same with those that are applied beside them.
    :ivar ledger: what we did to the target, as far as that still says something about it.
    """

    features: tuple[Feature, ...]
    plan: Plan
    report: TargetReport
    everything: TargetReport
    ledger: Ledger | None = None


def examine(
    target: Target, features: tuple[Feature, ...], meant: Sequence[Feature] | None = None
) -> Examination:
    """Plan the features that are meant, together with those that the ledger says are applied.

    :param features: all features, in order; :param meant: some of them (default: all).
    :raises LedgerError: if the ledger, the journal or a pristine copy is damaged.
    :raises TransactionError: if another command holds the target for too long.
    :raises TargetError: if a file cannot be read.
    """
    meant = features if meant is None else meant
    if target.root is None:
        made = make_plan(meant, target, target.release, target.record)
        answer = report(target, made, meant)
        return Examination(tuple(meant), made, answer, answer)
    with reading(target.root) as said:
        ledger = ledgers.load(target.root)
        planned = with_applied(features, meant, ledger)
        view = pristine_view(target, ledger, ledgers.copies(target.root))
        made = make_plan(planned, view, target.release, target.record)
        stands = assess(made, ledger, target, planned, public(target))
        if ledger is not None and void(ledger, conditions(ledger, target.read), public(target)):
            ledger = None
    return Examination(
        planned,
        made,
        report(target, stands, meant, said),
        report(target, stands, planned, said),
        ledger,
    )


def with_applied(
    features: Sequence[Feature], meant: Sequence[Feature], ledger: Ledger | None
) -> tuple[Feature, ...]:
    """The features that are meant and those that are applied, in their own order."""
    wanted = {feature.id for feature in meant}
    if ledger is not None:
        wanted |= {one.result.feature for one in ledger.applied}
    return tuple(feature for feature in features if feature.id in wanted)


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
