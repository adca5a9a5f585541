"""The report of ``overlay import``: what was read, what became of each file, where it lands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from overlay.report.codes import Code, Verdict
from overlay.report.lines import Line, Span, labelled
from overlay.report.model import Report
from overlay.report.words import count, enumeration
from overlay.results import Outcome

#: What each outcome means to whoever imports a change.
_MEANINGS = {
    Outcome.UPSTREAM: "upstream has it",
    Outcome.EXACT: "lands exactly",
    Outcome.MERGED: "merges, for review",
    Outcome.MOVED: "merges where its scope moved to, for review",
    Outcome.PARTLY: "upstream has a part of it",
    Outcome.CONFLICT: "conflicts",
    Outcome.MISSING: "a file or scope is missing",
}


class ImportedFile(NamedTuple):
    """One file of the change.

    :ivar fate: ``edited``, ``added``, or what kind of file was left out.
    :ivar base: the release whose text it was made on; ``None`` where none is needed or known.
    :ivar problem: why it could not be carried.
    """

    path: str
    fate: str
    base: str | None
    hunks: int
    problem: str | None


@dataclass(frozen=True)
class ImportReport(Report):
    """What ``import`` made of a foreign change.

    :ivar feature: the id; :ivar title: the subject of the change.
    :ivar files: in the order in which they were judged.
    :ivar outcomes: release and how the whole change lands there, oldest first.
    :ivar releases: the range that the new variants serve; ``None`` where nothing was written.
    :ivar merged: the first release that has the change itself.
    :ivar folder: the new feature; ``None`` where nothing was written.
    """

    _command: ClassVar[str] = "import"
    feature: str
    title: str
    commits: int
    files: tuple[ImportedFile, ...]
    outcomes: tuple[tuple[str, Outcome], ...] = ()
    releases: str | None = None
    merged: str | None = None
    folder: Path | None = None

    @property
    def left_out(self) -> dict[str, int]:
        """How many files were left out, by kind."""
        kinds = [entry.fate for entry in self.files if entry.fate not in ("edited", "added")]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def concluded(
    feature: str,
    folder: Path | None,
    releases: str | None,
    review: tuple[str, ...],
    problems: int,
) -> Verdict:
    """The verdict of ``import``."""
    if problems:
        return Verdict(
            Code.NOT_IMPORTED,
            f"Nothing was written: {count(problems, 'file')} could not be placed.",
        )
    if folder is None:
        return Verdict(
            Code.NOT_IMPORTED,
            f"Nothing was written: {feature} lands on none of the releases; see above.",
        )
    if review:
        return Verdict(
            Code.IMPORT_REVIEW,
            f"Wrote {folder} for {releases}, where it was merged: review it before you apply it.",
        )
    return Verdict(
        Code.IMPORTED, f"Wrote {folder} for {releases}; `overlay check --patches` tries it."
    )


def lines(report: ImportReport) -> Iterator[Line]:
    """The report for people, the verdict aside."""
    carried = [entry for entry in report.files if entry.fate in ("edited", "added")]
    read = f"{count(len(report.files), 'file')}, {count(report.commits, 'commit')}: {report.title}"
    yield labelled(0, "read      ", read)
    if report.left_out:
        kinds = [f"{number} {kind}" for kind, number in report.left_out.items()]
        yield labelled(0, "left out  ", enumeration(kinds))
    for entry in carried:
        if entry.problem is not None:
            yield Line((Span("! ", "bad"),), (Span(entry.problem),))
            continue
        made = "added module" if entry.fate == "added" else count(entry.hunks, "hunk")
        base = f", made on {entry.base}" if entry.base else ""
        yield labelled(0, "carried   ", f"{entry.path}  {made}{base}")
    for outcome, group in groupby(report.outcomes, key=lambda entry: entry[1]):
        names = [release for release, _ in group]
        span = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
        yield Line((Span(f"{span:<18}", "heading"),), (Span(_MEANINGS[outcome]),))


def data(report: ImportReport) -> dict[str, Any]:
    """The report's part of the JSON."""
    return {
        "feature": report.feature,
        "title": report.title,
        "commits": report.commits,
        "files": [entry._asdict() for entry in report.files],
        "outcomes": {release: outcome.value for release, outcome in report.outcomes},
        "releases": report.releases,
        "merged": report.merged,
        "folder": None if report.folder is None else str(report.folder),
    }
