"""Where lines of a hunk stand in a text: each of them between the lines that are its neighbours."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from overlay._features.model import Hunk
from overlay.planning.code_lines import key_of, margin_of

#: So many lines of code may have come between a line and its neighbour.
REACH = 5

#: The lines of a text, white space aside -> where each of them stands, ascending.
Rows = dict[str, list[int]]


class HunkLine(NamedTuple):
    """A line of code of a hunk's post-image.

    :ivar key: the line, white space aside; :ivar margin: how far in it stands.
    :ivar added: whether the hunk adds it.
    :ivar tight: whether nothing may have come between it and its neighbours.
    :ivar cut: whether the hunk removes a line of code right before it.
    :ivar alone: whether it stays, and the hunk changes what is on both sides of it.
    """

    key: str
    margin: int
    added: bool
    tight: bool
    cut: bool
    alone: bool


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


def as_often(
    lines: Sequence[HunkLine], removed: Iterable[str], at: int, rows: Rows, size: int
) -> bool:
    """Whether a text has a line of a hunk as often as the hunk has it between two lines that stay.

    Of equal lines only their number tells that one more was put in.  A line that stays is one that
    the hunk neither adds nor removes.  Where it has none on a side of equal ones the text has to
    end there.

    :param removed: the lines that the hunk removes; :param size: the length of the text.
    """
    key = lines[at].key
    changed = {*removed, *(line.key for line in lines if line.added)}
    stays = [number for number, line in enumerate(lines) if line.key not in changed]
    first = max((number for number in stays if number < at), default=-1)
    stop = min((number for number in stays if number > at), default=len(lines))
    often = sum(line.key == key for line in lines[first + 1 : stop])
    if often == 1:
        return True
    has_first, has_last = first >= 0, stop < len(lines)
    starts = rows.get(lines[first].key, ()) if has_first else [-1]
    ends = rows.get(lines[stop].key, ()) if has_last else [size]
    most = stop - first - 1 + (REACH if has_first and has_last else 0)
    for start in starts:
        end = next((row for row in ends if row > start), start)
        if end - start - 1 <= most:
            standing = sum(start < row < end for row in rows.get(key, ()))
            if standing >= often:
                return True
    return False


def placed(
    hunk: Hunk, code: Sequence[tuple[int, str]], loose: Container[int]
) -> tuple[HunkLine, ...]:
    """The lines of code of a hunk's post-image, with what is known of their places.

    :param code: index and key of each; :param loose: the numbers of those that the hunk adds beside
        which something may have come.
    """
    cut: set[int] = set()
    post: list[tuple[str, str]] = []
    for op, text in hunk.lines:
        if op != "-":
            post.append((op, text))
        elif key_of(text):
            cut |= {next((at for at, _ in code if at >= len(post)), -1)}
    added = [post[at][0] == "+" for at, _ in code]
    beside = [False, *added, False]
    # Whether something changes before each line, and behind the last one.
    changes = [
        at in cut or beside[number] or beside[number + 1]
        for number, at in enumerate([*(at for at, _ in code), -1])
    ]
    return tuple(
        HunkLine(
            *(key, margin_of(post[at][1]), added[number]),
            tight=added[number] and number not in loose,
            cut=at in cut,
            alone=not added[number] and changes[number] and changes[number + 1],
        )
        for number, (at, key) in enumerate(code)
    )


def astray(
    code: Sequence[HunkLine], removed: Iterable[str], rows: Rows, margins: Sequence[int]
) -> int | None:
    """The first line that does not stand where a hunk puts it; ``None`` where they all do.

    That is behind the line before it, with no line between that the hunk speaks of, and as far in
    from it as in the hunk: a block may be indented as a whole.  Lines that stay are passed over
    where no change is beside them, or where the text lacks them; but one that stands alone among
    changes may be one's own, kept where upstream replaces it.

    :param removed: the lines that the hunk removes; :param margins: how far in each row stands.
    """
    mentioned_rows = sorted(
        {row for key in {*removed, *(line.key for line in code)} for row in rows.get(key, ())}
    )
    before = dict(zip(mentioned_rows[1:], mentioned_rows, strict=False))
    last: HunkLine | None = None
    ends: list[int] = [-1]
    for at, line in enumerate(code):
        beside = code[max(at - 1, 0) : at + 2]
        changed = line.cut or any(each.added for each in beside) or beside[-1].cut
        if not line.added and not (changed if line.key in rows else line.alone):
            last = None
            continue
        here = [row for row in rows.get(line.key, ()) if row > ends[0]]
        if last is not None and (line.added or last.added or line.cut):
            inward, tight, starts = line.margin - last.margin, line.tight or last.tight, set(ends)
            here = [
                row
                for row in here
                if (end := before.get(row, -1)) in starts
                and margins[row] - margins[end] == inward
                and not (tight and row - end > 1)
            ]
        if not here:
            return at
        last, ends = line, here
    return None


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


def is_absent(removal: Removal, rows: Rows) -> bool:
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
