"""Make a feature of edited and added files: its hunks tried on every release, its variants, tests.

Nothing is written here: ``build`` gives the folder that would be written, and a summary of how the
change lands on each release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from packaging.version import Version

from overlay._features.model import Feature, Hunk, UpstreamPlan, UpstreamTest
from overlay.authoring.carry import Carried, carry
from overlay.authoring.composing import (
    NotComposable,
    compose,
    compose_file,
    contexts_from,
    whole_file,
)
from overlay.authoring.context import FittedHunks, needed
from overlay.authoring.following import Moved, follow, follow_each
from overlay.authoring.landing import (
    Summary,
    modules_on,
    names_from,
    names_taken,
    not_installed,
    taken_back,
)
from overlay.authoring.locating import Base, ReadBy, ReleaseTexts
from overlay.authoring.port_warnings import names_lost
from overlay.authoring.triage import FileFate, added_problem, uncompilable
from overlay.authoring.variants import base_has
from overlay.authoring.writing import Expected, FeatureFolder, FeatureText, patch_bytes
from overlay.package import VLLM, Package, ReleaseRange, is_module
from overlay.planning.matching import edits, removed_by
from overlay.planning.planner import Stack
from overlay.planning.scopes import Syntax, UnparsableError, find
from overlay.planning.telling import SHARE, new_lines
from overlay.planning.text import Edit, SourceText, TextError
from overlay.report.lines import enumeration
from overlay.report.progress import Progress, counting
from overlay.results import Fate, Outcome, whole_outcome


@dataclass(frozen=True)
class Prepared:
    """A feature of a change, ready to be written.

    :ivar folder: ``None`` where nothing can be written; the summary says why.
    :ivar hunks: path -> the hunks of the change in that file, as they were made.
    """

    summary: Summary
    folder: FeatureFolder | None
    hunks: Mapping[str, tuple[Hunk, ...]] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


class StackedTexts(ReleaseTexts):
    """The files of releases with features on them, as a check has them: those that fit."""

    def __init__(self, features: Sequence[Feature], texts: ReleaseTexts, syntax: Syntax) -> None:
        super().__init__(texts.names, lambda release: ReadBy(self.stack(release).tree.current))
        self.own = texts
        self.features, self._syntax = tuple(features), syntax
        self._stacks: dict[str, Stack] = {}

    def with_only(self, ids: Collection[str]) -> ReleaseTexts:
        """The same with some of the features alone."""
        fewer = [feature for feature in self.features if feature.id in ids]
        if len(fewer) == len(self.features):
            return self
        return StackedTexts(fewer, self.own, self._syntax) if fewer else self.own

    def stack(self, release: str) -> Stack:
        """The features on a release."""
        if release not in self._stacks:
            self._stacks[release] = self.own.lay(self.features, release, self._syntax)
        return self._stacks[release]

    def add(self, features: Sequence[Feature]) -> None:
        """Lay more features on these, which are not laid again: a series is as long as it is."""
        self.features += tuple(features)
        self._files.clear()
        for stack in self._stacks.values():
            stack.add(features)


@dataclass(frozen=True)
class EditedFile:
    """One edited file: the text that the change was made on, and its hunks in the strict format."""

    base: Base
    hunks: tuple[Hunk, ...]

    @property
    def removes(self) -> bool:
        """Whether the change removes the file."""
        return removed_by(self.hunks)


@dataclass(frozen=True)
class FeatureChange:
    """What a feature is to do: the files that it edits and adds."""

    topics: tuple[EditedFile, ...]
    added: Mapping[str, bytes]
    fates: tuple[FileFate, ...]
    commits: int = 1
    context: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Words:
    """What a new feature says about itself.

    :ivar origin: where it comes from, as DEP-3 writes it.
    :ivar keys: further ones of its feature.toml; ``None`` where nobody said which.
    """

    id: str
    title: str
    why: str
    upstream: str
    origin: str
    author: str
    date: str
    package: Package = VLLM
    keys: Mapping[str, Any] | None = None
    more_headers: Mapping[str, str] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        """The headers of each of its patches."""
        author = {"Author": self.author} if self.author else {}
        return {
            "Description": self.title,
            "Origin": self.origin,
            **author,
            "Last-Update": self.date,
            **self.more_headers,
        }

    def text(
        self, span: ReleaseRange, merged: str | None, topics: Sequence[EditedFile]
    ) -> FeatureText:
        """Its feature.toml; what comes from upstream waits for a release."""
        waits = self.upstream or merged is not None
        reason = {"reason": (UpstreamPlan.WAITING if waits else UpstreamPlan.LOCAL).value}
        return FeatureText(
            self.id,
            self.title,
            self.why,
            span,
            self.upstream,
            merged,
            derived_tests((t.base.before, t.base.path, t.hunks) for t in topics),
            self.package,
            reason if self.keys is None else self.keys,
        )


def build(
    change: FeatureChange,
    words: Words,
    texts: ReleaseTexts,
    beside: Mapping[str, bytes],
    syntax: Syntax | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """The feature that makes a change, for every release on which it lands."""
    change, texts = _on_what_it_needs(change, texts)
    syntax = syntax or Syntax()
    contexts = _contexts(change, texts, syntax)
    topics = tuple(
        replace(topic, hunks=_with_base_lines(contexts[topic.base.path].hunks, topic.base.before))
        for topic in change.topics
    )
    summary = Summary(words.id, words.title, change.commits, change.fates, contexts=contexts)
    hunks = {topic.base.path: topic.hunks for topic in topics}
    if summary.problems or not (topics or change.added):
        return Prepared(summary, None, hunks)
    with counting(progress, "tried", len(texts.names), "release") as step:
        carried = _carried(topics, texts, syntax, step)
    modules = modules_on(change.added, texts)
    outcomes = {
        name: whole_outcome((*(r.outcome for r in results), *modules[name].values()))
        for name, results in carried.items()
    }
    warnings = (
        *change.warnings,
        *taken_back(outcomes, texts.names),
        *not_installed(change.fates),
        *_lost(topics, carried, texts),
    )
    run = _run(outcomes, topics, texts.names)
    merged = _first_with_it(outcomes, topics, texts.names)
    if merged is not None:  # by memory: what upstream makes of it later does not count
        outcomes |= {
            name: Outcome.UPSTREAM for name in texts.names if Version(name) >= Version(merged)
        }
    summary = replace(
        summary,
        outcomes=outcomes,
        releases=run.span,
        merged=merged,
        review=run.review,
        holders=names_taken(modules),
        moved=_moved(topics, carried),
        warnings=warnings,
    )
    if run.span is None:
        return Prepared(summary, None, hunks)
    text = words.text(run.span, merged, topics)
    headers = {**words.headers(), "Base": run.base}
    afters = [result.after for result in carried[run.base]]
    try:
        files, expected = _patches(topics, run, afters, texts, headers)
    except NotComposable:  # a merged text
        return Prepared(replace(summary, releases=None, review=()), None, hunks)
    lacking = [path for path in change.added if modules[run.base][path] is not Outcome.UPSTREAM]
    files |= {f"files/{path}": change.added[path] for path in lacking}
    folder = FeatureFolder(text, {**files, **beside}, expected)
    return Prepared(summary, folder, hunks)


def _lost(
    topics: Sequence[EditedFile], carried: Mapping[str, Sequence[Carried]], texts: ReleaseTexts
) -> Iterator[str]:
    """A warning for each name that new lines use where a release that takes them lacks it."""
    for number, topic in enumerate(topics):
        path = topic.base.path
        lands = [name for name in carried if carried[name][number].outcome is Outcome.EXACT]
        files = {name: texts.read(name, path) for name in lands}
        lost = names_lost(topic.base.before, topic.hunks, files) if is_module(path) else {}
        for name, releases in lost.items():
            yield (
                f"{path}: it lands on {enumeration(releases)}, whose file lacks the name {name} "
                "that its new lines use and the text that it was made on has: leave out with "
                "--releases where it would fail"
            )


def _on_what_it_needs(
    change: FeatureChange, texts: ReleaseTexts
) -> tuple[FeatureChange, ReleaseTexts]:
    """A change made on features, on only those that it is not apart from; on none, most often.

    So it lands where another one is left out, and its hunks show nothing of what that one did.
    """
    if not isinstance(texts, StackedTexts):
        return change, texts
    edited: list[tuple[EditedFile, Stack, tuple[Edit, ...]]] = []
    ids: set[str] = set()
    for topic in change.topics:
        path, release = topic.base.path, topic.base.release
        if release is None or any(hunk.whole is not None for hunk in topic.hunks):
            return change, texts
        stack = texts.stack(release)
        own_edits = tuple(
            edit for hunk in topic.hunks for edit in edits(hunk, hunk.source_line - 1)
        )
        edited.append((topic, stack, own_edits))
        ids |= stack.ids_near(path, own_edits)
    fewer = texts.with_only(ids)
    try:
        topics = tuple(_loosened(*each, ids) for each in edited)
        same = all(fewer.read(str(t.base.release), t.base.path) == t.base.before for t in topics)
    except (NotComposable, TextError, UnparsableError):
        return change, texts
    return (replace(change, topics=topics), fewer) if same else (change, texts)


def _loosened(
    topic: EditedFile, stack: Stack, own_edits: Sequence[Edit], ids: Collection[str]
) -> EditedFile:
    """An edited file made on the features of some ids alone.

    :raises NotComposable, TextError, UnparsableError: if it cannot be said on that text.
    """
    path = topic.base.path
    layers = stack.tree.layers.get(path, [])
    absent = {each.feature for each in layers if stack.features[each.feature].id not in ids}
    if not absent:
        return topic
    weave = stack.tree.weave(path)
    before = stack.tree.without(path, absent)
    ends = [
        SourceText.from_bytes(text).final_newline for text in (topic.base.before, topic.base.after)
    ]
    source = SourceText.from_bytes(before)
    finished = source.final_newline if ends[0] is ends[1] else ends[1]
    after = source.splice(weave.taken_back(own_edits, absent), finished).to_bytes()
    base = replace(topic.base, before=before, after=after)
    return EditedFile(base, compose(before, after))


def _patches(
    topics: Sequence[EditedFile],
    run: _Run,
    afters: Sequence[bytes | None],
    texts: ReleaseTexts,
    headers: Mapping[str, str],
) -> tuple[dict[str, bytes], list[Expected]]:
    """The patch files of the edited files, by their names, and what each of them must make."""
    files: dict[str, bytes] = {}
    expected: list[Expected] = []
    for number, (topic, after) in enumerate(
        sorted(zip(topics, afters, strict=True), key=lambda each: each[0].base.path), 1
    ):
        if run.review and after == texts.read(run.base, topic.base.path):
            continue  # the release has all of it
        name = topic_name(number * (10 if len(topics) <= 9 else 1), topic.base.path)
        files[f"{name}/{run.span}.patch"] = _patch(topic, run, after, texts, headers)
        before = texts.read(run.base, topic.base.path)
        # On the text that the change was made on, its own result; elsewhere that of the merge.
        result = topic.base.after if before == topic.base.before else after
        if before is not None and topic.removes:
            expected.append(Expected(name, run.base, before, None))
        elif before is not None and result is not None:
            expected.append(Expected(name, run.base, before, result))
    return files, expected


def _contexts(change: FeatureChange, texts: ReleaseTexts, syntax: Syntax) -> dict[str, FittedHunks]:
    contexts: dict[str, FittedHunks] = {}
    for topic in change.topics:
        base = topic.base
        of_text = is_module(base.path) and not any(hunk.whole for hunk in topic.hunks)
        if change.context is None and of_text:  # a data file has one scope, and keeps the usual
            files = {name: texts.read(name, base.path) for name in texts.names}
            contexts[base.path] = needed(base.before, topic.hunks, files, syntax)
        else:
            contexts[base.path] = FittedHunks(topic.hunks)
    return contexts


def _with_base_lines(hunks: Sequence[Hunk], before: bytes) -> tuple[Hunk, ...]:
    there = tuple(base_has(hunks, before))
    return tuple(hunk._replace(base_has=there) for hunk in hunks)


def _patch(
    topic: EditedFile,
    run: _Run,
    after: bytes | None,
    texts: ReleaseTexts,
    headers: Mapping[str, str],
) -> bytes:
    """The patch file of one edited file; the hunks of a merge are made from its result.

    :raises NotComposable: if the merged text cannot be said in hunks.
    """
    path, own = topic.base.path, topic.hunks
    before = texts.read(run.base, path)
    own_headers = dict(headers)
    if run.review:
        if before is not None and after is not None:
            own = compose(before, after, is_data=not is_module(path))
        made_on = topic.base.release or topic.base.origin or "a checkout"
        own_headers["Ported-From"] = f"{made_on} merged"
    # What a guessed base had proves nothing, but such a line has another reason to be there.
    name = "Base-Has" if topic.base.by_id else "Tells-Nothing"
    text = before if topic.base.by_id and before is not None else topic.base.before
    if base_lines := base_has(own if topic.base.by_id else topic.hunks, text):
        own_headers[name] = "\n".join(base_lines)
    return patch_bytes(own_headers, path, own)


def _carried(
    topics: Sequence[EditedFile], texts: ReleaseTexts, syntax: Syntax, step: Callable[[], None]
) -> dict[str, list[Carried]]:
    """Each topic carried to each release; releases with the same text are judged once."""
    answers: dict[tuple[int, bytes | None], Carried] = {}
    carried: dict[str, list[Carried]] = {}
    for release in texts.names:
        results = []
        for number, topic in enumerate(topics):
            key = (number, texts.read(release, topic.base.path))
            if key not in answers:
                answers[key] = carry(topic.base.before, topic.hunks, key[1], syntax)
            results.append(_followed(topic, answers[key], release, texts, syntax))
        carried[release] = results
        step()
    return carried


def _moved(
    topics: Sequence[EditedFile], carried: Mapping[str, Sequence[Carried]]
) -> dict[str, dict[str, str]]:
    """For each file by release the file to which upstream moved what is changed in it."""
    moved: dict[str, dict[str, str]] = {}
    for release, results in carried.items():
        for topic, result in zip(topics, results, strict=True):
            if result.moved_to is not None:
                moved.setdefault(topic.base.path, {})[release] = result.moved_to
    return moved


def _followed(
    topic: EditedFile, carried: Carried, release: str, texts: ReleaseTexts, syntax: Syntax
) -> Carried:
    """What a release has of a topic whose file or scope it has moved: all of it, or where it is."""
    base = topic.base
    lost = all(hunk.outcome is Outcome.MISSING for hunk in carried.hunks)
    if base.release is None or not carried.hunks or not lost:
        return carried
    moved = Moved(base.path, base.release, base.before, topic.hunks)
    place = follow(moved, release, texts, syntax)
    if place is None:
        parts = follow_each(moved, release, texts, syntax)
        there = ", ".join(f"{path} ({scope})" for scope, path in parts.items())
        return replace(carried, moved_to=there or None)
    if place.carried.outcome is Outcome.UPSTREAM:
        return replace(place.carried, after=None)
    return replace(carried, moved_to=place.path)


@dataclass(frozen=True)
class _Run:
    """The releases that a new feature's variants serve, and the one its hunks are made on."""

    span: ReleaseRange | None
    base: str = ""
    review: tuple[str, ...] = ()


