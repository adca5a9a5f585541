"""``overlay status --live``: what the running processes of vLLM have loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.report import ATTENTION, OK, Report
from overlay.verdicts import count

if TYPE_CHECKING:
    from overlay.auto.live import LiveProcess


def live() -> Report:
    """Every running vLLM process of this user, and what is wrong with it.

    :raises OverlayError: where the system does not tell which processes run.
    """
    from overlay.auto.live import processes

    found = processes()
    code, verdict = running(found)
    return Report("status", code, verdict, processes=found)


def running(found: tuple[LiveProcess, ...]) -> tuple[int, str]:
    """The verdict of ``status --live``."""
    from overlay.auto.records import PATCHED

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
