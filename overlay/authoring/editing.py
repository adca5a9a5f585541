"""Lay out a feature's files to be edited in a session, and make its patches again of them.

Nothing is written here.  ``lay_out`` gives a release's files with a feature, and those before it,
applied; ``commit`` gives the feature's folder after the edit: hunks made of the
edited files, given to every release around the session's on which they land, and checked to give
these files byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from overlay._features.model import Feature, Hunk, Patch, UpstreamTest, Variant, paths_of
from overlay.authoring.building import derived_tests, topic_name
from overlay.authoring.composing import (
    CONTEXT,
    NotComposable,
    ScopedText,
    compose_file,
    contexts_from,
    whole_file,
)
from overlay.authoring.variants import patch_file, serving, with_base_has
from overlay.authoring.writing import check_files, patch_bytes, with_tests
from overlay.errors import UsageError, command
from overlay.package import VLLM, Package, ReleaseRange, Tree, file_problem, is_module
from overlay.planning.attempt import Texts, attempt
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.text import TextError
from overlay.results import FeatureResult, Reason, State


@dataclass(frozen=True)
class Layout:
    """The files of a session.

    :ivar base: path -> the text with the features before applied; of files of the release only.
    :ivar texts: path -> the text with the feature applied, too; none of a file that it removes.
    :ivar below: the features before it whose text that is, in order.
    :ivar without: ids of features before it that touch these files, and do not fit the release or
        change the same lines.
    """

    base: Mapping[str, bytes]
    texts: Mapping[str, bytes]
    below: tuple[Feature, ...]
    without: tuple[str, ...] = ()


def lay_out(
    feature: Feature | None,
    earlier: Sequence[Feature],
    tree: Tree,
    release: Version,
    more: Sequence[str] = (),
    syntax: Syntax | None = None,
    package: Package = VLLM,
) -> Layout:
    """The files that a session lays out to edit a feature.

    :param earlier: the features before it, in order; those that do not fit the release, or not
        beside it, are left out.
    :param tree: the release's files; :param more: further files of it.
    """
    own = () if feature is None else (feature,)
    for each in own:
        if shared := [path for path in more if path in each.shared]:
            raise UsageError(not_its_own(each, shared[0]))
    paths = {path for each in own for path in _paths(each, release)} | {*more}
    touching = [each for each in earlier if paths.intersection(paths_of([each]))]
    below: list[Feature] = []
    whole = plan(own, tree, release, syntax=syntax)
    for result in whole.features:
        if result.state is not State.PRISTINE:
            raise UsageError(not_there(result, release, package))
    for each in touching:
        trial = plan([*below, each, *own], tree, release, syntax=syntax)
        if not trial.state.needs_attention:
            below.append(each)
            whole = trial
    under = {
        change.path: change.after for change in plan(below, tree, release, syntax=syntax).changes
    }
    over = {change.path: change.after for change in whole.changes}
    added = {file.path for each in own for file in each.added}
    base: dict[str, bytes] = {}
    texts: dict[str, bytes] = {}
    for path in sorted(paths):
        before = under.get(path, tree.read(path))
        now = over.get(path, before)
        if now is not None:
            texts[path] = now
        elif path in more:
            removing = [each.id for each in (*below, *own) if path in each.patched_paths]
            there = f"{package.title} {release} has no such file"
            if removing:
                there = f"{', '.join(removing)} leaves no such file in {package.title} {release}"
            raise UsageError(f"{path}: {there}, so it cannot be edited")
        if before is not None and path not in added:
            base[path] = before
    without = tuple(each.id for each in touching if each not in below)
    return Layout(base, texts, tuple(below), without)


def _paths(feature: Feature, release: Version) -> set[str]:
    """The files that a feature patches in a release, and those that it adds from its own folder."""
    variants = [variant for _, variant in serving(feature, release)]
    patched = {variant.patch.path for variant in variants if not variant.patch.retired}
    return patched | {added.path for added in feature.added} - {*feature.shared}


def not_its_own(feature: Feature, path: str) -> str:
    """Why a shared module is not edited as one feature's."""
    return (
        f"{path} is not {feature.id}'s own: every feature that names it in `shared` adds "
        f"{feature.file_of(path)} of {feature.origin}. Edit that file itself"
    )


