"""``overlay log --matrix``: every feature on every release, and how a port would land elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

from packaging.version import Version

from overlay._features.model import Feature, Topic, of_package, packages_of
from overlay.authoring.carry import carry
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import not_needed
from overlay.authoring.releases import package_of
from overlay.commands.assess import examine
from overlay.commands.parallel import cores, in_processes, stepped
from overlay.commands.request import Request
from overlay.errors import command
from overlay.package import VLLM, Package
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import Syntax
from overlay.planning.upstream import by_distance, module_outcome, obsolete_by
from overlay.report import Cell, Report, Table, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, Line, Span, count, enumeration, is_are, labelled
from overlay.report.progress import counting
from overlay.results import Outcome, State, whole_outcome
from overlay.targets import resolution
from overlay.targets.resolution import release_named, releases, spelt

A = TypeVar("A")

B = TypeVar("B")

#: The states in which it is of interest how a port would land.
_CARRIED = (State.INAPPLICABLE, State.PARTIAL, State.DRIFTED, State.MISSING)


def matrix(request: Request, span: str | None = None) -> MatrixReport:
    """Every feature for a package on every release of it, and the ids of those for others."""
    names = releases("all" if span is None else span)
    package = package_of(names)
    every = request.at_hand()
    features = of_package(every, package)
    spellings = [spelt(release, package) for release in package.releases]
    bases = tuple(dict.fromkeys((*spellings, *names)))
    texts = ReleaseTexts(
        bases, lambda release: resolution.resolve(release, progress=request.progress)
    )
    columns = _each(partial(_states, features), names, request, "read", "release")
    carrying = _Carrying(texts, Memo())
    carried = [
        [name for name, column in zip(names, columns, strict=True) if column[at] in _CARRIED]
        for at in range(len(features))
    ]
    questions = list(zip(features, carried, strict=True))
    outcomes = _each(carrying.outcomes, questions, request, "carried", "feature")
    rows = tuple(
        MatrixRow(
            feature.id,
            tuple(
                MatrixCell(
                    name, column[at], outcomes[at].get(name), _not_needed(feature, column[at], name)
                )
                for name, column in zip(names, columns, strict=True)
            ),
        )
        for at, feature in enumerate(features)
    )
    elsewhere = tuple(_elsewhere(every, other) for other in packages_of(every) if other != package)
    return MatrixReport(matrix_of(rows), tuple(names), rows, elsewhere)


def _elsewhere(features: Sequence[Feature], package: Package) -> Elsewhere:
    """The features for a package that the matrix does not show."""
    own = of_package(features, package)
    span = "all"
    if not package.releases:
        first = min(feature.releases.first for feature in own)
        span = f"{first}..{max(feature.releases.last for feature in own)}"
    ids = tuple(feature.id for feature in own)
    return Elsewhere(package.title, ids, f"{package.distribution}=={span}")


def _each(
    work: Callable[[A], B], things: Sequence[A], request: Request, verb: str, noun: str
) -> list[B]:
    """``work`` on each thing, in as many processes as there are cores."""
    workers = min(cores(), len(things))
    with counting(request.progress, verb, len(things), noun) as step:
        if workers < 2 or not hasattr(os, "fork"):
            return stepped(map(work, things), step)
        return in_processes(work, things, workers, step, alike=True)


def _states(features: tuple[Feature, ...], release: str) -> list[State]:
    return [
        result.state for result in examine(resolution.resolve(release), features).report.features
    ]


@dataclass(frozen=True)
class _Carrying:
    """Tells how ports would land; questions feature by feature, since releases share most texts."""

    texts: ReleaseTexts
    syntax: Syntax

    def outcomes(self, question: tuple[Feature, Sequence[str]]) -> dict[str, Outcome | None]:
        """How ports of a feature to releases, the question, would land."""
        feature, names = question
        carried: dict[tuple[str, bytes], Outcome] = {}
        return {name: self._outcome(feature, name, carried) for name in names}

    def _outcome(
        self, feature: Feature, release: str, carried: dict[tuple[str, bytes], Outcome]
    ) -> Outcome | None:
        """How a port of a feature would land, judged topic by topic from the variant nearest to it.

        :returns: ``None`` where no variant tells the text that it was made on, or the release has
            what the feature is for no more.
        """
        pair = release_named(release)
        read, record = partial(self.texts.read, release), self.texts.record(release)
        if obsolete_by(feature, None if pair is None else pair[0], read, record) is not None:
            return None
        outcomes: list[Outcome | None]
        outcomes = [self._topic(topic, release, carried) for topic in feature.topics]
        outcomes += (module_outcome(added, read) for added in feature.added)
        definite = [outcome for outcome in outcomes if outcome is not None]
        return whole_outcome(definite) if definite and len(definite) == len(outcomes) else None

    def _topic(
        self, topic: Topic, release: str, carried: dict[tuple[str, bytes], Outcome]
    ) -> Outcome | None:
        pair = release_named(release)
        variant = by_distance(topic.variants, pair[0] if pair else Version(release))[0]
        patch = variant.patch
        if patch.retired:
            return Outcome.UPSTREAM
        last = str(variant.releases.last)
        package = VLLM if pair is None else pair[1]
        base = spelt(patch.headers.get("Base", last), package)
        if base not in self.texts.names:
            return None
        before = self.texts.read(base, patch.path)
        if before is None:
            return None
        there = self.texts.read(release, patch.path)
        if there is None:
            return Outcome.MISSING
        key = patch.name, there
        if key not in carried:
            carried[key] = carry(before, patch.hunks, there, self.syntax).outcome
        return carried[key]


def _not_needed(feature: Feature, state: State, release: str) -> bool:
    pair = release_named(release)
    version = pair[0] if pair else Version(release)
    return state in _STATES and not_needed(feature, version)


# The report


class MatrixCell(NamedTuple):
    """A feature on one release in the matrix.

    :ivar outcome: how a port would land there, where it does not apply or is not made for it.
    :ivar not_needed: whether parts of it are not applied there, since a person said so.
    """

    release: str
    state: State
    outcome: Outcome | None = None
    not_needed: bool = False

    @property
    def letter(self) -> str:
        """The letter of the matrix."""
        if self.not_needed:
            return "n"
        if self.state in _STATES:
            return _STATES[self.state]
        if self.outcome in (None, Outcome.EXACT) and self.state is not State.INAPPLICABLE:
            return "d"  # inside its range, where something else than its lines prevents it
        return _OUTCOMES[self.outcome] if self.outcome is not None else "-"


_STATES = {State.APPLIED: "P", State.PRISTINE: "P", State.UPSTREAMED: "U", State.AMBIGUOUS: "a"}

_OUTCOMES = {
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
    ("n", "applies without a part that is not needed there (`overlay log ID` names it)"),
    ("p", "would land, outside its range"),
    ("3", "merges, for review"),
    ("h", "upstream has a part"),
    ("c", "conflict"),
    ("M", "a file or scope is missing"),
    ("a", "ambiguous"),
    ("d", "does not apply"),
    ("-", "not made for it"),
)


class MatrixRow(NamedTuple):
    """A feature on every release, oldest first."""

    feature: str
    cells: tuple[MatrixCell, ...]

    def plain(self) -> dict[str, Any]:
        """The letters in one text; states and outcomes side by side."""
        return {
            "feature": self.feature,
            "letters": "".join(cell.letter for cell in self.cells),
            "states": [cell.state.value for cell in self.cells],
            "outcomes": [plain(cell.outcome) for cell in self.cells],
        }


class Elsewhere(NamedTuple):
    """The features for another package, which a matrix does not show."""

    package: str
    features: tuple[str, ...]
    releases: str


@dataclass(frozen=True)
class MatrixReport(Report):
    """Every feature for one package on every release of it."""

    _command: ClassVar[str] = "log"
    _key: ClassVar[str] = "matrix"
    releases: tuple[str, ...]
    features: tuple[MatrixRow, ...]
    elsewhere: tuple[Elsewhere, ...] = ()

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """Releases as columns of one letter."""
        table = self.table()
        width = max(map(len, table.rows), default=0)
        # The package is the same in all of them, and told in the last line.
        names = [name.rpartition("==")[2] for name in self.releases]
        height = max(map(len, names), default=0)
        for letters in zip(*(name.ljust(height) for name in names), strict=True):
            yield Line((Span(" " * (width + 2)), Span("".join(letters), "muted")))
        for name, cells in table.rows.items():
            letters_of_row = (Span(cell.text, cell.style) for cell in cells)
            yield Line((Span(f"{name:<{width}}  "), *letters_of_row))
        yield BLANK
        for letter, meaning in table.legend.items():
            yield labelled(2, f"{letter}  ", meaning)
        yield from table.notes

    def table(self) -> Table:
        """Releases as columns, features as rows, and what the letters mean."""
        rows = {
            row.feature: tuple(
                Cell(cell.letter, cell.state.value, f"{cell.release}: {cell.state.value}")
                for cell in row.cells
            )
            for row in self.features
        }
        letters = {cell.text for cells in rows.values() for cell in cells}
        legend = {letter: meaning for letter, meaning in LEGEND if letter in letters}
        return Table("feature", self.releases, rows, legend, tuple(map(_not_shown, self.elsewhere)))


def _not_shown(other: Elsewhere) -> Line:
    """Features that a matrix does not show, with the command that does."""
    step = command("log", "--matrix", "--releases", other.releases)
    which = f"{enumeration(list(other.features))} {is_are(other.features)}"
    return labelled(2, "not shown: ", f"{which} for {other.package}: {step}")


def matrix_of(rows: Sequence[MatrixRow]) -> Verdict:
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
