"""Run engines in processes of their own, some at a time, so that none outlives whoever asked.

Each engine leads a process group.  A guard (``children.Guard``) knows every group and kills what is
left when this process ends, however it ends.  An engine waits for a line on its standard input
before it imports vLLM, and gets it once the guard knows of it: an engine whose starter died before
that ends by itself.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from overlay.proof.children import Guard, end_group

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


class Ended(NamedTuple):
    """How an engine ended.

    :ivar status: the exit status, negative for a signal; ``None`` where it was killed because it
        had taken too long.
    :ivar result: what it wrote; ``None`` where it wrote nothing.
    :ivar log: the end of what it printed.
    :ivar killed: why it was killed, in words that follow "the engine"; empty where it was not, or
        had taken too long.
    """

    status: int | None
    seconds: float
    result: dict[str, Any] | None
    log: str
    killed: str = ""


class _Engine:
    """A running engine."""

    def __init__(self, job: Job, guard: Guard) -> None:
        self.job, self._guard = job, guard
        self._began = time.monotonic()
        # A file of its own: what lies at that name may be a link to anywhere.
        job.log.unlink(missing_ok=True)
        self._log: IO[bytes] = job.log.open("xb")
        self._process = subprocess.Popen(
            job.command,
            cwd=job.folder,
            env=dict(job.environment),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        guard.tell("+", self._process.pid)
        assert self._process.stdin is not None
        # It may have died at once; its status will say so.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()

    @property
    def group(self) -> int:
        """The process group that it leads."""
        return self._process.pid

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self._began

    def poll(self, deadline: float) -> Ended | None:
        """How it ended; ``None`` while it runs.

        :param deadline: seconds after which it is killed.
        """
        status = self._process.poll()
        if status is None and self.seconds < deadline:
            return None
        self.kill()
        return Ended(status, self.seconds, read_result(self.job.out), tail(self.job.log))

    def kill(self) -> None:
        """Kill what is left of it, with all its workers."""
        end_group(self._process)
        self._guard.tell("-", self._process.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._log.close()


def run_jobs(
    jobs: Sequence[Job],
    *,
    at_a_time: int,
    deadline: float,
    told: Callable[[Job, Ended | None], None],
    begun: Callable[[Job, int], None] | None = None,
    looked: Callable[[], None] = lambda: None,
) -> dict[str, Ended]:
    """Run engines, at most so many at a time, to their end; how each ended, by name.

    :param deadline: seconds after which an engine is killed.
    :param told: is called with each engine when it starts (``None``) and when it has ended; what it
        raises ends all engines.
    :param begun: is called with each engine and the process group that it leads.
    :param looked: is called several times a second; what it raises ends all engines.
    """
    waiting, running = list(jobs), list[_Engine]()
    ended: dict[str, Ended] = {}
    with _guarded(running) as guard:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                job = waiting.pop(0)
                told(job, None)
                running.append(_Engine(job, guard))
                if begun is not None:
                    begun(job, running[-1].group)
            time.sleep(_PAUSE)
            looked()
            for engine in list(running):
                found = engine.poll(deadline)
                if found is not None:
                    running.remove(engine)
                    ended[engine.job.name] = found
                    told(engine.job, found)
    return ended


@contextlib.contextmanager
def _guarded(running: list[_Engine]) -> Iterator[Guard]:
    """A guard; at the end, also after an interruption, nothing runs."""
    guard = Guard()
    try:
        yield guard
    finally:
        try:
            for engine in running:
                engine.kill()
        finally:
            guard.close()


def read_result(out: Path) -> dict[str, Any] | None:
    """What an engine wrote, or has written so far; ``None`` where there is no object."""
    try:
        found = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def tail(log: Path) -> str:
    """The end of what an engine printed."""
    with log.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - _LOG_TAIL))
        return stream.read().decode("utf-8", errors="replace")
