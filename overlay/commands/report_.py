"""``overlay report``: what check, status, doctor and log answer, as one page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import overlay
from overlay.commands import wings
from overlay.commands.check import check
from overlay.commands.doctor import doctor
from overlay.commands.live import live
from overlay.commands.output import write_output
from overlay.commands.page import CollectedReport, Section, collected, page
from overlay.commands.request import Request
from overlay.commands.status import status
from overlay.errors import OverlayError, UsageError
from overlay.report.base import Report, failure
from overlay.targets.environments import is_environment

#: The name of a file that means standard output.
STANDARD_OUTPUT = "-"


def report(
    request: Request,
    *,
    releases: str | None = None,
    matrix: bool = True,
    output: str | None = None,
) -> CollectedReport:
    """Ask each command, and write the page where it was asked for.

    What one of them cannot answer is its section; the others answer all the same.

    :param releases: those of the matrix, as ``--releases`` takes them; default: all.
    :param matrix: whether there is one: it needs the package index, or releases in the cache.
    :param output: the file for the page of HTML; ``-`` is standard output, ``None`` writes none.
    :raises UsageError: if ``output`` is empty, or lies in a target.
    :raises OverlayError: if it cannot be written.
    """
    if output == "":
        raise UsageError(f"-o is empty: name a file, or {STANDARD_OUTPUT} for standard output")
    sections = tuple(_sections(request, releases, matrix=matrix))
    timestamp = datetime.now(timezone.utc).isoformat(timespec="seconds")
    answer = CollectedReport(collected(sections), timestamp, overlay.__version__, None, sections)
    if output is None:
        return answer
    content = page(answer).encode("utf-8", "backslashreplace")
    if output == STANDARD_OUTPUT:
        return replace(answer, page=content)
    place = Path(output).absolute()
    _refuse_in_target(place, sections)
    write_output("-o", place, content)
    return replace(answer, place=str(place))


def _sections(request: Request, releases: str | None, *, matrix: bool) -> Iterator[Section]:
    target = "" if request.target is None else f" {request.target}"
    names = [] if request.target is None else [request.target]
    yield _section(f"check{target}", lambda: check(request, names))
    yield _section(f"status{target}", lambda: status(request))
    yield _section("status --live", lambda: live(request))
    # An environment has a doctor of its own; of a folder or a release there is none, and then it
    # does not matter whether this Python has a vLLM.
    place = Path(os.path.expanduser(request.target or ""))
    if request.target is None or is_environment(place):
        yield _section(f"doctor{target}", lambda: doctor(request))
    else:
        here = request._replace(target=None)
        yield _section("doctor", lambda: doctor(here, needs_vllm=False))
    if matrix:
        span = "" if releases is None else f" --releases {releases}"
        yield _section(
            f"log --matrix{span}",
            lambda: wings.load(wings.MATRIX, "--matrix").matrix(request, releases),
        )


def _section(command: str, ask: Callable[[], Report]) -> Section:
    """The answer of a command, or why there is none."""
    title = f"overlay {command}"
    try:
        return Section(title, ask())
    except OverlayError as error:
        return Section(title, failure(command, str(error)))


def _refuse_in_target(place: Path, sections: tuple[Section, ...]) -> None:
    """Refuse a file below the folder of any target: commands that read write nothing there.

    :raises UsageError: if it is.
    """
    folder = Path(os.path.realpath(place)).parent
    roots = {
        target.root.resolve()
        for section in sections
        for target in section.report.targets
        if target.root is not None
    }
    for root in roots:
        if folder == root or root in folder.parents:
            raise UsageError(
                f"-o {place}: expected a file outside of the target, found it below {root}; name "
                "one elsewhere"
            )
