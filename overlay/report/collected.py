"""The report of ``overlay report``: what several commands answer, as sections of one page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from overlay.report.as_text import render
from overlay.report.base import Report
from overlay.report.codes import Code, Exit, Verdict
from overlay.report.lines import BLANK, Line, Span, labelled
from overlay.report.words import count, enumeration


class Section(NamedTuple):
    """The answer of one command.

    :ivar title: what it is about, as a command: ``overlay status --live``.
    """

    title: str
    report: Report


@dataclass(frozen=True)
class CollectedReport(Report):
    """What check, status, doctor and log answer, each as it would by itself.

    :ivar sections: in the order in which they are read.
    :ivar made: when it was made, as ISO 8601 in UTC.
    :ivar overlay: the version of the overlay that made it.
    :ivar place: the file that the page was written to, ``None`` where it was not.
    :ivar page: the page of HTML for standard output, ``None`` where it does not go there.
    """

    _command: ClassVar[str] = "report"
    sections: tuple[Section, ...]
    made: str
    overlay: str
    place: str | None = None
    page: bytes | None = None

    @property
    def body(self) -> bytes | None:
        """The page, where it was asked for on standard output."""
        return self.page

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """Each section with its own lines and verdict; its verdict alone where there is a page."""
        if self.place is not None or self.page is not None:
            for section in self.sections:
                yield labelled(0, f"{section.title}: ", section.report.verdict)
        else:
            for section in self.sections:
                yield Line((Span(f"# {section.title}", "heading"),))
                yield BLANK
                yield from render(section.report, verbose=verbose)
                yield BLANK
        if self.place is not None:
            yield labelled(0, "written: ", self.place)

    def own_data(self) -> dict[str, Any]:
        """The sections, each the JSON of its command."""
        from overlay.report.as_json import as_data

        return {
            "report": {
                "made": self.made,
                "overlay": self.overlay,
                "place": self.place,
                "sections": [
                    {"title": section.title, "report": as_data(section.report)}
                    for section in self.sections
                ],
            }
        }


def collected(sections: Sequence[Section]) -> Verdict:
    """The verdict of ``report``: a section that could not be answered needs somebody, too."""
    needy = [section.title for section in sections if section.report.exit is not Exit.OK]
    if needy:
        names = enumeration([f"`{title}`" for title in needy])
        return Verdict(Code.PROBLEMS, f"Action needed: see {names}.")
    return Verdict(Code.NO_PROBLEM, f"Nothing needs you in {count(len(sections), 'section')}.")
