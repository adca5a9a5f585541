"""Three-way merge of texts (diff3): a change carried from one base to another text of it.

Two descendants of a base are aligned with it line by line.  Where only one side changed, that side
is taken; where both made the same change, it is taken once; where they differ, the region is a
conflict.  Nothing outside the regions that a side changed is ever touched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum
from itertools import pairwise

from overlay.planning.diff import common_ends

Lines = tuple[str, ...]


class Side(Enum):
    """Which side a region of a merge was taken from."""

    BASE = "base"
    OURS = "ours"
    THEIRS = "theirs"
    BOTH = "both"
    CONFLICT = "conflict"


@dataclass(frozen=True)
class Region:
    """A run of lines in which the sides relate to the base in one way."""

    side: Side
    base: Lines
    ours: Lines
    theirs: Lines

    @property
    def lines(self) -> Lines:
        """The merged lines; of a conflict, theirs."""
        return self.ours if self.side in (Side.OURS, Side.BOTH) else self.theirs


@dataclass(frozen=True)
class Merge:
    """The result of a three-way merge.

    >>> merge("abc", "aXbc", "abcY").lines
    ('a', 'X', 'b', 'c', 'Y')
    """

    regions: tuple[Region, ...]

    @property
    def conflicts(self) -> tuple[Region, ...]:
        """The regions that both sides changed in different ways."""
        return tuple(region for region in self.regions if region.side is Side.CONFLICT)

    @property
    def lines(self) -> Lines:
        """The merged text; the lines of conflicts are theirs."""
        return tuple(line for region in self.regions for line in region.lines)

    def marked(self, ours: str, base: str, theirs: str) -> Lines:
        """The merged text with conflicts between markers, as git's ``zdiff3`` style writes them.

        :param ours, base, theirs: the labels of the sides.
        """
        return tuple(
            line
            for region in self.regions
            for line in (
                _marked(region, (ours, base, theirs))
                if region.side is Side.CONFLICT
                else region.lines
            )
        )


def merge(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> Merge:
    """Merge two descendants of ``base``.

    ``merge(b, o, b)`` is ``o``, ``merge(b, b, t)`` is ``t`` and ``merge(b, o, o)`` is ``o``.
    Whether there is a conflict does not depend on which side is ours.
    """
    return Merge(tuple(_regions(tuple(base), tuple(ours), tuple(theirs))))


def _regions(base: Lines, ours: Lines, theirs: Lines) -> Iterator[Region]:
    in_ours, in_theirs = matches(base, ours), matches(base, theirs)
    at = a = b = 0
    while at < len(base) or a < len(ours) or b < len(theirs):
        stop = at
        while in_ours.get(stop) == a + stop - at and in_theirs.get(stop) == b + stop - at:
            stop += 1
        if stop > at:
            size = stop - at
            yield Region(Side.BASE, base[at:stop], ours[a : a + size], theirs[b : b + size])
            at, a, b = stop, a + size, b + size
            continue
        # The next line that both sides kept ends what one of them, or both, changed.
        common = (line for line in range(at, len(base)) if line in in_ours and line in in_theirs)
        stop = next(common, len(base))
        end_a, end_b = in_ours.get(stop, len(ours)), in_theirs.get(stop, len(theirs))
        yield _judged(base[at:stop], ours[a:end_a], theirs[b:end_b])
        at, a, b = stop, end_a, end_b


def _judged(base: Lines, ours: Lines, theirs: Lines) -> Region:
    if ours == theirs:
        side = Side.BOTH
    elif ours == base:
        side = Side.THEIRS
    elif theirs == base:
        side = Side.OURS
    else:
        side = Side.CONFLICT
    return Region(side, base, ours, theirs)


def matches(before: Sequence[str], after: Sequence[str]) -> dict[int, int]:
    """The lines that an edit kept: index in ``before`` -> index in ``after``, rising in both.

    What both texts begin and end with is kept; between, the lines that occur once in each are
    aligned first (patience diff), and what lies between those is compared in full.  Where the lines
    that were put in or taken out could be others that are equal, the last possible ones are meant,
    so that two texts into which the same lines were put agree on where.
    """
    pairs = dict(_matches(before, after, range(len(before)), range(len(after))))
    return _slid(pairs, before, after)


def gaps(pairs: Mapping[int, int], before: int, after: int) -> Iterator[tuple[range, range]]:
    """The runs of lines that an edit changed, in the text before and in the one after.

    :param pairs: the lines that it kept.
    """
    for (a, b), (next_a, next_b) in pairwise([(-1, -1), *sorted(pairs.items()), (before, after)]):
        if next_a - a > 1 or next_b - b > 1:
            yield range(a + 1, next_a), range(b + 1, next_b)


def occurrences(lines: Sequence[str], image: Sequence[str], first: int = 0) -> list[int]:
    """Where an image is, from a line on; an empty one is everywhere."""
    size = len(image)
    return [
        at
        for at in range(first, len(lines) - size + 1)
        if not size or (lines[at] == image[0] and tuple(lines[at : at + size]) == tuple(image))
    ]


def _slid(pairs: dict[int, int], before: Sequence[str], after: Sequence[str]) -> dict[int, int]:
    """The matches with each run of added lines, or of removed ones, as far down as it goes."""
    slid: dict[int, int] = {}
    at = place = 0  # the next line of each text that is not settled yet
    for old, new in sorted(pairs.items()):
        if at == old and after[place] == before[old]:
            # The first added line is this one; the last one is added instead.
            line, partner = old, place
        elif place == new and before[at] == after[new]:
            line, partner = at, new
        else:
            line, partner = old, new
        slid[line] = partner
        at, place = line + 1, partner + 1
    return slid


def _matches(
    before: Sequence[str], after: Sequence[str], old: range, new: range
) -> Iterator[tuple[int, int]]:
    """The lines that both ranges keep, in no order."""
    while old and new and before[old.start] == after[new.start]:
        yield old.start, new.start
        old, new = old[1:], new[1:]
    while old and new and before[old.stop - 1] == after[new.stop - 1]:
        yield old.stop - 1, new.stop - 1
        old, new = old[:-1], new[:-1]
    if not (old and new):
        return  # what follows would find nothing, in three times the time of a whole file
    if anchors := _anchors(before, after, old, new):
        yield from anchors
        ends = [(old.start - 1, new.start - 1), *anchors, (old.stop, new.stop)]
        for (a, b), (next_a, next_b) in pairwise(ends):
            yield from _matches(before, after, range(a + 1, next_a), range(b + 1, next_b))
    else:
        middle = SequenceMatcher(
            None, before[old.start : old.stop], after[new.start : new.stop], autojunk=False
        )
        for block in middle.get_matching_blocks():
            for index in range(block.size):
                yield old.start + block.a + index, new.start + block.b + index


def _anchors(
    before: Sequence[str], after: Sequence[str], old: range, new: range
) -> list[tuple[int, int]]:
    """The longest rising row of lines that occur once in both ranges."""
    once_before = _once(before, old)
    once_after = _once(after, new)
    pairs = [(at, once_after[line]) for line, at in once_before.items() if line in once_after]
    pairs.sort()
    # Patience sorting: each pile keeps its smallest end, each pair remembers the pile to its left.
    ends: list[int] = []
    tops: list[int] = []
    predecessors: list[int | None] = []
    for number, (_, place) in enumerate(pairs):
        pile = bisect_left(ends, place)
        predecessors.append(tops[pile - 1] if pile else None)
        if pile == len(ends):
            ends.append(place)
            tops.append(number)
        else:
            ends[pile], tops[pile] = place, number
    row: list[tuple[int, int]] = []
    current = tops[-1] if tops else None
    while current is not None:
        row.append(pairs[current])
        current = predecessors[current]
    return row[::-1]


def _once(lines: Sequence[str], place: range) -> dict[str, int]:
    """The telling lines that occur once in a range, with their index."""
    places: dict[str, int] = {}
    twice: set[str] = set()
    for at in place:
        line = lines[at]
        if line in places:
            twice.add(line)
        places[line] = at
    return {line: at for line, at in places.items() if line not in twice and line.strip()}


def _marked(region: Region, labels: tuple[str, str, str]) -> Lines:
    """A conflict between markers; what both sides begin or end with is outside of them."""
    ours, theirs = region.ours, region.theirs
    head, tail = common_ends(ours, theirs)
    mine, base, other = labels
    return (
        *ours[:head],
        f"<<<<<<< {mine}",
        *ours[head : len(ours) - tail],
        f"||||||| {base}",
        *region.base,
        "=======",
        *theirs[head : len(theirs) - tail],
        f">>>>>>> {other}",
        *ours[len(ours) - tail :],
    )