def not_there(result: FeatureResult, release: Version, package: Package = VLLM) -> str:
    """Why a feature cannot be edited on a release."""
    reasons = dict.fromkeys(map(str, _reasons(result)))
    why = f" ({'; '.join(reasons)})" if reasons else ""
    carries = f"{command('port', result.feature, '--releases', str(release))} carries it there, "
    if result.state is State.UPSTREAMED:
        carries = ""  # there is nothing to carry
    return (
        f"{result.feature} is {result.state.value} on {package.title} {release}{why}: expected a "
        f"release to which it applies. {carries}{command('log', result.feature)} lists where it is"
    )


def _reasons(result: FeatureResult) -> list[Reason]:
    reasons = [result.reason, *(file.reason for file in result.files)]
    reasons += [hunk.reason for file in result.files for hunk in file.hunks]
    return [reason for reason in reasons if reason is not None]


#: Lines of context to try: as few as tell the place, then the usual number, where it reaches more.
_CONTEXTS = ((1, 2, *CONTEXT), CONTEXT)

#: An edited file's texts: without the feature, and as it was edited; ``None``: it was removed.
_Texts = tuple[bytes, "bytes | None"]


@dataclass(frozen=True)
class Edited:
    """What a session holds when it is committed.

    :ivar base: path -> the text without the feature; ``None`` for what is not in the release.
    :ivar now: path -> the present text; ``None`` where the file was removed.
    :ivar changed: the paths whose text is another one than was laid out, in order.
    """

    release: Version
    base: Mapping[str, bytes | None]
    now: Mapping[str, bytes | None]
    changed: tuple[str, ...]

    def read(self, path: str) -> bytes | None:
        """The text without the feature; see ``overlay.package.Tree``."""
        return self.base.get(path)


@dataclass(frozen=True)
class CommittedFolder:
    """A feature's folder after an edit, not written yet.

    :ivar files: path below the folder -> bytes; ``None`` for those that go.
    :ivar unedited: releases that keep what they had before, oldest first.
    :ivar hunks: path -> the hunks of each edited file, none where it is the release's own again.
    :ivar removed: added modules that go.
    """

    feature: Feature
    files: Mapping[str, bytes | None]
    releases: ReleaseRange
    unedited: tuple[str, ...]
    hunks: Mapping[str, tuple[Hunk, ...]]
    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True)
class _Topic:
    """One topic after the edit.

    :ivar variant: its variant for the session's release; ``None`` for a new topic.
    :ivar hunks: none, and the topic goes.
    """

    name: str
    path: str
    variant: Variant | None
    hunks: tuple[Hunk, ...]
    before: bytes


