"""Reports of the commands that read targets: ``check`` and ``status``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from overlay.report.base import Report
from overlay.report.model import TargetFailure, TargetReport
from overlay.report.words import enumeration

if TYPE_CHECKING:
    from overlay.report.lines import Line


@dataclass(frozen=True)
class CheckReport(Report):
    """Whether features can be applied to targets.

    :ivar checked: the targets that could be read.
    :ivar failures: those that could not.
    """

    _command: ClassVar[str] = "check"
    checked: tuple[TargetReport, ...]
    failures: tuple[TargetFailure, ...] = ()

    @property
    def targets(self) -> tuple[TargetReport, ...]:
        """The targets that could be read."""
        return self.checked

    @property
    def error(self) -> str | None:
        """Why some targets could not be read."""
        shared: dict[str, list[TargetFailure]] = {}
        for failure in self.failures:
            shared.setdefault(failure.cause or failure.error, []).append(failure)
        return "\n".join(_told(cause, failures) for cause, failures in shared.items()) or None


def _told(cause: str, failures: list[TargetFailure]) -> str:
    """What kept targets from being read, once."""
    if len(failures) == 1 or failures[0].cause is None:
        return failures[0].error
    names = [str(failure.target) for failure in failures]
    return f"releases {enumeration(names, most=len(names))}: {cause}"


@dataclass(frozen=True)
class OneTarget(Report):
    """Answer that speaks of one target.

    :ivar target: vLLM there, or the one package that is meant.
    :ivar others: the other packages there that features are for.
    """

    target: TargetReport
    others: tuple[TargetReport, ...] = field(default=(), kw_only=True)

    @property
    def targets(self) -> tuple[TargetReport, ...]:
        """The target, and the other packages there."""
        return (self.target, *self.others)


@dataclass(frozen=True)
class StatusReport(OneTarget):
    """What is applied to a target.

    :ivar patches: the folders of patches that were read beside the shipped one, in order.
    """

    _command: ClassVar[str] = "status"
    patches: tuple[str, ...] = ()

    def own_lines(self, *, verbose: bool = False) -> Iterable[Line]:
        """The folders of patches, if ``verbose``."""
        if not verbose:
            return ()
        from overlay.report.lines import labelled

        return [labelled(0, "patches: ", folder) for folder in ("shipped", *self.patches)]
