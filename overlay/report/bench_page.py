"""The report of ``bench`` as a page of HTML that can be mailed: no scripts, nothing to load."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from overlay.untrusted import printable

if TYPE_CHECKING:
    from overlay.report.benched import BenchReport, Table

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
<p>Medians, and the range of all repeats. Ratios say how many times as fast the overlay is; where
the ranges overlap, nothing follows.</p>
{tables}
{left}
</body>
</html>
"""


def page(report: BenchReport) -> str:
    """The whole page."""
    left = "".join(
        f"<p>{_text(name)} was left out: {_text(why)}</p>" for name, why in report.left.items()
    )
    remarks = "".join(f"<p>{_text(remark)}</p>" for remark in report.remarks)
    return _PAGE.format(
        title=_text(report.title),
        verdict=_text(report.verdict),
        tables="\n".join(_section(table) for table in report.tables),
        left=remarks + left,
    )


def plot_file(report: BenchReport) -> str:
    """All plots, as one file of SVG."""
    parts, top = [], 0
    for table in report.tables:
        inner, height = _bars(table)
        parts.append(
            f'<text x="0" y="{top + 14}" font-weight="bold">{_text(table.name)}</text>\n'
            f'<g transform="translate(0 {top + 20})">\n{inner}\n</g>'
        )
        top += height + 40
    style = "text { font: 12px system-ui, sans-serif; }"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 40}" '
        f'width="{_WIDTH}" height="{top + 40}">\n<title>{_text(report.title)}</title>\n'
        f'<style>{style}</style>\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + f'\n<text x="0" y="{top + 20}">{_text(report.title)}</text>\n</svg>\n'
    )


def _section(table: Table) -> str:
    """A table, and its plot."""
    head, *rows = table.rows
    cells = "".join(f"<th>{_text(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    return f"<h2>{_text(table.name)}</h2>\n<table>\n<tr>{cells}</tr>\n{body}</table>\n{plot(table)}"


def plot(table: Table) -> str:
    """Bars of a table's medians as SVG, with a line for the range of the repeats."""
    inner, height = _bars(table)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{_text(table.name)}">\n'
        f"{inner}\n</svg>"
    )


def _bars(table: Table) -> tuple[str, int]:
    """The elements of a plot, and its height."""
    samples = [sample for column in table.columns.values() for sample in column.values()]
    largest = max(value for sample in samples for value in sample.values)
    scale = (_WIDTH - _LABEL - 60) / (largest or 1)
    parts, top = [], 10
    for size in table.sizes:
        parts.append(f'<text x="0" y="{top + 12}">{table.load_of(size)} {table.load}</text>')
        for number, (engine, column) in enumerate(table.columns.items()):
            if size not in column:
                parts.append(
                    f'<text x="{_LABEL}" y="{top + 12}">{_text(engine)}: not measured</text>'
                )
                top += _BAR
                continue
            sample, colour = column[size], _COLOURS[number % len(_COLOURS)]
            width, middle = scale * sample.median, top + _BAR / 2
            low, high = (_LABEL + scale * end for end in (min(sample.values), max(sample.values)))
            parts.append(
                f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_BAR - 2}" '
                f'fill="{colour}"><title>{_text(engine)}</title></rect>'
                f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" '
                'stroke="currentColor"/>'
                f'<text x="{high + 6:.1f}" y="{top + 12}">{table.number(sample.median)}</text>'
            )
            top += _BAR
        top += 10
    for number, engine in enumerate(table.columns):
        x = _LABEL + 130 * number
        parts.append(
            f'<rect x="{x}" y="{top}" width="12" height="12" '
            f'fill="{_COLOURS[number % len(_COLOURS)]}"/>'
            f'<text x="{x + 18}" y="{top + 11}">{_text(engine)}</text>'
        )
    return "\n".join(parts), top + 20


def _text(text: str) -> str:
    return escape(printable(text, lines=True))
