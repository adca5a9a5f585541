"""``overlay log``: a feature from release to release, its history, and what upstream made of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from overlay.authoring.reports.history import Edit, LogReport, Means, Merge, Release, logged
from overlay.commands.check import every_target
from overlay.commands.request import Request
from overlay.errors import OverlayError, UsageError
from overlay.features.patch_headers import author, last_update
from overlay.package import VLLM, Package, path_problem
from overlay.report.model import TargetFailure, TargetReport
from overlay.report.problems import word
from overlay.results import FeatureResult, State
from overlay.targets.resolution import releases

if TYPE_CHECKING:
    from overlay.authoring.git import Checkout
    from overlay.authoring.incoming import IncomingFile
    from overlay.features.model import Feature, Patch, Variant

_PULL = re.compile(r"/pull/(\d+)\b")


def log(
    request: Request,
    id_: str,
    *,
    span: str | None = None,
    upstream: Path | None = None,
) -> LogReport:
    """The state of a feature on every release, who made its variants, and what upstream has of it.

    :param id_: the feature; :param span: releases as ``--releases`` takes them; default: all.
    :param upstream: a git checkout of vLLM in which the upstream pull request is looked for.
    :raises UsageError: if there is no such feature, or the checkout cannot be asked.
    :raises OverlayError: if a release cannot be read.
    """
    named = request._replace(features=(id_,), named_as="ID")
    features = named.at_hand()
    (feature,) = named.select(features)
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
    )


# Releases


def _release(target: TargetReport | TargetFailure, feature: Feature) -> Release:
    """One line of the log.

    :raises OverlayError: if the release could not be read.
    """
    if isinstance(target, TargetFailure):
        raise OverlayError(target.error)
    release = target.vllm or target.target
    (result,) = (entry for entry in target.features if entry.feature == feature.id)
    serving = _serving(feature, Version(release))
    patches = [variant.patch for variant in serving]
    return Release(
        target.target,
        result.state,
        means(feature, Version(release), result),
        _distinct(str(variant.releases) for variant in serving),
        _distinct(patch.headers.get("Base", "") for patch in patches),
        _distinct(_author(patch) for patch in patches),
        _distinct(last_update(patch.headers) for patch in patches),
        _why(result),
        word(result),
    )


def means(feature: Feature, release: Version, result: FeatureResult) -> Means | None:
    """The means by which a release is known to have a feature; ``None`` where it is not."""
    if result.state is not State.UPSTREAMED:
        return None
    if feature.merged is not None and Version(release.base_version) >= feature.merged:
        return Means.MEMORY
    serving = _serving(feature, release)
    if serving and all(variant.patch.retired for variant in serving):
        return Means.MEMORY  # its patches say so, whatever the release's lines are
    hunks = [hunk for file in result.files for hunk in file.hunks]
    # Lines tell of a whole feature without its files, or of a hunk with a reason.
    if not result.files or any(hunk.reason is not None for hunk in hunks):
        return Means.LINES
    return Means.IMAGES


def _serving(feature: Feature, release: Version) -> list[Variant]:
    """The variants that are made for a release, one a topic."""
    return [
        variant
        for topic in feature.topics
        for variant in topic.variants
        if release in variant.releases
    ]


def _author(patch: Patch) -> str:
    """The name of the first author of a patch, without the address."""
    first = author(patch.headers)
    return first.partition("<")[0].strip().strip('"') or first


def _why(result: FeatureResult) -> str | None:
    """The first cause of a state, in words."""
    causes = [hunk.reason for file in result.files for hunk in file.hunks]
    causes = [file.reason for file in result.files] + causes
    text = next((str(cause.text) for cause in causes if cause is not None), None)
    return text or (result.reason.text if result.reason is not None else None)


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))


# History


def _edits(feature: Feature) -> tuple[Edit, ...]:
    """The commits that changed a feature's folder, where git and a history are there."""
    from overlay.authoring.git import Checkout

    if feature.shipped:
        return ()
    try:
        entries = Checkout(Path(feature.origin)).history(feature.id)
    except UsageError:
        return ()  # not a repository, or no git: the headers tell who and when
    return tuple(Edit(entry.commit, entry.date, entry.author, entry.subject) for entry in entries)


