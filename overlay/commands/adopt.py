"""``overlay adopt``: take over patches that are in a target without a ledger.

No file of vLLM changes.  What is written is what ``apply`` would have left beside them: the ledger,
the pristine copies and the rows in RECORD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from overlay._features.model import of_package
from overlay.commands.assess import is_changed, prove
from overlay.commands.scene import OneTarget, ended, only, with_notices, writable
from overlay.commands.status import of_files
from overlay.on_disk import ledger as ledgers
from overlay.on_disk import transaction as commit
from overlay.on_disk.journal import reading
from overlay.report.wording import adopted, together

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from overlay._features.model import Feature
    from overlay.commands.assess import Unrecorded
    from overlay.commands.request import Request
    from overlay.report.model import TargetReport
    from overlay.targets import Target


@dataclass(frozen=True)
class AdoptReport(OneTarget):
    """What ``adopt`` took over."""

    _command: ClassVar[str] = "adopt"


def adopt(request: Request) -> AdoptReport:
    """Write the ledger of a target whose files are byte for byte what ``apply`` writes.

    :raises LedgerError: naming every file of which it cannot be proven what it was.
    :raises UsageError: if the target is a file or a release.
    :raises OverlayError: if the features or the target cannot be read or written.
    """
    scene = writable(request, "adopt")
    recovery = ended(scene.targets)
    proven = [_to_adopt(scene.features, target) for target in scene.targets]
    works = [
        commit.adopting(target, entry.plan, entry.features, entry.folders)
        for target, entry in zip(scene.targets, proven, strict=True)
        if entry is not None
    ]
    outcomes = commit.carry_out(works) if works else ()
    wrote = {work.package for work, outcome in zip(works, outcomes, strict=True) if outcome.wrote}
    answers: list[TargetReport] = []
    verdicts = []
    for target, entry in zip(scene.targets, proven, strict=True):
        answer = of_files(target, scene.features)
        if entry is not None:
            answer = only(answer, entry.features)
        if recovery and not answers:
            answer = with_notices(answer, [recovery])
        answers.append(answer)
        verdicts.append(adopted(answer, wrote=target.package in wrote))
    first, *rest = answers
    return AdoptReport(together(verdicts), first, others=tuple(rest))


def _to_adopt(features: Sequence[Feature], target: Target) -> Unrecorded | None:
    """What can be taken over of one package; ``None`` where there is nothing."""
    assert target.root is not None
    if _has_ledger(target, target.root):
        return None
    return _proven(of_package(features, target.package), target)


def _has_ledger(target: Target, root: Path) -> bool:
    """Whether a ledger already records what is there."""
    with reading(root, package=target.package):
        try:
            return ledgers.load(root, target.package) is not None
        except ledgers.LedgerLost:
            return False


def _proven(features: tuple[Feature, ...], target: Target) -> Unrecorded | None:
    """What can be taken over; ``None`` where every file is the release's own.

    :raises LedgerError: if files were changed, and cannot be proven to be ours.
    """
    if target.record is not None and not is_changed(features, target, target.record):
        return None
    return prove(features, target)
