"""The report of ``bench``: what each engine took, and what follows from the repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from overlay.proof.repeats import Gap, Quantity
from overlay.report import Report, by_fields, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, Line, Span, aligned, count, enumeration, labelled
from overlay.results import ModelRunner
from overlay.untrusted import printable

if TYPE_CHECKING:
    from overlay.proof.repeats import Sample, Served, Timed


STOCK, OVERLAY, V2 = "stock V1", "overlay", "V2"
#: The release's own files with the model runner that vLLM chooses; the overlay where V1 is asked
#: for beside it; and what stands behind the name of an engine without drafts.
DEFAULT, OVERLAY_V1, PLAIN = "stock", "overlay V1", " without drafts"


class Comparison(NamedTuple):
    """The overlay beside another engine in one cell.

    :ivar batch: the number of requests at a time.
    :ivar ratio: how many times as fast the overlay's median is.
    :ivar conclusive: whether both were measured more than once, and no repeat of one lies in the
        range of the other.
    """

    other: str
    batch: int
    ratio: float
    conclusive: bool


def is_overlay(engine: str) -> bool:
    """Whether an engine is compared with others: the overlay, with drafts or without."""
    return engine.removesuffix(PLAIN) == OVERLAY


class BenchCell(NamedTuple):
    """One cell of a table; :ivar detail: what is said of its text, in smaller letters."""

    text: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


class BenchTable(NamedTuple):
    """One table of the report.

    :ivar name: what was measured; :ivar unit: of the values.
    :ivar columns: the samples of each engine, by the number of requests at a time; what the budget
        did not allow is missing there, and has a row all the same.
    :ivar more_is_faster: whether the larger value is the better one.
    :ivar rate: requests a second, where that is fixed and not the number at a time; there is one
        row then, 0 in ``columns``.
    """

    name: str
    unit: str
    columns: Mapping[str, Mapping[int, Sample]]
    more_is_faster: bool
    rate: float | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of requests that any engine was measured with, ascending."""
        return tuple(sorted({size for samples in self.columns.values() for size in samples}))

    @property
    def load(self) -> str:
        """What the first column holds."""
        return "requests" if self.rate is None else "requests/s"

    def load_of(self, size: int) -> str:
        """The first column of a row."""
        return str(size) if self.rate is None else f"{self.rate:g}"

    def load_words(self, size: int) -> str:
        """The same with what is counted."""
        return count(size, "request") if self.rate is None else f"{self.rate:g} {self.load}"

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The overlay beside each other engine, in every cell that both were measured in."""
        return tuple(
            Comparison(
                other,
                size,
                round(_ratio(ours[size], sample, more_is_faster=self.more_is_faster), 3),
                sample.repeated and ours[size].repeated and not sample.overlaps(ours[size]),
            )
            for other, samples in self.columns.items()
            if not is_overlay(other)
            for ours in (self.columns.get(self.overlay_beside(other), {}),)
            for size, sample in samples.items()
            if size in ours
        )

    def overlay_beside(self, other: str) -> str:
        """The overlay's engine that another one is compared with: as much as can be is equal."""
        plain = PLAIN if other.endswith(PLAIN) else ""
        on_v1 = f"{OVERLAY_V1}{plain}"
        beside_v1 = other.removesuffix(PLAIN) == STOCK and on_v1 in self.columns
        return on_v1 if beside_v1 else f"{OVERLAY}{plain}"

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """``cells`` as text."""
        return tuple(tuple(map(str, row)) for row in self.cells)

    @property
    def cells(self) -> tuple[tuple[BenchCell, ...], ...]:
        """Head, then a row for each number of requests with medians, ranges and ratios."""
        engines = [name for name in self.columns if not is_overlay(name)]
        heads = (f"{name}, {self.unit}" for name in self.columns)
        rows = [tuple(map(BenchCell, (self.load, *heads, *(f"/ {name}" for name in engines))))]
        by_cell = {(each.other, each.batch): each for each in self.comparisons}
        for size in self.sizes:
            values = [self.shown(samples.get(size)) for samples in self.columns.values()]
            ratios = [BenchCell(self.ratio_text(by_cell.get((other, size)))) for other in engines]
            rows.append((BenchCell(self.load_of(size)), *values, *ratios))
        return tuple(rows)

    def ratio_text(self, comparison: Comparison | None) -> str:
        """How many times as fast the overlay is, or why nothing follows."""
        if comparison is None:
            return "-"
        if comparison.conclusive:
            return f"{comparison.ratio:.2f}"
        size = comparison.batch
        names = (self.overlay_beside(comparison.other), comparison.other)
        both = (self.columns[name][size] for name in names)
        return "overlap" if all(sample.repeated for sample in both) else "one repeat"

    def shown(self, sample: Sample | None) -> BenchCell:
        """The median of a sample, and its range."""
        if sample is None:
            return BenchCell("not measured")
        low, high = min(sample.values), max(sample.values)
        return BenchCell(self.number(sample.median), f"{self.number(low)} to {self.number(high)}")

    def number(self, value: float) -> str:
        """A value with as many digits as it deserves."""
        if value >= 1000:
            return f"{value:,.0f}"
        return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _ratio(ours: Sample, other: Sample, *, more_is_faster: bool) -> float:
    slow, fast = (other, ours) if more_is_faster else (ours, other)
    return fast.median / slow.median if slow.median else 0.0


