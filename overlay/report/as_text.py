"""Turn a report into lines for people; nothing here prints, ``overlay.report.lines`` does.

A module of its own, small as it is: the layout of targets is imported only where a report has any.
"""

from __future__ import annotations

from overlay.report.base import Report
from overlay.report.codes import Exit
from overlay.report.lines import BLANK, Line, Span, labelled


def render(report: Report, *, verbose: bool = False) -> tuple[Line, ...]:
    """The report as lines; the last one is the verdict."""
    lines = [*report.first_lines()]
    if report.targets:
        # Imported only here: `overlay list` speaks of no target.
        from overlay.report.target_text import target_lines

        lines += target_lines(report.targets, verbose=verbose)
    lines += report.own_lines(verbose=verbose)
    if report.error is not None:
        first, *others = report.error.splitlines() or [""]
        lines.append(labelled(0, "error: ", first, "bad"))
        lines += [labelled(0, "       ", text) for text in others]
    if lines and lines[-1] != BLANK:
        lines.append(BLANK)
    style = "good" if report.exit is Exit.OK else "bad"
    return (*lines, Line((), (Span(report.verdict, style),)))
