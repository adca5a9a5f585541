"""Reports of ``overlay new`` and ``overlay edit``: features made and changed by editing files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from overlay._features.model import Hunk
from overlay.authoring.landing import ContextKept, landings, moved_lines, on_disk_only
from overlay.authoring.triage import FileFate
from overlay.errors import Command, absolute, command
from overlay.on_disk.edits import MISSING, Beside
from overlay.package import Package, is_module
from overlay.planning.matching import removed_by
from overlay.report import Report, by_fields
from overlay.report.codes import Code, Verdict
from overlay.report.lines import Line, Span, agree, count, enumeration, labelled
from overlay.report.target_text import beside_lines
from overlay.results import Fate, Outcome


class AuthoredHunks(NamedTuple):
    """How many hunks of a file are in one scope."""

    scope: str
    number: int


class AuthoredFile(NamedTuple):
    """One file of a feature that was made or changed by editing."""

    path: str
    fate: Fate
    hunks: tuple[AuthoredHunks, ...] = ()
    stacks_on: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class _Authored(Report):
    """What editing made of a feature."""

    feature: str
    release: str
    files: tuple[AuthoredFile, ...] = ()
    releases: str | None = None
    merged: str | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        width = max((len(file.path) for file in self.files), default=0)
        for file in self.files:
            if file.problem is not None:
                yield Line((Span("! ", "bad"),), (Span(file.problem),))
            else:
                yield Line((Span(f"{file.path:<{width}}  "),), (Span(_in_words(file)),))
        yield from self._further_lines()
        alike: dict[str, list[str]] = {}
        for release, why in self.unread.items():
            alike.setdefault(why.replace(release, ""), []).append(release)
        for releases in alike.values():
            head = f"{enumeration(releases)} {agree(releases, 'was', 'were')} not tried: "
            yield labelled(0, head, self.unread[releases[0]], "warning")

    def _further_lines(self) -> Iterator[Line]:
        """What is said between the files and the releases that were not tried."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NewReport(_Authored):
    """What ``new --from-edits`` made of the edits of an installed vLLM."""

    _command: ClassVar[str] = "new"
    _key: ClassVar[str] = "new"
    target: str
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    beside: tuple[Beside, ...] = ()
    context: ContextKept | None = None
    moved: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    warning: str = ""

    def _further_lines(self) -> Iterator[Line]:
        if self.warning:
            yield labelled(0, "warning: ", self.warning, "warning")
        yield from beside_lines(self.beside)
        yield from landings(self.outcomes)
        yield from moved_lines(self.moved, self.feature if self.folder else "")
        if self.context is not None:
            yield self.context.line
        paths = [
            file.path for file in self.files if file.fate is Fate.EDITED or not is_module(file.path)
        ]
        removed = [file.path for file in self.files if file.fate is Fate.REMOVED]
        yield from on_disk_only(paths, self.releases, removed)

    def plain(self) -> dict[str, Any]:
        """The fields of the JSON, which has context and moved only where there are such."""
        absent = [name for name in ("context", "moved") if not getattr(self, name)]
        return by_fields(self, "conclusion", "warning", *absent)


def not_compared(package: Package) -> str:
    """What is said where nothing tells what was changed beside the modules of a package."""
    return (
        f"files of {package.title} that are not Python were not compared, since there is no RECORD "
        "with their hashes"
    )


class EditAction(Enum):
    """What ``edit`` did with a session."""

    BEGUN = "begun"
    GROWN = "grown"
    COMMITTED = "committed"
    UNCHANGED = "unchanged"
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True)
class EditReport(_Authored):
    """What ``edit`` did; releases from ``merged`` on get nothing of the edit.

    :ivar left: releases of the feature that keep what they had, because the edit does not land
        there or they could not be read.
    :ivar without: ids of features before it that the session's files do not have applied, since
        they do not fit the release, or not beside it.
    """

    _command: ClassVar[str] = "edit"
    _key: ClassVar[str] = "edit"
    action: EditAction
    session: Path
    left: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def _further_lines(self) -> Iterator[Line]:
        if self.without:
            which = enumeration(list(self.without))
            text = f"these files are without {which}, which changes the same lines or does not fit"
            yield labelled(0, "warning: ", text, "warning")
        elif self.merged is not None:
            text = (
                f"releases from {self.merged} on get nothing of this edit, since they have the "
                "feature (merged in feature.toml); what they lack of it goes into a feature of its "
                "own"
            )
            yield labelled(0, "note: ", text)


def _in_words(file: AuthoredFile) -> str:
    if not file.hunks:
        added = "added module" if is_module(file.path) else "added file"
        return added if file.fate is Fate.ADDED else file.fate.value
    parts = [f"{count(each.number, 'hunk')} in {each.scope}" for each in file.hunks]
    stacked = f", on top of {enumeration(list(file.stacks_on))}" if file.stacks_on else ""
    return f"{', '.join(parts)}{stacked}"


