"""Reports of ``overlay import``: what was read, what became of each file, where it lands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from overlay.authoring.triage import FileFate
from overlay.errors import told_once
from overlay.report.base import Report, by_fields, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, Line, Span, labelled
from overlay.report.words import count, enumeration
from overlay.results import Fate, Outcome
from overlay.results.invocation import Invocation, absolute

#: The width of a range of vLLM's releases in a report.
_SPAN = 16

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


@dataclass(frozen=True)
class ImportReport(Report):
    """What ``import`` made of a foreign change.

    :ivar feature: the id; :ivar title: the subject of the change.
    :ivar files: in the order in which they were judged.
    :ivar outcomes: release -> how the whole change lands there, oldest first.
    :ivar releases: the range that the new variants serve; ``None`` where nothing was written.
    :ivar merged: the first release that has the change itself.
    :ivar folder: the new feature; ``None`` where nothing was written.
    :ivar taken: path of an added module -> the releases that have another file of that name.
    :ivar warnings: what looks wrong although it was written.
    """

    _command: ClassVar[str] = "import"
    _key: ClassVar[str] = "import"
    feature: str
    title: str
    commits: int
    files: tuple[FileFate, ...]
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    releases: str | None = None
    merged: str | None = None
    folder: Path | None = None
    taken: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def error(self) -> str | None:
        """Why files could not be placed, a sentence for each cause."""
        return "\n".join(_told([self])) or None

    @property
    def carried(self) -> tuple[FileFate, ...]:
        """The files that are edited or added, or should have been."""
        return tuple(entry for entry in self.files if entry.fate in (Fate.EDITED, Fate.ADDED))

    @property
    def left_out(self) -> dict[str, int]:
        """How many files were left out, by kind."""
        others = [entry.fate for entry in self.files if entry not in self.carried]
        kinds = [fate.value for fate in others]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        read = f"{count(len(self.files), 'file')}, {count(self.commits, 'commit')}: {self.title}"
        yield labelled(0, "read      ", read)
        if self.left_out:
            kinds = [f"{number} {kind}" for kind, number in self.left_out.items()]
            yield labelled(0, "left out  ", enumeration(kinds))
        for entry in self.carried:
            if entry.problem is not None:
                continue  # told as the report's error
            made = "added module"
            if entry.fate is Fate.EDITED:
                base = entry.base or "a text that only --base has"
                made = f"{count(entry.hunks, 'hunk')}, made on {base}"
            yield labelled(0, "carried   ", f"{entry.path}  {made}")
        for path, releases in self.taken.items():
            yield labelled(0, "taken     ", f"{path}  another file in {enumeration(releases)}")
        yield from landings(self.outcomes)
        edited = [entry.path for entry in self.files if entry.fate is Fate.EDITED]
        yield from on_disk_only(edited, self.releases)
        for warning in self.warnings:
            yield labelled(0, "warning:  ", warning)

    def plain(self) -> dict[str, Any]:
        """The fields of the JSON, which has warnings only where there are any."""
        return by_fields(self, "conclusion", "taken", *([] if self.warnings else ["warnings"]))


@dataclass(frozen=True)
class SeriesReport(Report):
    """What ``import --each`` made of several commits: a feature each, on top of each other.

    :ivar imports: in the order of the commits.
    """

    _command: ClassVar[str] = "import"
    imports: tuple[ImportReport, ...]

    @property
    def error(self) -> str | None:
        """Why files could not be placed, a sentence for each cause."""
        return "\n".join(_told(self.imports)) or None

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        for entry in self.imports:
            yield Line((Span(entry.feature, "heading"),))
            yield from entry.own_lines()
            yield BLANK

    def own_data(self) -> dict[str, Any]:
        """The reports, without a key of their own."""
        return {"imports": plain(self.imports)}


def _told(imports: Iterable[ImportReport]) -> list[str]:
    """Why files could not be placed."""
    return told_once(
        (entry.path, entry.problem) for each in imports for entry in each.files if entry.problem
    )


def series(imports: tuple[ImportReport, ...]) -> SeriesReport:
    """The report of a series, which is written as a whole or not at all."""
    # A commit of tests alone is left out, and nothing is wrong with it.
    carried = [entry for entry in imports if entry.carried] or list(imports)
    worst = max(carried, key=lambda entry: int(entry.exit))
    written = [entry.feature for entry in imports if entry.folder is not None]
    if written:
        text = f"Wrote {count(len(written), 'feature')}: {enumeration(written)}."
        if worst.code is Code.IMPORT_REVIEW:
            text = f"{text[:-1]}; review what was merged before you apply it."
    elif unplaced := sum(entry.problem is not None for each in imports for entry in each.files):
        text = _not_placed(unplaced)
    else:
        text = worst.verdict
    return SeriesReport(Verdict(worst.code, text), imports)


def concluded(
    feature: str,
    folder: Path | None,
    releases: str | None,
    review: tuple[str, ...],
    problems: int,
    carried: int,
    taken: Sequence[str] = (),
) -> Verdict:
    """The verdict of ``import``.

    :param problems: files that could not be placed; :param carried: files edited or added.
    :param taken: paths of added modules that are other files in some release.
    """
    if problems:
        return Verdict(Code.NOT_PLACED, _not_placed(problems))
    if not carried:
        return Verdict(
            Code.NOT_IMPORTED, "Nothing was written: the change has no Python module of vllm/."
        )
    if folder is None:
        why = "see above"
        if taken:
            there = (
                "is a file of its own there" if len(taken) == 1 else "are files of their own there"
            )
            why = f"{enumeration(taken, most=3)} {there}: give the added module another name"
        return Verdict(
            Code.NOT_IMPORTED,
            f"Nothing was written: {feature} lands on none of the releases; {why}.",
        )
    if review:
        return Verdict(
            Code.IMPORT_REVIEW,
            f"Wrote {folder} for {releases}, where it was merged: review it before you apply it.",
        )
    check = Invocation(patches=(absolute(folder.parent),)).command("check")
    return Verdict(Code.IMPORTED, f"Wrote {folder} for {releases}; {check} tries it.")


def _not_placed(files: int) -> str:
    return f"Nothing was written: {count(files, 'file')} could not be placed."


def landings(outcomes: Mapping[str, Outcome]) -> Iterator[Line]:
    """A line for each run of releases on which a change lands alike.

    :param outcomes: by release, oldest first.
    """
    runs: list[tuple[str, Outcome]] = []
    for outcome, group in groupby(outcomes.items(), key=lambda entry: entry[1]):
        names = [release for release, _ in group]
        runs.append((names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}", outcome))
    width = max([_SPAN, *(len(span) for span, _ in runs)])
    for span, outcome in runs:
        yield Line((Span(f"{span:<{width}}  ", "heading"),), (Span(_MEANINGS[outcome]),))


def on_disk_only(paths: Iterable[str], releases: str | None) -> Iterator[Line]:
    """A note where a feature that was written cannot be patched in memory.

    :param paths: the modules that it edits; :param releases: its range, ``None`` where there is
        no feature.
    """
    if releases is None:
        return
    from packaging.version import Version

    from overlay.features.early_modules import early_among, why_on_disk

    if early := early_among(paths, Version(releases.rpartition("..")[2])):
        yield labelled(0, "note: ", f"it cannot be patched in memory: {why_on_disk(early)}")
