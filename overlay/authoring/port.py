"""Try the variants of patches on another release, and keep their numbers right.

A variant is tried with the planner's own attempt (``overlay.planning.attempt``), so that what lands
here is what ``overlay apply`` would apply."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from packaging.version import Version

from overlay.errors import UsageError
from overlay.features.model import Hunk, Patch
from overlay.features.patch_file import parse_patch
from overlay.package import KNOWN_RELEASES, ReleaseRange, Tree
from overlay.planning.attempt import Attempt, Texts, attempt
from overlay.planning.scopes import Syntax
from overlay.planning.text import TextError
from overlay.results import HunkResult, State
from overlay.untrusted import read_regular

_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$")
_RELEASES = re.compile(r'^(releases\s*=\s*")[^"]*(")', re.MULTILINE)

#: Lines that are shown around a place where a hunk could have been meant to land.
_AROUND = 6


def _text(path: Path) -> str:
    """The text of a patch or of a ``feature.toml``, with line feeds only.

    :raises FileNotFoundError: if it is not there.
    """
    data = read_regular(path)
    if data is None:
        raise FileNotFoundError(path)
    return data.decode("utf-8").replace("\r\n", "\n")


class Series:
    """The files of a release, and what the variants that landed so far leave of them.

    :param tree: the release's own files.
    """

    def __init__(self, tree: Tree) -> None:
        self.texts = Texts(Syntax())
        self._tree = tree
        self._after: dict[str, bytes] = {}

    def read(self, path: str) -> bytes | None:
        """The bytes of a file as the variants so far leave it; ``None`` where there is none."""
        return self._after[path] if path in self._after else self._tree.read(path)

    def lines(self, path: str) -> Sequence[str]:
        """The lines of that file; none where it cannot be read."""
        data = self.read(path)
        try:
            return () if data is None else self.texts.source(data).lines
        except TextError:
            return ()

    def keep(self, landing: Landing) -> None:
        """Let the next variants be tried on what this one leaves."""
        if landing.tried.after is not None:
            self._after[landing.patch.path] = landing.tried.after


@dataclass(frozen=True)
class Landing:
    """A variant tried on a release.

    :ivar path: the patch file; :ivar lines: of the file that it was tried on.
    """

    path: Path
    patch: Patch
    tried: Attempt
    lines: Sequence[str]

    @property
    def lands(self) -> bool:
        """Whether every hunk would be applied."""
        return self.tried.after is not None


# Counts and line numbers


def recount(text: str) -> str:
    """The patch with the line counts of every ``@@`` header as its lines are."""
    lines = text.rstrip("\n").split("\n")
    heads = [index for index, line in enumerate(lines) if line.startswith("@@ ")]
    for head, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        match = _HUNK.match(lines[head])
        if match is None:
            continue  # parse_patch names it
        ops = [line[:1] for line in lines[head + 1 : end]]
        before, after = len(ops) - ops.count("+"), len(ops) - ops.count("-")
        lines[head] = f"@@ -{match[1]},{before} +{match[2]},{after} @@{match[3]}"
    return "\n".join(lines) + "\n"


def renumber(text: str, patch: Patch, results: Sequence[HunkResult]) -> str:
    """The patch with its hunks in the order of the file and their right line numbers.

    :param results: one for each hunk, each with the line at which it lands.
    """
    head = text[: text.index("\n@@ ") + 1]
    placed = sorted(
        zip((result.line or 0 for result in results), patch.hunks, strict=True),
        key=lambda pair: pair[0],
    )
    body, shift = "", 0
    for line, hunk in placed:
        body += f"@@ -{line},{len(hunk.pre)} +{line + shift},{len(hunk.post)} @@ {hunk.scope}\n"
        body += "".join(f"{op}{content}\n" for op, content in hunk.lines)
        shift += len(hunk.post) - len(hunk.pre)
    return head + body


# Series


def variants(topic: Path) -> list[tuple[ReleaseRange, Path]]:
    """The variants of a topic's folder by their ranges, oldest first."""
    ranges = [
        (ReleaseRange.parse(path.name[: -len(".patch")]), path) for path in topic.glob("*.patch")
    ]
    return sorted(ranges, key=lambda pair: pair[0])


def topics(feature: Path) -> list[Path]:
    """The topics' folders of a feature, in the order of the series."""
    return sorted(path for path in feature.iterdir() if path.is_dir() and path.name[:2].isdigit())


def land(path: Path, series: Series) -> Landing:
    """Try one variant on what the topics before it left, or else the release's own file.

    :raises PatchFormatErrors: if the patch file is malformed.
    """
    patch = parse_patch(recount(_text(path)), path.name)
    tried = attempt(patch, series.read(patch.path), series.texts)
    return Landing(path, patch, tried, series.lines(patch.path))


