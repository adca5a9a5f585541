"""The report of ``overlay prune``: what a folder of patches no longer needs, with evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from overlay.report.base import Report
from overlay.report.codes import Code, Verdict
from overlay.report.lines import Line, Span, labelled
from overlay.report.words import count
from overlay.results.invocation import command


class PruneEntry(NamedTuple):
    """One proposal.

    :ivar kind: what it does, as one of a few fixed texts; :ivar text: the same in full.
    """

    feature: str
    kind: str
    text: str
    evidence: str


@dataclass(frozen=True)
class PruneReport(Report):
    """What ``prune`` proposes, or did.

    :ivar folder: the folder of patches; :ivar releases: the range that is still served.
    :ivar written: whether it was carried out.
    """

    _command: ClassVar[str] = "prune"
    _key: ClassVar[str] = "prune"
    folder: Path
    releases: str
    written: bool
    proposals: tuple[PruneEntry, ...]

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        yield labelled(0, "serves:   ", f"{self.releases}; {self.folder}")
        for entry in self.proposals:
            yield Line((Span(f"{entry.feature}  ", "heading"),), (Span(entry.text),))
            yield labelled(2, "evidence: ", entry.evidence)


def concluded(
    entries: Sequence[PruneEntry], folder: Path, oldest: str | None, *, written: bool
) -> Verdict:
    """The verdict of ``prune``.

    :param oldest: the oldest release that is served, as the user named it.
    """
    if not entries:
        return Verdict(Code.NOTHING_TO_PRUNE, f"Nothing to prune in {folder}.")
    number = count(len(entries), "proposal")
    if written:
        return Verdict(Code.PRUNED, f"Carried out {number} in {folder}.")
    step = command("prune", "--write", *(() if oldest is None else ("--oldest", oldest)))
    text = f"Nothing was written: {number}, which {step} carries out."
    return Verdict(Code.CAN_BE_PRUNED, text)
