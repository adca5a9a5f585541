"""Reports of ``overlay log``: one feature from release to release, and all of them as a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from overlay.report.base import Cell as TableCell
from overlay.report.base import Report, Table, by_fields, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, MARK, Line, Span, aligned, causes, labelled
from overlay.report.words import count, enumeration
from overlay.results import ANY_MORE, Outcome, State
from overlay.results.invocation import command

#: How many lines of the difference between a change as carried and as merged are shown.
_MOST_LINES = 40


class Means(str, Enum):
    """The means by which a release is known to have a feature itself."""

    MEMORY = "memory"
    LINES = "lines"
    IMAGES = "images"


class Release(NamedTuple):
    """State of a feature on one release.

    :ivar means: by what upstream is known to have it; ``None`` in every other state.
    :ivar variants: the ranges of the variants that serve it, each once; of several topics there can
        be several.
    :ivar bases: the releases on which their texts were made.
    :ivar authors: who wrote them, and ``dates`` when they were last changed, by their headers.
    :ivar why: what prevents it, or what else to know about it.
    :ivar word: the state for people, where that is another word: a clash.
    """

    release: str
    state: State
    means: Means | None
    variants: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    why: str | None = None
    word: str = ""

    def plain(self) -> dict[str, Any]:
        """The fields of the JSON."""
        return by_fields(self, "word")


class Edit(NamedTuple):
    """A commit that changed the feature's folder."""

    commit: str
    date: str
    author: str
    subject: str


class Merge(NamedTuple):
    """What a checkout of vLLM knows of the upstream change.

    :ivar pull: the number of the pull request; :ivar commit: the commit that merged it.
    :ivar first: the first release that has that commit; ``None`` where no tag tells.
    :ivar others: subjects of further commits that name the pull request, such as reverts.
    :ivar difference: a diff of the changed lines, as carried and as merged.
    :ivar differing: how many changed lines only one of them has.
    """

    pull: int
    commit: str
    date: str
    first: str | None
    others: tuple[str, ...]
    difference: tuple[str, ...]
    differing: int


@dataclass(frozen=True)
class LogReport(Report):
    """One feature from release to release.

    :ivar edits: the history of its folder, the newest first; empty where there is none.
    :ivar merge: what a checkout knows of it; ``None`` where none was asked, or it has no merge.
    :ivar not_found: the pull request that a checkout was asked for and does not have.
    """

    _command: ClassVar[str] = "log"
    _key: ClassVar[str] = "log"
    feature: str
    title: str
    upstream: str
    reason: str | None
    releases: tuple[Release, ...]
    edits: tuple[Edit, ...] = ()
    merge: Merge | None = None
    not_found: int | None = None

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        yield Line((Span(self.feature, "heading"), Span("  ")), (Span(self.title, "muted"),))
        reason = f"  ({self.reason})" if self.reason else ""
        yield labelled(2, "upstream: ", f"{self.upstream or 'none named'}{reason}")
        yield BLANK
        yield from table(self.releases)
        if self.edits:
            yield BLANK
            for edit in self.edits:
                head = f"{edit.commit[:9]}  {edit.date}  {edit.author}  "
                yield Line((Span(head, "muted"),), (Span(edit.subject),))
        if self.not_found is not None:
            yield BLANK
            text = (
                f"no commit of the checkout ends with (#{self.not_found}): it is not merged there"
            )
            yield labelled(0, "merged:   ", text)
        if self.merge is not None:
            yield BLANK
            yield from _merge(self.merge)


class Cell(NamedTuple):
    """A feature on one release in the matrix.

    :ivar outcome: how a port would land there, where it does not apply or is not made for it.
    """

    release: str
    state: State
    outcome: Outcome | None = None

    @property
    def letter(self) -> str:
        """The letter of the matrix."""
        if self.state in _LETTERS:
            return _LETTERS[self.state]
        if self.outcome in (None, Outcome.EXACT) and self.state is not State.INAPPLICABLE:
            return "d"  # inside its range, where something else than its lines prevents it
        return _CARRIED[self.outcome] if self.outcome is not None else "-"


