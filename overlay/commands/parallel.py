"""Many targets at a time: threads to fetch them, processes to plan on them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from overlay.errors import OverlayError

A = TypeVar("A")
B = TypeVar("B")

#: What the worker processes inherit when they are forked: the work, and what it is done on.
_inherited: tuple[Callable[[Any], Any], Sequence[Any]] | None = None


def in_threads(work: Callable[[A], B], things: Sequence[A], threads: int) -> list[B]:
    """``work`` on each thing, in their order; for work that waits for the network."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, things))


def in_processes(work: Callable[[A], B], things: Sequence[A], workers: int) -> list[B]:
    """``work`` on each thing, in their order; for work that computes.

    The processes are forked, so that neither the work nor the things have to be pickled (an open
    archive cannot be); only the results are.

    :raises OverlayError: if a process dies under its work.
    """
    global _inherited  # noqa: PLW0603 - the one thing that a fork can hand over unpickled
    _inherited = (work, things)
    try:
        with ProcessPoolExecutor(workers, get_context("fork"), _leave_interrupts) as pool:
            return list(pool.map(_one, range(len(things))))
    except BrokenProcessPool as error:
        raise OverlayError(
            f"one of {workers} worker processes was killed, perhaps for want of memory: expected "
            f"an answer for each of {len(things)} targets. Name fewer targets at a time"
        ) from error
    finally:
        _inherited = None


def _one(index: int) -> Any:
    assert _inherited is not None
    work, things = _inherited
    return work(things[index])


def _leave_interrupts() -> None:
    """Ctrl-C reaches every process of the terminal; the parent alone answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
