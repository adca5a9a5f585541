"""``overlay check``: would the patches go on?  Nothing is written to any target."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

from overlay.commands.assess import examine
from overlay.commands.request import Request
from overlay.errors import OverlayError, described
from overlay.report.model import ERROR, Report, TargetFailure, TargetReport
from overlay.report.wording import checked, unanswered
from overlay.targets.resolution import releases
from overlay.targets.target import Progress

if TYPE_CHECKING:
    from overlay.features.model import Feature
    from overlay.targets.target import Target


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
            return list(pool.map(_work_on, range(len(things))))
    except BrokenProcessPool as error:
        raise OverlayError(
            f"one of {workers} worker processes was killed, perhaps for want of memory: expected "
            f"an answer for each of {len(things)} targets. Name fewer targets at a time"
        ) from error
    finally:
        _inherited = None


def _work_on(index: int) -> Any:
    assert _inherited is not None
    work, things = _inherited
    return work(things[index])


def _leave_interrupts() -> None:
    """Ctrl-C reaches every process of the terminal; the parent alone answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


#: Below this many targets a second process costs more than it saves.
_WORTH_A_POOL = 4

#: How many releases are fetched at a time.
_FETCHES = 2


def check(
    request: Request,
    names: Sequence[str],
    span: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """How the features stand in every target that is named, and in every release of ``span``.

    A target that cannot be read is an error of the whole, and the others are answered all the
    same.

    :param names: targets; none and no ``span`` is the vLLM that this Python would import.
    :param span: releases as ``--releases`` takes them.
    :raises UsageError: if ``span`` is none, or a feature that is meant does not exist.
    :raises PatchFormatErrors: if a folder of patches is malformed.
    """
    features = request.select(request.load())
    wanted: list[str | None] = [*names, *(releases(span) if span is not None else ())]
    if not wanted or request.python is not None:
        wanted.insert(0, None)
    answers = _answers(request, list(dict.fromkeys(wanted)), features, progress)
    found = tuple(answer for answer in answers if isinstance(answer, TargetReport))
    errors = [answer.error for answer in answers if isinstance(answer, TargetFailure)]
    matrix = len(found) > 1
    if errors:
        verdict = unanswered(len(errors), len(answers))
        return Report("check", ERROR, verdict, found, "\n".join(errors), matrix)
    code, verdict = checked(found)
    return Report("check", code, verdict, found, matrix=matrix)


def _answers(
    request: Request,
    names: Sequence[str | None],
    features: tuple[Feature, ...],
    progress: Progress | None,
) -> list[TargetReport | TargetFailure]:
    """One report, or one failure, for each name, in their order."""
    workers = min(_cores(), len(names))
    if len(names) < _WORTH_A_POOL or workers < 2 or not hasattr(os, "fork"):
        return [_examined(_found(request, name, progress), features) for name in names]

    targets = in_threads(lambda name: _found(request, name, progress), names, _FETCHES)
    return in_processes(lambda target: _examined(target, features), targets, workers)


def _found(request: Request, name: str | None, progress: Progress | None) -> Target | TargetFailure:
    try:
        return request.resolve(name, progress)
    except OverlayError as error:
        return TargetFailure(name, str(error))
    except OSError as error:
        return TargetFailure(name, described(error))


def _examined(
    target: Target | TargetFailure, features: tuple[Feature, ...]
) -> TargetReport | TargetFailure:
    if isinstance(target, TargetFailure):
        return target
    try:
        return examine(target, features).report
    except OverlayError as error:
        lines = (
            line if line.startswith(f"{target.name}: ") else f"{target.name}: {line}"
            for line in str(error).split("\n")
        )
        return TargetFailure(target.name, "\n".join(lines))
    except OSError as error:
        return TargetFailure(target.name, described(error))


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
