"""The context of a hunk: how much it has, the same hunk with less, and whether that tells a place.

Nothing lands by what is said here: a hunk lands with all the context that its patch gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from overlay._features.model import Hunk
from overlay.planning.telling import says_much


def context_of(hunk: Hunk) -> tuple[int, int]:
    """How many lines of context a hunk has above its change and below it."""
    return _leading(hunk.lines), _leading(hunk.lines[::-1])


def narrowed(hunk: Hunk, above: int, below: int) -> Hunk:
    """A hunk with at most so much context; what speaks of the end of the file keeps it."""
    has_above, has_below = context_of(hunk)
    if hunk.pre_unfinished or hunk.post_unfinished:
        below = has_below
    start = max(has_above - above, 0)
    stop = len(hunk.lines) - max(has_below - below, 0)
    return hunk._replace(lines=hunk.lines[start:stop], source_line=hunk.source_line + start)


def anchored(hunk: Hunk) -> bool:
    """Whether the lines before a change say something, and lines that are replaced are its ends.

    What is put in, or taken out alone, needs a line beside it: a text in which upstream put
    something there too would take it in any order.
    """
    if not any(says_much(line) for line in hunk.pre):
        return False
    for lines in (hunk.lines, hunk.lines[::-1]):
        edge = list(takewhile(lambda line: line[0] != " ", lines))
        removed = [text for op, text in edge if op == "-"]
        if edge and not (any(map(says_much, removed)) and any(op == "+" for op, _ in edge)):
            return False
    return True


def _leading(lines: Sequence[tuple[str, str]]) -> int:
    return sum(1 for _ in takewhile(lambda line: line[0] == " ", lines))