def _run(
    outcomes: Mapping[str, Outcome], topics: Sequence[EditedFile], names: Sequence[str]
) -> _Run:
    """The longest run of releases around the base on which every hunk lands exactly.

    Where there is none, the newest release on which a merge is clean, for review; or else the
    newest that has a part of it and takes the rest.
    """
    bases = {topic.base.release for topic in topics} - {None}
    grouped = groupby(names, key=lambda name: outcomes[name] is Outcome.EXACT)
    runs = [list(group) for lands, group in grouped if lands]
    if runs:
        has = [names.index(name) for name in names if outcomes[name] is Outcome.UPSTREAM]
        first = min(has, default=len(names))

        def value(run: list[str]) -> tuple[int, bool, int, Version]:
            before = names.index(run[0]) < first
            return len(bases & set(run)), before, len(run), Version(run[-1])

        best = max(runs, key=value)
        base_names = [name for name in best if name in bases]
        oldest = best[0]
        for name in reversed(names[: names.index(oldest)]):  # upstream took it, and took it back
            if outcomes[name] not in (Outcome.EXACT, Outcome.UPSTREAM):
                break
            oldest = name if outcomes[name] is Outcome.EXACT else oldest
        span = ReleaseRange(Version(oldest), Version(best[-1]))
        return _Run(span, base_names[-1] if base_names else best[-1])
    clean = [name for name in names if outcomes[name].wants_review]
    having_it = [at for at, name in enumerate(names) if outcomes[name] is Outcome.UPSTREAM]
    clean = clean or [
        name for name in names[: min(having_it, default=None)] if outcomes[name] is Outcome.PARTLY
    ]
    if not clean:
        return _Run(None)
    newest = clean[-1]
    return _Run(ReleaseRange(Version(newest), Version(newest)), newest, (newest,))


