"""Progress on standard error for work that takes more than a second.

On a terminal it is a bar that goes away again; elsewhere (a log, a pipe) it is plain lines, such as
``checked 7 of 19 targets``.  Standard output is never touched."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from overlay.report.lines import console_options
from overlay.untrusted import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


#: Seconds that something may take before anything is shown.
PATIENCE = 1.0

#: Seconds between two lines where there is no terminal.
BETWEEN_LINES = 3.0

#: Seconds after which a line is written there although nothing new is to be told.
STILL = 10.0

#: Seconds between two looks at what there is to show.
_TICK = 0.1

#: Held while something is drawn, and while this process forks: no child inherits a stream's lock.
_DRAWING = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_DRAWING.acquire, after_in_parent=_DRAWING.release, after_in_child=_DRAWING.release
    )


class Progress(Protocol):
    """Called while something is read or fetched."""

    def __call__(self, what: str, completed: int, total: int | None, /) -> None:
        """``completed`` of ``total`` bytes of ``what``; ``total`` is ``None`` if unknown."""


@contextmanager
def counting(
    progress: Progress | None, verb: str, number: int, noun: str
) -> Iterator[Callable[[], None]]:
    """What is called after each of several pieces of work, so that a meter shows how many are done.

    :param verb: what was done with them: ``checked 7 of 19 targets``.
    """
    if not isinstance(progress, Meter):
        yield lambda: None
        return
    with progress.activity(Activity(verb, number, noun)) as pieces:
        yield pieces.step


@contextmanager
def doing(progress: Progress | None, text: str) -> Iterator[None]:
    """Name work whose parts cannot be counted, so that a meter can say what takes long.

    :param text: what is being done: ``reading vLLM 0.26.0``.
    """
    if not isinstance(progress, Meter):
        yield
        return
    with progress.activity(Activity(text)):
        yield


class Activity:
    """Work that may take long.

    :ivar text: what is done; of what is counted, the verb.
    :ivar total: how many pieces there are, if they are counted; :ivar noun: what one is called.
    :ivar began: by the meter's clock; :ivar shown_count: what was shown last, if anything was.
    """

    def __init__(self, text: str, total: int | None = None, noun: str = "") -> None:
        self.text, self.total, self.noun = text, total, noun
        self.count = 0
        self.began = 0.0
        self.shown_count: int | None = None

    def step(self) -> None:
        """Count one piece of work as done."""
        self.count += 1

    def amount(self, now: float) -> str:
        """How far it is, in words."""
        if self.total is None:
            return f"{now - self.began:.0f} s"
        return f"{self.count} of {self.total} {self.noun}{'s' if self.total != 1 else ''}"

    def line(self, now: float) -> str:
        """What it is and how far, in one line."""
        return f"{self.text}{', ' if self.total is None else ' '}{self.amount(now)}"


class _Ticker:
    """A thread that calls something after ``PATIENCE`` and then every moment, until its end."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(look,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread, and wait for that."""
        self._over.set()
        self._thread.join()

    def _run(self, look: Callable[[], None]) -> None:
        wait = PATIENCE
        while not self._over.wait(wait):
            wait = min(_TICK, BETWEEN_LINES)
            look()


class Meter:
    """Shows how far something is; a context manager, so that its bars go away again.

    Called with bytes it is a ``Progress``; ``counting`` and ``doing`` name other work.  While any
    of that goes on a thread looks every moment at what is to be shown.

    :param stream: where to; default: standard error.
    :param clock: seconds, for tests; :param color: ``never`` draws bars without colours.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        color: str = "auto",
    ) -> None:
        self._color = color
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._began: dict[str, float] = {}
        self._line_times: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bar: Bar | None = None
        self._activities: list[Activity] = []  # the innermost last
        self._ticker: _Ticker | None = None
        self._shown_at = -STILL

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def __call__(self, what: str, completed: int, total: int | None, /) -> None:
        """Show ``completed`` of ``total`` bytes of ``what`` once it took more than a second."""
        of = "" if total is None else f" of {total / 1e6:.1f}"
        with _DRAWING:  # several releases are fetched at a time
            now = self._clock()
            if now - self._began.setdefault(what, now) < PATIENCE:
                return
            amount = f"{completed / 1e6:.1f}{of} MB"
            if self.is_terminal:
                self._draw(what, completed, total, amount)
            elif now - self._line_times.get(what, -BETWEEN_LINES) >= BETWEEN_LINES:
                self._line_times[what] = now
                self.line(f"{what}: {amount}")

    @property
    def is_terminal(self) -> bool:
        """Whether bars are shown, and not lines."""
        return self._stream.isatty()

    @contextmanager
    def activity(self, work: Activity) -> Iterator[Activity]:
        """Show work that takes more than a second, and then again, though no piece may end."""
        work.began = self._clock()
        with _DRAWING:
            self._activities.append(work)
            if self._ticker is None:
                self._ticker = _Ticker(self._look)
        try:
            yield work
            with _DRAWING:
                if work.shown_count not in (None, work.count):
                    self._show(work)
        finally:
            with _DRAWING:
                self._activities.remove(work)
                if self._bar is not None and work.text in self._tasks:
                    self._bar.remove_task(self._tasks.pop(work.text))
                ticker = self._ticker if not self._activities else None
                self._ticker = None if ticker is not None else self._ticker
                if ticker is not None:
                    self._clear()
            if ticker is not None:
                ticker.end()

    def _look(self) -> None:
        """Show the innermost work that takes long, if there is something new to say of it."""
        with _DRAWING:
            now = self._clock()
            old = [work for work in self._activities if now - work.began >= PATIENCE]
            if old and self._is_due(old[-1], now):
                self._show(old[-1])

    def _is_due(self, work: Activity, now: float) -> bool:
        """Whether work is to be shown: it is new, goes on, or was silent for long."""
        silence = now - self._shown_at
        if self.is_terminal:
            return True
        if work.shown_count is None:
            return silence >= PATIENCE
        return silence >= (BETWEEN_LINES if work.shown_count != work.count else STILL)

    def _show(self, work: Activity) -> None:
        now, work.shown_count = self._clock(), work.count
        if self.is_terminal:
            self._draw(work.text, work.count, work.total, work.amount(now))
        else:
            self.line(work.line(now))

    def line(self, text: str) -> None:
        """Write one plain line."""
        self._shown_at = self._clock()
        self._stream.write(printable(text) + "\n")
        self._stream.flush()

    def _draw(self, what: str, completed: int, total: int | None, amount: str) -> None:
        """Draw a bar on the terminal, or move the one that ``what`` has."""
        self._shown_at = self._clock()
        bar = self._open()
        if what not in self._tasks:
            self._tasks[what] = bar.add_task(printable(what), total=total, amount=amount)
        bar.update(self._tasks[what], completed=completed, total=total, amount=amount)
        bar.refresh()

    def _clear(self) -> None:
        """Take the bars away."""
        with _DRAWING:
            if self._bar is not None:
                self._bar.stop()
            self._bar, self._tasks = None, {}

    def _open(self) -> Bar:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[amount]}", markup=False),
                console=Console(**console_options(self._stream, self._color)),
                transient=True,
                auto_refresh=False,
            )
            self._bar.start()
        return self._bar
