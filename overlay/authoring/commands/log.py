"""``overlay log``: a feature from release to release, its history, and what upstream made of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from enum import Enum
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from packaging.version import InvalidVersion, Version

from overlay._features.model import Feature, Patch, PortedWay
from overlay._features.patch_headers import author, last_update
from overlay.authoring.git import Checkout, LogEntry
from overlay.authoring.incoming import read_changes
from overlay.authoring.variants import serving
from overlay.commands.check import every_target
from overlay.commands.request import Request
from overlay.commands.since import NOBODY, Ownership, upkeep
from overlay.errors import OverlayError, UsageError
from overlay.package import parse_version, path_problem
from overlay.report import Report, by_fields
from overlay.report.codes import Code, Verdict
from overlay.report.lines import (
    BLANK,
    MARK,
    Line,
    Span,
    aligned,
    causes,
    count,
    enumeration,
    labelled,
)
from overlay.report.model import TargetFailure, TargetReport
from overlay.report.problems import word
from overlay.results import ANY_MORE, FeatureResult, State
from overlay.targets.resolution import releases

_PULL = re.compile(r"/pull/(\d+)\b")


def log(
    request: Request,
    id_: str,
    *,
    span: str | None = None,
    upstream: Path | None = None,
    variants: bool = False,
) -> LogReport:
    """The state of a feature on each release, who made its variants, what upstream has of it."""
    own_request = request.of_ids((id_,))
    features = own_request.at_hand()
    (feature,) = own_request.select(features)
    names = releases("all" if span is None else span, package=feature.package)
    entries = tuple(_release(target, feature) for target in every_target(request, names, features))
    merge, missing = None, None
    if upstream is not None:
        pull = _pull(feature)
        merge = _merged(feature, pull, upstream)
        missing = pull if merge is None else None
    return LogReport(
        logged(feature.id, entries),
        feature=feature.id,
        title=feature.title,
        upstream=feature.upstream,
        reason=None if feature.reason is None else feature.reason.value,
        releases=entries,
        edits=_edits(feature),
        merge=merge,
        not_found=missing,
        upkeep=upkeep(feature),
        variants=tuple(_beside(feature)) if variants else (),
    )


# Releases


def _release(target: TargetReport | TargetFailure, feature: Feature) -> LoggedRelease:
    if isinstance(target, TargetFailure):
        raise OverlayError(target.error)
    release = target.vllm or target.target
    (result,) = (entry for entry in target.features if entry.feature == feature.id)
    variants = [variant for _, variant in serving(feature, Version(release))]
    patches = [variant.patch for variant in variants]
    hunks = [hunk.reason for file in result.files for hunk in file.hunks]
    reasons = [*(file.reason for file in result.files), *hunks, result.reason]
    why = next(filter(None, reasons), None)
    return LoggedRelease(
        target.target,
        result.state,
        means(feature, Version(release), result),
        _distinct(str(variant.releases) for variant in variants),
        _distinct(patch.headers.get("Base", "") for patch in patches),
        _distinct(_author(patch) for patch in patches),
        _distinct(last_update(patch.headers) for patch in patches),
        None if why is None else why.text,
        word(result),
        tuple(
            patch.name.split("/")[-2] for patch in patches if patch.ported is PortedWay.NOT_NEEDED
        ),
        "" if why is None else why.common,
    )


def _beside(feature: Feature) -> Iterator[VariantView]:
    """Each variant beside the one that it came from, as its headers say, or the one before it."""
    for topic in feature.topics:
        ordered = sorted(topic.variants, key=lambda each: each.releases)
        for older, variant in pairwise(ordered):
            # It may be a release, or a checkout.
            base = parse_version(variant.patch.headers.get("Ported-From", "").partition(" ")[0])
            origins = [each for each in ordered if base is not None and base in each.releases]
            origin = next((each for each in origins if each != variant), older)
            old, new = (
                [
                    line
                    for hunk in each.patch.hunks
                    for line in (f"@@ {hunk.scope}", *(op + text for op, text in hunk.lines))
                ]
                for each in (origin, variant)
            )
            difference = tuple(unified_diff(old, new, n=2, lineterm=""))[2:]
            yield VariantView(topic.name, str(variant.releases), str(origin.releases), difference)


def means(feature: Feature, release: Version, result: FeatureResult) -> Means | None:
    """The means by which a release is known to have a feature; ``None`` where it is not."""
    if result.state is not State.UPSTREAMED:
        return None
    if feature.merged is not None and Version(release.base_version) >= feature.merged:
        return Means.MEMORY
    patches = [variant.patch for _, variant in serving(feature, release)]
    if patches and all(patch.retired for patch in patches):
        return Means.MEMORY  # its patches say so, whatever the release's lines are
    hunks = [hunk for file in result.files for hunk in file.hunks]
    # Lines tell of a whole feature without its files, or of a hunk with a reason.
    if not result.files or any(hunk.reason is not None for hunk in hunks):
        return Means.LINES
    return Means.IMAGES


def _author(patch: Patch) -> str:
    """The name of the first author of a patch, without the address."""
    first = author(patch.headers)
    return first.partition("<")[0].strip().strip('"') or first


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))


# History


def _edits(feature: Feature) -> tuple[LogEntry, ...]:
    if feature.shipped:
        return ()
    try:
        return Checkout(Path(feature.origin)).history(feature.id)
    except UsageError:
        return ()  # not a repository, or no git: the headers tell who and when


# Upstream


def _pull(feature: Feature) -> int:
    match = _PULL.search(feature.upstream)
    if match is None:
        url = feature.upstream or "none"
        raise UsageError(
            f"--upstream: expected the URL of a pull request (.../pull/49391) as upstream in the "
            f"feature.toml of {feature.id}, found {url}"
        )
    return int(match[1])


def _merged(feature: Feature, pull: int, folder: Path) -> UpstreamMerge | None:
    """What a checkout knows of a pull request, by the subject that its merge has."""
    checkout = Checkout(folder)
    mentions = checkout.naming(f"(#{pull})")
    merges = [entry for entry in mentions if entry.subject.endswith(f"(#{pull})")]
    if not merges:
        return None
    entry = merges[0]
    mail = checkout.mail(entry.commit)
    theirs = sorted(
        (file.path, op + text)
        for commit in read_changes(mail, entry.commit[:9])
        for file in commit.files
        if path_problem(file.path, feature.package) is None
        for hunk in file.hunks
        for op, text in hunk.lines
        if op != " "
    )
    difference = _difference(_carried(feature), theirs)
    return UpstreamMerge(
        pull,
        entry.commit,
        entry.date,
        _first(checkout, entry.commit),
        tuple(other.subject for other in mentions if other != entry),
        tuple(difference),
        sum(line[:1] in ("+", "-") for line in difference),
    )


def _carried(feature: Feature) -> list[tuple[str, str]]:
    """Path and line of each change that a feature makes, by its newest variants; sorted."""
    lines = [
        (file.path, f"+{text}")
        for file in feature.added
        for text in file.content.decode("utf-8", "surrogateescape").splitlines()
    ]
    for topic in feature.topics:
        own = [variant for variant in topic.variants if not variant.patch.retired]
        for variant in sorted(own, key=lambda variant: variant.releases)[-1:]:
            patch = variant.patch
            lines += [(patch.path, op + text) for hunk in patch.hunks for op, text in hunk.lines]
    return sorted((path, line) for path, line in lines if line[:1] != " ")


def _difference(carried: Sequence[tuple[str, str]], merged: Sequence[tuple[str, str]]) -> list[str]:
    """The changed lines that only one side has, below the path of each file.

    Each line begins with ``-`` where only the feature carries it, with ``+`` where only upstream
    merged it; the line's own sign follows.
    """
    ours, theirs = Counter(carried), Counter(merged)
    only = [("-", *entry) for entry in (ours - theirs).elements()]
    only += [("+", *entry) for entry in (theirs - ours).elements()]
    lines: list[str] = []
    for path in dict.fromkeys(path for _, path, _ in only):
        lines.append(path)
        lines += [f"{side} {line}" for side, of, line in only if of == path]
    return lines


def _first(checkout: Checkout, commit: str) -> str | None:
    versions: list[Version] = []
    for tag in checkout.tags_with(commit):
        try:
            versions.append(Version(tag))
        except InvalidVersion:
            continue  # a tag of another kind
    final = [version for version in versions if not version.is_prerelease]
    return str(min(final)) if final else None


# The report


#: How many lines of the difference between a change as carried and as merged are shown.
_MOST_LINES = 40


class Means(str, Enum):
    """The means by which a release is known to have a feature itself."""

    MEMORY = "memory"
    LINES = "lines"
    IMAGES = "images"


class LoggedRelease(NamedTuple):
    """State of a feature on one release.

    :ivar means: by what upstream is known to have it; ``None`` in every other state.
    :ivar variants: the ranges of the variants that serve it, each once.
    :ivar authors: who wrote them, and ``dates`` when they were last changed, by their headers.
    :ivar why: what prevents it, or what else to know about it.
    :ivar word: the state for people, where that is another word: a clash.
    :ivar cause: the part of ``why`` that releases may share: without numbers of lines.
    :ivar not_needed: the topics of which nothing is applied, since a person said so.
    """

    release: str
    state: State
    means: Means | None
    variants: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    why: str | None = None
    word: str = ""
    not_needed: tuple[str, ...] = ()
    cause: str = ""

    def plain(self) -> dict[str, Any]:
        """The fields of the JSON."""
        return by_fields(self, "word", "cause", *([] if self.not_needed else ["not_needed"]))


class VariantView(NamedTuple):
    """A variant beside the one that it came from.

    :ivar difference: of their hunks, as the lines of a diff; none where they are the same.
    """

    topic: str
    releases: str
    origin: str
    difference: tuple[str, ...]


class UpstreamMerge(NamedTuple):
    """What a checkout of vLLM knows of the upstream change.

    :ivar first: the first release that has its commit; ``None`` where no tag tells.
    :ivar others: subjects of further commits that name the pull request, such as reverts.
    :ivar difference: a diff of the changed lines, as carried and as merged.
    """

    pull: int
    commit: str
    date: str
    first: str | None
    others: tuple[str, ...]
    difference: tuple[str, ...]
    differing: int


@dataclass(frozen=True)
class LogReport(Report):
    """One feature from release to release.

    :ivar edits: the history of its folder, the newest first; empty where there is none.
    :ivar merge: what a checkout knows of it; ``None`` where none was asked, or it has no merge.
    :ivar not_found: the pull request that a checkout was asked for and does not have.
    :ivar upkeep: whose it is, and since when; :ivar variants: beside those that they came from.
    """

    _command: ClassVar[str] = "log"
    _key: ClassVar[str] = "log"
    feature: str
    title: str
    upstream: str
    reason: str | None
    releases: tuple[LoggedRelease, ...]
    edits: tuple[LogEntry, ...] = ()
    merge: UpstreamMerge | None = None
    not_found: int | None = None
    upkeep: Ownership = NOBODY
    variants: tuple[VariantView, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The fields of the JSON; variants beside each other only where they were asked for."""
        data = by_fields(self, "conclusion", "upkeep", *([] if self.variants else ["variants"]))
        return {**data, "owner": self.upkeep.owner or None, "since": self.upkeep.since or None}

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        yield Line((Span(self.feature, "heading"), Span("  ")), (Span(self.title, "muted"),))
        reason = f"  ({self.reason})" if self.reason else ""
        yield labelled(2, "upstream: ", f"{self.upstream or 'none named'}{reason}")
        if any(self.upkeep):
            since = f", since {self.upkeep.since}" if self.upkeep.since else ""
            yield labelled(2, "owner:    ", f"{self.upkeep.owner or 'none named'}{since}")
        yield BLANK
        yield from table(self.releases)
        for view in self.variants:
            yield BLANK
            head = f"{view.topic} {view.releases}  beside {view.origin}  "
            same = "" if view.difference else "the same hunks"
            yield Line((Span(head, "heading"),), (Span(same),))
            for text in view.difference:
                yield Line((Span("  "),), (Span(text),))
        if self.edits:
            yield BLANK
            for edit in self.edits:
                head = f"{edit.commit[:9]}  {edit.date}  {edit.author}  "
                yield Line((Span(head, "muted"),), (Span(edit.subject),))
        if self.not_found is not None:
            yield BLANK
            text = (
                f"no commit of the checkout ends with (#{self.not_found}): it is not merged there"
            )
            yield labelled(0, "merged:   ", text)
        if self.merge is not None:
            yield BLANK
            yield from _merge(self.merge)


