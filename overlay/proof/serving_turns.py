"""The turns in which servers measure: cell by cell, so that what is compared lies close in time.

The speed of a shared host drifts within a minute by more than what a benchmark is to find.  So
every server measures a cell (a number of requests at a time, or the one rate) before any measures
the next one.  Whoever conducts, whoever measures and whoever tells of it count the same turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: In the place of a number of requests at a time: they come at a fixed rate, and the time to the
#: first token is taken.
AT_RATE = 0


class ServingTurn(NamedTuple):
    """A turn that each server has, one after the other.

    :ivar round: from 0 on.
    :ivar requests: how many at a time, or ``AT_RATE``.
    :ivar warms: whether the server is run until it is warm.
    :ivar counts: whether what is measured counts.
    """

    round: int
    requests: int
    warms: bool
    counts: bool


def serving_turns(
    concurrency: Sequence[int], *, at_rate: bool, rounds: int
) -> tuple[ServingTurn, ...]:
    """The turns of every server, in their order.

    In the first of several rounds a cell has two: all servers warm up, then all are measured.  So
    the runs that count lie next to each other there, too.  A single round has one of each cell, in
    which the last runs of warming up count: nothing follows from one run alone.

    :param at_rate: whether the time to the first token is taken.
    """
    cells = (*dict.fromkeys(concurrency), *((AT_RATE,) if at_rate else ()))
    if rounds == 1:
        return tuple(ServingTurn(0, cell, warms=True, counts=True) for cell in cells)
    turns = list[ServingTurn]()
    for number in range(rounds):
        for cell in cells:
            if number == 0:
                turns.append(ServingTurn(number, cell, warms=True, counts=False))
            turns.append(ServingTurn(number, cell, warms=False, counts=True))
    return tuple(turns)


def round_of(turns: Sequence[ServingTurn], number: int) -> int:
    """The round of a turn; the turn in which servers end belongs to the last one."""
    return turns[min(number, len(turns) - 1)].round
