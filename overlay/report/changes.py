"""Reports of the commands that change a target, or print the change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from overlay.report.base import Report
from overlay.report.lines import Line, Span
from overlay.report.reading import OneTarget

#: The most files beside modules that the text names one by one; the JSON has all of them.
_MOST_BESIDE = 200


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
    :ivar beside: path and change of each file that is no module; not kept, not put back.
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
            told = getattr(self.kept, "beside", ())
            yield from beside_lines([each for each in self.beside if each not in told])

    def own_data(self) -> dict[str, Any]:
        """The feature that holds the edits, under ``kept``."""
        made = {} if self.kept is None else self.kept.own_data()
        kept = {"kept": made["new"]} if "new" in made else {}
        if self.beside:
            kept["beside"] = [{"path": path, "what": what} for path, what in self.beside]
        return kept


def beside_lines(beside: Sequence[tuple[str, str]]) -> Iterator[Line]:
    """The changed files that are not modules: a line each, at most so many."""
    for path, what in beside[:_MOST_BESIDE]:
        yield Line((Span("! ", "bad"),), (Span(f"{path} ({what}): a feature carries modules"),))
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