def logged(feature: str, releases: Sequence[LoggedRelease]) -> Verdict:
    """The verdict of ``log ID``."""
    needy = [entry.release for entry in releases if entry.state.needs_attention]
    if needy:
        text = f"Action needed: {feature} does not apply to {enumeration(needy)}."
        return Verdict(Code.NEEDS_ATTENTION, text)
    parts = []
    if fits := _spans(releases, State.PRISTINE):
        parts.append(f"applies to {fits}")
    if has := _spans(releases, State.UPSTREAMED):
        parts.append(f"upstream has it in {has}")
    text = f"{feature}: {'; '.join(parts) or 'it is made for none of these releases'}."
    return Verdict(Code.LOGGED, text)


def _spans(releases: Sequence[LoggedRelease], state: State) -> str:
    """The runs of neighbouring releases in a state, as ranges in words."""
    grouped = groupby(releases, key=lambda entry: entry.state is state)
    runs = [[entry.release for entry in group] for is_in_it, group in grouped if is_in_it]
    return enumeration([run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs])


def table(releases: Sequence[LoggedRelease]) -> Iterator[Line]:
    """A line a release, and below them what prevents the feature."""
    titles = ("release", "state", "means", "variant", "base", "by", "on")
    rows = [[Span(title, "heading") for title in titles]]
    for entry in releases:
        mark = f" {MARK}" if entry.state.needs_attention else ""
        cells = (
            "" if entry.means is None else entry.means.value,
            *(enumeration(x, most=2) for x in (entry.variants, entry.bases, entry.authors)),
            max(entry.dates, default=""),
        )
        state = Span((entry.word or entry.state.value) + mark, entry.state.value)
        rows.append([Span(entry.release), state, *map(Span, cells)])
    yield from aligned(rows)
    needy = [
        entry
        for entry in releases
        if entry.state.needs_attention
        or (entry.state is State.INAPPLICABLE and ANY_MORE in (entry.why or ""))
    ]
    names = [entry.release for entry in releases]
    notes = [
        (entry.release, f"not needed there, so not applied: {enumeration(entry.not_needed)}")
        for entry in releases
        if entry.not_needed
    ]
    yield from causes(notes, names)
    texts: dict[str, set[str | None]] = {}
    for entry in needy:
        texts.setdefault(entry.cause, set()).add(entry.why)
    occurrences = [
        (entry.release, entry.why if len(texts[entry.cause]) == 1 else entry.cause)
        for entry in needy
        if entry.why is not None
    ]
    yield from causes([(release, text) for release, text in occurrences if text], names)


def _merge(merge: UpstreamMerge) -> Iterator[Line]:
    since = f", first in {merge.first}" if merge.first else ""
    yield labelled(0, "merged:   ", f"#{merge.pull} as {merge.commit[:9]} on {merge.date}{since}")
    for subject in merge.others:
        yield labelled(0, "also:     ", subject)
    if not merge.differing:
        yield labelled(0, "as it is: ", "upstream merged the lines that this feature carries")
        return
    yield labelled(0, "otherwise:", f" {count(merge.differing, 'line')} differ")
    for text in merge.difference[:_MOST_LINES]:
        yield Line((Span("  "),), (Span(text),))
    if (more := len(merge.difference) - _MOST_LINES) > 0:
        yield labelled(2, "", f"and {more} more; --json has all of them")