# Upstream


def _pull(feature: Feature) -> int:
    """The number of the upstream pull request.

    :raises UsageError: if the feature names none.
    """
    match = _PULL.search(feature.upstream)
    if match is None:
        found = feature.upstream or "none"
        raise UsageError(
            f"--upstream: expected the URL of a pull request (.../pull/49391) as upstream in the "
            f"feature.toml of {feature.id}, found {found}"
        )
    return int(match[1])


def _merged(feature: Feature, pull: int, folder: Path) -> Merge | None:
    """What a checkout knows of a pull request, by the subject that its merge has.

    :raises UsageError: if the checkout cannot be asked.
    """
    from overlay.authoring.git import Checkout
    from overlay.authoring.incoming import read_changes

    checkout = Checkout(folder)
    named = checkout.naming(f"(#{pull})")
    merges = [entry for entry in named if entry.subject.endswith(f"(#{pull})")]
    if not merges:
        return None
    entry = merges[0]
    mail = checkout.mail(entry.commit)
    theirs = [
        line
        for commit in read_changes(mail, entry.commit[:9])
        for line in _of(commit.files, feature.package)
    ]
    difference = _difference(_carried(feature), sorted(theirs))
    return Merge(
        pull,
        entry.commit,
        entry.date,
        _first(checkout, entry.commit),
        tuple(other.subject for other in named if other != entry),
        tuple(difference),
        sum(line[:1] in ("+", "-") for line in difference),
    )


def _carried(feature: Feature) -> list[tuple[str, str]]:
    """Path and line of each change that a feature makes, by its newest variants; sorted."""
    lines = [(file.path, f"+{text}") for file in feature.added for text in _texts(file.content)]
    for topic in feature.topics:
        own = [variant for variant in topic.variants if not variant.patch.retired]
        for variant in sorted(own, key=lambda variant: variant.releases)[-1:]:
            patch = variant.patch
            lines += [(patch.path, op + text) for hunk in patch.hunks for op, text in hunk.lines]
    return sorted((path, line) for path, line in lines if line[:1] != " ")


def _texts(content: bytes) -> list[str]:
    return content.decode("utf-8", "surrogateescape").splitlines()


def _of(files: Iterable[IncomingFile], package: Package = VLLM) -> list[tuple[str, str]]:
    """Path and line of each change that a commit makes to a package's Python."""
    return [
        (file.path, op + text)
        for file in files
        if path_problem(file.path, package) is None
        for hunk in file.hunks
        for op, text in hunk.lines
        if op != " "
    ]


def _difference(carried: Sequence[tuple[str, str]], merged: Sequence[tuple[str, str]]) -> list[str]:
    """The changed lines that only one side has, below the path of each file.

    Each line begins with ``-`` where only the feature carries it, with ``+`` where only upstream
    merged it; the line's own sign follows.
    """
    from collections import Counter

    ours, theirs = Counter(carried), Counter(merged)
    only = [("-", *entry) for entry in (ours - theirs).elements()]
    only += [("+", *entry) for entry in (theirs - ours).elements()]
    shown: list[str] = []
    for path in dict.fromkeys(path for _, path, _ in only):
        shown.append(path)
        shown += [f"{side} {line}" for side, of, line in only if of == path]
    return shown


def _first(checkout: Checkout, commit: str) -> str | None:
    """The first final release whose tag has a commit."""
    versions: list[Version] = []
    for tag in checkout.tags_with(commit):
        try:
            versions.append(Version(tag))
        except InvalidVersion:
            continue  # a tag of another kind
    final = [version for version in versions if not version.is_prerelease]
    return str(min(final)) if final else None
