"""The report of ``overlay port``: how each feature is carried, and what waits for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import ClassVar, NamedTuple

from packaging.version import Version

from overlay.authoring.porting import FeaturePort, base_name, not_needed
from overlay.errors import Command, Invocation, absolute, command
from overlay.package import ReleaseRange
from overlay.report import Report
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, Line, Span, count, enumeration, labelled
from overlay.results import Outcome


class ScopeViews(NamedTuple):
    """One scope of a file that waits.

    :ivar yours: the hunk; :ivar upstream: what upstream changed there.
    """

    scope: str
    yours: tuple[str, ...]
    upstream: tuple[str, ...]


class OpenFile(NamedTuple):
    """A file of a session that waits for a person.

    :ivar file: the file to edit; ``None`` where none is there.
    :ivar markers: 1-based lines of markers that are left in it.
    :ivar merge: the regions between markers.
    """

    feature: str
    topic: str
    path: str
    base: str
    file: Path | None
    markers: tuple[int, ...] = ()
    scopes: tuple[ScopeViews, ...] = ()
    merge: tuple[str, ...] = ()


@dataclass(frozen=True)
class PortReport(Report):
    """What ``port`` found, wrote, and left for a person.

    :ivar features: by release, in the order of the series.
    :ivar session: the folder in which conflicts are resolved; ``None`` where there is none.
    :ivar open: the files of the session that wait.
    """

    _command: ClassVar[str] = "port"
    _key: ClassVar[str] = "port"
    features: tuple[FeaturePort, ...] = ()
    session: Path | None = None
    open: tuple[OpenFile, ...] = ()

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        several = len({entry.release for entry in self.features}) > 1
        width = max((len(entry.feature.id) for entry in self.features), default=0)
        for _, group in groupby(self.features, key=_alike):
            entries = list(group)
            entry = entries[0]
            label = f"{entry.feature.id:<{width}}  "
            if several:
                last = f"..{entries[-1].release}" if len(entries) > 1 else ""
                label += f"{entry.release + last:<16}  "
            head = Span(f"{_word(entry):<16}", _STYLES[entry.outcome])
            yield Line((Span(label, "heading"), head), (Span(_summary(entry)),))
            for topic, hunk in entry.to_look_at:
                place = f"{topic.path} {hunk.scope}" + (f", line {hunk.line}" if hunk.line else "")
                yield labelled(4, f"{hunk.outcome.value}  ", f"{place} ({topic.topic})")
            if entry.why is not None:
                yield labelled(4, "why  ", entry.why)
            for warning in entry.warnings:
                yield labelled(4, "look at  ", warning, "warning")
        for file in self.open:
            yield BLANK
            yield from open_lines(file)


def concluded(
    features: tuple[FeaturePort, ...],
    targets: Sequence[str],
    session: Path | None,
    *,
    write: bool,
    notable: Sequence[str] = (),
) -> Verdict:
    """The verdict of ``port``.

    :param targets: the releases that were asked for; others lie between them and a range.
    :param notable: the features of which ``--write`` would note that upstream has them.
    """
    stuck = [entry for entry in features if entry.conflicts and entry.release in targets]
    review = [entry for entry in features if entry.review and not entry.settled]
    review = [entry for entry in review if entry.release in targets]
    if stuck or review:
        waits = [f"{len(review)} to review"] * bool(review)
        waits += [f"{len(stuck)} to resolve"] * bool(stuck)
        code = Code.PORT_CONFLICTS if stuck else Code.PORT_REVIEW
        if session is None:
            way = "name one release" if len(targets) > 1 else "omit --dry-run"
            step = f"{way} to open a session" if stuck else "--write --accept merged"
            return Verdict(code, f"Action needed: {enumeration(waits)}; {step}.")
        shows, continues = (_on(session, option) for option in ("--show", "--continue"))
        step = f"{shows}, edit, {continues}"
        return Verdict(code, f"Action needed: {enumeration(waits)} in {session}: {step}.")
    waiting = [entry for entry in features if not entry.settled and entry.release in targets]
    written = [entry for entry in features if entry.written]
    if (waiting or notable) and not write:
        names = enumeration(list(dict.fromkeys(entry.feature.id for entry in waiting)))
        parts = [f"{names} can be ported"] * bool(waiting)
        parts += [f"upstream has {enumeration(list(notable))}"] * bool(notable)
        text = f"Nothing needs you: {' and '.join(parts)}; `--write` writes that."
        return Verdict(Code.CAN_BE_PORTED, text)
    if written:
        names = enumeration(list(dict.fromkeys(entry.feature.id for entry in written)))
        releases = enumeration(list(dict.fromkeys(entry.release for entry in written)))
        gaps = [
            (entry.feature.id, entry.release)
            for entry in features
            if not entry.settled and entry.release not in targets
        ]
        return _ported(names, releases, gaps, written)
    return Verdict(
        Code.NOTHING_TO_PORT,
        "Nothing to port: every feature serves these releases, or has nothing to do there.",
    )


def waiting(session: Path, files: tuple[OpenFile, ...]) -> Verdict:
    """The verdict of ``port --show`` and of what leaves a session open."""
    marked = sum(bool(entry.markers) for entry in files)
    lacking = list(dict.fromkeys(entry.feature for entry in files if entry.file is None))
    code, goes_on = Code.PORT_CONFLICTS, _on(session, "--continue")
    if marked:
        text = f"{count(marked, 'file')} with conflicts in {session}: edit, then {goes_on}."
    elif lacking:
        ways = f"{_on(session, '--retire', 'ID')} or {_on(session, '--skip', 'ID')}"
        text = f"no file is there to be edited for {enumeration(lacking)}: {ways}."
    else:
        code, number = Code.PORT_REVIEW, count(len(files), "file")
        text = f"review {number} in {session}, then {goes_on} takes them as they are."
    return Verdict(code, f"Action needed: {text}")


def _on(session: Path, *options: str) -> Command:
    """The command that does something with a session, in any working folder."""
    return command("port", *options, absolute(session))


def aborted(session: Path) -> Verdict:
    """The verdict of ``port --abort``."""
    text = f"The session {session} was removed; the patches are as they were."
    return Verdict(Code.PORT_ENDED, text)


def ended(
    session: Path,
    features: tuple[FeaturePort, ...],
    holes: Sequence[tuple[str, str]] = (),
    *,
    emptied: bool = True,
) -> Verdict:
    """The verdict of ``port --continue`` and of what ends a session.

    :param holes: id and release of each hole that is left inside a feature's range.
    """
    rest = "" if emptied else f" {session} holds other files and stays."
    if not features:
        end = f"the session {session} was removed." if emptied else f"the session is over.{rest}"
        return Verdict(Code.PORT_ENDED, f"No conflicts are left; {end}")
    names = enumeration([entry.feature.id for entry in features])
    verdict = _ported(names, features[0].release, holes, features)
    return Verdict(verdict.code, f"{verdict.text}{rest}")


def placed(
    folder: Path, releases: ReleaseRange | None, session: Path | None, *, emptied: bool = True
) -> Verdict:
    """The verdict of a foreign change that was placed and written as a feature."""
    rest = "" if emptied or session is None else f" {session} holds other files and stays."
    check = Invocation(patches=(absolute(folder.parent),)).command("check")
    return Verdict(Code.PORTED, f"Wrote {folder} for {releases}; {check} tries it.{rest}")


def _ported(
    names: str, releases: str, holes: Sequence[tuple[str, str]], features: Sequence[FeaturePort]
) -> Verdict:
    """The verdict of what was written, with what it left between."""
    if not holes and all(entry.outcome is Outcome.UPSTREAM for entry in features):
        text = f"Noted that upstream has {names} in {releases}; {command('check')} tries it."
        return Verdict(Code.PORTED, text)
    if not holes:
        return Verdict(Code.PORTED, f"Ported {names} to {releases}; {command('check')} tries it.")
    gaps = enumeration(list(dict.fromkeys(release for _, release in holes)))
    id_, release = holes[0]
    return Verdict(
        Code.HOLES,
        f"Action needed: ported {names} to {releases}, but nothing serves {gaps} in between; "
        f"{command('port', id_, '--releases', release)} goes on.",
    )


_STYLES = {
    Outcome.UPSTREAM: "upstreamed",
    Outcome.EXACT: "pristine",
    Outcome.MERGED: "warning",
    Outcome.MOVED: "warning",
    Outcome.PARTLY: "warning",
    Outcome.CONFLICT: "bad",
    Outcome.MISSING: "bad",
}


def _alike(entry: FeaturePort) -> tuple[object, ...]:
    """What releases have in common that are shown in one line; lines differ everywhere."""
    hunks = tuple((t.topic, t.path, h.scope, h.outcome) for t, h in entry.to_look_at)
    return entry.feature.id, _word(entry), _summary(entry), hunks, entry.warnings, entry.why


def _word(entry: FeaturePort) -> str:
    if entry.obsolete or (entry.idle and not_needed(entry.feature, Version(entry.release))):
        return "nothing to do"
    if entry.covered and entry.outcome is not Outcome.UPSTREAM:
        return "in its range"
    return entry.outcome.value


def _summary(entry: FeaturePort) -> str:
    if entry.evidence or entry.obsolete:
        return entry.evidence or entry.obsolete
    if entry.covered:
        return ""
    total = sum(entry.counts.values())
    parts = [f"{number} {outcome.value}" for outcome, number in entry.counts.items()]
    summary = f"{total} of {total} hunks" if len(parts) == 1 else f"{enumeration(parts)} of {total}"
    if not total:
        summary = "added modules only"
    base = f", from {enumeration([*map(base_name, entry.bases)])}" if entry.bases else ""
    return f"{summary}{base}{'; written' if entry.written else ''}"


def open_lines(file: OpenFile) -> Iterator[Line]:
    """What waits in one file, for people."""
    place = "no file is there to be edited" if file.file is None else str(file.file)
    yield Line((Span(f"{file.feature}  {file.path}  ", "heading"),), (Span(place),))
    for scope, yours, upstream in file.scopes:
        yield labelled(2, "scope     ", f"{scope}, base {base_name(file.base)}")
        yield from _block("upstream  ", upstream or ("nothing changed there",))
        yield from _block("yours     ", yours)
    if file.merge:
        yield from _block("merge     ", file.merge)


def _block(label: str, texts: tuple[str, ...]) -> Iterator[Line]:
    for number, text in enumerate(texts):
        yield labelled(2, label if number == 0 else " " * len(label), text)
