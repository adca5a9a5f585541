"""Turn a foreign change into a feature: split by file, placed in scopes, tried on every release.

Nothing is written here.  ``prepare`` gives the folder that would be written and a summary of what
was done with each file and how the change lands on each release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from overlay.authoring.carry import Carried, carry
from overlay.authoring.composing import NotComposable, compose
from overlay.authoring.incoming import Commit, IncomingFile
from overlay.authoring.locating import Base, ReleaseTexts, locate, replay
from overlay.authoring.triage import Fate, FileFate, added_content, sort_files
from overlay.authoring.variants import base_has
from overlay.authoring.writing import DerivedTest, FeatureFolder, FeatureText, render_patch
from overlay.features.model import Feature, Hunk
from overlay.package import ReleaseRange, Tree
from overlay.planning.matching import new_lines
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax, UnparsableError, find
from overlay.planning.text import SourceText, TextError
from overlay.planning.upstream import SHARE
from overlay.results import Change, Outcome, whole_outcome

_PULL = re.compile(r"\(#(\d+)\)\s*$")
_UPSTREAM = "https://github.com/vllm-project/vllm"


@dataclass(frozen=True)
class Summary:
    """What an import found and made.

    :ivar outcomes: release -> the worst outcome of its files, oldest first.
    :ivar review: releases whose variant was merged, and wants a person's eyes.
    """

    id: str
    title: str
    commits: int
    files: tuple[FileFate, ...]
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    releases: ReleaseRange | None = None
    merged: str | None = None
    review: tuple[str, ...] = ()

    @property
    def left_out(self) -> dict[Fate, int]:
        """How many files were left out, by kind."""
        kinds = (Fate.TESTS, Fate.DOCS)
        counts = {kind: sum(one.fate is kind for one in self.files) for kind in kinds}
        return {kind: count for kind, count in counts.items() if count}

    @property
    def problems(self) -> tuple[FileFate, ...]:
        """The files that prevent a complete feature."""
        return tuple(one for one in self.files if one.problem is not None)


@dataclass(frozen=True)
class Prepared:
    """An import, ready to be written.

    :ivar folder: ``None`` where nothing can be written; the summary says why.
    """

    summary: Summary
    folder: FeatureFolder | None


@dataclass(frozen=True)
class _Patched:
    """A release's files with changes."""

    texts: ReleaseTexts
    release: str
    changes: Mapping[str, Change]

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; see ``Tree``."""
        change = self.changes.get(path)
        return self.texts.read(self.release, path) if change is None else change.after


def texts_with(features: Sequence[Feature], texts: ReleaseTexts, syntax: Syntax) -> ReleaseTexts:
    """The files of releases with features applied; as they are where the features do not fit."""

    def tree(release: str) -> Tree:
        own = _Patched(texts, release, {})
        planned = plan(features, own, Version(release), syntax=syntax)
        return _Patched(texts, release, {change.path: change for change in planned.changes})

    return ReleaseTexts(texts.names, tree)


@dataclass(frozen=True)
class _Topic:
    """One edited file: the text that the change was made on, and its hunks in the strict format."""

    base: Base
    hunks: tuple[Hunk, ...]


def prepare(
    commits: Sequence[Commit],
    id_: str,
    texts: ReleaseTexts,
    *,
    source: str,
    verbatim: bytes,
    today: str,
    checkout: Path | None = None,
    partial: bool = False,
    upstream: str = "",
    syntax: Syntax | None = None,
) -> Prepared:
    """The feature that the commits, laid on each other, make.

    :param id_: the feature's id; :param texts: the releases that it may serve.
    :param source: what errors and headers call the change; :param verbatim: its own bytes.
    :param today: the date of the import, ``YYYY-MM-DD``.
    :param partial: leave out what Python alone cannot carry, instead of refusing it.
    :param upstream: the page of the pull request or commit; by default the subject may tell it.
    :param syntax: answers about texts, if they are remembered from elsewhere.
    :raises UsageError: if the change renames, deletes or replaces a file of vLLM, with the line.
    """
    edits, added, fates = sort_files(commits, partial)
    topics: list[_Topic] = []
    for path, parts in edits.items():
        fate, topic = _topic(path, parts, texts, checkout)
        fates.append(fate)
        if topic is not None:
            topics.append(topic)
    fates += [FileFate(path, Fate.ADDED) for path in added]
    first = commits[0]
    title = _title(commits, id_)
    summary = Summary(id_, title, len(commits), tuple(fates))
    if summary.problems or not (topics or added):
        return Prepared(summary, None)
    carried = _carried(topics, texts, syntax or Syntax())
    outcomes = {
        release: whole_outcome(result.outcome for result in results)
        for release, results in carried.items()
    }
    chosen = _run(outcomes, topics, texts.names)
    merged = _first_with_it(outcomes, topics, texts.names)
    if merged is not None:  # by memory: what upstream makes of it later does not count
        outcomes |= {
            name: Outcome.UPSTREAM for name in texts.names if Version(name) >= Version(merged)
        }
    summary = Summary(
        id_, title, len(commits), tuple(fates), outcomes, chosen.span, merged, chosen.review
    )
    if chosen.span is None:
        return Prepared(summary, None)
    text = FeatureText(
        id_,
        title,
        first.message or title,
        chosen.span,
        upstream or _upstream(title),
        merged,
        derived_tests((t.base.before, t.base.path, t.hunks) for t in topics),
    )
    origin = upstream or _upstream(title) or source
    headers = {**_headers(first, title, origin, today), "Base": chosen.base}
    files = {f"files/{path}": added_content(file) for path, file in added.items()}
    for number, topic in enumerate(sorted(topics, key=lambda one: one.base.path)):
        path, result = topic.base.path, carried[chosen.base][topics.index(topic)]
        own = _hunks_for(topic, chosen, result.after, texts.read(chosen.base, path))
        if chosen.review:
            headers["Ported-From"] = f"{topic.base.release or 'a checkout'} merged"
        known = base_has(own, texts.read(chosen.base, path) or topic.base.before)
        own_headers = {**headers, **({"Base-Has": "\n".join(known)} if known else {})}
        name = f"{_topic_name(number, len(topics), path)}/{chosen.span}.patch"
        files[name] = render_patch(own_headers, path, own).encode("utf-8", "surrogateescape")
    files["origin/01.patch"] = verbatim
    return Prepared(summary, FeatureFolder(text, files))


def _topic(
    path: str,
    parts: Sequence[IncomingFile],
    texts: ReleaseTexts,
    checkout: Path | None,
) -> tuple[FileFate, _Topic | None]:
    """One edited file, or why it cannot be placed."""

    def refused(problem: str, part: IncomingFile = parts[0]) -> tuple[FileFate, None]:
        return FileFate(path, Fate.EDITED, problem=f"{part.place}: {problem}"), None

    base = locate(parts[0], texts, checkout)
    if base is None:
        where = (
            "stand in no release" if checkout is None else "stand neither in a release nor there"
        )
        return refused(
            f"the lines that it changes in {path} {where}: give upstream's text with --base, a "
            "checkout of vLLM that has the commit"
        )
    after = base.after
    for part in parts[1:]:
        following = replay(after, part.hunks)
        if following is None:
            return refused(
                f"expected {path} as the change before left it, found hunks that do not stand "
                "there: two changes of the same lines, or not in their order",
                part,
            )
        after = following
    try:
        hunks = compose(base.before, after)
    except NotComposable as error:
        return refused(f"{path} cannot be said in hunks: {error}")
    except (TextError, UnparsableError) as error:
        return refused(f"{path} is not Python that can be read: {error}")
    base = Base(path, base.release, base.before, after, base.by_id)
    fate = FileFate(path, Fate.EDITED, base.release, base.by_id, len(hunks))
    return fate, _Topic(base, hunks)


def _carried(
    topics: Sequence[_Topic], texts: ReleaseTexts, syntax: Syntax
) -> dict[str, list[Carried]]:
    """Each topic carried to each release; releases with the same text are judged once."""
    known: dict[tuple[int, bytes | None], Carried] = {}
    carried: dict[str, list[Carried]] = {}
    for release in texts.names:
        results = []
        for number, topic in enumerate(topics):
            key = (number, texts.read(release, topic.base.path))
            if key not in known:
                known[key] = carry(topic.base.before, topic.hunks, key[1], syntax)
            results.append(known[key])
        carried[release] = results
    return carried


@dataclass(frozen=True)
class _Run:
    """The releases that a new feature's variants serve.

    :ivar base: the release that the hunks are made on.
    """

    span: ReleaseRange | None
    base: str = ""
    review: tuple[str, ...] = ()


def _run(outcomes: Mapping[str, Outcome], topics: Sequence[_Topic], names: Sequence[str]) -> _Run:
    """The longest run of releases around the base on which every hunk lands exactly.

    Where there is none, the newest release on which a merge is clean, for review.
    """
    if not topics:
        return _Run(ReleaseRange(Version(names[0]), Version(names[-1])), names[-1])
    bases = {topic.base.release for topic in topics} - {None}
    runs: list[list[str]] = []
    for name in names:
        if outcomes[name] is not Outcome.EXACT:
            continue
        if runs and names.index(name) == names.index(runs[-1][-1]) + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    if runs:
        best = max(runs, key=lambda run: (len(bases & set(run)), len(run), Version(run[-1])))
        held = [name for name in best if name in bases]
        span = ReleaseRange(Version(best[0]), Version(best[-1]))
        return _Run(span, held[-1] if held else best[-1])
    clean = [name for name in names if outcomes[name].wants_review]
    if not clean:
        return _Run(None)
    newest = clean[-1]
    return _Run(ReleaseRange(Version(newest), Version(newest)), newest, (newest,))


def _hunks_for(
    topic: _Topic, run: _Run, after: bytes | None, text: bytes | None
) -> tuple[Hunk, ...]:
    """A topic's hunks for the run's variant; those of a merge are made from its result.

    :raises NotComposable: if the merged text cannot be said in hunks.
    """
    if not run.review or text is None or after is None:
        return topic.hunks
    return compose(text, after)


def _first_with_it(
    outcomes: Mapping[str, Outcome], topics: Sequence[_Topic], names: Sequence[str]
) -> str | None:
    """The first release, behind every base, that has all of the change itself."""
    if not topics:
        return None
    known = [Version(t.base.release) for t in topics if t.base.release is not None]
    behind = max(known, default=Version("0"))
    later = [name for name in names if Version(name) > behind]
    return next((name for name in later if outcomes[name] is Outcome.UPSTREAM), None)


def derived_tests(
    parts: Iterable[tuple[bytes, str, Sequence[Hunk]]],
) -> tuple[DerivedTest, ...]:
    """The tests by which a release that has a change is recognised: its new lines, by scope.

    :param parts: for each file the text that its hunks were made on, its path, and the hunks.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for before, path, hunks in parts:
        source = SourceText.from_bytes(before)
        scopes = find(source.lines)
        for hunk in hunks:
            places = scopes.get(hunk.scope, ())
            known = [line for place in places for line in source.lines[place.start : place.stop]]
            lines = found.setdefault((path, hunk.scope), [])
            lines += [line for line in new_lines(hunk, known) if line not in lines]
    return tuple(
        DerivedTest(path, scope, tuple(lines), SHARE)
        for (path, scope), lines in found.items()
        if lines
    )


def _title(commits: Sequence[Commit], id_: str) -> str:
    return commits[0].subject or id_.replace("-", " ").capitalize()


def _upstream(title: str) -> str:
    match = _PULL.search(title)
    return f"{_UPSTREAM}/pull/{match[1]}" if match else ""


def _headers(commit: Commit, title: str, origin: str, today: str) -> dict[str, str]:
    headers = {"Description": title, "Origin": f"other, {origin}"}
    if commit.author:
        headers["Author"] = commit.author
    return {**headers, "Last-Update": today}


def _topic_name(number: int, count: int, path: str) -> str:
    step = 10 if count <= 9 else 1
    stem = path.removesuffix("/__init__.py").removesuffix(".py").rsplit("/", 1)[-1]
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "module"
    return f"{(number + 1) * step:02d}-{slug}"