def commit(
    feature: Feature,
    files: Mapping[str, bytes],
    edited: Edited,
    fits: Callable[[Feature, str], bool],
    names: Sequence[str],
    today: str,
    context: int | None = None,
) -> CommittedFolder:
    """The folder of a feature once the edit of a session is its patch.

    :param fits: whether a form of the feature lands on a release, in every file that was edited.
    :param context: how many lines of context the hunks of the edited files keep; default: as few as
        tell the place, and untouched hunks what they have.
    """
    if edited.release not in feature.releases:
        raise UsageError(
            f"{feature.id}: expected `releases` in its feature.toml to hold {edited.release}, on "
            f"which the edit was made, found {feature.releases}: widen it and commit again, or "
            "give the edit up with --abort"
        )
    modules, texts = _sorted(feature, edited)
    shared = feature.shared_modules()
    candidates = sorted({*names, str(edited.release)}, key=Version)
    candidates = [name for name in candidates if Version(name) in feature.releases]
    topics: list[_Topic] = []
    run: list[str] = []
    for contexts in _CONTEXTS if context is None else (contexts_from(context),):
        trial = _topics(feature, edited, texts, contexts, as_it_was=context is None)
        wide = {topic.name: _span(topic, feature) for topic in trial}
        form = _folder(feature, files, trial, wide, modules, edited, today)
        reached = _run(
            check_files(feature.id, form, shared=shared), trial, edited.release, fits, candidates
        )
        if len(reached) > len(run):
            topics, run = trial, reached
        if len(run) == len(candidates):
            break
    wide = {topic.name: _span(topic, feature) for topic in topics}
    spans = {name: _shared(span, run, candidates) for name, span in wide.items()}
    final = _folder(feature, files, topics, spans, modules, edited, today, candidates=candidates)
    after = check_files(feature.id, final, shared=shared)
    if topics and any(test.lines for test in feature.upstream_tests):
        final["feature.toml"] = with_tests(final["feature.toml"], _tests(after, edited))
        after = check_files(feature.id, final, shared=shared)
    expect_bytes(after, edited)
    return CommittedFolder(
        after,
        {**final, **dict.fromkeys(files.keys() - final.keys())},
        ReleaseRange(Version(run[0]), Version(run[-1])),
        tuple(name for name in candidates if name not in run),
        {topic.path: topic.hunks for topic in topics},
        tuple(path for path, data in modules.items() if data is not None),
        tuple(path for path, data in modules.items() if data is None),
    )


def _tests(feature: Feature, edited: Edited) -> tuple[UpstreamTest, ...]:
    texts = Texts(Syntax())
    now = {path: base for path, base in edited.base.items() if base is not None}
    parts: list[tuple[bytes, str, Sequence[Hunk]]] = []
    for _, variant in serving(feature, edited.release):
        patch = variant.patch
        if patch.path not in now:
            continue  # of a retired patch, which lays no file out
        before = now[patch.path]
        parts.append((before, patch.path, patch.hunks))
        now[patch.path] = _applied(patch, before, texts)
    return derived_tests(parts)


def _sorted(feature: Feature, edited: Edited) -> tuple[dict[str, bytes | None], dict[str, _Texts]]:
    """The added modules that change (``None``: go), and the edited files of the release."""
    modules: dict[str, bytes | None] = {}
    texts: dict[str, _Texts] = {}
    problems: list[str] = []
    added = {each.path for each in feature.added}
    for path in edited.changed:
        base, now = edited.base.get(path), edited.now[path]
        if (problem := file_problem(path, feature.package)) is not None:
            folder = feature.package.name
            problems.append(f"{problem}; a feature carries modules and data files of {folder}/")
        elif path in feature.shared:
            problems.append(not_its_own(feature, path))
        elif path in added or base is None:
            modules[path] = now
        else:
            texts[path] = (base, now)
    if problems:
        raise UsageError("\n".join(problems))
    return modules, texts


def _topics(
    feature: Feature,
    edited: Edited,
    texts: Mapping[str, _Texts],
    contexts: Sequence[int],
    *,
    as_it_was: bool,
) -> list[_Topic]:
    """The topics of the edited files; the last topic of a file takes its edit.

    :param as_it_was: whether hunks that were not edited keep their context.
    """
    topics: list[_Topic] = []
    problems: list[str] = []
    number = max((int(topic.name[:2]) for topic in feature.topics), default=0)
    for path, (base, now) in texts.items():
        own = [
            (topic, variant)
            for topic, variant in serving(feature, edited.release)
            if variant.patch.path == path
        ]
        own = [pair for pair in own if not pair[1].patch.retired] or own
        try:
            before = _before_last(base, [variant.patch for _, variant in own])
            if now is None:
                composed: tuple[Hunk, ...] = (whole_file(before, None),)
            else:
                composed = compose_file(path, before, now, contexts)
            same = as_it_was and now is not None and is_module(path)
            old = own[-1][1].patch if own and same else None
            hunks = _as_they_were(composed, old, before)
        except NotComposable as error:
            problems.append(str(error))
        except (TextError, UnparsableError) as error:
            problems.append(f"{path} is not Python that can be read: {error}")
        else:
            if own:
                topic, variant = own[-1]
                topics.append(_Topic(topic.name, path, variant, hunks, before))
            elif hunks:
                number = min(number + (10 if number + 10 <= 99 else 1), 99)
                topics.append(_Topic(topic_name(number, path), path, None, hunks, before))
    problems += _holes(topics, feature)
    if problems:
        raise UsageError("\n".join(problems))
    return topics