def authored(
    fates: Iterable[FileFate],
    hunks: Mapping[str, Sequence[Hunk]],
    stacks: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[AuthoredFile, ...]:
    """The files of a feature, by path."""
    files = []
    for fate in fates:
        own = hunks.get(fate.path, ())
        removed = removed_by(tuple(own))
        scopes = [] if removed else [hunk.scope for hunk in own]
        counts = tuple(AuthoredHunks(each, scopes.count(each)) for each in dict.fromkeys(scopes))
        below = (stacks or {}).get(fate.path, ())
        kind = Fate.REMOVED if removed else fate.fate
        files.append(AuthoredFile(fate.path, kind, counts, below, fate.problem))
    return tuple(sorted(files, key=lambda file: file.path))


# Verdicts


def made_new(
    feature: str,
    files: Sequence[AuthoredFile],
    folder: Path | None,
    releases: str | None,
    beside: Sequence[Beside] = (),
) -> Verdict:
    """The verdict of ``new --from-edits``."""
    problems = sum(file.problem is not None for file in files)
    if problems:
        carried = count(problems + len(beside), "file")
        text = f"Nothing was written: {carried} could not be carried; see above."
        return Verdict(Code.NOT_MADE, text)
    update = () if folder is None else ("--update",)
    removing = command("new", feature, "--from-edits", "--removals", *update)
    if not files:
        text = "Nothing was written: no module differs from the release or from the patches."
        if beside:
            text = f"{text[:-1]}; left out, {_left_out(beside, removing)}."
        return Verdict(Code.NOTHING_EDITED, text)
    if folder is None:
        text = f"Nothing was written: {feature} lands on none of the releases; see above."
        return Verdict(Code.NOT_MADE, text)
    step = f"{command('revert', '--keep-as', feature)} takes them out"
    text = f"Wrote {folder} for {releases}; the edits stay in place: {step}."
    if beside:
        text = f"{text[:-1]}; not in it, {_left_out(beside, removing)}."
        return Verdict(Code.KEPT_IN_PART, text)
    return Verdict(Code.MADE, text)


def _left_out(beside: Sequence[Beside], removing: Command) -> str:
    """Why files that differ are in no feature, in a sentence; those that are missing come last."""
    missing = [f"{path} ({what})" for path, what in beside if what.startswith(MISSING)]
    uncarried = [f"{path} ({what})" for path, what in beside if not what.startswith(MISSING)]
    reasons = [f"since no feature carries it: {enumeration(uncarried)}"] if uncarried else []
    if missing:
        reasons.append(
            f"since it may be lost: {enumeration(missing)}; a reinstall brings that back, and "
            f"{removing} makes a feature that removes it"
        )
    return "; ".join(reasons)


def edited(
    action: EditAction,
    feature: str,
    session: Path,
    releases: str | None = None,
    unedited: Sequence[str] = (),
    *,
    emptied: bool = True,
) -> Verdict:
    """The verdict of ``edit``."""
    end = command("edit", "--commit", absolute(session))
    if action in (EditAction.BEGUN, EditAction.GROWN):
        text = f"Edit the files in {session}, then run {end} (or --abort)."
        return Verdict(Code.SESSION, text)
    if action is EditAction.ABORTED:
        return Verdict(Code.ABORTED, f"Removed the session {session}; {feature} is as it was.")
    if action is EditAction.UNCHANGED:
        text = (
            f"Nothing was edited in {session}: {feature} is as it was, and the session goes on. "
            f"{command('edit', '--abort', absolute(session))} removes it."
        )
        return Verdict(Code.UNCHANGED, text)
    rest = "" if emptied else f" {session} holds other files and stays."
    if unedited:
        which = enumeration(list(unedited), most=4)
        text = (
            f"Committed {feature} for {releases}; {which} "
            f"{agree(unedited, 'has', 'have')} what was there before: "
            f"{command('port', feature, '--releases', unedited[-1])} carries the edit there.{rest}"
        )
        return Verdict(Code.COMMITTED_IN_PART, text)
    return Verdict(Code.COMMITTED, f"Committed {feature} for {releases}.{rest}")


def context_changed(
    feature: str, folder: Path, number: int, patches: int, releases: str
) -> Verdict:
    """The verdict of ``edit --context``."""
    lines = count(number, "line")
    if not patches:
        text = (
            f"Nothing was written: each hunk of {feature} has {lines} of context already, or needs "
            "what it has."
        )
        return Verdict(Code.UNCHANGED, text)
    port = command("port", feature, "--releases", "all", "--write")
    text = (
        f"Wrote {count(patches, 'patch', 'patches')} of {folder} with {lines} of context where "
        f"that tells the place, for {releases}; {port} "
        "carries it to the releases on which it lands by that."
    )
    return Verdict(Code.COMMITTED, text)
