"""A progress bar on standard error for what takes more than a second, where a terminal is there."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


#: Seconds that something may take before a bar is shown.
PATIENCE = 1.0


class Progress(Protocol):
    """Called while something is read or fetched."""

    def __call__(self, what: str, done: int, total: int | None, /) -> None:
        """``done`` of ``total`` bytes of ``what``; ``total`` is ``None`` where nobody knows."""


class Meter:
    """A ``Progress`` that shows bars; used as a context manager, so that they go away again."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._began: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bar: Bar | None = None
        self._lock = threading.Lock()  # several releases are fetched at a time

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int | None, /) -> None:
        """Show ``done`` of ``total`` bytes of ``what`` once it has taken more than a second."""
        if not self._stream.isatty():
            return
        with self._lock:
            began = self._began.setdefault(what, self._clock())
            if what not in self._tasks:
                if self._clock() - began < PATIENCE:
                    return
                self._tasks[what] = self._open().add_task(what, total=total)
            self._open().update(self._tasks[what], completed=done, total=total)

    def _open(self) -> Bar:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                console=Console(file=self._stream),
                transient=True,
            )
            self._bar.start()
        return self._bar