def _as_they_were(hunks: Sequence[Hunk], patch: Patch | None, before: bytes) -> tuple[Hunk, ...]:
    """The hunks, those that say what one of the old patch said in its form: its context stays."""
    if patch is None:
        return tuple(hunks)
    text = ScopedText.read(before)
    matches = [(text.match(hunk), hunk) for hunk in patch.hunks]
    old = {
        _change(hunk, match.line): hunk._replace(source_line=match.line, base_has=None)
        for match, hunk in matches
        if match.state is State.PRISTINE and match.line is not None
    }
    result = list(hunks)
    for at, hunk in enumerate(hunks):
        first = result[at - 1].source_line + len(result[at - 1].pre) if at else 1
        stop = hunks[at + 1].source_line if at + 1 < len(hunks) else len(text.lines) + 1
        own = old.get(_change(hunk, hunk.source_line), hunk)
        if first <= own.source_line and own.source_line + len(own.pre) <= stop:
            result[at] = own
    return tuple(result)


def _change(hunk: Hunk, line: int) -> object:
    """What a hunk changes, by the lines of the text that it is on from ``line`` on."""
    changes: list[tuple[int, str, str]] = []
    for op, text in hunk.lines:
        if op != " ":
            changes.append((line, op, text))
        line += op != "+"
    return hunk.scope, tuple(changes), hunk.pre_unfinished, hunk.post_unfinished


def _before_last(base: bytes, patches: Sequence[Patch]) -> bytes:
    texts = Texts(Syntax())
    text = base
    for patch in patches[:-1]:
        text = _applied(patch, text, texts)
    return text


def _applied(patch: Patch, text: bytes, texts: Texts) -> bytes:
    """A text with a patch, where it is applied and leaves one."""
    after = None if patch.retired else attempt(patch, text, texts).after
    return text if after is None else after


def _holes(topics: Sequence[_Topic], feature: Feature) -> Iterator[str]:
    """Why a topic cannot lose its change on the session's release and keep one on others."""
    variants = {topic.name: topic.variants for topic in feature.topics}
    for topic in topics:
        rest = [each for each in variants.get(topic.name, ()) if each is not topic.variant]
        if rest and not topic.hunks:
            yield (
                f"{topic.path}: no change of it is left, while {topic.name} keeps one for "
                f"{', '.join(str(each.releases) for each in rest)}; a topic has a variant for "
                "each release of the feature. Take those files away too, or leave a change"
            )


def _span(topic: _Topic, feature: Feature) -> ReleaseRange:
    return feature.releases if topic.variant is None else topic.variant.releases


def _run(
    trial: Feature,
    topics: Sequence[_Topic],
    release: Version,
    fits: Callable[[Feature, str], bool],
    candidates: Sequence[str],
) -> list[str]:
    """The releases around the session's that get the edit: all topics of it, or none."""
    spans = [_span(topic, trial) for topic in topics if topic.hunks]

    def takes(name: str) -> bool:
        return all(Version(name) in span for span in spans) and fits(trial, name)

    if not spans:
        return list(candidates)
    first = last = list(candidates).index(str(release))
    while first and takes(candidates[first - 1]):
        first -= 1
    while last + 1 < len(candidates) and takes(candidates[last + 1]):
        last += 1
    return list(candidates[first : last + 1])


