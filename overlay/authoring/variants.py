"""Give ported topics to a feature's folder: its variants, their ranges, and ``feature.toml``.

Ranges follow from what each release gets: neighbours with the same hunks are one range, and a
variant is split only where the texts differ, whatever was ported first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from packaging.version import Version

from overlay._features.folder import essence
from overlay._features.model import FILE_SCOPE, Feature, Hunk, PortedWay, Topic, Variant
from overlay.authoring.composing import ScopedText
from overlay.authoring.porting import FeaturePort, Porter, TopicPort, not_needed
from overlay.authoring.writing import patch_bytes, require_change
from overlay.errors import UsageError
from overlay.package import ReleaseRange
from overlay.planning.telling import new_lines, share_of
from overlay.results import Outcome

_RELEASES = re.compile(r'^(releases\s*=\s*")[^"]*(".*)$', re.MULTILINE)
_MERGED = re.compile(r"^merged\s*=.*\n?", re.MULTILINE)

#: What tells two texts of a variant apart.
_Key = tuple[PortedWay | None, str]


@dataclass(frozen=True)
class _Text:
    """What one release gets of a topic.

    :ivar existing: whether a patch file of the folder says so already.
    """

    key: _Key
    data: bytes
    existing: bool


def with_ports(
    feature: Feature,
    files: Mapping[str, bytes],
    ports: Iterable[FeaturePort],
    names: Sequence[str],
    today: str,
    *,
    merged: str | None = None,
) -> dict[str, bytes]:
    """The files of a feature's folder once it serves further releases.

    :param ports: without conflicts, one a release.
    :param merged: the first release that is known to have the feature, if that is to be noted.
    """
    result = dict(files)
    landed = [port for port in ports if not port.covered and not port.idle]
    if landed:
        result = _with_variants(feature, files, landed, names, today)
    if merged is not None:
        result["feature.toml"] = with_merged(result["feature.toml"], merged)
    return result


def _with_variants(
    feature: Feature,
    files: Mapping[str, bytes],
    landed: Sequence[FeaturePort],
    names: Sequence[str],
    today: str,
) -> dict[str, bytes]:
    spans = [variant.releases for topic in feature.topics for variant in topic.variants]
    ends = {str(end) for span in spans for end in (span.first, span.last)}
    every = sorted({*names, *ends, *(port.release for port in landed)}, key=Version)
    result = {path: data for path, data in files.items() if not _is_variant(path, feature)}
    for topic in feature.topics:
        cells = _existing(topic, files, every)
        for port in landed:
            part = next(part for part in port.topics if part.topic == topic.name)
            if not part.covered:
                cells[port.release] = _new(part, port.release, today)
        result |= _compressed(topic, cells, every)
    span = feature.releases
    releases = [Version(port.release) for port in landed]
    grown = ReleaseRange(min(span.first, *releases), max(span.last, *releases))
    result["feature.toml"] = with_releases(files["feature.toml"], grown)
    return result


def remembered(
    porter: Porter, port: FeaturePort, earlier: Sequence[Feature], names: Sequence[str]
) -> str | None:
    """The release to write as ``merged`` because a port found upstream to have the feature.

    Upstream's later work on the change does not count against it.  What counts is that the feature
    applies to a later release again, or has a variant there: then upstream took the change back.

    :returns: ``None`` where it is remembered already, or must not be.
    """
    feature, release = port.feature, Version(port.release)
    if not port.evidence or (feature.merged is not None and feature.merged <= release):
        return None
    spans = [variant.releases for topic in feature.topics for variant in topic.variants]
    if any(span.last >= release for span in spans) or feature.releases.last >= release:
        return None
    if port.by_hand:
        return port.release
    if not_needed(feature, release):
        return None
    for name in names:
        if Version(name) > release:
            later = porter.port(feature, name, earlier)
            if later.outcome is Outcome.EXACT and not later.covered:
                return None
    return port.release


def serving(feature: Feature, release: Version) -> list[tuple[Topic, Variant]]:
    """Each topic with its variant for a release, in the order in which they are applied."""
    return [
        (topic, variant)
        for topic in feature.topics
        for variant in topic.variants
        if release in variant.releases
    ]


def with_releases(toml: bytes, span: ReleaseRange) -> bytes:
    """``feature.toml`` with another range; everything else stays as it is.

    :raises UsageError: if it has no range on a line of its own, or more would change.
    """
    text, number = _RELEASES.subn(rf"\g<1>{span}\g<2>", toml.decode("utf-8"), count=1)
    if not number:
        raise UsageError('feature.toml: expected a line releases = "first..last", found none')
    return require_change(toml, text, {"releases": str(span)}, "releases on a line of its own")


def with_merged(toml: bytes, release: str) -> bytes:
    """``feature.toml`` with the memory that upstream has the feature from a release on.

    :raises UsageError: if it has no range on a line of its own, behind which that is written, or
        more would change.
    """
    text = _MERGED.sub("", toml.decode("utf-8"))
    text, number = _RELEASES.subn(rf'\g<0>\nmerged = "{release}"', text, count=1)
    if not number:
        raise UsageError('feature.toml: expected a line releases = "first..last", found none')
    keys = {"merged": release}
    return require_change(toml, text, keys, "releases and merged on lines of their own")


def base_has(hunks: Sequence[Hunk], base: bytes) -> list[str]:
    """The telling lines that hunks add although their scopes in the base have them already.

    With them are the lines of the base that define a name which the hunks add.


    :raises TextError, UnparsableError: if the base is not Python that can be read.
    """
    if any(hunk.whole is not None for hunk in hunks):
        return []
    is_data = any(hunk.scope == FILE_SCOPE for hunk in hunks)
    text = ScopedText.read(base, is_data=is_data)
    source, scopes = text.source, text.scopes
    lines: dict[str, None] = {}
    for hunk in hunks:
        for place in scopes.get(hunk.scope, ()):
            there = source.lines[place.start : place.stop]
            new = new_lines(hunk._replace(base_has=None))  # whatever was known of another base
            lines.update(dict.fromkeys(line for line in new if share_of([line], there)))
        lines.update(dict.fromkeys(text.twins(hunk)))
    return list(lines)


def with_base_has(headers: Mapping[str, str], hunks: Sequence[Hunk], base: bytes) -> dict[str, str]:
    """The headers of a patch whose base is known, with what that has of the lines that it adds.

    :raises TextError, UnparsableError: if the base is not Python that can be read.
    """
    result = {
        name: value for name, value in headers.items() if name not in ("Base-Has", "Tells-Nothing")
    }
    if lines := base_has(hunks, base):
        result["Base-Has"] = "\n".join(lines)
    return result


def _is_variant(path: str, feature: Feature) -> bool:
    folder, _, name = path.partition("/")
    return name.endswith(".patch") and any(topic.name == folder for topic in feature.topics)


def _key(hunks: Sequence[Hunk], retired: PortedWay | None = None) -> _Key:
    return retired, repr([*map(essence, hunks)])


def _existing(topic: Topic, files: Mapping[str, bytes], every: Sequence[str]) -> dict[str, _Text]:
    cells: dict[str, _Text] = {}
    for variant in topic.variants:
        patch = variant.patch
        key = _key(patch.hunks, patch.ported if patch.retired else None)
        cell = _Text(key, files[patch_file(variant)], existing=True)
        cells |= {name: cell for name in every if Version(name) in variant.releases}
    return cells


def patch_file(variant: Variant) -> str:
    """A variant's file below its feature's folder."""
    return variant.patch.name.partition("/")[2]


def _new(part: TopicPort, release: str, today: str) -> _Text:
    patch = part.variant.patch
    headers = {**patch.headers, "Last-Update": today}
    if part.new_hunks is None:
        headers.pop("Base", None)
        headers.pop("Base-Has", None)
        way = part.retired_as
        headers["Ported-From"] = f"{part.base} {way.value}"
        data = patch_bytes(headers, patch.path, patch.hunks)
        return _Text(_key(patch.hunks, way), data, existing=False)
    headers["Base"], hunks = release, part.new_hunks
    if part.before is not None:
        headers = with_base_has(headers, hunks, part.before)
    if part.way is not None:  # the variant that it is made of does not land by itself
        there = tuple(filter(None, headers.get("Base-Has", "").split("\n")))
        hunks = tuple(hunk._replace(base_has=there) for hunk in hunks)
        headers["Ported-From"] = f"{part.base} {part.way.value}"
    return _Text(_key(hunks), patch_bytes(headers, patch.path, hunks), existing=False)


def _compressed(topic: Topic, cells: Mapping[str, _Text], every: Sequence[str]) -> dict[str, bytes]:
    """The patch files: a range for each run of neighbours with the same hunks."""
    patches: dict[str, bytes] = {}
    for key, group in groupby(every, key=lambda name: cells[name].key if name in cells else None):
        if key is not None:
            run = list(group)
            # A text that was there before stays: its base lies in the wider range too.
            newest_first = [cells[name] for name in reversed(run)]
            best = next((cell for cell in newest_first if cell.existing), newest_first[-1])
            patches[f"{topic.name}/{run[0]}..{run[-1]}.patch"] = best.data
    return patches