def nearest_first(topic: Path, release: Version) -> list[tuple[ReleaseRange, Path]]:
    """The variants, the one for the release first, then by their distance from it."""
    order = {Version(known): index for index, known in enumerate(KNOWN_RELEASES)}

    def distance(pair: tuple[ReleaseRange, Path]) -> tuple[int, int]:
        span = pair[0]
        if release in span:
            return (0, 0)
        newest = len(order)
        if span.last < release:
            return (1, newest - order.get(span.last, newest))
        return (2, order.get(span.first, newest))

    return sorted(variants(topic), key=distance)


def port_topic(topic: Path, release: Version, series: Series) -> list[Landing]:
    """The landings that were tried, the last of which is the one that lands, if one does."""
    tried = []
    for _, path in nearest_first(topic, release):
        tried.append(land(path, series))
        if tried[-1].lands:
            series.keep(tried[-1])
            break
    return tried


def series_before(feature: Path, topic: Path, release: Version, tree: Tree) -> Series:
    """What the topics before one leave in a release."""
    series = Series(tree)
    for earlier in topics(feature):
        if earlier == topic:
            break
        path = next((path for span, path in variants(earlier) if release in span), None)
        if path is not None:
            series.keep(land(path, series))
    return series


# Writing


def widen(path: Path, release: Version) -> Path:
    """Give the release to a variant: widen its range, or copy it where another lies between."""
    span = ReleaseRange.parse(path.name[: -len(".patch")])
    if release in span:
        return path
    wide = ReleaseRange(min(span.first, release), max(span.last, release))
    others = [other for other, its_path in variants(path.parent) if its_path != path]
    if any(wide.overlaps(other) for other in others):
        copy = path.with_name(f"{release}..{release}.patch")
        shutil.copyfile(path, copy)
        return copy
    return path.rename(path.with_name(f"{wide}.patch"))


def widen_feature(toml: Path, release: Version) -> None:
    """Widen the range in ``feature.toml`` to hold the release.

    :raises UsageError: if it has no range.
    """
    text = _text(toml)
    match = _RELEASES.search(text)
    if match is None:
        raise UsageError(f'{toml}: expected a line releases = "first..last", found none')
    span = ReleaseRange.parse(match[0].split('"')[1])
    wide = ReleaseRange(min(span.first, release), max(span.last, release))
    toml.write_text(_RELEASES.sub(rf"\g<1>{wide}\g<2>", text, count=1), encoding="utf-8")


def report(topic: str, landing: Landing) -> str:
    """What a human needs to port a variant: the hunks that do not land, and what comes nearest."""
    result = landing.tried.result
    parts = [f"{topic}: {landing.path.name} against {landing.patch.path}\n"]
    if result.reason is not None:
        parts.append(f"{result.state.value}: {result.reason}\n")
    for hunk, placed in zip(landing.patch.hunks, result.hunks, strict=True):
        if placed.state is State.PRISTINE:
            parts.append(f"lands at line {placed.line}: the hunk in {hunk.scope}\n")
            continue
        own = "" if placed.reason == result.reason else f"{placed.reason}\n"
        parts.append(f"{placed.state.value}: the hunk in {hunk.scope}\n{own}")
        parts.append("".join(f"  {op}{text}\n" for op, text in hunk.lines))
        if landing.lines:
            parts.append(excerpt(hunk, placed, landing.lines))
    return "\n".join(parts)


def excerpt(hunk: Hunk, result: HunkResult, lines: Sequence[str]) -> str:
    """The lines of the release near the places where a hunk could have been meant to land."""
    wanted = "\n".join(hunk.pre)
    starts = [
        line - 1 for line in result.candidates or (() if result.line is None else (result.line,))
    ]
    if not starts:
        size = len(hunk.pre)
        matcher = SequenceMatcher(b=wanted, autojunk=False)
        scored: list[tuple[float, int]] = []
        for start in range(max(1, len(lines) - size + 1)):
            matcher.set_seq1("\n".join(lines[start : start + size]))
            if matcher.real_quick_ratio() > 0.6 and matcher.quick_ratio() > 0.6:
                scored.append((matcher.ratio(), start))
        starts = [start for _, start in sorted(scored, reverse=True)[:3]]
    if not starts:
        return "no lines of the release come near\n"
    shown = []
    for start in starts:
        stop = min(len(lines), start + len(hunk.pre) + _AROUND)
        shown += [
            f"{number + 1:6} {lines[number]}\n" for number in range(max(0, start - _AROUND), stop)
        ]
        shown.append("       ...\n")
    return "near:\n" + "".join(shown[:-1])
