"""Name the place in a release to which upstream moved what a patch changes.

Only asked for a patch that needs attention anyhow, and only of a few files whose paths are like the
patch's own: the answer is a hint for a person, and nothing lands by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from overlay._features.model import MODULE_SCOPE, Hunk, Patch
from overlay.errors import TargetError
from overlay.package import ReadOnce
from overlay.planning.attempt import Attempt, Texts
from overlay.planning.matching import innermost_scope
from overlay.planning.scopes import UnparsableError
from overlay.planning.telling import SHARE, new_lines, share_of
from overlay.planning.text import TextError
from overlay.results import Reason, State
from overlay.untrusted import printable

#: The most files that are read for one patch.
MOST = 24


def placed(tried: Attempt, patch: Patch, tree: ReadOnce, texts: Texts) -> Attempt:
    """An attempt whose file or scope is missing, with the place where the release has it now."""
    lost = [hunk for hunk in tried.result.hunks if hunk.state is State.MISSING]
    place = elsewhere(patch, tree, texts) if lost else None
    if place is None:
        return tried

    def with_place(reason: Reason | None) -> Reason | None:
        return reason and reason._replace(text=f"{reason.text}; {place}")

    hunks = tuple(
        hunk._replace(reason=with_place(hunk.reason)) if hunk.state is State.MISSING else hunk
        for hunk in tried.result.hunks
    )
    return tried._replace(
        result=tried.result._replace(hunks=hunks, reason=with_place(tried.result.reason))
    )


def elsewhere(patch: Patch, tree: ReadOnce, texts: Texts) -> str | None:
    """Where a release has what a patch changes, in words; ``None`` where that is not to be told."""
    matches: list[tuple[int, str]] = []
    for path in likely(patch.path, tree.paths()):
        try:
            data = tree.read(path)
        except TargetError:
            continue  # nothing lands by a hint, so nothing ends by one
        if data is not None and (place := _in_file(patch.hunks, path, data, texts)) is not None:
            matches.append(place)
    return max(matches, key=lambda place: place[0])[1] if matches else None


def likely(path: str, paths: Iterable[str]) -> list[str]:
    """The files that may have taken the place of one, the likeliest first."""
    own = PurePosixPath(path)
    own_folder, own_name, own_stem = list(own.parent.parts), own.name, own.stem
    ranked: list[tuple[int, str]] = []
    for other in paths:
        if other == path or not other.endswith(".py"):
            continue
        parts = other.split("/")  # a package has thousands of files
        name, stem, folder = parts[-1], parts[-1][:-3], parts[:-1]
        same_folder = folder == own_folder
        value = 4 * (name == own_name) + 4 * (own_stem in parts)
        value += 2 * (own_stem in stem or stem in own_stem) + (
            same_folder or folder[:-1] == own_folder
        )
        if value > 1 or (value and same_folder):
            ranked.append((-value, other))
    return [other for _, other in sorted(ranked)[:MOST]]


def _in_file(hunks: Sequence[Hunk], path: str, data: bytes, texts: Texts) -> tuple[int, str] | None:
    """What a file has of some hunks, and how much that tells."""
    try:
        lines = texts.source(data).lines
    except TextError:
        return None
    where = printable(path)
    added_lines = [line for hunk in hunks for line in new_lines(hunk)]
    share = share_of(added_lines, lines)
    if share >= SHARE:
        number = round(share * len(added_lines))
        text = f"{number} of the {len(added_lines)} lines that it adds are in {where}"
        return 1000 + round(100 * share), text
    places = ((hunk, _place(hunk, lines)) for hunk in hunks)
    at, size = next(((at, len(hunk.pre)) for hunk, at in places if at is not None), (None, 0))
    likely_scopes = [hunk.scope for hunk in hunks if _may_hold(data, hunk.scope)]
    if at is None and not likely_scopes:
        return None
    try:
        scopes = texts.scopes(data)  # parsed only where that tells something
    except UnparsableError:
        return None
    if at is not None:
        scope = innermost_scope(at, size, scopes)
        return 500, f"its lines before the change are in {where}, in {printable(scope)}"
    there = next((scope for scope in likely_scopes if scope in scopes), None)
    return None if there is None else (100, f"{printable(there)} is in {where}")


def _may_hold(data: bytes, scope: str) -> bool:
    """Whether a file may have a scope: each of its names stands there."""
    return scope != MODULE_SCOPE and all(name.encode() in data for name in scope.split("."))


def _place(hunk: Hunk, lines: Sequence[str]) -> int | None:
    """The one place of a hunk's pre-image, which says something."""
    pre = hunk.pre
    if sum(bool(line.strip()) for line in pre) < 2:
        return None
    places = [
        at
        for at in range(len(lines) - len(pre) + 1)
        if lines[at] == pre[0] and tuple(lines[at : at + len(pre)]) == pre
    ]
    return places[0] if len(places) == 1 else None