def _first_with_it(
    outcomes: Mapping[str, Outcome], topics: Sequence[EditedFile], names: Sequence[str]
) -> str | None:
    """The first release, behind every base, that has all of the change itself.

    None where a later one lacks it again: then upstream took it back, and nothing is remembered.
    """
    versions = [Version(t.base.release) for t in topics if t.base.release is not None]
    behind = max(versions, default=Version("0"))
    later = [name for name in names if Version(name) > behind]
    first = next((name for name in later if outcomes[name] is Outcome.UPSTREAM), None)
    if first is None or any(outcomes[name] is Outcome.EXACT for name in names_from(names, first)):
        return None
    return first


def derived_tests(parts: Iterable[tuple[bytes, str, Sequence[Hunk]]]) -> tuple[UpstreamTest, ...]:
    """The tests by which a release that has a change is recognised: its new lines, by scope.

    :param parts: for each file the text that its hunks were made on, its path, and the hunks.
    """
    lines_by_scope: dict[tuple[str, str], list[str]] = {}
    for before, path, hunks in parts:
        if not is_module(path) or any(hunk.whole is not None for hunk in hunks):
            continue  # their lines are told by the hunks themselves, and a whole file by its id
        source = SourceText.from_bytes(before)
        scopes = find(source.lines)
        for hunk in hunks:
            places = scopes.get(hunk.scope, ())
            base_lines = [
                line for place in places for line in source.lines[place.start : place.stop]
            ]
            if hunk.base_has is not None:  # it says which of its lines the base had
                base_lines = []
            lines = lines_by_scope.setdefault((path, hunk.scope), [])
            lines += [line for line in new_lines(hunk, base_lines) if line not in lines]
    return tuple(
        UpstreamTest(path, scope, lines=tuple(lines), share=SHARE)
        for (path, scope), lines in lines_by_scope.items()
        if lines
    )


