"""Shared memory that killed engines leave behind.

vLLM for CPU names that of its ranks by a port (`PORT-tp:0-[0-1]-cpushm_0`), and an engine that gets
the same port again does not start.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

FOLDER = Path("/dev/shm")
#: Of vLLM's ranks on CPU, and of its message queues (Python's own names).
PATTERNS = ("*-cpushm_*", "psm_*")


def present(folder: Path = FOLDER) -> set[Path]:
    """All that there is by such names."""
    return {file for pattern in PATTERNS for file in folder.glob(pattern)}


def mapped(proc: Path = Path("/proc")) -> set[Path]:
    """What processes have mapped, as far as they may be looked at."""
    found = set()
    for maps in proc.glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:  # it has ended, or is another user's
            continue
        for line in lines:
            # Address, rights, offset, device, inode, path.
            columns = line.split(maxsplit=5)
            if len(columns) == 6:
                found.add(Path(columns[5]))
    return found


def remove(files: Iterable[Path], used: set[Path]) -> list[Path]:
    """Remove those that no process uses, and return them."""
    gone = []
    for file in sorted(files):
        if file not in used:
            file.unlink(missing_ok=True)
            gone.append(file)
    return gone
