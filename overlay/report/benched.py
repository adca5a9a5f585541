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
    from overlay.proof.repeats import Timed

STOCK, OVERLAY, V2 = "stock V1", "overlay", "V2"


class Comparison(NamedTuple):
    """The overlay beside another engine at one batch size.

    :ivar ratio: how many times as fast the overlay's median step is.
    :ivar conclusive: whether no repeat of one lies in the range of the other.
    """

    other: str
    batch: int
    ratio: float
    conclusive: bool


@dataclass(frozen=True)
class BenchReport(Report):
    """What each engine took.

    :ivar left: why an engine was left out, by name.
    """

    _command: ClassVar[str] = "bench"
    shape: str
    k: int
    timed: tuple[Timed, ...]
    left: Mapping[str, str]

    @property
    def title(self) -> str:
        """What was measured, on what."""
        first = self.timed[0]
        return (
            f"vLLM {first.vllm} on {first.device}: shape {self.shape}, {count(self.k, 'draft')} a "
            "step, dummy weights"
        )

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The table: head, then a row for each batch size with medians, ranges and ratios."""
        names = [each.engine for each in self.timed]
        others = [name for name in names if name != OVERLAY]
        made = [("requests", *(f"{name}, ms" for name in names), *(f"/ {n}" for n in others))]
        found = comparisons(self.timed)
        for batch in self.timed[0].batches:
            cells = [str(batch)]
            for each in self.timed:
                sample = each.batches[batch]
                low, high = min(sample.values), max(sample.values)
                cells.append(f"{sample.median:.2f} ({low:.2f} to {high:.2f})")
            for other in others:
                match = next(c for c in found if (c.other, c.batch) == (other, batch))
                cells.append(f"{match.ratio:.2f}" if match.conclusive else "overlap")
            made.append(tuple(cells))
        return tuple(made)

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as in Report
        """The table, and why an engine was left out."""
        yield Line((Span(self.title, "heading"),))
        yield labelled(2, "", "median milliseconds of an engine step and the range of all repeats;")
        yield labelled(2, "", "ratios say how many times as fast the overlay is")
        yield BLANK
        head, *rows = self.rows
        table = [[Span(cell, "heading") for cell in head]]
        table += [[Span(cell) for cell in row] for row in rows]
        yield from aligned(table)
        yield BLANK
        for name, why in self.left.items():
            first, *others = why.splitlines()
            yield labelled(0, f"{name} was left out: ", first)
            yield from (labelled(4, "", text) for text in others)

    def own_data(self) -> dict[str, Any]:
        """The repeats and the comparisons under ``bench``."""
        return {
            "bench": {
                "shape": self.shape,
                "k": self.k,
                "engines": [
                    {
                        "engine": each.engine,
                        "vllm": each.vllm,
                        "device": each.device,
                        "graphs": dict(each.graphs),
                        "batches": [
                            {"requests": batch, "ms_per_step": list(sample.values)}
                            for batch, sample in each.batches.items()
                        ],
                    }
                    for each in self.timed
                ],
                "comparisons": [each._asdict() for each in comparisons(self.timed)],
                "left": dict(self.left),
            }
        }


def comparisons(timed: Sequence[Timed]) -> tuple[Comparison, ...]:
    """The overlay beside each other engine, at every batch size."""
    ours = next(each for each in timed if each.engine == OVERLAY)
    return tuple(
        Comparison(
            other.engine,
            batch,
            round(sample.median / ours.batches[batch].median, 3),
            not sample.overlaps(ours.batches[batch]),
        )
        for other in timed
        if other is not ours
        for batch, sample in other.batches.items()
    )


def benched(timed: Sequence[Timed]) -> Verdict:
    """The verdict of ``bench``: about the overlay beside stock V1, where the repeats are apart."""
    ours = next(each for each in timed if each.engine == OVERLAY)
    if not ours.graphs:
        text = "The overlay captured no draft graph; `overlay verify` says why."
        return Verdict(Code.NO_GRAPHS, text)
    found = [each for each in comparisons(timed) if each.other == STOCK]
    slower = [str(each.batch) for each in found if each.conclusive and each.ratio < 1]
    faster = [each for each in found if each.conclusive and each.ratio > 1]
    if slower:
        return Verdict(Code.SLOWER, f"Slower than stock V1 with {enumeration(slower)} requests.")
    if not faster:
        return Verdict(Code.MEASURED, "The repeats overlap in every cell: no conclusion.")
    shown = [f"{each.ratio:.2f} with {count(each.batch, 'request')}" for each in faster]
    overlap = len(found) - len(faster)
    rest = f"; no conclusion in {count(overlap, 'cell')}, where repeats overlap" if overlap else ""
    return Verdict(Code.MEASURED, f"Times as fast as stock V1: {enumeration(shown)}{rest}.")
