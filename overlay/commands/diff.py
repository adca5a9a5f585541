"""``overlay diff``: the change to a pristine vLLM as one unified diff.

A module of its own, small as it is, as every command has one.
"""

from __future__ import annotations

from overlay.commands.assess import needed
from overlay.commands.request import Request
from overlay.commands.target_report import report
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import pristine_view
from overlay.on_disk.journal import reading
from overlay.planning.diff import render
from overlay.planning.planner import plan
from overlay.planning.scope_cache import Memo
from overlay.report.changes import DiffReport
from overlay.report.outcomes import differs
from overlay.targets.target import Progress
from overlay.untrusted import all_unreadable


def diff(request: Request, name: str | None = None, progress: Progress | None = None) -> DiffReport:
    """The change that the features that are meant make to the pristine text of a target.

    Nothing is printed where one of them needs the user: part of a change would mislead.

    :raises OverlayError: if the features or the target cannot be read.
    """
    features = request.select(request.load())
    target = request.resolve(name, progress)
    if target.root is None:
        made, interrupted = plan(features, target, target.release, target.record, Memo()), None
    else:
        with reading(target.root) as interrupted:
            ledger = ledgers.load(target.root)
            view = pristine_view(target, ledger, ledgers.copies(target.root))
            with all_unreadable(needed(target, features, ledger), target.read):
                made = plan(features, view, target.release, target.record, Memo())
    answer = report(target, made, features, interrupted)
    verdict = differs(answer, len(made.changes))
    return DiffReport(verdict, answer, b"" if interrupted else render(made.changes))
