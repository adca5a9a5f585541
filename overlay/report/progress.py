"""Progress on standard error for work that takes more than a second.

On a terminal it is a bar that goes away again; elsewhere (a log, a pipe) it is plain lines, such as
``checked 7 of 19 targets``.  Standard output is never touched."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from overlay.untrusted import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


#: Seconds that something may take before anything is shown.
PATIENCE = 1.0

#: Seconds between two lines where there is no terminal.
BETWEEN_LINES = 3.0


class Progress(Protocol):
    """Called while something is read or fetched."""

    def __call__(self, what: str, completed: int, total: int | None, /) -> None:
        """``completed`` of ``total`` bytes of ``what``; ``total`` is ``None`` if unknown."""


@contextmanager
def counting(
    progress: Progress | None, verb: str, number: int, noun: str
) -> Iterator[Callable[[], None]]:
    """What is called after each of several pieces of work, so that a meter shows how many are done.

    One is not counted: the meter's thread would cost more than it tells.
    """
    if number < 2 or not isinstance(progress, Meter):
        yield lambda: None
        return
    with progress.counting(verb, number, noun) as pieces:
        yield pieces.step


class Meter:
    """Shows how far something is; a context manager, so that its bars go away again.

    Called with bytes it is a ``Progress``; ``counting`` counts pieces of work.

    :param stream: where to; default: standard error.
    :param clock: seconds, for tests.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._began: dict[str, float] = {}
        self._line_times: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bar: Bar | None = None
        self._lock = threading.RLock()  # several releases are fetched at a time

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

    def __call__(self, what: str, completed: int, total: int | None, /) -> None:
        """Show ``completed`` of ``total`` bytes of ``what`` once it took more than a second."""
        of = "" if total is None else f" of {total / 1e6:.1f}"
        self.show(what, completed, total, f"{completed / 1e6:.1f}{of} MB")

    def counting(self, verb: str, total: int, noun: str) -> Counting:
        """Count pieces of work, such as ``checked 7 of 19 targets``; a context manager.

        Its thread sleeps for a second first, so that processes which are forked right after the
        entry inherit no lock that it holds.
        """
        return Counting(self, verb, total, noun)

    def show(self, what: str, completed: int, total: int | None, amount: str) -> None:
        """Show how far ``what`` is, unless it began less than a second ago.

        :param amount: ``completed`` and ``total`` in words.
        """
        with self._lock:
            now = self._clock()
            if now - self._began.setdefault(what, now) < PATIENCE:
                return
            if self._stream.isatty():
                self.draw(what, completed, total, amount)
            elif now - self._line_times.get(what, -BETWEEN_LINES) >= BETWEEN_LINES:
                self._line_times[what] = now
                self.line(f"{what}: {amount}")

    def line(self, text: str) -> None:
        """Write one plain line."""
        self._stream.write(printable(text) + "\n")
        self._stream.flush()

    @property
    def is_terminal(self) -> bool:
        """Whether bars are shown, and not lines."""
        return self._stream.isatty()

    def draw(self, what: str, completed: int, total: int | None, amount: str) -> None:
        """Draw a bar on the terminal, or move the one that ``what`` has."""
        with self._lock:
            bar = self._open()
            if what not in self._tasks:
                self._tasks[what] = bar.add_task(printable(what), total=total, amount=amount)
            bar.update(self._tasks[what], completed=completed, total=total, amount=amount)

    def _open(self) -> Bar:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[amount]}", markup=False),
                console=Console(file=self._stream),
                transient=True,
            )
            self._bar.start()
        return self._bar


class Counting:
    """Pieces of work that are counted; shown once they have taken more than a second."""

    def __init__(self, meter: Meter, verb: str, total: int, noun: str) -> None:
        self._meter, self._verb, self._total = meter, verb, total
        self._noun = noun if total == 1 else f"{noun}s"
        self._count = 0
        self._shown_count: int | None = None
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Counting:
        self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._ticker.join()
        if kind is None and self._shown_count is not None and self._shown_count != self._count:
            self._tell()

    def step(self) -> None:
        """Count one piece of work as done."""
        self._count += 1

    def _tick(self) -> None:
        """Show the count after a second and then again, though no piece may end for long."""
        wait = PATIENCE
        while not self._over.wait(wait):
            wait = 0.2 if self._meter.is_terminal else BETWEEN_LINES
            if self._shown_count != self._count:
                self._tell()

    def _tell(self) -> None:
        self._shown_count = count = self._count
        amount = f"{count} of {self._total} {self._noun}"
        if self._meter.is_terminal:
            self._meter.draw(self._verb, count, self._total, amount)
        else:
            self._meter.line(f"{self._verb} {amount}")
