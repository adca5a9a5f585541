"""The report of ``bench`` as a page of HTML that can be mailed: no scripts, nothing to load."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from overlay.untrusted import printable

if TYPE_CHECKING:
    from overlay.report.benched import BenchReport

_COLOURS = ("#7f8c8d", "#2e86de", "#e67e22")
_WIDTH, _BAR, _LABEL = 640, 16, 110
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>overlay bench</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: auto; padding: 1rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
th, td {{ text-align: right; padding: .3rem .7rem; border-bottom: 1px solid #8885; }}
svg {{ max-width: 100%; height: auto; }}
svg text {{ fill: currentColor; font: 12px system-ui, sans-serif; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p><strong>{verdict}</strong></p>
<p>Median milliseconds of an engine step, and the range of all repeats. Ratios say how many times as
fast the overlay is; where the ranges overlap, nothing follows.</p>
{table}
{plot}
{left}
</body>
</html>
"""


def page(report: BenchReport) -> str:
    """The whole page."""
    head, *rows = report.rows
    cells = "".join(f"<th>{_text(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    left = "".join(
        f"<p>{_text(name)} was left out: {_text(why)}</p>" for name, why in report.left.items()
    )
    return _PAGE.format(
        title=_text(report.title),
        verdict=_text(report.verdict),
        table=f"<table>\n<tr>{cells}</tr>\n{body}</table>",
        plot=plot(report),
        left=left,
    )


def plot(report: BenchReport) -> str:
    """Bars of the medians as SVG, with a line for the range of the repeats."""
    largest = max(
        value
        for each in report.timed
        for sample in each.batches.values()
        for value in sample.values
    )
    scale = (_WIDTH - _LABEL - 60) / largest
    parts, top = [], 10
    for batch in report.timed[0].batches:
        parts.append(f'<text x="0" y="{top + 12}">{batch} requests</text>')
        for number, each in enumerate(report.timed):
            sample, colour = each.batches[batch], _COLOURS[number % len(_COLOURS)]
            width, middle = scale * sample.median, top + _BAR / 2
            low, high = (_LABEL + scale * end for end in (min(sample.values), max(sample.values)))
            parts.append(
                f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_BAR - 2}" '
                f'fill="{colour}"><title>{_text(each.engine)}</title></rect>'
                f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" '
                'stroke="currentColor"/>'
                f'<text x="{high + 6:.1f}" y="{top + 12}">{sample.median:.2f}</text>'
            )
            top += _BAR
        top += 10
    for number, each in enumerate(report.timed):
        x = _LABEL + 130 * number
        parts.append(
            f'<rect x="{x}" y="{top}" width="12" height="12" '
            f'fill="{_COLOURS[number % len(_COLOURS)]}"/>'
            f'<text x="{x + 18}" y="{top + 11}">{_text(each.engine)}</text>'
        )
    label = "Milliseconds of an engine step by number of requests"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {top + 20}" role="img" aria-label="{label}">\n'
        + "\n".join(parts)
        + "\n</svg>"
    )


def _text(text: str) -> str:
    return escape(printable(text, lines=True))
