"""When fake engines measured, and what the others did meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_VARIABLE = "FAKE_TRACE"


class Measured(NamedTuple):
    """A time in which an engine measured.

    :ivar others: the states of the other engines' processes at its end, as in ``/proc``: ``T`` for
        a stopped one.
    """

    engine: str
    begun: float
    ended: float
    others: tuple[str, ...]


@contextlib.contextmanager
def measuring(engine: str) -> Iterator[None]:
    """Write down a time in which this process measures, where somebody wants to know."""
    folder = os.environ.get(_VARIABLE)
    if folder is None:
        yield
        return
    (Path(folder) / f"pid-{os.getpid()}").touch()
    begun = time.monotonic()
    yield
    time.sleep(0.01)
    others = (each.name.removeprefix("pid-") for each in Path(folder).glob("pid-*"))
    states = [state_of(int(pid)) for pid in others if int(pid) != os.getpid()]
    entry = (engine, begun, time.monotonic(), [state for state in states if state not in "ZX"])
    with Path(folder, "times").open("a") as stream:
        stream.write(json.dumps(entry) + "\n")


def state_of(pid: int) -> str:
    """The state of a process; ``X`` where there is none."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def read(folder: Path) -> list[Measured]:
    """What all engines wrote down, by the time at which they began."""
    lines = (folder / "times").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    made = (Measured(name, begun, ended, tuple(others)) for name, begun, ended, others in entries)
    return sorted(made, key=lambda each: each.begun)
