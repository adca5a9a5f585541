"""How a change lands on releases: what is said of it, and what added modules have to do with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeVar

from packaging.version import Version

from overlay._features.model import AddedFile
from overlay._features.vllm_defaults import early_among, why_on_disk
from overlay.authoring.composing import CONTEXT
from overlay.authoring.context import FittedHunks
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.triage import FileFate
from overlay.errors import command
from overlay.package import KNOWN_RELEASES, ReleaseRange, is_module
from overlay.planning.upstream import module_outcome
from overlay.report.lines import Line, Span, count, enumeration, labelled
from overlay.results import Fate, Outcome

Value = TypeVar("Value")


class ContextKept(NamedTuple):
    """How much context the hunks of a change keep.

    :ivar fewest: lines at a side of a hunk; :ivar most: the same.
    :ivar more: the releases on which it lands by that, and would not with the usual context.
    """

    fewest: int
    most: int
    more: tuple[str, ...]

    @property
    def line(self) -> Line:
        """What is said of it."""
        lines = f"{self.fewest} to {self.most} lines"
        if self.fewest == self.most:
            lines = "no line" if not self.most else count(self.most, "line")
        text = f"{lines} around a change (--context N keeps more)"
        if self.more:
            text += f"; with {CONTEXT[0]}, {count(len(self.more), 'release')} fewer would take it"
        return labelled(0, "context   ", text)


@dataclass(frozen=True)
class Summary:
    """What became of a change, file by file and release by release.

    :ivar outcomes: release -> the worst outcome of its files, oldest first.
    :ivar review: releases whose variant was merged, and wants a person's eyes.
    :ivar holders: path of an added module -> the releases that have another file of that name.
    :ivar warnings: what looks wrong although it can be written.
    :ivar contexts: path of an edited file -> its hunks with the context that they keep.
    :ivar moved: path -> release -> the file to which upstream moved what is changed in it.
    """

    id: str
    title: str
    commits: int
    files: tuple[FileFate, ...]
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    releases: ReleaseRange | None = None
    merged: str | None = None
    review: tuple[str, ...] = ()
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    contexts: Mapping[str, FittedHunks] = field(default_factory=dict)
    moved: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def context(self) -> ContextKept | None:
        """How much context its hunks keep; ``None`` where it has none, or was told how much."""
        sides = [fitted.sides for fitted in self.contexts.values() if fitted.sides is not None]
        if not sides:
            return None
        lands = [name for name, outcome in self.outcomes.items() if outcome is Outcome.EXACT]
        more = {name for fitted in self.contexts.values() for name in fitted.more}
        fewest, most = min(low for low, _ in sides), max(high for _, high in sides)
        return ContextKept(fewest, most, tuple(name for name in lands if name in more))

    @property
    def problems(self) -> tuple[FileFate, ...]:
        """The files that prevent a complete feature."""
        return tuple(file for file in self.files if file.problem is not None)


def modules_on(added: Mapping[str, bytes], texts: ReleaseTexts) -> dict[str, dict[str, Outcome]]:
    """For each release how each added module lands there, by path."""
    files = [AddedFile(path, data) for path, data in added.items()]
    return {
        name: {file.path: module_outcome(file, partial(texts.read, name)) for file in files}
        for name in texts.names
    }


def names_taken(modules: Mapping[str, Mapping[str, Outcome]]) -> dict[str, tuple[str, ...]]:
    """The added modules whose name another file has, with the releases where it has."""
    holders: dict[str, tuple[str, ...]] = {}
    for name, outcomes in modules.items():
        for path, outcome in outcomes.items():
            if outcome is Outcome.CONFLICT:
                holders[path] = (*holders.get(path, ()), name)
    return holders


def taken_back(outcomes: Mapping[str, Outcome], names: Sequence[str]) -> Iterator[str]:
    """A warning where a change lands again behind a release that has it."""
    has = next((name for name in names if outcomes[name] is Outcome.UPSTREAM), None)
    later = [] if has is None else names_from(names, has)
    if again := [name for name in later if outcomes[name] is Outcome.EXACT]:
        span = ", ".join(again[:4]) + (f" and {len(again) - 4} more" if len(again) > 4 else "")
        yield (
            f"upstream has the change in {has}, and yet it lands exactly on {span}: upstream took "
            "it back there, or the text that it was made on was guessed wrong: compare both, or "
            "name that text with --base"
        )


def not_installed(files: Iterable[FileFate]) -> Iterator[str]:
    """A warning where a change says what is to be packed or installed beside its modules."""
    if paths := [file.path for file in files if file.fate is Fate.PACKAGING]:
        which = "they ask" if len(paths) > 1 else "it asks"
        yield (
            f"{enumeration(paths, most=4)} left out: if {which} for another version of a package, "
            "install that by hand"
        )


def names_from(names: Sequence[str], name: str) -> Sequence[str]:
    """The releases from one on."""
    return names[names.index(name) :]


# In words

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


def _runs(values: Mapping[str, Value]) -> Iterator[tuple[str, str, Value]]:
    """The runs of releases that have one value: the first release, all in words, the value."""
    for value, group in groupby(values.items(), key=lambda entry: entry[1]):
        first, *rest = (release for release, _ in group)
        yield first, f"{first}..{rest[-1]}" if rest else first, value


def landings(outcomes: Mapping[str, Outcome]) -> Iterator[Line]:
    """A line for each run of releases on which a change lands alike."""
    runs = list(_runs(outcomes))
    width = max([_SPAN, *(len(span) for _, span, _ in runs)])
    for _, span, outcome in runs:
        yield Line((Span(f"{span:<{width}}  ", "heading"),), (Span(_MEANINGS[outcome]),))


def moved_lines(moved: Mapping[str, Mapping[str, str]], id_: str) -> Iterator[Line]:
    """What is said of files that upstream moved."""
    for path, releases in moved.items():
        for first, span, place in _runs(releases):
            port = command("port", id_, "--releases", first) if id_ else None
            verb = "says how" if place.endswith(")") else "carries it there"  # a part of it
            step = f"; {port} {verb}" if port else ""
            yield labelled(0, "moved     ", f"{path}  to {place} in {span}{step}")


def on_disk_only(
    paths: Iterable[str], releases: str | None, removed: Sequence[str] = ()
) -> Iterator[Line]:
    """A note where a feature that was written cannot be patched in memory."""
    if releases is None:
        return
    paths = list(paths)
    data = next((path for path in paths if not is_module(path)), None)
    if removed or data is not None:
        what = f"it removes {removed[0]}" if removed else f"{data} is no module"
        yield labelled(0, "note: ", f"it cannot be patched in memory: {what}; apply it on disk")
        return
    first, last = (Version(text) for text in releases.split(".."))
    span = [each for text in KNOWN_RELEASES if first <= (each := Version(text)) <= last] or [last]
    early = {str(each): modules for each in span if (modules := early_among(paths, each))}
    if early:
        where = f"on {enumeration(list(early))} " if len(early) < len(span) else ""
        why = why_on_disk(sorted({name for names in early.values() for name in names}))
        yield labelled(0, "note: ", f"{where}it cannot be patched in memory: {why}")
