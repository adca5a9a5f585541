"""Follow a file or scope that upstream moved: the place in a release that has its text now.

Where a release lacks a file or scope, its other files are asked: the few whose paths are like the
file's own, and, where that is wanted, every file that defines something of the scope's name.  A
file that the base has, too, is another file, and so is one whose text is not like enough.  What is
carried there is for review.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from overlay._features.model import MODULE_SCOPE, Hunk
from overlay.authoring.carry import MOVED, Carried, carry
from overlay.authoring.locating import ReleaseTexts
from overlay.errors import OverlayError
from overlay.package import paths_in
from overlay.planning.moved import likely
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.text import SourceText, TextError
from overlay.results import Outcome

#: A file that shares at least this much of its lines with a file that is gone took its place; git
#: takes the same share for a rename.
RENAMED = 0.5


class NewPlace(NamedTuple):
    """Where upstream moved what a file's hunks change."""

    path: str
    before: bytes
    carried: Carried


class Moved(NamedTuple):
    """Hunks whose file or scope a release does not have.

    :ivar origin: the text that they were made on, in the release ``base``.
    """

    path: str
    base: str
    origin: bytes
    hunks: tuple[Hunk, ...]


def follow(
    moved: Moved, release: str, texts: ReleaseTexts, syntax: Syntax, *, everywhere: bool = False
) -> NewPlace | None:
    """The one place in a release to which hunks can be carried; ``None`` where there is none.

    :param everywhere: look in every file that defines something of a scope's name, too.
    """
    here = texts.read(release, moved.path)
    places: list[tuple[float, NewPlace]] = []
    for path in _candidates(moved, release, texts, everywhere=everywhere):
        data = texts.read(release, path)
        if data is None or not _new_there(moved, path, texts, syntax, whole=here is None):
            continue
        share = _share(moved, data, syntax, whole=here is None)
        if share is None:
            continue
        carried = carry(moved.origin, moved.hunks, data, syntax, less=True)
        if carried.problem is None and not any(
            hunk.outcome in (Outcome.CONFLICT, Outcome.MISSING) for hunk in carried.hunks
        ):
            places.append((share, NewPlace(path, data, _for_review(carried))))
    places.sort(key=lambda each: -each[0])
    if not places or (len(places) > 1 and places[0][0] == places[1][0]):
        return None
    return places[0][1]


def follow_each(
    moved: Moved, release: str, texts: ReleaseTexts, syntax: Syntax, *, everywhere: bool = False
) -> dict[str, str]:
    """The file to which upstream moved each scope of which that is known: they may be several.

    :param everywhere: as for ``follow``.
    """
    by_scope: dict[str, list[Hunk]] = {}
    for hunk in moved.hunks:
        by_scope.setdefault(hunk.scope, []).append(hunk)
    places = {
        scope: follow(
            moved._replace(hunks=tuple(own)), release, texts, syntax, everywhere=everywhere
        )
        for scope, own in (by_scope.items() if len(by_scope) > 1 else ())
        if scope != MODULE_SCOPE  # its lines alone say too little
    }
    return {scope: place.path for scope, place in places.items() if place is not None}


def _for_review(carried: Carried) -> Carried:
    """What was carried to another file: nothing of it lands there unseen."""
    return replace(
        carried,
        hunks=tuple(
            hunk if hunk.outcome is Outcome.UPSTREAM else replace(hunk, outcome=Outcome.MOVED)
            for hunk in carried.hunks
        ),
    )


def _candidates(
    moved: Moved, release: str, texts: ReleaseTexts, *, everywhere: bool
) -> Iterator[str]:
    tree = texts.open(release)
    paths = [path for path in paths_in(tree) if path != moved.path and path.endswith(".py")]
    first = likely(moved.path, paths)
    yield from first
    names = {hunk.scope.partition(".")[0] for hunk in moved.hunks} - {MODULE_SCOPE}
    if not everywhere or not names:
        return
    words = b"|".join(re.escape(name.encode()) for name in sorted(names))
    header = re.compile(rb"^(?:class|def|async def) (?:" + words + rb")\b", re.MULTILINE)
    top = moved.path.partition("/")[0] + "/"
    for path in paths:
        if path not in first and path.startswith(top):
            try:
                data = tree.read(path)
            except OverlayError:
                continue
            if data is not None and header.search(data):
                yield path


def _new_there(
    moved: Moved, path: str, texts: ReleaseTexts, syntax: Syntax, *, whole: bool
) -> bool:
    """Whether the base has not the same in that file already.

    :param whole: the file itself is gone, so that a file of its text is asked for.
    """
    data = texts.read(moved.base, path)
    if data is None:
        return True
    scopes = {hunk.scope for hunk in moved.hunks}
    if whole or MODULE_SCOPE in scopes:
        return False
    try:
        return scopes.isdisjoint(syntax.scopes(data, SourceText.from_bytes(data).lines))
    except (TextError, UnparsableError):
        return False


def _share(moved: Moved, data: bytes, syntax: Syntax, *, whole: bool) -> float | None:
    """How much of the text is there: of the file, or of each scope; ``None``: not enough."""
    names = {hunk.scope for hunk in moved.hunks}
    try:
        own, there = SourceText.from_bytes(moved.origin), SourceText.from_bytes(data)
        own_scopes = syntax.scopes(moved.origin, own.lines)
        if whole and (share := _alike(_counts(moved.origin), _counts(data))) >= RENAMED:
            return share
        # A text is parsed only where each part of the scopes' names stands in it.
        parts = {part.encode() for name in names for part in name.split(".")}
        if MODULE_SCOPE in names or not all(part in data for part in parts):
            return None
        scopes = syntax.scopes(data, there.lines)
    except (TextError, UnparsableError):
        return None
    shares: list[float] = []
    for name in names:
        places, other_places = own_scopes.get(name, ()), scopes.get(name, ())
        if len(places) != 1 or len(other_places) != 1:
            return None
        (place,), (other,) = places, other_places
        lines, other_lines = (
            own.lines[place.start : place.stop],
            there.lines[other.start : other.stop],
        )
        shares.append(_alike(_counter(lines), _counter(other_lines)))
    return min(shares) if shares and min(shares) >= MOVED else None


@lru_cache(maxsize=128)
def _counts(data: bytes) -> Counter[str]:
    """How often each line of a text is there; the same files are asked about for many others.

    :raises TextError: if it cannot be read.
    """
    return _counter(SourceText.from_bytes(data).lines)


def _counter(lines: Sequence[str]) -> Counter[str]:
    return Counter(filter(None, map(str.strip, lines)))


def _alike(own: Counter[str], other: Counter[str]) -> float:
    total = own.total() + other.total()
    return 2 * (own & other).total() / total if total else 0.0
