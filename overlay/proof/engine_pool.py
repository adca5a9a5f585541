"""Run engines in processes of their own, some at a time, so that none outlives whoever asked.

Each engine leads a process group, which a watchdog knows of, and has an import path that holds
the overlay without its plugin.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from overlay.errors import is_offline

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


_WATCHDOG = """
import os, signal, sys
alive = set()
for line in sys.stdin:
    (alive.add if line[0] == "+" else alive.discard)(int(line[1:]))
for group in alive:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class Watchdog:
    """Kills the groups that are still open when this process ends, however that ends.

    It is a process that reads ``+GROUP`` and ``-GROUP`` until this one is gone.  Engines would
    otherwise keep their GPU.
    """

    def __init__(self) -> None:
        # In a session of its own: what ends this process's group must not end it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WATCHDOG],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lock = threading.Lock()

    def tell(self, sign: str, group: int) -> None:
        """Say that a process group has begun (+) or ended (-)."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(f"{sign}{group}\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End it; groups that have not ended are killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class ProcessGroup:
    """A program that leads a session and a process group of its own.

    :param folder: its working folder; ``None``: this process's.
    :param output: takes what it prints, errors included.
    :param waits: whether it reads a line before it does anything: it gets one once the watchdog
        knows of it, so that a program whose starter died before that ends by itself.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: IO[bytes],
        folder: Path | None = None,
        watchdog: Watchdog | None = None,
        *,
        waits: bool = False,
    ) -> None:
        self._watchdog = watchdog
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if watchdog is not None:
            watchdog.tell("+", self.number)
        if self._process.stdin is not None:
            # It may have died at once; its status will say so.
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(b"go\n")
                self._process.stdin.flush()

    @property
    def number(self) -> int:
        """The system's number of the group."""
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """Its exit status, negative for a signal; ``None`` where it runs after so many seconds."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill what is left of it, with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.number, signal.SIGKILL)
        self._process.wait()
        if self._watchdog is not None:
            self._watchdog.tell("-", self.number)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()


PACKAGE = Path(__file__).resolve().parents[1]


def link_packages(folder: Path, packages: Iterable[Path] = ()) -> Path:
    """Make a folder for an import path that holds ``overlay`` and the given packages only.

    The folder that the overlay was imported from will not do: the metadata beside it would make
    vLLM load the overlay's plugin.

    :param folder: where to make it; its parent exists.
    :param packages: folders of further packages, each linked by its own name.
    """
    folder.mkdir()
    for package in (PACKAGE, *packages):
        (folder / package.name).symlink_to(package.resolve(), target_is_directory=True)
    return folder


def append_path(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Copy environment variables with ``folder`` as the last entry of ``PYTHONPATH``.

    With ``--offline`` the hub's client is told, too.
    """
    before = environment.get("PYTHONPATH")
    path = f"{before}{os.pathsep}{folder}" if before else str(folder)
    offline = {"HF_HUB_OFFLINE": "1"} if is_offline() else {}
    return {**environment, "PYTHONPATH": path, **offline}


def as_stock(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Copy environment variables for an engine of the release's own files, without the plugin.

    :param folder: a copy of what is patched on disk as the release has it, or an empty one.
    """
    before = environment.get("PYTHONPATH")
    path = f"{folder}{os.pathsep}{before}" if before else str(folder)
    return {**environment, "PYTHONPATH": path, "OVERLAY": "off"}


class WriterFailed(RuntimeError):
    """The program that writes models ended without having written them.

    :ivar status: its exit status; :ivar output: all that it printed.
    """

    def __init__(self, writer: str, status: int, output: str) -> None:
        super().__init__(f"{writer} ended with status {status}:\n{output}")
        self.status, self.output = status, output


def write_models(
    python: Path | str,
    folder: Path,
    writer: str,
    environment: Mapping[str, str],
    packages: Iterable[Path] = (),
) -> None:
    """Write models into ``folder``, in an environment that has PyTorch.

    :param writer: the name of a module, which is run; :param packages: that it needs beside this.
    :param environment: the variables to run under.
    :raises WriterFailed: if it fails.
    :raises subprocess.TimeoutExpired: if it takes longer than ten minutes.
    """
    with tempfile.TemporaryDirectory(prefix="models-") as work:
        code = link_packages(Path(work, "code"), packages)
        # Standard output is for the answer of the command that asks for the models.
        writing = subprocess.run(
            [str(python), "-m", writer, str(folder.resolve())],
            cwd=work,
            env=append_path(environment, code),
            check=False,
            timeout=600,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    if writing.returncode:
        raise WriterFailed(writer.rpartition(".")[2], writing.returncode, writing.stdout)
