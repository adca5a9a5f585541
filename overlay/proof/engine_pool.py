"""Run engines in processes of their own, some at a time, so that none outlives whoever asked.

Each engine leads a process group, which a watchdog knows of (``process_group``).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from overlay.proof.process_group import ProcessGroup, Watchdog

#: Seconds between two looks at the engines.
_PAUSE = 0.1
#: Bytes of a log that are read, from its end.
_LOG_TAIL = 200_000


@dataclass(frozen=True)
class Job:
    """One engine to be run.

    :ivar command: reads one line of its standard input before it does anything.
    :ivar folder: its working folder, of its own; ``result.json`` in it is what it writes.
    :ivar log: takes what it prints.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log: Path

    @property
    def out(self) -> Path:
        """The file into which it writes its result."""
        return self.folder / "result.json"


class EngineEnd(NamedTuple):
    """How an engine ended.

    :ivar status: the exit status, negative for a signal; ``None`` where it was killed because it
        had taken too long.
    :ivar result: what it wrote; ``None`` where it wrote nothing.
    :ivar log: the end of what it printed.
    """

    status: int | None
    seconds: float
    result: dict[str, Any] | None
    log: str


class _Engine:
    """A running engine."""

    def __init__(self, job: Job, watchdog: Watchdog) -> None:
        self.job = job
        self._start = time.monotonic()
        # A file of its own: what lies at that name may be a link to anywhere.
        job.log.unlink(missing_ok=True)
        self._log: IO[bytes] = job.log.open("xb")
        self._group = ProcessGroup(
            job.command, job.environment, self._log, job.folder, watchdog, waits=True
        )

    def poll(self, deadline: float) -> EngineEnd | None:
        """How it ended; ``None`` while it runs.

        :param deadline: seconds after which it is killed.
        """
        status, seconds = self._group.wait(0), time.monotonic() - self._start
        if status is None and seconds < deadline:
            return None
        self.kill()
        return EngineEnd(status, seconds, read_result(self.job.out), tail(self.job.log))

    def kill(self) -> None:
        """Kill what is left of it, with all its workers."""
        self._group.kill()
        self._log.close()


def run_jobs(
    jobs: Sequence[Job],
    *,
    at_a_time: int,
    deadline: float,
    on_engine: Callable[[Job, EngineEnd | None], None],
) -> dict[str, EngineEnd]:
    """Run engines, at most so many at a time, to their end; how each ended, by name.

    :param deadline: seconds after which an engine is killed.
    :param on_engine: is called with each engine when it starts (``None``) and when it has ended;
        what it raises ends all engines.
    """
    waiting, running = list(jobs), list[_Engine]()
    ended: dict[str, EngineEnd] = {}
    with _watched(running) as watchdog:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                job = waiting.pop(0)
                on_engine(job, None)
                running.append(_Engine(job, watchdog))
            time.sleep(_PAUSE)
            for engine in list(running):
                end = engine.poll(deadline)
                if end is not None:
                    running.remove(engine)
                    ended[engine.job.name] = end
                    on_engine(engine.job, end)
    return ended


@contextlib.contextmanager
def _watched(running: list[_Engine]) -> Iterator[Watchdog]:
    """A watchdog; at the end, also after an interruption, nothing runs."""
    watchdog = Watchdog()
    try:
        yield watchdog
    finally:
        try:
            for engine in running:
                engine.kill()
        finally:
            watchdog.close()


def write_result(out: Path, result: Mapping[str, Any]) -> None:
    """Write what an engine found whole, or leave what was there before."""
    written = out.with_name(f"{out.name}.new")
    written.write_text(json.dumps(result), encoding="utf-8")
    written.replace(out)


def read_result(out: Path) -> dict[str, Any] | None:
    """What an engine wrote, or has written so far; ``None`` where there is no object."""
    try:
        result = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) else None


def tail(log: Path) -> str:
    """The end of what an engine printed."""
    with log.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - _LOG_TAIL))
        return stream.read().decode("utf-8", errors="replace")
