"""``overlay list``: the features, the releases they are made for, and what upstream did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from overlay.commands.request import Request
from overlay.report.model import FeatureEntry, ListReport, TopicEntry
from overlay.report.wording import listed

if TYPE_CHECKING:
    from overlay.features.folder import Hole
    from overlay.features.model import Feature


def list_(request: Request) -> ListReport:
    """Describe every feature; a hole needs the user.

    :raises PatchFormatErrors: if a folder of patches is malformed.
    """
    from overlay.features.folder import holes

    entries = tuple(_entry(feature, holes(feature)) for feature in request.load())
    gaps = [
        (entry.feature, topic.name) for entry in entries for topic in entry.topics if topic.holes
    ]
    return ListReport(listed(gaps, len(entries)), entries)


def _entry(feature: Feature, holes: Sequence[Hole]) -> FeatureEntry:
    topics = tuple(
        TopicEntry(
            topic.name,
            tuple(str(variant.releases) for variant in topic.variants),
            tuple(hole.release for hole in holes if hole.topic == topic.name),
        )
        for topic in feature.topics
    )
    retires = []
    if feature.merged is not None:
        retires.append(f"from {feature.merged} on, where upstream merged it")
    retires += [
        f"once a release has {test.contains.strip()!r} in {test.scope} of {test.path}"
        if test.contains
        else f"once a release has {test.share:.0%} of its {len(test.lines)} new lines in "
        f"{test.scope} of {test.path}"
        for test in feature.upstream_tests
    ]
    return FeatureEntry(
        feature=feature.id,
        title=feature.title,
        why=feature.why,
        releases=str(feature.releases),
        upstream=feature.upstream,
        retires=tuple(retires)
        or ("once a release has all of its changes itself, told by their lines",),
        topics=topics,
        added=tuple(added.path for added in feature.added),
        origin=feature.origin,
        digest=feature.digest,
        needs=feature.needs,
    )
