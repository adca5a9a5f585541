"""``overlay status``: what is applied, whether it still stands, and what running processes load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.commands.request import Request, report
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import from_ledger
from overlay.on_disk.transaction import reading
from overlay.report.model import ATTENTION, OK, Report
from overlay.report.wording import count, stands
from overlay.results import Notice
from overlay.targets.target import Progress, public
from overlay.untrusted import all_unreadable

if TYPE_CHECKING:
    from overlay.features.model import Feature
    from overlay.on_disk.ledger import Ledger
    from overlay.processes.live import LiveProcess
    from overlay.report.model import TargetReport
    from overlay.targets.target import Target


def live() -> Report:
    """Every running vLLM process of this user, and what is wrong with it.

    :raises OverlayError: where the system does not tell which processes run.
    """
    from overlay.processes.live import processes

    found = processes()
    code, verdict = running(found)
    return Report("status", code, verdict, processes=found)


def running(found: tuple[LiveProcess, ...]) -> tuple[int, str]:
    """The verdict of ``status --live``."""
    from overlay.processes.records import PATCHED

    if not found:
        return OK, "No vLLM of this user is running."
    bad = [one for one in found if one.problem is not None]
    engines = len({one.engine for one in found})
    what = f"{count(len(found), 'process').replace('processs', 'processes')} of vLLM"
    if bad:
        verb = "needs" if len(bad) == 1 else "need"
        return ATTENTION, f"{len(bad)} of {what} {verb} you."
    patched = sum(one.record is not None and one.record.way in PATCHED for one in found)
    return OK, f"{what} in {count(engines, 'engine')}, {patched} patched, none needs you."


def status(request: Request, name: str | None = None, progress: Progress | None = None) -> Report:
    """How a target stands: by its ledger alone where that says it all, else by a plan.

    :raises OverlayError: if the features, the target or its ledger cannot be read.
    """
    answer = of_files(request.resolve(name, progress), request.load())
    if name is None:
        answer = replace(answer, notices=(*answer.notices, *_kept_out()))
    code, verdict = stands(answer)
    return Report("status", code, verdict, (answer,))


def _kept_out() -> tuple[Notice, ...]:
    """A notice where vLLM's allow-list keeps our plugin from patching in memory."""
    from overlay.settings import plugin_allowed

    if plugin_allowed():
        return ()
    from overlay.settings import kept_out

    why = kept_out(f"VLLM_PLUGINS={os.environ['VLLM_PLUGINS']} does not name overlay")
    return (Notice(None, why),)


def of_files(target: Target, features: tuple[Feature, ...]) -> TargetReport:
    """How the files of a target stand."""
    known = by_ledger(target, features)
    if known is not None:
        return known
    from overlay.commands.assess import examine

    return examine(target, features).report


def by_ledger(
    target: Target, features: tuple[Feature, ...], meant: Sequence[Feature] | None = None
) -> TargetReport | None:
    """How a target stands by hashes alone, or ``None`` where only a plan can tell.

    :param features: all features, in order; :param meant: those to report (default: all).
    """
    if target.root is None:
        return None
    with reading(target.root) as interrupted:
        ledger = ledgers.load(target.root)
        if ledger is None or not _covers(ledger, features):
            return None
        with all_unreadable((entry.path for entry in ledger.entries), target.read):
            found = from_ledger(ledger, target, public(target))
    # What the ledger's version of the overlay was does not matter where the patches are the same.
    found = None if found is None else replace(found, notices=())
    return (
        None
        if found is None
        else report(target, found, features if meant is None else meant, interrupted)
    )


def _covers(ledger: Ledger, features: tuple[Feature, ...]) -> bool:
    """Whether the ledger speaks of just these features, in the form that they have now."""
    return {one.result.feature: one.digest for one in ledger.features} == {
        feature.id: feature.digest for feature in features
    }
