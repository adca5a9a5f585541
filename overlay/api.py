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

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from overlay.commands import lazy as commands
from overlay.commands.request import Request
from overlay.errors import OverlayError, UsageError, invoked
from overlay.settings import in_home

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay._processes.live import LiveProcess
    from overlay.commands.apply import ApplyReport
    from overlay.commands.check import CheckReport
    from overlay.commands.diff import DiffReport
    from overlay.commands.doctor import DoctorReport
    from overlay.commands.list_ import ListReport
    from overlay.commands.live import ProcessesReport
    from overlay.commands.revert import RevertReport
    from overlay.commands.status import StatusReport
    from overlay.report import Report
    from overlay.report.codes import Code
    from overlay.report.model import Obstacle, TargetReport
    from overlay.results import FeatureResult, FileResult, HunkResult, Notice, Reason, State
    from overlay.targets import Progress

#: A path or a name.
Place: TypeAlias = str | Path

R = TypeVar("R", bound="Report")

#: Where each type of the promise is defined; imported when it is asked for.
_TYPES = {
    "ApplyReport": "overlay.commands.apply",
    "CheckReport": "overlay.commands.check",
    "Code": "overlay.report.codes",
    "DiffReport": "overlay.commands.diff",
    "DoctorReport": "overlay.commands.doctor",
    "Feature": "overlay._features.model",
    "FeatureResult": "overlay.results",
    "FileResult": "overlay.results",
    "HunkResult": "overlay.results",
    "ListReport": "overlay.commands.list_",
    "LiveProcess": "overlay._processes.live",
    "Notice": "overlay.results",
    "Obstacle": "overlay.report.model",
    "ProcessesReport": "overlay.commands.live",
    "Reason": "overlay.results",
    "Report": "overlay.report",
    "RevertReport": "overlay.commands.revert",
    "State": "overlay.results",
    "StatusReport": "overlay.commands.status",
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
    without: Collection[str] = (),
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
    :param without: ids of features that are not meant although they are at hand.
    :param patches: folders with features beside those shipped.
    :raises OverlayError: if the target, the features or the ledger cannot be read.
    """
    with _request_for("check", target, python, patches, only=only, without=without) as request:
        report = commands.check(request, () if target is None else (str(target),))
    if report.error is not None:
        raise OverlayError(report.error)
    return report


def apply(
    target: Place | None = None,
    *,
    python: Place | None = None,
    only: Collection[str] = (),
    without: Collection[str] = (),
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
    :param without: ids of features that are not meant although they are at hand.
    :param patches: folders with features beside those shipped.
    :param require: ids of features that must be applied afterwards, or be in the release itself;
        ``all``: each that is made for the release.
    :param dry_run: do everything but write.
    :param untested: also apply to a release that the features were not tested on.
    :raises PatchRefused: if something has to be settled first (nothing was written then), or a
        feature in ``require`` is not applied.
    :raises OverlayError: if the features, the target or its ledger cannot be read or written.
    """
    choice = {"only": only, "without": without, "require": require}
    with _request_for("apply", target, python, patches, **choice) as request:
        return _accepted(commands.apply(request, dry_run=dry_run, untested=untested))


def revert(
    target: Place | None = None,
    *,
    python: Place | None = None,
    only: Collection[str] = (),
    patches: Sequence[Place] = (),
    keep_as: str | None = None,
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
    :param keep_as: id of a feature to make of what was edited since, in the last folder of
        ``patches``; the edits are taken out as well.
    :raises PatchRefused: if a file was edited since, or the other features do not fit without
        those in ``only``; nothing was written.
    :raises OverlayError: if the target or its ledger cannot be read or written.
    """
    if keep_as is not None and not patches:
        raise UsageError("keep_as: expected a folder of patches to write to, found none")
    keep = None if keep_as is None else commands.Keep(keep_as, in_home(patches[-1]))
    with _request_for("revert", target, python, patches, only=only) as request:
        return _accepted(commands.revert(request, keep))


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
    >>> int(report.exit), report.target.obstacles[0].reason.next_step == (
    ...     f"run `overlay apply --feature demo {site}`"
    ... )
    (1, True)

    :param target: as for ``check``; :param python: as for ``check``.
    :param patches: folders with features beside those shipped.
    :param require: as for ``apply``; the report's ``exit`` is 1 where one is not applied.
    :param progress: called while a release is fetched.
    :raises OverlayError: if the features, the target or its ledger cannot be read.
    """
    with _request_for("status", target, python, patches, require=require) as request:
        return commands.status(request._replace(progress=progress))


def diff(
    target: Place | None = None,
    *,
    python: Place | None = None,
    only: Collection[str] = (),
    without: Collection[str] = (),
    patches: Sequence[Place] = (),
) -> bytes:
    """The change to a pristine vLLM as one unified diff, which ``git apply`` accepts.

    >>> print(overlay.diff(site).decode().splitlines()[0])
    diff --git a/vllm/v1/spec_decode/demo.py b/vllm/v1/spec_decode/demo.py

    :param target: as for ``check``; :param python: as for ``check``.
    :param only: ids of the features that are meant; default: all.
    :param without: ids of features that are not meant although they are at hand.
    :param patches: folders with features beside those shipped.
    :raises PatchRefused: if one of them does not fit: part of a change would mislead.
    :raises OverlayError: if the features or the target cannot be read.
    """
    with _request_for("diff", target, python, patches, only=only, without=without) as request:
        return _accepted(commands.diff(request)).diff


def features(patches: Sequence[Place] = ()) -> tuple[Feature, ...]:
    """The features at hand: those shipped, then those of each folder in ``patches``.

    >>> [(feature.id, str(feature.releases)) for feature in overlay.features()]
    [('demo', '0.20.0..0.33.0')]

    :raises OverlayError: if a folder is not there, or what it holds is malformed.
    """
    return Request(tuple(map(str, patches))).load()


def processes() -> tuple[LiveProcess, ...]:
    """The running processes of vLLM of this user, and what each has loaded.

    >>> overlay.processes()
    ()

    :raises OverlayError: where the system does not tell which processes run.
    """
    return commands.of_this_vllm()


@contextmanager
def _request_for(
    command: str,
    target: Place | None,
    python: Place | None,
    patches: Sequence[Place],
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
    require: Collection[str] = (),
) -> Iterator[Request]:
    """What a caller asks of a command; messages repeat it inside."""
    request = Request(
        patches=tuple(map(str, patches)),
        features=tuple(only),
        python=None if python is None else str(python),
        require=tuple(require),
        without=tuple(without),
        target=None if target is None else str(target),
    )
    with invoked(request.invocation(command, patches)):
        yield request.with_current_ids()


def _accepted(report: R) -> R:
    """The report of a command that had nothing to refuse.

    :raises PatchRefused: if its exit status is 1.
    """
    if report.exit == 1:
        raise PatchRefused(report)
    return report


if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> Any:
        """A type of the promise, imported from where it is defined."""
        if name not in _TYPES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_TYPES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
