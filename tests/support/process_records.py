"""Records of processes of vLLM that run patched code."""

from __future__ import annotations

import os
from typing import Any

from overlay.in_memory.ranks import RankReport
from overlay.processes import records
from overlay.processes.records import ProcessRecord
from overlay.results import Way


def record(pid: int, **changes: Any) -> ProcessRecord:
    """The record of a worker, patched in memory, as process ``pid``.

    :param changes: fields that are other ones.
    """
    made = ProcessRecord(
        pid=pid,
        started=records.start_time(pid),
        host=os.uname().nodename,
        role="worker",
        rank=0,
        vllm="0.32.0",
        root="/site",
        way=Way.MEMORY,
        digest="a" * 64,
        summary="x (memory)",
    )
    return made._replace(**changes)


def rank_report(rank: int, **changes: Any) -> RankReport:
    """What a rank says it runs.

    :param changes: fields that are other ones.
    """
    said = RankReport(rank, f"node{rank}", 1, "0.32.0", "a" * 64, "x (memory)")
    return said._replace(**changes)
