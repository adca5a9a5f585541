"""Where lines of a hunk stand in a text: each of them between the lines that are its neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

#: So many lines of code may have come between a line and its neighbour.
REACH = 5

#: The lines of a text, white space aside -> where each of them stands, ascending.
Rows = dict[str, list[int]]


class Removal(NamedTuple):
    """A line of code that a hunk removes.

    :ivar key: the line, white space aside; :ivar text: as written.
    :ivar before: the line that stays before it; ``None`` where the hunk has none.
    :ivar after: the one that stays behind it.
    :ivar again: how often the hunk has an equal line between the two afterwards.
    :ivar most: the most lines between the two, before or after.
    """

    key: str
    text: str
    before: str | None
    after: str | None
    again: int
    most: int


@lru_cache(maxsize=64)
def rows_of(keys: tuple[str, ...]) -> Rows:
    """Where each line of a text stands."""
    rows: Rows = {}
    for at, key in enumerate(keys):
        rows.setdefault(key, []).append(at)
    return rows


def near(code: Sequence[str], at: int, rows: Rows) -> bool:
    """Whether a line of a hunk has one of its neighbours near it somewhere, in order."""
    return any(any(sides) for sides in _sides(code, at, rows, REACH))


def flanked(code: Sequence[str], at: int, rows: Rows, size: int | None = None) -> bool:
    """Whether a line of a hunk stands right between all its neighbours somewhere.

    :param size: the length of the text, if its ends are the neighbours that the hunk lacks.
    """
    return any(all(sides) for sides in _sides(code, at, rows, 1, size))


def _sides(
    code: Sequence[str], at: int, rows: Rows, reach: int, size: int | None = None
) -> Iterator[tuple[bool, ...]]:
    """For each place of a line, whether the neighbours that it has in a hunk are near, in order."""
    before, after = code[at - 1] if at else None, code[at + 1] if at + 1 < len(code) else None
    for row in rows.get(code[at], ()):
        sides = []
        if before is not None:
            sides.append(any(row - reach <= near < row for near in rows.get(before, ())))
        elif size is not None:
            sides.append(row == 0)
        if after is not None:
            sides.append(any(row < near <= row + reach for near in rows.get(after, ())))
        elif size is not None:
            sides.append(row == size - 1)
        yield tuple(sides)


def gone(removal: Removal, rows: Rows) -> bool:
    """Whether a text lacks a removed line for certain.

    It is nowhere; or the lines that stay around it stand near each other, and wherever they do,
    it is not between them.
    """
    standing = rows.get(removal.key, ())
    if not standing:
        return True
    between = list(_between(removal, rows))
    return bool(between) and all(
        sum(row in span for row in standing) <= removal.again for span in between
    )


def _between(removal: Removal, rows: Rows) -> Iterator[range]:
    """The places between the two lines around a removed one, where they are near each other."""
    most = removal.most + REACH
    starts = rows.get(removal.before or "", [])
    stops = rows.get(removal.after or "", [])
    if removal.before is None:
        yield from (range(max(0, stop - most), stop) for stop in stops)
    elif removal.after is None:
        yield from (range(start + 1, start + 1 + most) for start in starts)
    for start in starts:
        stop = next((stop for stop in stops if stop > start), None)
        if stop is not None and stop - start - 1 <= most:
            yield range(start + 1, stop)