_LETTERS = {State.APPLIED: "P", State.PRISTINE: "P", State.UPSTREAMED: "U", State.AMBIGUOUS: "a"}

_CARRIED = {
    Outcome.UPSTREAM: "U",
    Outcome.EXACT: "p",
    Outcome.MERGED: "3",
    Outcome.MOVED: "3",
    Outcome.PARTLY: "h",
    Outcome.CONFLICT: "c",
    Outcome.MISSING: "M",
}

#: What the letters of the matrix mean.
LEGEND = (
    ("P", "applies"),
    ("U", "upstream has it"),
    ("p", "would land, outside its range"),
    ("3", "merges, for review"),
    ("h", "upstream has a part"),
    ("c", "conflict"),
    ("M", "a file or scope is missing"),
    ("a", "ambiguous"),
    ("d", "does not apply"),
    ("-", "not made for it"),
)


class Row(NamedTuple):
    """A feature on every release, oldest first."""

    feature: str
    cells: tuple[Cell, ...]

    def plain(self) -> dict[str, Any]:
        """The letters in one text; states and outcomes side by side."""
        return {
            "feature": self.feature,
            "letters": "".join(cell.letter for cell in self.cells),
            "states": [cell.state.value for cell in self.cells],
            "outcomes": [plain(cell.outcome) for cell in self.cells],
        }


class Elsewhere(NamedTuple):
    """The features for another package, which a matrix does not show.

    :ivar features: their ids; :ivar releases: of that package, as ``--releases`` takes them.
    """

    package: str
    features: tuple[str, ...]
    releases: str


@dataclass(frozen=True)
class MatrixReport(Report):
    """Every feature for one package on every release of it.

    :ivar elsewhere: what features there are for other packages.
    """

    _command: ClassVar[str] = "log"
    _key: ClassVar[str] = "matrix"
    releases: tuple[str, ...]
    features: tuple[Row, ...]
    elsewhere: tuple[Elsewhere, ...] = ()

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """Releases as columns of one letter."""
        width = max((len(row.feature) for row in self.features), default=0)
        # The package is the same in all of them, and told in the last line.
        names = [name.rpartition("==")[2] for name in self.releases]
        height = max(map(len, names), default=0)
        padded = [name.ljust(height) for name in names]
        for at in range(height):
            yield Line(
                (Span(" " * (width + 2)), Span("".join(name[at] for name in padded), "muted"))
            )
        used: set[str] = set()
        for row in self.features:
            spans = [Span(f"{row.feature:<{width}}  ")]
            for cell in row.cells:
                used.add(cell.letter)
                spans.append(Span(cell.letter, cell.state.value))
            yield Line(tuple(spans))
        yield BLANK
        for letter, meaning in LEGEND:
            if letter in used:
                yield labelled(2, f"{letter}  ", meaning)
        yield from self._not_shown()

    def table(self) -> Table:
        """Releases as columns, features as rows, and what the letters mean."""
        rows = {
            row.feature: tuple(
                TableCell(cell.letter, cell.state.value, f"{cell.release}: {cell.state.value}")
                for cell in row.cells
            )
            for row in self.features
        }
        letters = {cell.text for cells in rows.values() for cell in cells}
        legend = {letter: meaning for letter, meaning in LEGEND if letter in letters}
        return Table("feature", self.releases, rows, legend, tuple(self._not_shown()))

    def _not_shown(self) -> Iterator[Line]:
        """The features that a matrix does not show, with the command that does."""
        for other in self.elsewhere:
            is_ = "is" if len(other.features) == 1 else "are"
            step = command("log", "--matrix", "--releases", other.releases)
            text = f"{enumeration(list(other.features))} {is_} for {other.package}: {step}"
            yield labelled(2, "not shown: ", text)


