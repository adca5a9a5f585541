"""What the command line asks for beside the public API; none of it is a promise.

Each function imports what it needs when it is called, so that ``--help`` stays fast.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TextIO

from overlay.api.calls import about, accepted, as_name, on_a_target, on_chosen_features, request

if TYPE_CHECKING:
    from overlay.api.calls import Place
    from overlay.commands.project import Project
    from overlay.report.base import Report
    from overlay.report.cached import CacheReport
    from overlay.report.catalogue import ListReport
    from overlay.report.changes import AdoptReport, DiffReport
    from overlay.report.codes import Code
    from overlay.report.collected import CollectedReport
    from overlay.report.diagnosis import DoctorReport
    from overlay.report.progress import Meter
    from overlay.report.reading import CheckReport
    from overlay.report.running import ProcessesReport
    from overlay.targets.target import Progress


def named_patches(folders: Sequence[Place]) -> None:
    """Remember the folders that ``--patches`` names, for the commands that messages name.

    It holds for the context of the caller, which the command line makes for each command.
    """
    from overlay.results.invocation import Invocation, absolute, remember

    remember(Invocation(patches=tuple(absolute(each) for each in folders)))


def check_many(
    targets: Sequence[Place],
    *,
    releases: str | None = None,
    pre: bool = False,
    python: Place | None = None,
    only: Collection[str] = (),
    without: Collection[str] = (),
    patches: Sequence[Place] = (),
    progress: Meter | None = None,
) -> CheckReport:
    """``check`` of several targets, and of the releases that ``--releases`` names."""
    from overlay.commands.check import check as command

    names = [str(target) for target in targets]
    asked = request(python, only, patches, without=without)
    with about(None, python, patches, only, without):
        return command(asked, names, releases, progress, pre=pre)


@on_a_target
def adopt(
    target: Place | None = None,
    *,
    python: Place | None = None,
    patches: Sequence[Place] = (),
) -> AdoptReport:
    """Take over patches that are in a target without a ledger, where RECORD proves them."""
    from overlay.commands.adopt import adopt as command

    return accepted(command(request(python, (), patches), as_name(target)))


@on_chosen_features
def diff_report(
    target: Place | None = None,
    *,
    python: Place | None = None,
    only: Collection[str] = (),
    without: Collection[str] = (),
    patches: Sequence[Place] = (),
    progress: Progress | None = None,
) -> DiffReport:
    """``diff`` with the state of each feature."""
    from overlay.commands.diff import diff as command

    return command(request(python, only, patches, without=without), as_name(target), progress)


def catalogue(
    patches: Sequence[Place] = (),
    *,
    releases: bool = False,
    pre: bool = False,
    package: str | None = None,
) -> ListReport:
    """What ``overlay list`` shows."""
    from overlay.commands.list_ import list_ as command

    return command(request(None, (), patches), releases=releases, pre=pre, package=package)


def live(require: Sequence[str] = (), patches: Sequence[Place] = ()) -> ProcessesReport:
    """What ``overlay status --live`` shows."""
    from overlay.commands.status import live as command

    return command(request(None, (), patches, require=require))


@on_a_target
def doctor(
    target: Place | None = None, *, python: Place | None = None, patches: Sequence[Place] = ()
) -> DoctorReport:
    """What ``overlay doctor`` shows."""
    from overlay.commands.doctor import doctor as command

    return command(request(python, (), patches), as_name(target))


@on_a_target
def collect(
    target: Place | None = None,
    *,
    python: Place | None = None,
    patches: Sequence[Place] = (),
    releases: str | None = None,
    matrix: bool = True,
    output: str | None = None,
    progress: Meter | None = None,
) -> CollectedReport:
    """What ``overlay report`` shows, written as a page to ``output`` where that is given."""
    from overlay.commands.report_ import report as command

    return command(
        request(python, (), patches),
        as_name(target),
        releases=releases,
        matrix=matrix,
        output=output,
        meter=progress,
    )


def cache(what: str) -> CacheReport:
    """What ``overlay cache`` does.

    :param what: ``dir``, ``size`` or ``clean``.
    :raises ValueError: on any other word.
    """
    from overlay.commands.cache import cache as command
    from overlay.report.cached import CacheAction

    return command(CacheAction(what))


def project() -> Project:
    """The patches folders that ``overlay.toml`` or pyproject.toml names for the working folder."""
    from overlay.commands.project import find_project

    return find_project()


def known_releases() -> tuple[str, ...]:
    """The releases that the shipped features are made for, oldest first."""
    from overlay.package import KNOWN_RELEASES

    return KNOWN_RELEASES


def meter() -> Meter:
    """A context manager that shows on standard error how far something is."""
    from overlay.report.progress import Meter

    return Meter()


def failure(command: str, error: str, code: Code) -> Report:
    """The report of a command that usage or the environment stopped."""
    from overlay.report.base import failure as report

    return report(command, error, code)


def as_json(report: Report) -> str:
    """A report as JSON."""
    from overlay.report.as_json import as_json as reader

    return reader(report)


def write_text(report: Report, stream: TextIO, *, verbose: bool) -> None:
    """Write a report for people: in colour on a terminal, as plain lines elsewhere."""
    from overlay.report.as_text import render
    from overlay.report.lines import paint

    paint(render(report, verbose=verbose), stream)


def printable(text: str, *, lines: bool = False) -> str:
    """A text with its control characters escaped."""
    from overlay.untrusted import printable as escaped

    return escaped(text, lines=lines)


def described(error: OSError) -> str:
    """What the operating system refused, where, and what to do next."""
    from overlay.errors import described as words

    return words(error)
