"""The counts of a running process, read from its memory through ``/proc``.

A process that counts keeps its numbers in anonymous memory with the name ``COUNTS_NAME``; its
record says under which file descriptor, and which number is which.  Reading costs that process
nothing.  It is a module of its own, small as it is: it alone reads another process's memory.
"""

from __future__ import annotations

import os
from pathlib import Path

#: The name of the memory, as ``/proc/PID/fd`` shows it.
COUNTS_NAME = "vllm-overlay-counts"

_BYTES = 8

#: The most bytes that are read of another process's memory.
_LIMIT = 1 << 16


def read(pid: int, descriptor: int, length: int, proc: Path = Path("/proc")) -> list[int] | None:
    """The first ``length`` numbers of a process, ``None`` where they cannot be read.

    :param descriptor: of the memory in that process.
    """
    place = proc / str(pid) / "fd" / str(descriptor)
    try:
        # Another file may have that number where the process is another one, or has ended.
        if not os.readlink(place).startswith(f"/memfd:{COUNTS_NAME}"):
            return None
        with open(place, "rb") as memory:
            data = memory.read(min(length * _BYTES, _LIMIT))
    except OSError:
        return None
    if len(data) < length * _BYTES:
        return None
    return list(memoryview(data).cast("Q"))
