"""``overlay list``: the features, the releases they are made for, and what upstream did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from overlay.commands.request import Request
from overlay.errors import UsageError
from overlay.package import VLLM, package_of_distribution
from overlay.report.catalogue import FeatureEntry, ListReport, ReleaseEntry, TopicEntry, listed

if TYPE_CHECKING:
    from overlay.features.folder import Hole
    from overlay.features.model import Feature, UpstreamTest
    from overlay.package import Package


def list_(
    request: Request, *, releases: bool = False, pre: bool = False, package: str | None = None
) -> ListReport:
    """Describe every feature, and the releases of the package index; a hole needs the user.

    :param releases: ask the index for its releases; :param pre: for pre-releases as well.
    :param package: show the features of this package only, and its releases; default: every
        feature, and the releases of vLLM.
    :raises UsageError: if that cannot be a package.
    :raises PatchFormatErrors: if nothing in a folder of patches is a feature.
    :raises PackageIndexError: if the index is asked and does not answer.
    """
    from overlay.features.folder import holes

    meant = VLLM if package is None else _package(package)
    offered = _offered(pre, meant) if releases else None

    entries = tuple(
        _entry(feature, holes(feature))
        for feature in request.at_hand()
        if package is None or feature.package == meant or feature.malformed
    )
    gaps = [
        (entry.feature, topic.name) for entry in entries for topic in entry.topics if topic.holes
    ]
    unknown = [entry.release for entry in offered or () if not entry.known and not entry.yanked]
    malformed = [entry.feature for entry in entries if entry.malformed]
    return ListReport(listed(gaps, len(entries), unknown, malformed), entries, offered)


def _package(name: str) -> Package:
    """The package with an import name, or with that of its distribution.

    :raises UsageError: if the text is neither.
    """
    found = package_of_distribution(name)
    if found is None:
        raise UsageError(
            f"--package {name}: expected the name of a package that features patch, such as "
            "vllm-ascend"
        )
    return found


def _offered(pre: bool, package: Package) -> tuple[ReleaseEntry, ...]:
    """The releases on the index from the oldest known one on, oldest first."""
    from packaging.version import Version

    from overlay.errors import PackageIndexError
    from overlay.targets.fetch import offered_releases

    known = package.releases
    try:
        offered = offered_releases(package, pre=pre)
    except PackageIndexError as error:
        if not known:
            raise
        oldest, newest = known[0], known[-1]
        raise PackageIndexError(
            f"{error}. Without the index only the releases are known that this overlay was made "
            f"for: {oldest}..{newest}"
        ) from error
    return tuple(
        ReleaseEntry(
            str(entry.version),
            str(entry.version) in known,
            entry.yanked,
            entry.version.is_prerelease,
        )
        for entry in offered
        if not known or entry.version >= Version(known[0])
    )


def _entry(feature: Feature, holes: Sequence[Hole]) -> FeatureEntry:
    if feature.malformed:
        return FeatureEntry(
            *(feature.id, feature.title, "", "", ""),
            *((), (), ()),
            *("", ""),
            warnings=feature.malformed,
            malformed=True,
        )
    topics = tuple(
        TopicEntry(
            topic.name,
            tuple(str(variant.releases) for variant in topic.variants),
            tuple(hole.release for hole in holes if hole.topic == topic.name),
        )
        for topic in feature.topics
    )
    return FeatureEntry(
        feature=feature.id,
        title=feature.title,
        why=feature.why,
        releases=str(feature.releases),
        upstream=feature.upstream,
        retires=_retires(feature),
        topics=topics,
        added=tuple(added.path for added in feature.added),
        origin=feature.origin,
        digest=feature.digest,
        needs=feature.needs,
        reason=None if feature.reason is None else feature.reason.value,
        warnings=tuple(_warnings(feature)),
        package=feature.package.name,
    )


def _retires(feature: Feature) -> tuple[str, ...]:
    """What shows that a release has a feature itself, in words; all of them must hold.

    The last sentence also names the files without which there is nothing to do.
    """
    whole = tuple(_has_it(feature)) or (
        "once a release has all of its changes itself, told by their lines",
    )
    of_topics = (
        f"{topic.name} {sentence}"
        for topic in feature.topics
        for sentence in _tested(topic.upstream_tests)
    )
    *first, last = (*of_topics, *whole)
    if feature.obsolete_without:
        last += f"; or where a release has no {' or no '.join(feature.obsolete_without)} any more"
    return (*first, last)


def _has_it(feature: Feature) -> Iterator[str]:
    """What shows that a release has a feature itself, by its memory and its tests."""
    if feature.merged is not None:
        yield f"from {feature.merged} on, where upstream merged it" + (
            "; where the release is not known, by the tests in its feature.toml"
            if feature.upstream_tests
            else ""
        )
        return
    yield from _tested(feature.upstream_tests)


def _tested(tests: Sequence[UpstreamTest]) -> Iterator[str]:
    """What tests look for, in words."""
    for test in tests:
        if test.contains:
            yield f"once a release has {test.contains.strip()!r} in {test.scope} of {test.path}"
    lined = [test for test in tests if test.lines]
    if lined:
        number = sum(len(test.lines) for test in lined)
        share = min(test.share for test in lined)  # as it is judged: of the lines of all scopes
        lines = "new line" if number == 1 else f"{number} new lines"
        scopes = ", ".join(dict.fromkeys(test.scope for test in lined))
        every = "its" if number == 1 else "all of its"
        asked = f" (from {share:.0%} of them on you are asked)" if share < 1 < number else ""
        yield f"once a release has {every} {lines} in {scopes}{asked}"


def _warnings(feature: Feature) -> Iterator[str]:
    """What the user should know about a feature's folder."""
    from overlay.features.model import UpstreamPlan

    if feature.reason is UpstreamPlan.WAITING and not feature.upstream:
        yield (
            "it waits for upstream, and no upstream URL says for what: add upstream to its "
            "feature.toml, or give it the reason local"
        )
    yield from (str(notice) for notice in feature.notices)