def topic_name(place: int, path: str) -> str:
    """The name of a topic: its place in the series, from 1 to 99, and the module it patches."""
    stem = path.removesuffix("/__init__.py").removesuffix(".py").rsplit("/", 1)[-1]
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "module"
    return f"{place:02d}-{slug}"


# A change of two texts


class TwoTexts(NamedTuple):
    """A file before and after an edit.

    :ivar before: ``None`` where there was no such file; :ivar now: ``None`` where it was removed.
    """

    path: str
    before: bytes | None
    now: bytes | None


def change_of(
    files: Iterable[TwoTexts], release: str, syntax: Syntax, context: int | None = None
) -> FeatureChange:
    """The change that edits make; the fate of a file that cannot be carried says why.

    :param release: the release on whose text, perhaps with features below, the edits were made.
    """
    topics: list[EditedFile] = []
    fates: list[FileFate] = []
    added: dict[str, bytes] = {}
    for path, before, now in files:
        if before is None and now is not None:
            added[path] = now
            fates.append(FileFate(path, Fate.ADDED, problem=added_problem(path, now, syntax)))
        elif before is not None and now is not None:
            fate, topic = _edited(path, before, now, release, syntax, context)
            fates.append(fate)
            topics += [] if topic is None else [topic]
        elif before is not None:
            base = Base(path, release, before, b"", by_id=True)
            removal = EditedFile(base, (whole_file(before, None),))
            fates.append(FileFate(path, Fate.EDITED, release, True, 1))
            topics.append(removal)
    return FeatureChange(tuple(topics), added, tuple(fates), context=context)


def _edited(
    path: str, before: bytes, now: bytes, release: str, syntax: Syntax, context: int | None
) -> tuple[FileFate, EditedFile | None]:
    try:
        hunks = compose_file(path, before, now, contexts_from(context))
    except NotComposable as error:
        return FileFate(path, Fate.EDITED, release, problem=str(error)), None
    broken = uncompilable(path, now, syntax)
    fate = FileFate(path, Fate.EDITED, release, True, len(hunks), broken)
    return fate, EditedFile(Base(path, release, before, now, by_id=True), hunks)
