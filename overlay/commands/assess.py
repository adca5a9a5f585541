"""Load features, plan them against one target under its read lock, and report the result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import UsageError
from overlay.features.model import paths_of
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import assess, conditions, pristine_view, void
from overlay.on_disk.transaction import reading
from overlay.planning.planner import below
from overlay.planning.planner import plan as make_plan
from overlay.planning.scope_cache import Memo
from overlay.report.model import TargetReport
from overlay.results import Plan, worst
from overlay.targets.target import public
from overlay.untrusted import all_unreadable

if TYPE_CHECKING:
    from overlay.features.model import Feature
    from overlay.on_disk.ledger import Ledger
    from overlay.results import FeatureResult
    from overlay.targets.target import Target


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
    from overlay.package import parse_release
    from overlay.targets.resolution import resolve

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


@dataclass(frozen=True)
class Examination:
    """What was found in one target.

    :ivar features: those that were planned: the ones that are meant, and those that are applied.
    :ivar plan: from the pristine text, whatever stands there now.
    :ivar report: the features that are meant, as they stand.
    :ivar everything: the same with those that are applied beside them.
    :ivar ledger: what we did to the target, as far as that still says something about it.
    :ivar said: what ending an interrupted transaction had to say.
    """

    features: tuple[Feature, ...]
    plan: Plan
    report: TargetReport
    everything: TargetReport
    ledger: Ledger | None = None
    said: str | None = None

    @property
    def applied(self) -> frozenset[str]:
        """The ids of what was applied when this was made."""
        applied = self.ledger.applied if self.ledger is not None else ()
        return frozenset(one.result.feature for one in applied)


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
        made = make_plan(meant, target, target.release, target.record, Memo())
        answer = report(target, made, meant)
        return Examination(tuple(meant), made, answer, answer)
    with reading(target.root) as said:
        ledger = ledgers.load(target.root)
        planned = with_applied(features, meant, ledger)
        view = pristine_view(target, ledger, ledgers.copies(target.root))
        with all_unreadable(needed(target, planned, ledger), target.read):
            made = make_plan(planned, view, target.release, target.record, Memo())
            stands = assess(made, ledger, target, planned, public(target))
        if ledger is not None and void(ledger, conditions(ledger, target.read), public(target)):
            ledger = None
    return Examination(
        planned,
        made,
        report(target, stands, meant, said),
        report(target, stands, planned, said),
        ledger,
        said,
    )


def needed(target: Target, features: Sequence[Feature], ledger: Ledger | None) -> list[str]:
    """The files that matter to features and to what was done to a target before."""
    release = target.release
    fitting = [f for f in features if release is None or not below(release, f.releases)]
    return [*paths_of(fitting), *(entry.path for entry in (ledger.entries if ledger else ()))]


def with_applied(
    features: Sequence[Feature], meant: Sequence[Feature], ledger: Ledger | None
) -> tuple[Feature, ...]:
    """The features that are meant and those that are applied, in their own order."""
    wanted = {feature.id for feature in meant}
    if ledger is not None:
        wanted |= {one.result.feature for one in ledger.applied}
    return tuple(feature for feature in features if feature.id in wanted)


@dataclass(frozen=True)
class Request:
    """The part of a command's arguments that all commands share.

    :ivar patches: folders with features beside those shipped, in order.
    :ivar features: ids of the features that are meant; empty: all.
    """

    patches: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    def load(self) -> tuple[Feature, ...]:
        """Every feature, whether it is meant or not.

        :raises PatchFormatErrors: with everything that is malformed.
        :raises UsageError: if a folder is not there.
        """
        from overlay.features.folder import load
        from overlay.features.sources import shipped_folder

        return load([shipped_folder(), *(Path(folder).expanduser() for folder in self.patches)])

    def select(self, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """The features that are meant, in their own order.

        :raises UsageError: naming every id that there is not, and those that there are.
        """
        known = [feature.id for feature in features]
        unknown = [name for name in dict.fromkeys(self.features) if name not in known]
        if unknown:
            raise UsageError(
                f"--feature {', '.join(unknown)}: expected one of {', '.join(known) or 'none'}; "
                "name the folder of a further feature with --patches DIR before the command"
            )
        if not self.features:
            return features
        return tuple(feature for feature in features if feature.id in self.features)
