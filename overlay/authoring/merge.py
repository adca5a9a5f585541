"""Three-way merge of texts (diff3): a change carried from one base to another text of it.

Two descendants of a base are aligned with it line by line.  Where only one side changed, that side
is taken; where both made the same change, it is taken once; where they differ, the region is a
conflict.  Nothing outside the regions that a side changed is ever touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum

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
    """A run of lines in which the sides relate to the base in one way.

    :ivar base: its lines in the base; :ivar ours: in our text; :ivar theirs: in their text.
    """

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

        :param ours: the label of our side; :param base: of the base; :param theirs: of their side.
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
        while stop < len(base) and (
            in_ours.get(stop) == a + stop - at and in_theirs.get(stop) == b + stop - at
        ):
            stop += 1
        if stop > at:
            size = stop - at
            yield Region(Side.BASE, base[at:stop], ours[a : a + size], theirs[b : b + size])
            at, a, b = stop, a + size, b + size
            continue
        # The next line that both sides kept ends what one of them, or both, changed.
        while stop < len(base) and not (stop in in_ours and stop in in_theirs):
            stop += 1
        end_a = in_ours[stop] if stop < len(base) else len(ours)
        end_b = in_theirs[stop] if stop < len(base) else len(theirs)
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
    """The lines that an edit kept: index in ``before`` -> index in ``after``, rising in both."""
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < shorter - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    found = {index: index for index in range(head)}
    middle = SequenceMatcher(
        None, before[head : len(before) - tail], after[head : len(after) - tail], autojunk=False
    )
    for block in middle.get_matching_blocks():
        for index in range(block.size):
            found[head + block.a + index] = head + block.b + index
    for index in range(tail):
        found[len(before) - tail + index] = len(after) - tail + index
    return found


def _marked(region: Region, labels: tuple[str, str, str]) -> Lines:
    """A conflict between markers; what both sides begin or end with stands outside of them."""
    ours, theirs = region.ours, region.theirs
    shorter = min(len(ours), len(theirs))
    head = 0
    while head < shorter and ours[head] == theirs[head]:
        head += 1
    tail = 0
    while tail < shorter - head and ours[-1 - tail] == theirs[-1 - tail]:
        tail += 1
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
