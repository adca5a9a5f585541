"""The public Python API: what the command line does, as typed functions.

``overlay.check()`` is ``overlay check``, and so on: a function for each question, and a report as
its answer.  ``__all__`` is the promise; everything else in the package is private and may change
in any release.  Nothing reads the environment or a project's files here: patches folders are
given, ``OVERLAY_PATCHES`` and ``overlay.toml`` belong to the command line.

A report has ``exit`` (0: nothing needs you, 1: something does), ``code`` (what happened, one word
for programs) and ``verdict`` (one sentence for people).  What cannot be answered raises
``OverlayError``; what must not be done raises ``PatchRefused``, which holds the report.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from overlay.errors import OverlayError, UsageError

if TYPE_CHECKING:
    from overlay.commands.project import Project
    from overlay.commands.request import Request
    from overlay.features.model import Feature
    from overlay.processes.live import LiveProcess
    from overlay.report.codes import Code
    from overlay.report.model import (
        AdoptReport,
        ApplyReport,
        CacheReport,
        CheckReport,
        DiffReport,
        DoctorReport,
        ListReport,
        Obstacle,
        ProcessesReport,
        Report,
        RevertReport,
        StatusReport,
        TargetReport,
    )
    from overlay.report.ported import OpenFile, PortReport
    from overlay.report.progress import Meter
    from overlay.results import FeatureResult, FileResult, HunkResult, Notice, Reason, State
    from overlay.targets.target import Progress

#: Where each type of the promise is defined; imported when it is asked for.
_TYPES = {
    "ApplyReport": "overlay.report.model",
    "CheckReport": "overlay.report.model",
    "Code": "overlay.report.codes",
    "DiffReport": "overlay.report.model",
    "DoctorReport": "overlay.report.model",
    "Feature": "overlay.features.model",
    "FeatureResult": "overlay.results",
    "FileResult": "overlay.results",
    "HunkResult": "overlay.results",
    "ListReport": "overlay.report.model",
    "LiveProcess": "overlay.processes.live",
    "Notice": "overlay.results",
    "Obstacle": "overlay.report.model",
    "ProcessesReport": "overlay.report.model",
    "Reason": "overlay.results",
    "Report": "overlay.report.model",
    "RevertReport": "overlay.report.model",
    "State": "overlay.results",
    "StatusReport": "overlay.report.model",
    "TargetReport": "overlay.report.model",
}

__all__ = [
    "ApplyReport",
    "CheckReport",
    "Code",
    "DiffReport",
    "DoctorReport",
    "Feature",
    "FeatureResult",
    "FileResult",
    "HunkResult",
    "ListReport",
    "LiveProcess",
    "Notice",
    "Obstacle",
    "OverlayError",
    "PatchRefused",
    "ProcessesReport",
    "Reason",
    "Report",
    "RevertReport",
    "State",
    "StatusReport",
    "TargetReport",
    "UsageError",
    "apply",
    "check",
    "diff",
    "features",
    "processes",
    "revert",
    "status",
]

Place = str | Path

R = TypeVar("R", bound="Report")


class PatchRefused(OverlayError):
    """Something has to be settled first, so nothing was written.

    :ivar report: what it is, and what to do.
    """

    exit_code = 1

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__(report.verdict)


def check(
    target: Place | None = None,
    *,
    python: Place | None = None,
    only: Collection[str] = (),
    patches: Sequence[Place] = (),
) -> CheckReport:
    """Say whether features can be applied to a vLLM; write nothing.

    >>> report = overlay.check(site)
    >>> report.code.value, report.targets[0].state.value
    ('can-be-applied', 'pristine')

    :param target: a virtual environment or an interpreter, a folder that holds ``vllm/``, a wheel
        or sdist file, or a release such as ``0.26.0``; default: the vLLM that this Python would
        import.  It is never imported.
    :param python: an interpreter or a virtual environment, in the place of ``target``.
    :param only: ids of the features that are meant; default: all.
    :param patches: folders with features beside those shipped.
    :raises OverlayError: if the target, the features or the ledger cannot be read.
    """
    report = check_many(_given(target), python=python, only=only, patches=patches)
    if report.error is not None:
        raise OverlayError(report.error)
    return report


def apply(
    target: Place | None = None,
    *,
    python: Place | None = None,
    only: Collection[str] = (),
    patches: Sequence[Place] = (),
    require: Collection[str] = (),
    dry_run: bool = False,
    untested: bool = False,
) -> ApplyReport:
    """Apply features to a vLLM, beside those that are applied: all of them or nothing.

    >>> overlay.apply(site).target.applied
    ('demo',)
    >>> overlay.apply(site, require=["demo"]).verdict
    'Nothing to do: demo is applied to vLLM 0.26.0 already.'

    :param target: as for ``check``, but a file or a release cannot be written to.
    :param python: as for ``check``.
    :param only: ids of the features to be applied; default: all.
    :param patches: folders with features beside those shipped.
    :param require: ids of features that must be applied afterwards, or be in the release itself;
        ``all``: each that is made for the release.
    :param dry_run: do everything but write.
    :param untested: also apply to a release that the features were not tested on.
    :raises PatchRefused: if something has to be settled first (nothing was written then), or a
        feature in ``require`` is not applied.
    :raises OverlayError: if the features, the target or its ledger cannot be read or written.
    """
    from overlay.commands.apply import apply as command

    request = _request(python, only, patches, require)
    return _accepted(command(request, _name(target), dry_run=dry_run, untested=untested))


def revert(
    target: Place | None = None,
    *,
    python: Place | None = None,
    only: Collection[str] = (),
    patches: Sequence[Place] = (),
) -> RevertReport:
    """Put back the exact bytes that ``apply`` found, and remove what it added.

    >>> overlay.apply(site).changed
    ('vllm/v1/spec_decode/demo.py', 'vllm/v1/spec_decode/proposer.py')
    >>> overlay.revert(site).verdict
    'Reverted vLLM 0.26.0: took demo out, 1 file restored and 1 removed.'

    :param target: as for ``apply``; :param python: as for ``check``.
    :param only: ids of features to take off while the others stay; default: everything.  What is
        left is byte for byte what applying the others alone makes.
    :param patches: folders with features beside those shipped; needed with ``only`` where features
        of other folders stay, and where the ledger is lost.
    :raises PatchRefused: if a file was edited since, or the other features do not fit without
        those in ``only``; nothing was written.
    :raises OverlayError: if the target or its ledger cannot be read or written.
    """
    from overlay.commands.revert import revert as command

    return _accepted(command(_request(python, only, patches), _name(target)))


def status(
    target: Place | None = None,
    *,
    python: Place | None = None,
    patches: Sequence[Place] = (),
    require: Collection[str] = (),
    progress: Progress | None = None,
) -> StatusReport:
    """Say what is applied to a vLLM, whether it is intact, and what the next process will run.

    >>> report = overlay.status(site, require=["demo"])
    >>> int(report.exit), report.target.obstacles[0].reason.next_step
    (1, 'run `overlay apply --feature demo`')

    :param target: as for ``check``; :param python: as for ``check``.
    :param patches: folders with features beside those shipped.
    :param require: as for ``apply``; the report's ``exit`` is 1 where one is not applied.
    :param progress: called while a release is fetched.
    :raises OverlayError: if the features, the target or its ledger cannot be read.
    """
    from overlay.commands.status import status as command

    return command(_request(python, (), patches, require), _name(target), progress)


def diff(
    target: Place | None = None,
    *,
    python: Place | None = None,
    only: Collection[str] = (),
    patches: Sequence[Place] = (),
) -> bytes:
    """The change to a pristine vLLM as one unified diff, which ``git apply`` accepts.

    >>> print(overlay.diff(site).decode().splitlines()[0])
    diff --git a/vllm/v1/spec_decode/demo.py b/vllm/v1/spec_decode/demo.py

    :param target: as for ``check``; :param python: as for ``check``.
    :param only: ids of the features that are meant; default: all.
    :param patches: folders with features beside those shipped.
    :raises PatchRefused: if one of them does not fit: part of a change would mislead.
    :raises OverlayError: if the features or the target cannot be read.
    """
    report = _accepted(diff_report(target, python=python, only=only, patches=patches))
    return report.diff


def features(patches: Sequence[Place] = ()) -> tuple[Feature, ...]:
    """The features at hand: those shipped, then those of each folder in ``patches``.

    >>> [(feature.id, str(feature.releases)) for feature in overlay.features()]
    [('demo', '0.20.0..0.33.0')]

    :raises OverlayError: if a folder is not there, or what it holds is malformed.
    """
    return _request(None, (), patches).load()


def processes() -> tuple[LiveProcess, ...]:
    """The running processes of vLLM of this user, and what each has loaded.

    >>> overlay.processes()
    ()

    :raises OverlayError: where the system does not tell which processes run.
    """
    from overlay.processes.live import processes as running

    return running()


# What follows is for the command line, and no promise.


def check_many(
    targets: Sequence[Place],
    *,
    releases: str | None = None,
    pre: bool = False,
    python: Place | None = None,
    only: Collection[str] = (),
    patches: Sequence[Place] = (),
    progress: Meter | None = None,
) -> CheckReport:
    """``check`` of several targets, and of the releases that ``--releases`` names."""
    from overlay.commands.check import check as command

    names = [str(target) for target in targets]
    return command(_request(python, only, patches), names, releases, progress, pre=pre)


def adopt(
    target: Place | None = None,
    *,
    python: Place | None = None,
    patches: Sequence[Place] = (),
) -> AdoptReport:
    """Take over patches that are in a target without a ledger, where RECORD proves them."""
    from overlay.commands.adopt import adopt as command

    return _accepted(command(_request(python, (), patches), _name(target)))


def diff_report(
    target: Place | None = None,
    *,
    python: Place | None = None,
    only: Collection[str] = (),
    patches: Sequence[Place] = (),
    progress: Progress | None = None,
) -> DiffReport:
    """``diff`` with the state of each feature."""
    from overlay.commands.diff import diff as command

    return command(_request(python, only, patches), _name(target), progress)


def catalogue(
    patches: Sequence[Place] = (), *, releases: bool = False, pre: bool = False
) -> ListReport:
    """What ``overlay list`` shows."""
    from overlay.commands.list_ import list_ as command

    return command(_request(None, (), patches), releases=releases, pre=pre)


def live() -> ProcessesReport:
    """What ``overlay status --live`` shows."""
    from overlay.commands.status import live as command

    return command()


def doctor(patches: Sequence[Place] = ()) -> DoctorReport:
    """What ``overlay doctor`` shows."""
    from overlay.commands.doctor import doctor as command

    return command(_request(None, (), patches))


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
        Path(patches).expanduser(),
        releases=releases,
        checkout=None if checkout is None else Path(checkout).expanduser(),
        partial=partial,
        each=each,
        update=update,
        progress=progress,
    )


def port(
    ids: Sequence[str],
    releases: str,
    *,
    patches: Sequence[Place] = (),
    write: bool = False,
    accept_merged: bool = False,
    progress: Progress | None = None,
) -> PortReport:
    """What ``overlay port`` does: features carried to releases; no ids mean all features."""
    from overlay.commands.port import port as command

    return command(
        _request(None, ids, patches),
        releases,
        write=write,
        accept_merged=accept_merged,
        progress=progress,
    )


def port_session(
    action: str,
    folder: str | None = None,
    *,
    patches: Sequence[Place] = (),
    id_: str = "",
    command: str | None = None,
    progress: Progress | None = None,
) -> PortReport:
    """What ``overlay port`` does with an open session.

    :param action: ``show``, ``continue``, ``abort``, ``retire``, ``skip``, ``tool`` or
        ``resolver``.
    :param folder: the session; default: the only one in the working folder.
    :param id_: the feature to retire or skip; :param command: the resolver.
    """
    from overlay.commands import port_session as commands

    request = _request(None, (), patches)
    if action == "abort":
        return commands.abort(folder)
    if action in ("retire", "skip"):
        change = commands.retire if action == "retire" else commands.skip
        return change(request, folder, id_, progress)
    if action in ("tool", "resolver"):
        return commands.resolve(request, folder, command, progress)
    step = commands.proceed if action == "continue" else commands.show
    return step(request, folder, progress)


def ask_port(
    report: PortReport, question: Callable[[OpenFile], str], patches: Sequence[Place] = ()
) -> PortReport:
    """Ask a person about each file of a port's session, and do what the answers say."""
    from overlay.commands.port_session import ask

    return ask(_request(None, (), patches), report, question)


def show_port(file: OpenFile, stream: TextIO) -> None:
    """Write what waits in one file of a port's session, for people."""
    from overlay.report.lines import paint
    from overlay.report.ported import open_lines

    paint(open_lines(file), stream)


def cache(what: str) -> CacheReport:
    """What ``overlay cache`` does: ``dir``, ``size`` or ``clean``."""
    from overlay.commands.cache import cache as command

    return command(what)


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
    from overlay.report.model import failure as report

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


def _request(
    python: Place | None,
    only: Collection[str],
    patches: Sequence[Place],
    require: Collection[str] = (),
) -> Request:
    from overlay.commands.request import Request

    return Request(
        patches=tuple(str(folder) for folder in patches),
        features=tuple(only),
        python=None if python is None else str(python),
        require=tuple(require),
    )


def _given(target: Place | None) -> tuple[Place, ...]:
    return () if target is None else (target,)


def _name(target: Place | None) -> str | None:
    return None if target is None else str(target)


def _accepted(report: R) -> R:
    if report.exit == 1:
        raise PatchRefused(report)
    return report


if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> Any:
        """A type of the promise, imported from where it is defined."""
        if name not in _TYPES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_TYPES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
