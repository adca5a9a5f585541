"""Reports of ``overlay new`` and ``overlay edit``: features made and changed by editing files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from overlay.authoring.reports.imported import landings, on_disk_only
from overlay.report.base import Report
from overlay.report.codes import Code, Verdict
from overlay.report.lines import Line, Span, labelled
from overlay.report.targets import beside_lines
from overlay.report.words import count, enumeration
from overlay.results import Fate, Outcome
from overlay.results.invocation import absolute, command


class AuthoredHunks(NamedTuple):
    """How many hunks of a file are in one scope."""

    scope: str
    number: int


class AuthoredFile(NamedTuple):
    """One file of a feature that was made or changed by editing.

    :ivar hunks: by scope, in the order of the file.
    :ivar stacks_on: ids of the features whose text the hunks are made on.
    :ivar problem: why it could not be carried.
    """

    path: str
    fate: Fate
    hunks: tuple[AuthoredHunks, ...] = ()
    stacks_on: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class NewReport(Report):
    """What ``new --from-edits`` made of the edits of an installed vLLM.

    :ivar target: what the user named; :ivar release: of the vLLM there.
    :ivar outcomes: release and how the whole change lands there, oldest first.
    :ivar releases: the range that the new variants serve; ``None`` where nothing was written.
    :ivar merged: the first release that has the change itself.
    :ivar unread: releases that could not be tried, with the reason.
    :ivar folder: the new feature; ``None`` where nothing was written.
    :ivar beside: path of what was changed and is no module, which no feature carries, and what was
        done to it.
    """

    _command: ClassVar[str] = "new"
    feature: str
    target: str
    release: str
    files: tuple[AuthoredFile, ...]
    outcomes: tuple[tuple[str, Outcome], ...] = ()
    releases: str | None = None
    merged: str | None = None
    unread: tuple[tuple[str, str], ...] = ()
    folder: Path | None = None
    beside: tuple[tuple[str, str], ...] = ()

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        return lines(self)

    def own_data(self) -> dict[str, Any]:
        """The report's own part of the JSON."""
        others = [{"path": path, "what": what} for path, what in self.beside]
        return {"new": {**data(self), "beside": others}}


class EditAction(Enum):
    """What ``edit`` did with a session."""

    BEGUN = "begun"
    GROWN = "grown"
    COMMITTED = "committed"
    UNCHANGED = "unchanged"
    ABORTED = "aborted"


