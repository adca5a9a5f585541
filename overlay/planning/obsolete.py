"""Whether upstream has deleted what a feature is for, so that there is nothing left to do.

A model runner that is gone takes with it what was made for it; no patch has to be carried, and
nobody has to act.  Only the files that a feature names say so (``obsolete_without``): any other
that is not there is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from packaging.version import Version

from overlay._features.model import Feature
from overlay.results import ANY_MORE, RUNNER_FILES


def obsolete_by(
    feature: Feature,
    release: Version | None,
    read: Callable[[str], bytes | None],
    record: Mapping[str, str] | None,
) -> str | None:
    """What a release has no more that the feature is for; ``None`` where nothing of it is gone.

    The release's own RECORD says which files it has: one that it lists is missing from the tree
    and not gone.  Without a RECORD a file that a variant for the release patches is missing, for it
    was there when that was written.

    :param read: gives a file of the release's own tree.
    :param record: the release's own files, where it has a RECORD.
    """
    title = feature.package.title
    for path in feature.obsolete_without:
        was_there = release is not None and any(
            variant.patch.path == path and release in variant.releases
            for topic in feature.topics
            for variant in topic.variants
        )
        if read(path) is not None or (was_there if record is None else path in record):
            continue
        runner = next((each for each, file in RUNNER_FILES.items() if file == path), None)
        if runner is not None:
            return f"{title} has no model runner {runner.value.upper()} {ANY_MORE}"
        return f"{title} has no {path} {ANY_MORE}, which the feature is for"
    return None
