"""The report of ``bench``: what each engine took, and what follows from the repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from overlay.report.base import Report
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, Line, Span, aligned, labelled
from overlay.report.words import count, enumeration

if TYPE_CHECKING:
    from overlay.proof.repeats import Sample, Served, Timed

STOCK, OVERLAY, V2 = "stock V1", "overlay", "V2"


class Comparison(NamedTuple):
    """The overlay beside another engine in one cell.

    :ivar batch: the number of requests at a time.
    :ivar ratio: how many times as fast the overlay's median is.
    :ivar conclusive: whether no repeat of one lies in the range of the other.
    """

    other: str
    batch: int
    ratio: float
    conclusive: bool


class Table(NamedTuple):
    """One table of the report.

    :ivar name: what was measured; :ivar unit: of the values.
    :ivar columns: the samples of each engine, by the number of requests at a time.
    :ivar more_is_faster: whether the larger value is the better one.
    """

    name: str
    unit: str
    columns: Mapping[str, Mapping[int, Sample]]
    more_is_faster: bool

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The overlay beside each other engine, in every cell."""
        ours = self.columns[OVERLAY]
        return tuple(
            Comparison(
                other,
                size,
                round(_ratio(ours[size], sample, more_is_faster=self.more_is_faster), 3),
                not sample.overlaps(ours[size]),
            )
            for other, samples in self.columns.items()
            if other != OVERLAY
            for size, sample in samples.items()
        )

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Head, then a row for each number of requests with medians, ranges and ratios."""
        others = [name for name in self.columns if name != OVERLAY]
        heads = (f"{name}, {self.unit}" for name in self.columns)
        made = [("requests", *heads, *(f"/ {name}" for name in others))]
        cells = {(each.other, each.batch): each for each in self.comparisons}
        for size in self.columns[OVERLAY]:
            values = [self.shown(samples[size]) for samples in self.columns.values()]
            matches = [cells[other, size] for other in others]
            ratios = [f"{each.ratio:.2f}" if each.conclusive else "overlap" for each in matches]
            made.append((str(size), *values, *ratios))
        return tuple(made)

    def shown(self, sample: Sample) -> str:
        """The median of a sample, and its range."""
        low, high = min(sample.values), max(sample.values)
        return f"{self.number(sample.median)} ({self.number(low)} to {self.number(high)})"

    def number(self, value: float) -> str:
        """A value with as many digits as it deserves."""
        return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def _ratio(ours: Sample, other: Sample, *, more_is_faster: bool) -> float:
    slow, fast = (other, ours) if more_is_faster else (ours, other)
    return fast.median / slow.median if slow.median else 0.0


def step_table(timed: Sequence[Timed]) -> Table:
    """The step times."""
    columns = {each.engine: each.batches for each in timed}
    return Table("median milliseconds of an engine step", "ms", columns, more_is_faster=False)


def throughput_table(served: Sequence[Served]) -> Table:
    """The output tokens of a server a second."""
    columns = {each.engine: each.concurrency for each in served}
    return Table("output tokens a second of a server", "tokens/s", columns, more_is_faster=True)


def first_token_table(served: Sequence[Served]) -> Table | None:
    """The time to the first token at the one rate of requests; ``None`` where it was not taken."""
    columns = {each.engine: {0: each.first_token} for each in served if each.first_token}
    if not columns:
        return None
    name = f"milliseconds to the first token at {served[0].rate:g} requests a second"
    return Table(name, "ms", columns, more_is_faster=False)


@dataclass(frozen=True)
class BenchReport(Report):
    """What each engine took.

    :ivar shape: the name of the shape, or of the model.
    :ivar left: why an engine was left out, by name.
    :ivar notes: what else was left out.
    :ivar dummy: whether the weights are dummies.
    """

    _command: ClassVar[str] = "bench"
    shape: str
    k: int
    timed: tuple[Timed, ...]
    left: Mapping[str, str]
    served: tuple[Served, ...] = ()
    notes: tuple[str, ...] = ()
    dummy: bool = True

    @property
    def title(self) -> str:
        """What was measured, on what."""
        what = f"shape {self.shape}" if self.dummy else self.shape
        drafts = f"{count(self.k, 'draft')} a step{', dummy weights' if self.dummy else ''}"
        release = self.timed[0].vllm if self.timed else self.served[0].vllm
        device = f" on {self.timed[0].device}" if self.timed else ""
        return f"vLLM {release}{device}: {what}, {drafts}"

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables that there are."""
        steps = (step_table(self.timed),) if self.timed else ()
        if not self.served:
            return steps
        first = first_token_table(self.served)
        return (*steps, throughput_table(self.served), *((first,) if first else ()))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was left out, and which servers did not become steady."""
        unsteady = (
            f"{each.engine}: the last runs with {enumeration(list(map(str, each.unsteady)))} "
            "requests at a time did not agree"
            for each in self.served
            if each.unsteady
        )
        return (*self.notes, *unsteady)

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
            first, *others = why.splitlines()
            yield labelled(0, f"{name} was left out: ", first)
            yield from (labelled(4, "", text) for text in others)

    def own_data(self) -> dict[str, Any]:
        """The repeats and the comparisons under ``bench``."""
        return {
            "bench": {
                "shape": self.shape,
                "dummy_weights": self.dummy,
                "k": self.k,
                "engines": [_timed_data(each) for each in self.timed],
                "comparisons": [each._asdict() for each in comparisons(self.timed)],
                "serving": [_served_data(each) for each in self.served],
                "serving_comparisons": [
                    each._asdict()
                    for each in (throughput_table(self.served).comparisons if self.served else ())
                ],
                "first_token_comparisons": [
                    {name: value for name, value in each._asdict().items() if name != "batch"}
                    for each in _first_token_comparisons(self.served)
                ],
                "left": dict(self.left),
                "notes": list(self.remarks),
            }
        }


def _timed_data(timed: Timed) -> dict[str, Any]:
    return {
        "engine": timed.engine,
        "vllm": timed.vllm,
        "device": timed.device,
        "graphs": dict(timed.graphs),
        "batches": [
            {"requests": batch, "ms_per_step": list(sample.values)}
            for batch, sample in timed.batches.items()
        ],
    }


def _served_data(served: Served) -> dict[str, Any]:
    first = served.first_token
    return {
        "engine": served.engine,
        "vllm": served.vllm,
        "tokens_per_step": served.acceptance,
        "concurrency": [
            {
                "requests": size,
                "output_tokens_per_s": list(sample.values),
                "steady": size not in served.unsteady,
            }
            for size, sample in served.concurrency.items()
        ],
        "request_rate": served.rate,
        "first_token_ms": None if first is None else list(first.values),
    }


def comparisons(timed: Sequence[Timed]) -> tuple[Comparison, ...]:
    """The overlay's step times beside each other engine's, at every batch size."""
    return step_table(timed).comparisons if timed else ()


def _first_token_comparisons(served: Sequence[Served]) -> tuple[Comparison, ...]:
    table = first_token_table(served)
    return () if table is None else table.comparisons


def benched(timed: Sequence[Timed], served: Sequence[Served] = ()) -> Verdict:
    """The verdict of ``bench``: about the overlay beside stock V1, where the repeats are apart."""
    if timed and not next(each for each in timed if each.engine == OVERLAY).graphs:
        text = "The overlay captured no draft graph; `overlay verify` says why."
        return Verdict(Code.NO_GRAPHS, text)
    cells = _against_stock(timed, served)
    slower = [place for place, each in cells if each.conclusive and each.ratio < 1]
    faster = [f"{c.ratio:.2f} {place}" for place, c in cells if c.conclusive and c.ratio > 1]
    if slower:
        return Verdict(Code.SLOWER, f"Slower than stock V1 {enumeration(slower)}.")
    if not faster:
        return Verdict(Code.MEASURED, "The repeats overlap in every cell: no conclusion.")
    overlap = len(cells) - len(faster)
    rest = f"; no conclusion in {count(overlap, 'cell')}, where repeats overlap" if overlap else ""
    return Verdict(Code.MEASURED, f"Times as fast as stock V1: {enumeration(faster)}{rest}.")


def _against_stock(
    timed: Sequence[Timed], served: Sequence[Served]
) -> list[tuple[str, Comparison]]:
    """Each comparison with stock V1, and its cell as a phrase."""
    steps = [(f"with {count(each.batch, 'request')}", each) for each in comparisons(timed)]
    serving = throughput_table(served).comparisons if served else ()
    throughput = [(f"serving {count(each.batch, 'request')}", each) for each in serving]
    first = [("to the first token", each) for each in _first_token_comparisons(served)]
    return [cell for cell in (*steps, *throughput, *first) if cell[1].other == STOCK]