def _shared(span: ReleaseRange, run: Sequence[str], candidates: Sequence[str]) -> ReleaseRange:
    """The part of a variant's range that gets the edit; its own ends where the run reaches them."""
    inside = [name for name in candidates if Version(name) in span]
    first = span.first if inside[0] in run else Version(run[0])
    return ReleaseRange(first, span.last if inside[-1] in run else Version(run[-1]))


def _folder(
    feature: Feature,
    files: Mapping[str, bytes],
    topics: Sequence[_Topic],
    spans: Mapping[str, ReleaseRange],
    modules: Mapping[str, bytes | None],
    edited: Edited,
    today: str,
    candidates: Sequence[str] = (),
) -> dict[str, bytes]:
    """Every file of the feature's folder.

    :param spans: topic -> the range that its new variant serves; what is left of the old one's
        keeps the old text, cut at the ``candidates`` releases.
    """
    result = dict(files)
    for path, data in modules.items():
        result.pop(f"files/{path}", None)
        if data is not None:
            result[f"files/{path}"] = data
    for topic in topics:
        old: bytes | None = None
        if topic.variant is not None:
            old = result.pop(patch_file(topic.variant))
        if topic.hunks:
            data = _rendered(feature, topic, edited.release, today)
            result[f"{topic.name}/{spans[topic.name]}.patch"] = data
        if topic.variant is not None and old is not None and topic.hunks:
            for rest in _rests(topic.variant.releases, spans[topic.name], candidates):
                result[f"{topic.name}/{rest}.patch"] = old
    return result


def _rests(
    whole: ReleaseRange, part: ReleaseRange, candidates: Sequence[str]
) -> list[ReleaseRange]:
    """What is left of a range below and above a part of it, ending at known releases."""
    versions = [Version(name) for name in candidates if Version(name) in whole]
    below = [version for version in versions if version < part.first]
    above = [version for version in versions if version > part.last]
    rests = []
    if below:
        rests.append(ReleaseRange(whole.first, below[-1]))
    if above:
        rests.append(ReleaseRange(above[0], whole.last))
    return rests


def _rendered(feature: Feature, topic: _Topic, release: Version, today: str) -> bytes:
    headers = {"Description": feature.title, "Origin": "vendor"}
    if topic.variant is not None:
        headers = dict(topic.variant.patch.headers)
        if topic.variant.patch.retired:  # it is so no more
            del headers["Ported-From"]
    elif feature.topics:
        headers |= {
            name: value
            for name, value in feature.topics[0].variants[0].patch.headers.items()
            if name in ("Origin", "Author", "From")
        }
    headers |= {"Last-Update": today, "Base": str(release)}
    headers = with_base_has(headers, topic.hunks, topic.before)
    return patch_bytes(headers, topic.path, topic.hunks)


def expect_bytes(feature: Feature, edited: Edited) -> None:
    """Check that applying a feature gives the edited files, byte for byte.

    :raises UsageError: naming the files of which it does not, and why.
    """
    feature_plan = plan([feature], edited, edited.release)
    texts = {change.path: change.after for change in feature_plan.changes}
    paths = {*edited.now, *texts} - {*feature.shared}
    wrong = [
        path
        for path in sorted(paths)
        if texts.get(path, edited.base.get(path)) != edited.now.get(path)
    ]
    if wrong:
        result = feature_plan.features[0]
        misfits = [file.path for file in result.files if file.state.needs_attention]
        why = "; ".join(dict.fromkeys(reason.text for reason in _reasons(result)))
        raise UsageError(
            f"{', '.join(misfits or wrong)}: applying {feature.id} would not give the edited "
            f"bytes, so nothing was written{': ' if why else ''}{why}"
        )
