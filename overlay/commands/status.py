"""``overlay status``: what is applied, and whether it still stands.

What the running processes of vLLM have loaded is another question: see ``overlay.commands.live``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.commands.answer import public, report
from overlay.commands.request import Request
from overlay.links import all_unreadable
from overlay.report import Report
from overlay.standing import from_ledger
from overlay.targets import Progress, resolve
from overlay.transaction import ledger as ledgers
from overlay.transaction.commit import reading
from overlay.verdicts import stands

if TYPE_CHECKING:
    from overlay.model import Feature, TargetReport
    from overlay.targets import Target
    from overlay.transaction.ledger import Ledger


def status(request: Request, name: str | None = None, progress: Progress | None = None) -> Report:
    """How a target stands: by its ledger alone where that says it all, else by a plan.

    :raises OverlayError: if the features, the target or its ledger cannot be read.
    """
    answer = of_files(resolve(name, progress=progress), request.load())
    if name is None:
        answer = replace(answer, warnings=(*answer.warnings, *_kept_out()))
    code, verdict = stands(answer)
    return Report("status", code, verdict, (answer,))


def _kept_out() -> tuple[str, ...]:
    """A warning where vLLM's allow-list keeps our plugin from patching in memory."""
    from overlay.auto.switches import plugin_allowed

    if plugin_allowed():
        return ()
    from overlay.auto.diagnosis import kept_out

    return (kept_out(f"VLLM_PLUGINS={os.environ['VLLM_PLUGINS']} does not name overlay"),)


def of_files(target: Target, features: tuple[Feature, ...]) -> TargetReport:
    """How the files of a target stand."""
    known = by_ledger(target, features)
    if known is not None:
        return known
    from overlay.commands.examine import examine

    return examine(target, features).report


def by_ledger(
    target: Target, features: tuple[Feature, ...], meant: Sequence[Feature] | None = None
) -> TargetReport | None:
    """How a target stands by hashes alone, or ``None`` where only a plan can tell.

    :param features: all features, in order; :param meant: those to report (default: all).
    """
    if target.root is None:
        return None
    with reading(target.root) as said:
        ledger = ledgers.load(target.root)
        if ledger is None or not _covers(ledger, features):
            return None
        with all_unreadable((entry.path for entry in ledger.entries), target.read):
            found = from_ledger(ledger, target, public(target))
    # What the ledger's version of the overlay was does not matter where the patches are the same.
    found = None if found is None else replace(found, warnings=())
    return (
        None if found is None else report(target, found, features if meant is None else meant, said)
    )


def _covers(ledger: Ledger, features: tuple[Feature, ...]) -> bool:
    """Whether the ledger speaks of just these features, in the form that they have now."""
    return {one.result.feature: one.digest for one in ledger.features} == {
        feature.id: feature.digest for feature in features
    }
