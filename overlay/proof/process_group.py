"""Run a program in a process group of its own, of which nothing is left when it has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

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