# Verdicts


def logged(feature: str, releases: Sequence[Release]) -> Verdict:
    """The verdict of ``log ID``."""
    needy = [entry.release for entry in releases if entry.state.needs_attention]
    if needy:
        text = f"Action needed: {feature} does not apply to {enumeration(needy)}."
        return Verdict(Code.NEEDS_ATTENTION, text)
    said = []
    if fits := _spans(releases, State.PRISTINE):
        said.append(f"applies to {fits}")
    if has := _spans(releases, State.UPSTREAMED):
        said.append(f"upstream has it in {has}")
    text = f"{feature}: {'; '.join(said) or 'it is made for none of these releases'}."
    return Verdict(Code.LOGGED, text)


def _spans(releases: Sequence[Release], state: State) -> str:
    """The runs of neighbouring releases in a state, as ranges in words."""
    runs: list[list[str]] = []
    before: State | None = None
    for entry in releases:
        if entry.state is state and before is state:
            runs[-1].append(entry.release)
        elif entry.state is state:
            runs.append([entry.release])
        before = entry.state
    return enumeration([run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs])


def matrix_of(rows: Sequence[Row]) -> Verdict:
    """The verdict of ``log --matrix``."""
    needy = [row.feature for row in rows if any(cell.state.needs_attention for cell in row.cells)]
    releases = len(rows[0].cells) if rows else 0
    if needy:
        cells = sum(cell.state.needs_attention for row in rows for cell in row.cells)
        text = f"Action needed on {enumeration(needy)}: {cells} of {len(rows) * releases} cells."
        return Verdict(Code.NEEDS_ATTENTION, text)
    package = rows[0].cells[0].release.rpartition("==")[0] if releases else ""
    of = f" of {package}" if package else ""
    what = f"{count(len(rows), 'feature')} on {count(releases, 'release')}{of}"
    return Verdict(Code.LOGGED, f"Nothing needs you: {what}.")


# Text


def table(releases: Sequence[Release]) -> Iterator[Line]:
    """A line a release, and below them what prevents the feature."""
    titles = ("release", "state", "means", "variant", "base", "by", "on")
    rows = [[Span(title, "heading") for title in titles]]
    for entry in releases:
        release, state, *others = _cells(entry)
        styled = Span(state, entry.state.value)
        rows.append([Span(release), styled, *map(Span, others)])
    yield from aligned(rows)
    needy = [
        entry
        for entry in releases
        if entry.state.needs_attention
        or (entry.state is State.INAPPLICABLE and ANY_MORE in (entry.why or ""))
    ]
    names = [entry.release for entry in releases]
    yield from causes([(entry.release, entry.why) for entry in needy if entry.why], names)


def _cells(entry: Release) -> tuple[str, ...]:
    mark = f" {MARK}" if entry.state.needs_attention else ""
    means = entry.means.value if entry.means is not None else ""
    return (
        entry.release,
        (entry.word or entry.state.value) + mark,
        means,
        enumeration(entry.variants, most=2),
        enumeration(entry.bases, most=2),
        enumeration(entry.authors, most=2),
        max(entry.dates, default=""),
    )


def _merge(merge: Merge) -> Iterator[Line]:
    since = f", first in {merge.first}" if merge.first else ""
    yield labelled(0, "merged:   ", f"#{merge.pull} as {merge.commit[:9]} on {merge.date}{since}")
    for subject in merge.others:
        yield labelled(0, "also:     ", subject)
    if not merge.differing:
        yield labelled(0, "as it is: ", "upstream merged the lines that this feature carries")
        return
    yield labelled(0, "otherwise:", f" {count(merge.differing, 'line')} differ")
    for text in merge.difference[:_MOST_LINES]:
        yield Line((Span("  "),), (Span(text),))
    if (more := len(merge.difference) - _MOST_LINES) > 0:
        yield labelled(2, "", f"and {more} more; --json has all of them")