def step_table(timed: Sequence[Timed]) -> BenchTable:
    """The step times."""
    columns = {each.engine: each.batches for each in timed}
    return BenchTable("median milliseconds of an engine step", "ms", columns, more_is_faster=False)


def throughput_table(served: Sequence[Served]) -> BenchTable:
    """The output tokens of a server a second."""
    columns = {each.engine: each.concurrency for each in served}
    return BenchTable(
        "output tokens a second of a server", "tokens/s", columns, more_is_faster=True
    )


def first_token_table(served: Sequence[Served]) -> BenchTable:
    """The time to the first token at the one rate of requests; empty where it was not taken."""
    rates = [each.rate for each in served if each.first_token and each.rate is not None]
    columns = {each.engine: {0: each.first_token} if each.first_token else {} for each in served}
    rate = rates[0] if rates else 0.0
    name = f"milliseconds to the first token at {rate:g} requests a second"
    return BenchTable(name, "ms", columns, more_is_faster=False, rate=rate)


@dataclass(frozen=True)
class BenchReport(Report):
    """What each engine took.

    :ivar shape: the name of the shape, or of the model.
    :ivar left: why an engine was left out, by name.
    :ivar notes: which rounds were left out.
    :ivar gaps: what was not measured, because the budget was spent.
    :ivar dummy: whether the weights are dummies.
    :ivar budget: seconds that all engines together could take.
    :ivar rounds: how often each engine was to be measured.
    """

    _command: ClassVar[str] = "bench"
    shape: str
    k: int
    timed: tuple[Timed, ...]
    left: Mapping[str, str]
    served: tuple[Served, ...] = ()
    notes: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    dummy: bool = True
    budget: float = 0.0
    rounds: int = 1

    @property
    def title(self) -> str:
        """What was measured, on what."""
        what = f"shape {self.shape}" if self.dummy else self.shape
        drafts = f"{count(self.k, 'draft')} a step{', dummy weights' if self.dummy else ''}"
        release = self.timed[0].vllm if self.timed else self.served[0].vllm
        device = f" on {self.timed[0].device}" if self.timed else ""
        return f"vLLM {release}{device}: {what}, {drafts}"

    @property
    def tables(self) -> tuple[BenchTable, ...]:
        """All tables that there is anything in; that of a server's throughput where any served."""
        throughput = (throughput_table(self.served),) if self.served else ()
        steps, first = step_table(self.timed), first_token_table(self.served)
        return (*((steps,) if self.timed else ()), *throughput, *((first,) if first.sizes else ()))

    @property
    def remarks(self) -> tuple[str, ...]:
        """How often engines started, what was left out, which servers did not become steady."""
        unsteady = (
            f"{each.engine}: the last runs with {enumeration(list(map(str, each.unsteady)))} "
            "requests at a time did not agree"
            for each in self.served
            if each.unsteady
        )
        sizes = (
            *(each.batches for each in self.timed),
            *(each.concurrency for each in self.served),
        )
        number = max((len(sample.rounds) for each in sizes for sample in each.values()), default=0)
        part = f"{number}" if 0 < number < self.rounds else "each"
        rounds = f"engines started in {part} of {count(self.rounds, 'round')}"
        about = (*self._runners, *self._features, *self._accepted)
        return (*self._not_measured, rounds, *self.notes, *about, *self._starts, *unsteady)

    @property
    def _runners(self) -> Iterator[str]:
        """Which model runner each engine used, where the release chooses it."""
        versions = [(each.engine, each.version) for each in self.timed]
        if any(engine.removesuffix(PLAIN) == DEFAULT for engine, _ in versions):
            yield "model runners: " + ", ".join(
                f"{engine} {'unknown' if version is None else version.name}"
                for engine, version in versions
            )

    @property
    def _features(self) -> Iterator[str]:
        """Which features of the overlay were active."""
        for each in self.timed:
            if is_overlay(each.engine) and each.features is not None:
                yield f"features in use, {each.engine}: {', '.join(each.features) or 'none'}"

    @property
    def _accepted(self) -> Iterator[str]:
        """What share of the drafts a model's servers accepted."""
        shares = [
            f"{each.engine} {' '.join(f'{share:.2f}' for share in each.accepted)}"
            for each in self.served
            if each.accepted and not self.dummy
        ]
        if shares:
            yield f"drafts accepted by position, servers: {', '.join(shares)}"

    @property
    def _starts(self) -> Iterator[str]:
        """How long it took until engines could be measured."""
        parts = (("step times", self.timed), ("servers", self.served))
        for name, engines in parts:
            each = [
                _starts_text(engine.engine, engine.starts) for engine in engines if engine.starts
            ]
            if each:
                yield f"seconds to start, {name}: {', '.join(each)}"

    @property
    def _not_measured(self) -> Iterator[str]:
        if self.gaps:
            what = "; ".join(map(_gap_text, self.gaps))
            yield f"not measured, the budget of {self.budget:g} s was spent (--budget): {what}"

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as in Report
        """The tables, and what was left out and why."""
        yield Line((Span(self.title, "heading"),))
        yield labelled(2, "", "medians, and the range of all repeats;")
        yield labelled(2, "", "ratios say how many times as fast the overlay is")
        yield BLANK
        for table in self.tables:
            yield Line((Span(table.name, "heading"),))
            head, *rows = table.rows
            cells = [[Span(cell, "heading") for cell in head]]
            cells += [[Span(cell) for cell in row] for row in rows]
            yield from aligned(cells)
            yield BLANK
        for remark in self.remarks:
            yield labelled(0, "", remark)
        for name, why in self.left.items():
            first, *more = why.splitlines()
            yield labelled(0, f"{name} was left out: ", first)
            yield from (labelled(4, "", text) for text in more)

    def own_data(self) -> dict[str, Any]:
        """The repeats and the comparisons under ``bench``."""
        return {
            "bench": {
                "shape": self.shape,
                "dummy_weights": self.dummy,
                "k": self.k,
                "rounds": self.rounds,
                "engines": [_timed_data(each) for each in self.timed],
                "comparisons": plain(step_table(self.timed).comparisons),
                "serving": [_served_data(each) for each in self.served],
                "serving_comparisons": plain(throughput_table(self.served).comparisons),
                "first_token_comparisons": [
                    by_fields(each, "batch") for each in first_token_table(self.served).comparisons
                ],
                "not_measured": plain(self.gaps),
                "left": dict(self.left),
                "notes": list(self.remarks),
            }
        }


