"""Place a change beside what upstream changed, where a merge calls the lines that touch a conflict.

A proposal, which a person reviews with what differs: of lines that touch and were placed so,
people kept 20 of 35 as they were.  So nothing is placed that upstream may have already, whose place
is not one alone, or that takes the place of lines less alike than ``ALIKE``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

from overlay.authoring.merge import Lines, Merge, Region, Side, matches
from overlay.planning.code_lines import key_of
from overlay.planning.telling import quoted, says_much

#: The least share that each line which the change replaces has in common with upstream's, as
#: ``difflib`` counts it; and by how much the next likely place has to be less alike.
ALIKE, APART = 0.9, 0.2


class Settlement(NamedTuple):
    """A merged text.

    :ivar differences: upstream's lines whose place the change takes though it was made on others.
    """

    lines: Lines
    differences: tuple[str, ...] = ()


class _Edit(NamedTuple):
    """Lines that take the place of some of a region's."""

    start: int
    stop: int
    lines: Lines
    difference: str = ""


def place_touching(merge: Merge) -> Settlement | None:
    """A merge with the changes of its conflicts in upstream's lines; ``None`` where one has none.

    >>> from overlay.authoring.merge import merge
    >>> before, ours = ["a = (", "begin", "size=1", ")"], ["a = (", "begin", "size=two", ")"]
    >>> place_touching(merge(before, ours, ["a = (", "start()", "size=1", ")"])).lines
    ('a = (', 'start()', 'size=two', ')')
    """
    there = {key_of(line) for region in merge.regions for line in region.theirs}
    lines: list[str] = []
    differences: list[str] = []
    for number, region in enumerate(merge.regions):
        if region.side is not Side.CONFLICT:
            lines += region.lines
            continue
        above = merge.regions[number - 1].theirs[-1:] if number else ()
        below = merge.regions[number + 1].theirs[:1] if number + 1 < len(merge.regions) else ()
        placed = _placed(region, above, below, there)
        if placed is None:
            return None
        lines += placed.lines
        differences += placed.differences
    return Settlement(tuple(lines), tuple(differences))


def _placed(region: Region, above: Lines, below: Lines, there: set[str]) -> Settlement | None:
    """The lines of one conflict, of whose release ``there`` are all lines, white space aside."""
    base, theirs = (*above, *region.base, *below), (*above, *region.theirs, *below)
    edits: list[_Edit] = []
    for old, lines in _changes(base, (*above, *region.ours, *below)):
        before = set(map(key_of, base))
        if any(key_of(line) in there - before and says_much(line) for line in lines):
            return None  # upstream may have it
        own = base[old.start : old.stop]
        edit = _replacing(own, lines, theirs) if own else _between(base, old.start, lines, theirs)
        if edit is None:
            return None
        edits.append(edit)
    edits.sort()
    if any(edit.stop > other.start for edit, other in pairwise(edits)):
        return None
    result = list(theirs)
    for edit in reversed(edits):
        result[edit.start : edit.stop] = edit.lines
    stop = len(result) - len(below)
    differences = tuple(edit.difference for edit in edits if edit.difference)
    return Settlement(tuple(result[len(above) : stop]), differences)


def _changes(base: Lines, ours: Lines) -> Iterator[tuple[range, Lines]]:
    """The runs of lines that our side changed, and what it made of each."""
    pairs = sorted(matches(base, ours).items())
    for (a, b), (next_a, next_b) in pairwise([(-1, -1), *pairs, (len(base), len(ours))]):
        if next_a - a > 1 or next_b - b > 1:
            yield range(a + 1, next_a), ours[b + 1 : next_b]


def _replacing(own: Lines, lines: Lines, theirs: Lines) -> _Edit | None:
    """The edit that replaces lines where they stand once, or else those most like them."""
    if not any(map(says_much, own)):
        return None
    size = len(own)
    starts = range(len(theirs) - size + 1)
    same = [at for at in starts if theirs[at : at + size] == own]
    if same:
        return _Edit(same[0], same[0] + size, lines) if len(same) == 1 else None
    ranked = sorted(((_alike(own, theirs[at : at + size]), at) for at in starts), reverse=True)
    if not lines or not ranked or ranked[0][0] < ALIKE:
        return None
    if len(ranked) > 1 and ranked[0][0] - ranked[1][0] < APART:
        return None
    share, at = ranked[0]
    other = theirs[at : at + size]
    differing = [pair for pair in zip(other, own, strict=True) if pair[0] != pair[1]]
    difference = (
        f"it takes the place of {quoted([line.strip() for line, _ in differing])}, {share:.0%} "
        f"like {quoted([line.strip() for _, line in differing])}, which it was made on"
    )
    return _Edit(at, at + size, lines, difference)


def _alike(own: Sequence[str], theirs: Sequence[str]) -> float:
    """How much the least alike pair of lines has in common: 0 to 1."""
    return min(
        SequenceMatcher(None, a.strip(), b.strip(), autojunk=False).ratio()
        for a, b in zip(own, theirs, strict=True)
    )


def _between(base: Lines, at: int, lines: Lines, theirs: Lines) -> _Edit | None:
    """The edit that puts lines in beside the one neighbour that still stands there once."""
    behind = [n + 1 for n, line in enumerate(theirs) if at and line == base[at - 1]]
    before = [n for n, line in enumerate(theirs) if at < len(base) and line == base[at]]
    places: set[int] = set()
    for neighbour, numbers in ((base[at - 1 : at], behind), (base[at : at + 1], before)):
        if len(numbers) == 1 and any(map(says_much, neighbour)):
            places.update(numbers)
    if len(places) != 1:
        return None
    (place,) = places
    return _Edit(place, place, lines)
