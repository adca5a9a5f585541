"""``overlay adopt``: take over patches that are in a target without a ledger.

No file of vLLM changes.  What is written is what ``apply`` would have left beside them: the ledger,
the pristine copies and the rows in RECORD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.commands.request import resolve_writable
from overlay.commands.status import of_files
from overlay.commands.target_report import only, with_notices
from overlay.commands.unrecorded import is_changed, prove
from overlay.features.model import of_package
from overlay.on_disk import ledger as ledgers
from overlay.on_disk import transaction as commit
from overlay.on_disk.journal import reading
from overlay.on_disk.recovery import recover
from overlay.report.changes import AdoptReport
from overlay.report.outcomes import adopted
from overlay.targets.target import public

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.commands.request import Request
    from overlay.commands.unrecorded import Unrecorded
    from overlay.features.model import Feature
    from overlay.targets.target import Target


def adopt(request: Request, name: str | None = None) -> AdoptReport:
    """Write the ledger of a target whose files are byte for byte what ``apply`` writes.

    :raises LedgerError: naming every file of which it cannot be proven what it was.
    :raises UsageError: if the target is a file or a release.
    :raises OverlayError: if the features or the target cannot be read or written.
    """
    target, root = resolve_writable(request, name, "adopt")
    features = of_package(request.load(), target.package)
    said = recover(root, package=target.package)
    proven = None if _has_ledger(target, root) else _proven(features, target)
    wrote = False
    if proven is not None:
        outcome = commit.adopt(
            root,
            proven.plan,
            proven.features,
            proven.folders,
            release=public(target) or target.vllm or "unknown",
            record_file=target.record_file,
            package=target.package,
        )
        wrote = outcome.wrote
    answer = of_files(target, features)
    if proven is not None:
        answer = only(answer, proven.features)
    answer = with_notices(answer, [said] if said else [])
    return AdoptReport(adopted(answer, wrote=wrote), answer)


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