def _gap_text(gap: Gap) -> str:
    sizes = enumeration(list(map(str, gap.requests)))
    return {
        Quantity.STEP_TIME: f"{gap.engine}'s step time with {sizes} requests",
        Quantity.THROUGHPUT: f"{gap.engine}'s server with {sizes} requests at a time",
        Quantity.FIRST_TOKEN: f"{gap.engine}'s time to the first token",
    }[gap.what]


def _starts_text(engine: str, starts: Sequence[float]) -> str:
    return f"{engine} {' '.join(f'{seconds:.0f}' for seconds in starts)}"


def _timed_data(timed: Timed) -> dict[str, Any]:
    return {
        "engine": timed.engine,
        "vllm": timed.vllm,
        "device": timed.device,
        "graphs": dict(timed.graphs),
        "start_s": list(timed.starts),
        "runner": None if timed.version is None else timed.version.value,
        "features": None if timed.features is None else list(timed.features),
        "batches": [
            {
                "requests": batch,
                "ms_per_step": list(sample.values),
                "repeats_by_round": list(sample.rounds),
            }
            for batch, sample in timed.batches.items()
        ],
    }


def _served_data(served: Served) -> dict[str, Any]:
    first = served.first_token
    return {
        "engine": served.engine,
        "vllm": served.vllm,
        "tokens_per_step": served.acceptance,
        "accepted_by_position": list(served.accepted),
        "start_s": list(served.starts),
        "concurrency": [
            {
                "requests": size,
                "output_tokens_per_s": list(sample.values),
                "repeats_by_round": list(sample.rounds),
                "steady": size not in served.unsteady,
            }
            for size, sample in served.concurrency.items()
        ],
        "request_rate": served.rate,
        "first_token_ms": None if first is None else list(first.values),
    }


