"""The report of ``bench`` as a page of HTML that can be mailed: no scripts, nothing to load."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from overlay.untrusted import printable

if TYPE_CHECKING:
    from overlay.proof.commands.bench_report import BenchCell, BenchReport, BenchTable

_COLOURS = ("#7f8c8d", "#2e86de", "#e67e22")
#: So narrow that the letters can be read on a phone, too; the last is left of the numbers.
_WIDTH, _BAR, _NUMBERS = 420, 16, 70
#: Of a file with all plots, whose last line is the whole title.
_FILE_WIDTH = 640
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>overlay bench</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: auto; padding: 1rem; }}
h1 {{ font-size: 1.5rem; margin: .5rem 0; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 .5rem; }}
h2::first-letter {{ text-transform: uppercase; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; white-space: nowrap; }}
th, td {{ text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #8885; }}
th {{ vertical-align: bottom; font-size: .85rem; }}
small {{ display: block; opacity: .75; }}
svg {{ width: 100%; max-width: 34rem; height: auto; margin-top: .5rem; }}
svg text {{ fill: currentColor; font: 13px system-ui, sans-serif; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p><strong>{verdict}</strong></p>
<p>Medians, and the range of all repeats. Ratios say how many times as fast the overlay is; where
the ranges overlap, nothing follows.</p>
{tables}
{omitted}
</body>
</html>
"""


def page(report: BenchReport) -> str:
    """The whole page."""
    omitted = "".join(
        f"<p>{_text(name)} was left out: {_text(why)}</p>" for name, why in report.left.items()
    )
    remarks = "".join(f"<p>{_text(remark)}</p>" for remark in report.remarks)
    return _PAGE.format(
        title=_text(report.title),
        verdict=_text(report.verdict),
        tables="\n".join(_section(table) for table in report.tables),
        omitted=remarks + omitted,
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
    style = "text { font-family: system-ui, sans-serif; font-size: 12px; }"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -12 {_FILE_WIDTH} {top + 52}" '
        f'width="{_FILE_WIDTH}" height="{top + 52}">\n<title>{_text(report.title)}</title>\n'
        f'<style>{style}</style>\n<rect x="-12" y="-12" width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + f'\n<text x="0" y="{top + 20}">{_text(report.title)}</text>\n</svg>\n'
    )


def _section(table: BenchTable) -> str:
    """A table, and its plot."""
    head, *rows = table.cells
    cells = "".join(f'<th scope="col">{_cell(cell)}</th>' for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    return f"<h2>{_text(table.name)}</h2>\n<table>\n<tr>{cells}</tr>\n{body}</table>\n{plot(table)}"


def _cell(cell: BenchCell) -> str:
    detail = f"<small>{_text(cell.detail)}</small>" if cell.detail else ""
    return f"{_text(cell.text)}{detail}"


def plot(table: BenchTable) -> str:
    """Bars of a table's medians as SVG, with a line for the range of the repeats."""
    inner, height = _bars(table)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{_text(table.name)}">\n'
        f"{inner}\n</svg>"
    )


def _bars(table: BenchTable) -> tuple[str, int]:
    """The elements of a plot, and its height."""
    samples = [sample for column in table.columns.values() for sample in column.values()]
    largest = max(value for sample in samples for value in sample.values)
    scale = (_WIDTH - _NUMBERS) / (largest or 1)
    parts, top = [], 4
    for size in table.sizes:
        parts.append(f'<text x="0" y="{top + 12}">{_text(table.load_words(size))}</text>')
        top += _BAR + 2
        for number, (engine, column) in enumerate(table.columns.items()):
            if size not in column:
                parts.append(f'<text x="0" y="{top + 12}">{_text(engine)}: not measured</text>')
                top += _BAR
                continue
            sample, colour = column[size], _COLOURS[number % len(_COLOURS)]
            width, middle = scale * sample.median, top + _BAR / 2
            low, high = (scale * end for end in (min(sample.values), max(sample.values)))
            parts.append(
                f'<rect x="0" y="{top}" width="{width:.1f}" height="{_BAR - 2}" '
                f'fill="{colour}"><title>{_text(engine)}</title></rect>'
                f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" '
                'stroke="currentColor"/>'
                f'<text x="{high + 6:.1f}" y="{top + 12}">{table.number(sample.median)}</text>'
            )
            top += _BAR
        top += 10
    for number, engine in enumerate(table.columns):
        x = 130 * number
        parts.append(
            f'<rect x="{x}" y="{top}" width="12" height="12" '
            f'fill="{_COLOURS[number % len(_COLOURS)]}"/>'
            f'<text x="{x + 18}" y="{top + 11}">{_text(engine)}</text>'
        )
    return "\n".join(parts), top + 20


def _text(text: str) -> str:
    return escape(printable(text, lines=True))