@dataclass(frozen=True)
class EditReport(Report):
    """What ``edit`` did.

    :ivar release: the release whose files the session holds; :ivar session: its folder.
    :ivar releases: the range that got the edit; ``None`` where nothing was written.
    :ivar left: releases of the feature that keep what they had, because the edit does not land
        there or they could not be read.
    :ivar folder: the feature; ``None`` where nothing was written.
    :ivar merged: the first release that has the feature by its ``feature.toml``, once that is
        written: releases from it on get nothing of the edit.
    :ivar without: ids of features before it that the session's files do not have applied, since
        they do not fit the release, or not beside it.
    """

    _command: ClassVar[str] = "edit"
    feature: str
    action: EditAction
    release: str
    session: Path
    files: tuple[AuthoredFile, ...] = ()
    releases: str | None = None
    left: tuple[str, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    folder: Path | None = None
    merged: str | None = None
    without: tuple[str, ...] = ()

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        return lines(self)

    def own_data(self) -> dict[str, Any]:
        """The report's own part of the JSON."""
        return {"edit": data(self)}


# Verdicts


def made_new(
    feature: str,
    files: Sequence[AuthoredFile],
    folder: Path | None,
    releases: str | None,
    beside: Sequence[tuple[str, str]] = (),
) -> Verdict:
    """The verdict of ``new --from-edits``.

    :param beside: path and change of each file that is not a module.
    """
    problems = sum(file.problem is not None for file in files)
    if problems:
        carried = count(problems + len(beside), "file")
        text = f"Nothing was written: {carried} could not be carried; see above."
        return Verdict(Code.NOT_MADE, text)
    if not files:
        text = "Nothing was written: no module differs from the release or from the patches."
        if beside:
            text = f"{text[:-1]}, and a feature carries nothing else: {not_carried(beside)}."
        return Verdict(Code.NOTHING_EDITED, text)
    if folder is None:
        text = f"Nothing was written: {feature} lands on none of the releases; see above."
        return Verdict(Code.NOT_MADE, text)
    step = f"{command('revert', '--keep-as', feature)} takes them out"
    text = f"Wrote {folder} for {releases}; the edits stay in place: {step}."
    if beside:
        text = f"{text[:-1]}; not in it, since a feature carries modules: {not_carried(beside)}."
        return Verdict(Code.KEPT_IN_PART, text)
    return Verdict(Code.MADE, text)


def not_carried(beside: Sequence[tuple[str, str]]) -> str:
    """Which changed files are not modules, in a sentence."""
    return enumeration([f"{path} ({what})" for path, what in beside])


def edited(
    action: EditAction,
    feature: str,
    session: Path,
    releases: str | None = None,
    left: Sequence[str] = (),
    *,
    emptied: bool = True,
) -> Verdict:
    """The verdict of ``edit``.

    :param emptied: whether nothing of the session's folder is left after a commit.
    """
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
    if left:
        which = enumeration(list(left), most=4)
        text = (
            f"Committed {feature} for {releases}; {which} {'has' if len(left) == 1 else 'have'} "
            f"what was there before: {command('port', feature, left[-1])} carries the edit "
            f"there.{rest}"
        )
        return Verdict(Code.COMMITTED_IN_PART, text)
    return Verdict(Code.COMMITTED, f"Committed {feature} for {releases}.{rest}")


# Text


def lines(report: NewReport | EditReport) -> Iterator[Line]:
    """The report for people, the verdict aside."""
    width = max((len(file.path) for file in report.files), default=0)
    for file in report.files:
        if file.problem is not None:
            yield Line((Span("! ", "bad"),), (Span(file.problem),))
            continue
        yield Line((Span(f"{file.path:<{width}}  "),), (Span(_said(file)),))
    if isinstance(report, NewReport):
        yield from beside_lines(report.beside)
        yield from landings(report.outcomes)
        edited = [file.path for file in report.files if file.fate is Fate.EDITED]
        yield from on_disk_only(edited, report.releases)
    elif report.without:
        which = enumeration(list(report.without))
        text = f"these files are without {which}, which changes the same lines or does not fit"
        yield labelled(0, "warning: ", text, "warning")
    elif report.merged is not None:
        text = (
            f"releases from {report.merged} on get nothing of this edit, since they have the "
            "feature (merged in feature.toml); what they lack of it goes into a feature of its own"
        )
        yield labelled(0, "note: ", text)
    for release, why in report.unread:
        yield labelled(0, f"{release} was not tried: ", why, "warning")


def _said(file: AuthoredFile) -> str:
    """What was made of a file, in a few words."""
    if not file.hunks:
        return "added module" if file.fate is Fate.ADDED else file.fate.value
    parts = [f"{count(each.number, 'hunk')} in {each.scope}" for each in file.hunks]
    stacked = f", on top of {enumeration(list(file.stacks_on))}" if file.stacks_on else ""
    return f"{', '.join(parts)}{stacked}"


# JSON


def data(report: NewReport | EditReport) -> dict[str, Any]:
    """The report's part of the JSON."""
    shared = {
        "feature": report.feature,
        "release": report.release,
        "files": [
            {
                "path": file.path,
                "fate": file.fate.value,
                "hunks": [each._asdict() for each in file.hunks],
                "stacks_on": list(file.stacks_on),
                "problem": file.problem,
            }
            for file in report.files
        ],
        "releases": report.releases,
        "merged": report.merged,
        "unread": dict(report.unread),
        "folder": None if report.folder is None else str(report.folder),
    }
    if isinstance(report, NewReport):
        outcomes = {release: outcome.value for release, outcome in report.outcomes}
        return {**shared, "target": report.target, "outcomes": outcomes}
    return {
        **shared,
        "action": report.action.value,
        "session": str(report.session),
        "left": list(report.left),
        "without": list(report.without),
    }