def benched(
    timed: Sequence[Timed], served: Sequence[Served] = (), gaps: Sequence[Gap] = ()
) -> Verdict:
    """The verdict of ``bench``: the overlay beside stock, or beside V2 alone."""
    verdict = _concluded(timed, served)
    notes = []
    if any(is_overlay(each.engine) and each.features == () for each in timed):
        notes.append("no feature of the overlay was in use: `overlay verify` says why")
    if gaps:
        notes.append("the budget did not allow all figures")
    return Verdict(verdict.code, f"{'; '.join((verdict.text[:-1], *notes))}.")


def _concluded(timed: Sequence[Timed], served: Sequence[Served]) -> Verdict:
    engines = {each.engine for each in timed} | {each.engine for each in served}
    references = [each for each in (DEFAULT, STOCK, V2) if {each, f"{each}{PLAIN}"} & engines]
    sides = [each for each in (references[0], f"{references[0]}{PLAIN}") if each in engines]
    if any(map(_lacks_graphs, timed)):
        text = "The overlay captured no draft graph; `overlay verify` says why."
        return Verdict(Code.NO_GRAPHS, text)
    by_other = {other: _against(other, timed, served) for other in sides}
    cells = [cell for each in by_other.values() for cell in each]
    slower, faster, conclusions = list[str](), list[str](), 0
    for other, own in by_other.items():
        behind = [place for place, each in own if each.conclusive and each.ratio < 1]
        ahead = [f"{c.ratio:.2f} {place}" for place, c in own if c.conclusive and c.ratio > 1]
        slower += [f"{other} {enumeration(behind)}"] if behind else []
        faster += [f"{other}: {enumeration(ahead)}"] if ahead else []
        conclusions += len(ahead)
    if slower:
        return Verdict(Code.SLOWER, f"Slower than {'; than '.join(slower)}.")
    if not faster:
        every = f"The repeats overlap in every cell{_or_once(timed, served)}: no conclusion."
        return Verdict(Code.MEASURED, every)
    open_ = len(cells) - conclusions
    why = f"where repeats overlap{_or_once(timed, served)}"
    rest = f"; no conclusion in {count(open_, 'cell')}, {why}" if open_ else ""
    return Verdict(Code.MEASURED, f"Times as fast as {'; as '.join(faster)}{rest}.")


def _lacks_graphs(timed: Timed) -> bool:
    """Whether it is the overlay on model runner V1, and captured no draft graph."""
    drafts = timed.engine in (OVERLAY, OVERLAY_V1)
    return drafts and not timed.graphs and timed.version is not ModelRunner.V2


def _or_once(timed: Sequence[Timed], served: Sequence[Served]) -> str:
    """The other reason for which nothing follows, where there is a cell with one repeat only."""
    samples = [sample for each in timed for sample in each.batches.values()]
    samples += [sample for each in served for sample in each.concurrency.values()]
    samples += [each.first_token for each in served if each.first_token is not None]
    return "" if all(sample.repeated for sample in samples) else ", or there is one repeat only"


def _against(
    other: str, timed: Sequence[Timed], served: Sequence[Served]
) -> list[tuple[str, Comparison]]:
    """Each comparison with that engine, and its cell as a phrase."""
    steps = [
        (f"with {count(each.batch, 'request')}", each) for each in step_table(timed).comparisons
    ]
    serving = throughput_table(served).comparisons
    throughput = [(f"serving {count(each.batch, 'request')}", each) for each in serving]
    first = [("to the first token", each) for each in first_token_table(served).comparisons]
    return [cell for cell in (*steps, *throughput, *first) if cell[1].other == other]


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
