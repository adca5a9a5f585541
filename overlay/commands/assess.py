"""Plan features against one target while holding its read lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.commands.request import report
from overlay.features.model import paths_of
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import assess, conditions, pristine_view, void
from overlay.on_disk.transaction import reading
from overlay.planning.planner import below
from overlay.planning.planner import plan as make_plan
from overlay.planning.scope_cache import Memo
from overlay.report.model import TargetReport
from overlay.results import Plan
from overlay.targets.target import public
from overlay.untrusted import all_unreadable

if TYPE_CHECKING:
    from overlay.features.model import Feature
    from overlay.on_disk.ledger import Ledger
    from overlay.targets.target import Target


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
    with reading(target.root) as interrupted:
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
        report(target, stands, meant, interrupted),
        report(target, stands, planned, interrupted),
        ledger,
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
