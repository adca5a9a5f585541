"""The progress bar for what takes longer than a second; only the command line shows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from overlay.targets.target import Progress

if TYPE_CHECKING:
    import rich.progress

#: What is done sooner than this gets no bar.
PATIENCE_SECONDS = 1.0


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """A callback for ``resolve`` that draws on standard error; ``None`` where that is no terminal.

    It may be called from several threads.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bars = _Bars()
    try:
        yield bars.update
    finally:
        bars.stop()


class _Bars:
    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._tasks: dict[str, rich.progress.TaskID] = {}
        self._display: rich.progress.Progress | None = None

    def update(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._began.setdefault(what, now) < PATIENCE_SECONDS and what not in self._tasks:
            return
        display = self._start()
        if what not in self._tasks:
            self._tasks[what] = display.add_task(what, total=total)
        display.update(self._tasks[what], completed=done, total=total)

    def _start(self) -> rich.progress.Progress:
        if self._display is None:
            import rich.progress
            from rich.console import Console

            self._display = rich.progress.Progress(
                rich.progress.TextColumn("{task.description}"),
                rich.progress.BarColumn(),
                rich.progress.DownloadColumn(),
                rich.progress.TransferSpeedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._display.start()
        return self._display

    def stop(self) -> None:
        if self._display is not None:
            self._display.stop()
