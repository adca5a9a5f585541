"""The report of ``overlay import``: what became of a change, by file and by release."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from overlay.authoring.landing import Summary, landings, moved_lines, on_disk_only
from overlay.authoring.triage import FileFate
from overlay.errors import Invocation, absolute, told_once
from overlay.package import is_module
from overlay.report import Report, by_fields, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, Line, Span, count, enumeration, labelled
from overlay.results import Fate, Outcome

#: The fields of a summary that the JSON has behind the others, by another name, or not at all.
_NOT_FIRST = "id", "releases", "merged", "review", "holders", "warnings", "contexts", "moved"


@dataclass(frozen=True)
class ImportReport(Report):
    """What ``import`` made of a foreign change.

    :ivar folder: where it was written; ``None`` where it was not.
    :ivar prefixes: how paths of the change begin -> how those of the package do.
    :ivar below: the features of the folder on whose text it was made.
    """

    _command: ClassVar[str] = "import"
    _key: ClassVar[str] = "import"
    summary: Summary
    folder: Path | None = None
    prefixes: Mapping[str, str] = field(default_factory=dict)
    below: tuple[str, ...] = ()

    @property
    def error(self) -> str | None:
        """Why files could not be placed, a sentence for each cause."""
        return "\n".join(_problems([self])) or None

    @property
    def carried(self) -> tuple[FileFate, ...]:
        """The files that are edited or added, or should have been."""
        return carried(self.summary.files)

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        of = self.summary
        read = f"{count(len(of.files), 'file')}, {count(of.commits, 'commit')}: {of.title}"
        yield labelled(0, "read      ", read)
        for before, after in self.prefixes.items():
            subject = f"{before} is" if before else "what names no folder is in"
            yield labelled(0, "paths     ", f"{subject} {after or 'left out'}")
        if self.below:
            yield labelled(0, "on top of ", enumeration(self.below))
        if left_out := [each.fate.value for each in of.files if each not in self.carried]:
            kinds = [f"{left_out.count(kind)} {kind}" for kind in dict.fromkeys(left_out)]
            yield labelled(0, "left out  ", enumeration(kinds))
        for entry in self.carried:
            if entry.problem is not None:
                continue  # told as the report's error
            what = "added module" if is_module(entry.path) else "added file"
            if entry.fate is Fate.EDITED:
                hunks = "removed" if entry.removes else count(entry.hunks, "hunk")
                what = f"{hunks}, made on {entry.made_on}"
            yield labelled(0, "carried   ", f"{entry.path}  {what}")
        for path, releases in of.holders.items():
            yield labelled(0, "taken     ", f"{path}  another file in {enumeration(releases)}")
        yield from landings(of.outcomes)
        yield from moved_lines(of.moved, of.id if self.folder else "")
        if self.folder is not None and of.context is not None:
            yield of.context.line
        edited = [
            entry.path
            for entry in self.carried
            if entry.fate is Fate.EDITED or not is_module(entry.path)
        ]
        removed = [entry.path for entry in self.carried if entry.removes]
        yield from on_disk_only(edited, self._releases, removed)
        for warning in of.warnings:
            yield labelled(0, "warning:  ", warning)

    def plain(self) -> dict[str, Any]:
        """The fields of the JSON, which has some only where they say something."""
        of = self.summary
        data = {"feature": of.id, **by_fields(of, *_NOT_FIRST)}
        data |= {"releases": self._releases, "merged": of.merged, "folder": plain(self.folder)}
        some = {"warnings": of.warnings, "context": of.context if self.folder else None}
        more = {"moved": of.moved, "prefixes": self.prefixes, "below": self.below}
        return data | {name: plain(each) for name, each in {**some, **more}.items() if each}

    @property
    def _releases(self) -> str | None:
        """The range that was written."""
        return str(self.summary.releases) if self.folder and self.summary.releases else None


@dataclass(frozen=True)
class SeriesReport(Report):
    """What ``import --each`` made of several commits: a feature each, on top of each other."""

    _command: ClassVar[str] = "import"
    imports: tuple[ImportReport, ...]
    placed: tuple[str, ...] = ()

    @property
    def error(self) -> str | None:
        """Why files could not be placed, a sentence for each cause."""
        return "\n".join(_problems(self.imports)) or None

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        for entry in self.imports:
            yield Line((Span(entry.summary.id, "heading"),))
            yield from entry.own_lines()
            yield BLANK
        if self.placed:
            yield labelled(0, "there     ", f"{enumeration(self.placed)}, placed by hand before")
            yield BLANK

    def own_data(self) -> dict[str, Any]:
        """The reports, without a key of their own."""
        return {"imports": plain(self.imports)}


def _problems(imports: Iterable[ImportReport]) -> list[str]:
    return told_once(
        (entry.path, str(entry.problem)) for each in imports for entry in each.summary.problems
    )


def series(imports: tuple[ImportReport, ...], placed: tuple[str, ...] = ()) -> SeriesReport:
    """The report of a series, which is written as a whole or not at all."""
    # A commit of tests alone is left out, and nothing is wrong with it.
    with_files = [entry for entry in imports if entry.carried] or list(imports)
    worst = max(with_files, key=lambda entry: int(entry.exit))
    written = [entry.summary.id for entry in imports if entry.folder is not None]
    if written:
        text = f"Wrote {count(len(written), 'feature')}: {enumeration(written)}."
        if worst.code is Code.IMPORT_REVIEW:
            text = f"{text[:-1]}; review what was merged before you apply it."
    elif unplaced := sum(len(each.summary.problems) for each in imports):
        text = _not_placed(unplaced)
    else:
        text = worst.verdict
    return SeriesReport(Verdict(worst.code, text), imports, placed)


def concluded(summary: Summary, folder: Path | None, by_hand: str) -> Verdict:
    """The verdict of ``import``."""
    if summary.problems:
        return Verdict(Code.NOT_PLACED, _not_placed(len(summary.problems)))
    if not carried(summary.files):
        return Verdict(
            Code.NOT_IMPORTED, "Nothing was written: the change has no Python module of vllm/."
        )
    if folder is None:
        why = f"see above. {by_hand[:1].upper()}{by_hand[1:]}"
        if modules := list(summary.holders):
            single = "is a file of its own there"
            there = single if len(modules) == 1 else "are files of their own there"
            why = f"{enumeration(modules, most=3)} {there}: give the added module another name"
        text = f"Nothing was written: {summary.id} lands on none of the releases; {why}."
        return Verdict(Code.NOT_IMPORTED, text)
    wrote = f"Wrote {folder} for {summary.releases}"
    if summary.review:
        text = f"{wrote}, where it was merged: review it before you apply it."
        return Verdict(Code.IMPORT_REVIEW, text)
    check = Invocation(patches=(absolute(folder.parent),)).command("check")
    return Verdict(Code.IMPORTED, f"{wrote}; {check} tries it.")


def nearest(summary: Summary) -> str:
    """The release on which a change that lands nowhere is placed most easily.

    It is the last one before the first that has it, or has a part of it; else the newest.
    """
    names = list(summary.outcomes) or [""]
    there = (Outcome.UPSTREAM, Outcome.PARTLY)
    first = next((at for at, o in enumerate(summary.outcomes.values()) if o in there), 0)
    return names[first - 1]


def _not_placed(files: int) -> str:
    return f"Nothing was written: {count(files, 'file')} could not be placed."


def carried(files: Iterable[FileFate]) -> tuple[FileFate, ...]:
    """The files that are edited or added, or should have been."""
    return tuple(entry for entry in files if entry.fate in (Fate.EDITED, Fate.ADDED))
