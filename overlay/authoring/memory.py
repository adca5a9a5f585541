"""Decide whether a feature that a release has may be remembered: ``merged`` in ``feature.toml``."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import Version

from overlay.authoring.porting import FeaturePort, Porter
from overlay.features.model import Feature
from overlay.results import Outcome


def remembered(
    porter: Porter, port: FeaturePort, earlier: Sequence[Feature], names: Sequence[str]
) -> str | None:
    """The release to write as ``merged`` because a port found upstream to have the feature.

    Upstream's later work on the change does not count against it.  What counts is that the feature
    applies to a later release again, or has a variant there: then upstream took the change back.

    :param names: the known releases, oldest first.
    :returns: ``None`` where it is remembered already, or must not be.
    """
    feature, release = port.feature, Version(port.release)
    if not port.shown or (feature.merged is not None and feature.merged <= release):
        return None
    spans = [variant.releases for topic in feature.topics for variant in topic.variants]
    if any(span.last >= release for span in spans) or feature.releases.last >= release:
        return None
    if port.by_hand:
        return port.release
    for name in names:
        if Version(name) > release:
            later = porter.port(feature, name, earlier)
            if later.outcome is Outcome.EXACT and not later.covered:
                return None
    return port.release
