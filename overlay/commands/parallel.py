"""Spread work over threads that wait for the network, or over processes that compute.

A worker process never outlives the command, however that ends (SIGKILL too), and holds none of its
standard streams, so that whoever reads them sees their end.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from overlay.errors import OverlayError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

Step = Callable[[], None]

A = TypeVar("A")

B = TypeVar("B")

#: What the worker processes inherit when they are forked: the work, and what it is done on.
_inherited: tuple[Callable[[Any], Any], Sequence[Any]] | None = None

#: Seconds between two looks at the parent, where the kernel does not tell of its end.
_LOOK_SECONDS = 0.5

_PR_SET_PDEATHSIG = 1


def no_step() -> None:
    """Count nothing."""


def stepped(results: Iterable[A], step: Step) -> list[A]:
    """The results, with ``step`` called after each."""
    finished = []
    for result in results:
        finished.append(result)
        step()
    return finished


def in_threads(
    work: Callable[[A], B], things: Sequence[A], threads: int, step: Step = no_step
) -> list[B]:
    """``work`` on each thing, in their order; for work that waits for the network.

    :param step: called after each result.
    """
    # Imported here and below, since a check of one target needs no pool.
    from concurrent.futures import ThreadPoolExecutor

    contexts = [copy_context() for _ in things]  # each thread knows what the user named
    with _unless_interrupted(ThreadPoolExecutor(threads)) as pool:
        return stepped(pool.map(lambda each, thing: each.run(work, thing), contexts, things), step)


def in_processes(
    work: Callable[[A], B],
    things: Sequence[A],
    workers: int,
    step: Step = no_step,
    *,
    alike: bool = False,
) -> list[B]:
    """``work`` on each thing, in their order; for work that computes.

    The processes are forked, so that neither the work nor the things have to be pickled (an open
    archive cannot be); only the results are.

    :param step: called after each result.
    :param alike: the things have much in common, neighbours most: the one in the middle is worked
        on here, so that the processes begin with what this one has learnt.
    :raises OverlayError: if a process dies under its work.
    """
    number, middle = len(things), len(things) // 2
    learnt = stepped(map(work, things[middle : middle + alike]), step)
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    global _inherited  # noqa: PLW0603 - the one thing that a fork can hand over unpickled
    things = [*things[:middle], *things[middle + len(learnt) :]]
    mine = not gc.get_freeze_count()  # whoever imports the overlay may have frozen things
    gc.freeze()  # so that the processes share what this one has, and do not look it through
    _inherited = (work, things)
    executor = ProcessPoolExecutor(
        workers, get_context("fork"), initializer=_become_worker, initargs=(os.getpid(),)
    )
    try:
        with _unless_interrupted(executor) as pool:
            # Two go up and down from the middle, so that each meets what it knows by now.
            order = sorted(range(len(things)), key=lambda at: abs(at - middle + 0.5) * alike)
            answers = dict(zip(order, stepped(pool.map(_work_on, order), step), strict=True))
            rest = [answers[at] for at in range(len(things))]
            return [*rest[:middle], *learnt, *rest[middle:]]
    except BrokenProcessPool as error:
        raise OverlayError(
            f"one of {workers} worker processes was killed, perhaps for want of memory: expected "
            f"an answer for each of {number} targets. Name fewer targets at a time"
        ) from error
    finally:
        if mine:
            gc.unfreeze()
        _inherited = None


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _unless_interrupted(pool: Executor) -> Iterator[Executor]:
    """Wait for the work at the end of the block, but not where it ends by an interrupt."""
    try:
        yield pool
    except (KeyboardInterrupt, SystemExit):
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def _work_on(index: int) -> Any:
    assert _inherited is not None
    work, things = _inherited
    return work(things[index])


def _become_worker(parent: int) -> None:
    """Make a forked process a worker of ``parent``: bound to its life, and silent."""
    # Ctrl-C reaches every process of the terminal; the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    if nowhere > 2:
        os.close(nowhere)
    if not _killed_by_the_kernel():
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def _killed_by_the_kernel() -> bool:
    """Ask Linux to kill this process when its parent ends; ``False`` where that is not possible."""
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)
