"""What the functions of the API share: the way to a command, and back from its report."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

from overlay.errors import OverlayError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    from overlay.commands.request import Request
    from overlay.report.base import Report

    #: A path or a name, as the functions of the API take them.
    Place: TypeAlias = str | Path

R = TypeVar("R", bound="Report")


class PatchRefused(OverlayError):
    """Something has to be settled first, so nothing was written.

    :ivar report: what it is, and what to do.
    """

    exit_code = 1

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__(report.verdict)


def request(
    python: Place | None,
    only: Collection[str],
    patches: Sequence[Place],
    require: Collection[str] = (),
    without: Collection[str] = (),
) -> Request:
    """Gather what every command takes, as texts."""
    from overlay.commands.request import Request

    return Request(
        patches=tuple(str(folder) for folder in patches),
        features=tuple(only),
        python=None if python is None else str(python),
        require=tuple(require),
        without=tuple(without),
    )


def as_name(target: Place | None) -> str | None:
    """TARGET as a command takes it."""
    return None if target is None else str(target)


def accepted(report: R) -> R:
    """The report of a command that had nothing to refuse.

    :raises PatchRefused: if its exit status is 1.
    """
    if report.exit == 1:
        raise PatchRefused(report)
    return report
