"""What the command line asks for beside the public API; none of it is a promise.

Each function imports what it needs when it is called, so that ``--help`` stays fast.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from overlay.api.calls import about, accepted, as_name, on_a_target, on_chosen_features, request

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.api.calls import Place
    from overlay.commands.project import Project
    from overlay.report.authored import EditReport, NewReport
    from overlay.report.base import Report
    from overlay.report.benched import BenchReport
    from overlay.report.cached import CacheReport
    from overlay.report.catalogue import ListReport
    from overlay.report.changes import AdoptReport, DiffReport
    from overlay.report.codes import Code
    from overlay.report.collected import CollectedReport
    from overlay.report.diagnosis import DoctorReport
    from overlay.report.progress import Meter
    from overlay.report.reading import CheckReport
    from overlay.report.running import ProcessesReport
    from overlay.report.verified import VerifyReport
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


def import_change(
    sources: Sequence[str],
    id_: str,
    patches: Place,
    *,
    releases: str | None = None,
    checkout: Place | None = None,
    partial: bool = False,
    each: bool = False,
    update: bool = False,
    progress: Progress | None = None,
) -> Report:
    """What ``overlay import`` does: a feature made of diffs or mails, below ``patches``."""
    from overlay.commands.import_ import import_change as command

    return command(
        sources,
        id_,
        _folder(patches),
        releases=releases,
        checkout=None if checkout is None else _folder(checkout),
        partial=partial,
        each=each,
        update=update,
        progress=progress,
    )


@on_a_target
def new_from_edits(
    id_: str,
    target: Place | None = None,
    *,
    python: Place | None = None,
    patches: Sequence[Place],
    title: str = "",
    releases: str | None = None,
    update: bool = False,
    progress: Progress | None = None,
) -> NewReport:
    """What ``overlay new --from-edits`` does: a feature in the last folder of ``patches``."""
    from overlay.commands.new import new_from_edits as command

    return command(
        request(python, (), patches),
        as_name(target),
        id_,
        _folder(patches[-1]),
        title=title,
        releases=releases,
        update=update,
        progress=progress,
    )


def new_session(
    id_: str,
    files: Sequence[str],
    *,
    patches: Sequence[Place],
    release: str | None = None,
    title: str = "",
    progress: Progress | None = None,
) -> EditReport:
    """What ``overlay new --file`` does: files of a release to edit, for a new feature."""
    from overlay.commands.edit_new import begin_new as command

    asked = request(None, (), patches)
    return command(asked, id_, files, release=release, title=title, progress=progress)


def edit(
    id_: str,
    *,
    patches: Sequence[Place] = (),
    release: str | None = None,
    files: Sequence[str] = (),
    progress: Progress | None = None,
) -> EditReport:
    """What ``overlay edit ID`` does: a session is begun, or gets further files."""
    from overlay.commands.edit import begin as command

    return command(request(None, (), patches), id_, release, files, progress)


def end_edit(
    folder: Place,
    *,
    commit: bool,
    patches: Sequence[Place] = (),
    progress: Progress | None = None,
) -> EditReport:
    """What ``overlay edit --commit FOLDER`` and ``--abort FOLDER`` do."""
    from overlay.commands import edit as commands

    if not commit:
        return commands.abort(_folder(folder))
    return commands.commit(request(None, (), patches), _folder(folder), progress)


def history(
    feature: str | None,
    *,
    patches: Sequence[Place] = (),
    releases: str | None = None,
    upstream: Place | None = None,
    progress: Meter | None = None,
) -> Report:
    """What ``overlay log`` shows: one feature, or all of them as a matrix."""
    asked = request(None, (), patches)
    if feature is None:
        from overlay.commands.matrix import matrix

        return matrix(asked, releases, progress)
    from overlay.commands.log import log

    checkout = None if upstream is None else _folder(upstream)
    return log(asked, feature, span=releases, upstream=checkout, meter=progress)


def prune(
    *,
    patches: Sequence[Place] = (),
    oldest: str | None = None,
    write: bool = False,
    progress: Progress | None = None,
) -> Report:
    """What ``overlay prune`` does to the last folder of patches."""
    from overlay.commands.prune import prune as command

    return command(request(None, (), patches), oldest=oldest, write=write, progress=progress)


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


def verify(progress: Meter, modes: Sequence[str], **options: Any) -> VerifyReport:
    """What ``overlay verify`` does.

    :param modes: titles of modes; :param options: the other fields of ``commands.verify.Question``.
    """
    from overlay.commands.verify import Question
    from overlay.commands.verify import verify as command
    from overlay.proof.verification import Mode

    def told(title: str, seconds: float | None) -> None:
        took = "started" if seconds is None else f"ended after {seconds:.0f} s"
        progress.line(f"engine {title}: {took}")

    chosen = tuple(Mode[title.upper()] for title in modes)
    with about(None, options.get("python")):
        return command(Question(modes=chosen, **options), told)


def bench(progress: Meter, **options: Any) -> BenchReport:
    """What ``overlay bench`` does.

    :param options: the fields of ``commands.bench_question.Question``.
    """
    from overlay.commands.bench import bench as command
    from overlay.commands.bench_budget import Part, Schedule
    from overlay.commands.bench_question import Question

    if options.get("only") is not None:
        options["only"] = Part(options["only"])

    began = time.monotonic()

    def said(words: str) -> None:
        progress.line(f"[{time.monotonic() - began:4.0f} s] {words}")

    def told(title: str, seconds: float | None) -> None:
        took = "started" if seconds is None else f"ended after {seconds:.0f} s"
        said(f"engine {title}: {took}")

    def planned(schedule: Schedule) -> None:
        progress.line(schedule.text)

    with about(None, options.get("python")):
        return command(Question(**options), told, planned, said)


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


def _folder(place: Place) -> Path:
    from overlay.settings import in_home

    return in_home(place)
