"""Records of processes of vLLM that run patched code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overlay import _processes
from overlay._processes import COUNTS_NAME, Meaning, ProcessRecord
from overlay.in_memory.ranks import RankReport
from overlay.results import Way

LOOP = Meaning("replays", (("graph", "loop"), ("sampled", "false")))

#: A process that counts to 7 in memory that others read, and lives until its input ends.
COUNTING = f"""
import os, sys
fd = os.memfd_create({COUNTS_NAME!r})
os.write(fd, (7).to_bytes(8, sys.byteorder))
print(os.getpid(), fd, flush=True)
sys.stdin.read()
"""


def record(pid: int, **changes: Any) -> ProcessRecord:
    """The record of a worker, patched in memory, as process ``pid``.

    :param changes: fields that are other ones.
    """
    made = ProcessRecord(
        pid=pid,
        started=_processes.start_time(pid),
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


#: Runs a command to its end.
STARTING = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"


@contextmanager
def counting(role: str, rank: int | None, parent: Path | None = None) -> Iterator[ProcessRecord]:
    """A child that has counted 7 replays, with its record.

    :param parent: a Python, whose file's name is the name of the process that starts it.
    """
    command = [sys.executable, "-c", COUNTING]
    if parent is not None:
        command = [str(parent), "-c", STARTING, *command]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        pid, descriptor = map(int, child.stdout.readline().split())
        made = record(
            pid,
            role=role,
            rank=rank,
            counters=(("draft-graphs", "replays of loop"),),
            counts_fd=descriptor,
            meanings=(LOOP,),
        )
        _processes.write(made)
        yield made
    finally:
        child.communicate()


def rank_report(rank: int, **changes: Any) -> RankReport:
    """What a rank says it runs.

    :param changes: fields that are other ones.
    """
    said = RankReport(rank, f"node{rank}", 1, "0.32.0", "a" * 64, "x (memory)")
    return said._replace(**changes)
