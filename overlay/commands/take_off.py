"""``overlay revert --feature ID``: one feature goes, the others stay as they are.

What is left is byte for byte what applying the others alone would have made, ledger included: they
are planned again on the pristine text and applied.  So each feature that stays has to be at hand,
in the form in which it was applied, and has to fit without the one that goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.commands.assess import absent, needed, until_current
from overlay.commands.next_process import with_plugin
from overlay.commands.target_report import notices, report
from overlay.errors import UsageError
from overlay.on_disk import ledger as ledgers
from overlay.on_disk import transaction as commit
from overlay.on_disk.disk_state import KEEP_EDIT, Condition, conditions, pristine_view, void
from overlay.on_disk.journal import reading
from overlay.planning.planner import plan as make_plan
from overlay.planning.scope_cache import Memo
from overlay.report.changes import RevertReport
from overlay.report.codes import Code
from overlay.report.model import Obstacle
from overlay.report.outcomes import not_taken_off, taken_off
from overlay.report.words import enumeration
from overlay.results import FeatureResult, Plan, Reason, State
from overlay.targets.target import public
from overlay.untrusted import all_unreadable

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.commands.request import Request
    from overlay.features.model import Feature
    from overlay.on_disk.ledger import Ledger
    from overlay.targets.target import Target


def take_off(
    request: Request, target: Target, root: Path, said: str | None, *, named: bool
) -> RevertReport:
    """Take off the features of ``request``; refuse where the others could not stay as they are.

    :param said: what ending an interrupted transaction had to say.
    :raises UsageError: if a feature is neither applied nor at hand.
    :raises OverlayError: if the patches or the ledger cannot be read, or the target not written.
    """
    features = request.load()
    return until_current(lambda: _attempt(request, target, root, features, said, named=named))


def _attempt(
    request: Request,
    target: Target,
    root: Path,
    features: tuple[Feature, ...],
    said: str | None,
    *,
    named: bool,
) -> RevertReport:
    """Plan what stays, and apply that.

    :raises PlanOutdated: if another command changed what is applied in between.
    """
    with reading(root):
        present = ledgers.load(root)
        ledger = _in_force(present, target)
        basis = ledgers.digest(present)
        applied = [] if ledger is None else [entry.result.feature for entry in ledger.applied]
        _expect_known(request.features, applied, features)
        going = [name for name in applied if name in request.features]
        staying = _staying(ledger, features, going)
        obstacles = () if ledger is None else _obstacles(ledger, target, features, staying, going)
        planned = Plan(())
        if ledger is not None and going and not obstacles:
            view = pristine_view(target, ledger, ledgers.copies(root))
            with all_unreadable(needed(target, staying, ledger), target.read):
                planned = make_plan(staying, view, target.release, target.record, Memo())
    answer = report(target, planned, staying)
    if obstacles or planned.state.needs_attention:
        answer = replace(answer, obstacles=obstacles)
        return RevertReport(not_taken_off(answer, going), answer)
    outcome = commit.Outcome("revert")
    if going and any(result.state is State.PRISTINE for result in planned.features):
        outcome = commit.apply(
            root,
            planned,
            staying,
            release=public(target) or target.vllm or "unknown",
            record_file=target.record_file,
            basis=basis,
        )
    elif going:
        outcome = commit.revert(
            root, release=public(target), record_file=target.record_file, basis=basis
        )
    kept = tuple(_settled(result) for result in planned.features)
    gone = tuple(FeatureResult(name, State.PRISTINE) for name in going)
    noted = notices(dict.fromkeys((*((said,) if said else ()), *outcome.warnings)))
    answer = replace(answer, features=(*gone, *kept), notices=(*noted, *answer.notices))
    answer = with_plugin(answer, answer, features, named=named)
    verdict = taken_off(answer, going, request.features, len(outcome.changed))
    return RevertReport(verdict, answer, outcome.changed)


def _in_force(ledger: Ledger | None, target: Target) -> Ledger | None:
    """The ledger, unless it says nothing about this vLLM any more."""
    if ledger is None or void(ledger, conditions(ledger, target.read), public(target)):
        return None
    return ledger


def _expect_known(
    wanted: Sequence[str], applied: Sequence[str], features: Sequence[Feature]
) -> None:
    known = list(dict.fromkeys([*applied, *(feature.id for feature in features)]))
    unknown = [name for name in dict.fromkeys(wanted) if name not in known]
    if unknown:
        raise UsageError(
            f"--feature {', '.join(unknown)}: expected one of {', '.join(known) or 'none'}"
        )


def _staying(
    ledger: Ledger | None, features: tuple[Feature, ...], going: Sequence[str]
) -> tuple[Feature, ...]:
    """The features of the ledger that stay, in the order in which they are applied."""
    listed = {entry.result.feature for entry in ledger.features} if ledger is not None else set()
    return tuple(feature for feature in features if feature.id in listed.difference(going))


def _obstacles(
    ledger: Ledger,
    target: Target,
    features: tuple[Feature, ...],
    staying: Sequence[Feature],
    going: Sequence[str],
) -> tuple[Obstacle, ...]:
    """What keeps the others from staying as they are."""
    found = []
    if not going:
        return ()
    strangers = [(name, origin) for name, origin in absent(ledger, features) if name not in going]
    if strangers:
        names = ", ".join(f"{name} (from {origin})" for name, origin in strangers)
        found.append(
            Obstacle(
                Code.NOT_AT_HAND,
                f"{names} would have to stay and is not among these patches",
                Reason(
                    "what stays is planned again, for which its patches are needed",
                    "name the folder with --patches, or run `overlay revert` to take "
                    "everything off",
                ),
            )
        )
    digests = {entry.result.feature: entry.digest for entry in ledger.applied}
    changed = [one.id for one in staying if digests.get(one.id, one.digest) != one.digest]
    if changed:
        found.append(
            Obstacle(
                Code.REVERT_REFUSED,
                f"{enumeration(changed)} would have to stay and was applied in another form",
                Reason(
                    "its patches at hand are not those that were applied",
                    "run `overlay apply` first, which brings it up to date",
                ),
            )
        )
    now = conditions(ledger, target.read)
    edited = [path for path, state in now.items() if state is Condition.EDITED]
    if edited:
        found.append(
            Obstacle(
                Code.REVERT_REFUSED,
                f"{enumeration(edited)} {'was' if len(edited) == 1 else 'were'} edited after the "
                "overlay applied",
                Reason(
                    "taking the feature off would lose the edit",
                    KEEP_EDIT,
                ),
            )
        )
    return tuple(found)


def _settled(result: FeatureResult) -> FeatureResult:
    """A feature's result once it stays applied."""
    if result.state is not State.PRISTINE:
        return result
    files = tuple(
        file._replace(
            state=State.APPLIED if file.state is State.PRISTINE else file.state,
            hunks=tuple(
                hunk._replace(state=State.APPLIED) if hunk.state is State.PRISTINE else hunk
                for hunk in file.hunks
            ),
        )
        for file in result.files
    )
    return result._replace(state=State.APPLIED, files=files)
