"""Reports of the commands that speak of targets: check, status, apply, revert, adopt, diff."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from overlay.report.base import Report
from overlay.report.lines import Line, Span, enumeration, labelled
from overlay.report.model import TargetFailure, TargetReport
from overlay.results import State

#: The most files beside modules that the text names one by one; the JSON has all of them.
_MOST_BESIDE = 200


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
        return "\n".join(_cause(cause, failures) for cause, failures in shared.items()) or None


def _cause(cause: str, failures: list[TargetFailure]) -> str:
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

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """The folders of patches, if ``verbose``."""
        for folder in ("shipped", *self.patches) if verbose else ():
            yield labelled(0, "patches: ", folder)


@dataclass(frozen=True)
class ApplyReport(OneTarget):
    """What ``apply`` did, or would do.

    :ivar changed: the files of the package that were written or removed, sorted.
    """

    _command: ClassVar[str] = "apply"
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class RevertReport(OneTarget):
    """What ``revert`` did.

    :ivar changed: the files of the package that were written or removed, sorted.
    :ivar kept: the feature that holds the edits, where there were any and they were to be kept.
    :ivar beside: path and change of each file that no feature carries; not kept, not put back.
    """

    _command: ClassVar[str] = "revert"
    changed: tuple[str, ...] = ()
    kept: Report | None = None
    beside: tuple[tuple[str, str], ...] = ()

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """The text of the feature that holds the edits, and what no feature holds."""
        if self.kept is not None:
            yield from self.kept.own_lines(verbose=verbose)
        if self.beside:
            feature_beside = getattr(self.kept, "beside", ())
            yield from beside_lines([each for each in self.beside if each not in feature_beside])

    def own_data(self) -> dict[str, Any]:
        """The feature that holds the edits, under ``kept``."""
        feature_data = {} if self.kept is None else self.kept.own_data()
        data = {"kept": feature_data["new"]} if "new" in feature_data else {}
        if self.beside:
            data["beside"] = [{"path": path, "what": what} for path, what in self.beside]
        return data


def beside_lines(beside: Sequence[tuple[str, str]]) -> Iterator[Line]:
    """The changed files that are not modules: a line each, at most so many."""
    for path, what in beside[:_MOST_BESIDE]:
        lost = what.startswith(State.MISSING.value)
        why = "lost, unless you say that it was removed" if lost else "no feature carries it"
        yield Line((Span("! ", "bad"),), (Span(f"{path} ({what}): {why}"),))
    if len(beside) > _MOST_BESIDE:
        yield Line(
            (Span("! ", "bad"),), (Span(f"{len(beside) - _MOST_BESIDE} others of that kind"),)
        )


@dataclass(frozen=True)
class AdoptReport(OneTarget):
    """What ``adopt`` took over."""

    _command: ClassVar[str] = "adopt"


@dataclass(frozen=True)
class DiffReport(OneTarget):
    """The change to a pristine target.

    :ivar diff: one unified diff; empty where there is no change or a feature does not fit.
    """

    _command: ClassVar[str] = "diff"
    diff: bytes = b""

    @property
    def body(self) -> bytes:
        """The diff."""
        return self.diff

    def own_data(self) -> dict[str, Any]:
        """The diff as text, under ``diff``."""
        return {"diff": self.diff.decode("utf-8", "backslashreplace")}
