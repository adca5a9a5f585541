"""``overlay diff``: the change to a pristine vLLM as one unified diff."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from overlay._features.model import of_package
from overlay.commands.assess import needed
from overlay.commands.request import Request
from overlay.commands.scene import OneTarget, report, scene_of
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import PristineView, with_edits
from overlay.on_disk.journal import reading
from overlay.planning.diff import render
from overlay.planning.planner import plan
from overlay.planning.scope_cache import Memo
from overlay.report.codes import Exit
from overlay.report.progress import doing
from overlay.report.wording import differs, together
from overlay.untrusted import all_unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay._features.model import Feature
    from overlay.on_disk.journal import Journal
    from overlay.results import Plan
    from overlay.targets import Target


@dataclass(frozen=True)
class DiffReport(OneTarget):
    """The change to a pristine target.

    :ivar diff: one unified diff; empty where there is no change or a feature does not fit.
    """

    _command: ClassVar[str] = "diff"
    diff: bytes = b""

    @property
    def body(self) -> bytes:
        """The diff."""
        return self.diff

    def own_data(self) -> dict[str, Any]:
        """The diff as text, under ``diff``."""
        return {"diff": self.diff.decode("utf-8", "backslashreplace")}


def diff(request: Request) -> DiffReport:
    """The change that the features that are meant make to the pristine text of a target.

    Nothing is printed where one of them needs the user: part of a change would mislead.

    :raises OverlayError: if the features or the target cannot be read.
    """
    features = request.at_hand()
    request.select(features)
    scene = scene_of(request, features)
    answers, verdicts, text = [], [], b""
    for target in scene.targets:
        selection = of_package(scene.selection, target.package)
        with doing(request.progress, f"planning the change of {target.name}"):
            pristine_plan, interrupted = _plan_pristine(target, selection)
        answers.append(report(target, pristine_plan, selection, interrupted))
        verdicts.append(differs(answers[-1], len(pristine_plan.changes)))
        text += b"" if interrupted else render(pristine_plan.changes)
    first, *rest = scene.with_absent(answers)
    verdict = together(verdicts)
    whole = text if verdict.code.exit is Exit.OK else b""
    return DiffReport(verdict, first, whole, others=tuple(rest))


def _plan_pristine(target: Target, features: Sequence[Feature]) -> tuple[Plan, Journal | None]:
    """The plan for the pristine text of a target, and what was interrupted there."""
    if target.root is None:
        return plan(features, target, target.release, target.record, Memo()), None
    with reading(target.root, package=target.package) as interrupted:
        ledger = ledgers.load(target.root, target.package)
        copies = ledgers.copies(target.root, target.package)
        view = PristineView(target, ledger, copies, target.public)
        with all_unreadable(needed(target, features, ledger), target.read):
            pristine_plan = plan(features, view, target.release, target.record, Memo())
            return with_edits(pristine_plan, ledger, target, target.public), interrupted
