"""Whether two engines differ as kernels round, or because something is wrong; pure.

The overlay may have graphs of other sizes than stock, and so other kernels, which round otherwise.
Then two tokens that are as good as equally likely may change places, and the answers part there.
Stock is asked what it thinks of both tokens: the gap between two such tokens is small.  Drafts
round, too, to either side: a drafter that is wrong is accepted less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from math import comb
from typing import NamedTuple

from overlay.proof.oracle import Answer

#: The log probabilities of two tokens at one place; ``None`` for one that is unlikely there.
Opinion = tuple[float | None, float | None]

#: The largest gap in log probability between two tokens that rounding may exchange.  On GPUs with
#: bfloat16 and trained weights 0.25 was the largest of 312 (``bench/real_text.py``).
NEAR_TIE = 0.5
#: How improbable it must be, were both sides as likely, that so many steps accept fewer drafts.
_BY_CHANCE = 0.001


class Parting(NamedTuple):
    """Where the answers to a request part.

    :ivar position: how many tokens of the answer come before it.
    :ivar expected: stock's token there; :ivar actual: the other one.
    :ivar log_probabilities: what stock gives each of them; ``None`` for one that is not among its
        likeliest, or was not asked for.
    """

    request: int
    position: int
    expected: int
    actual: int
    log_probabilities: Opinion = (None, None)

    @property
    def apart(self) -> float | None:
        """The gap between both; ``None`` where it is not known."""
        first, second = self.log_probabilities
        return None if first is None or second is None else abs(first - second)

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains it."""
        return self.apart is not None and self.apart <= NEAR_TIE

    @property
    def text(self) -> str:
        """The parting as a phrase."""
        first, second = ("unlikely" if p is None else f"{p:.3f}" for p in self.log_probabilities)
        return (
            f"request {self.request}, position {self.position}: stock's token {self.expected} "
            f"({first}), found {self.actual} ({second})"
        )


class Rounding(NamedTuple):
    """How a run differs from stock's.

    :ivar partings: the first place of each request whose answers part.
    :ivar compared: verifications of drafts at the same place of the same text.
    :ivar fewer: how many of these accepted fewer drafts than stock; :ivar more: more.
    """

    partings: tuple[Parting, ...]
    compared: int
    fewer: int
    more: int

    @property
    def explains(self) -> bool:
        """Whether it is only rounding."""
        return all(each.near_tie for each in self.partings) and not self.loses_drafts

    @property
    def loses_drafts(self) -> bool:
        """Whether too many steps accept fewer drafts for chance (a sign test)."""
        steps = self.fewer + self.more
        as_many: int = sum(comb(steps, number) for number in range(self.fewer, steps + 1))
        return as_many / (1 << steps) < _BY_CHANCE

    @property
    def worst(self) -> Parting | None:
        """The parting that rounding explains least."""
        key = [(float("inf") if p.apart is None else p.apart, p) for p in self.partings]
        return max(key, key=lambda pair: pair[0])[1] if key else None


def partings(expected: Sequence[Answer], actual: Sequence[Answer]) -> tuple[Parting, ...]:
    """Where the answers of two runs part, the first place of each request."""
    return tuple(
        Parting(number, place, reference.tokens[place], served.tokens[place])
        for number, (reference, served) in enumerate(zip(expected, actual, strict=True))
        if (place := _place(reference, served)) is not None
    )


def rounding_of(
    expected: Sequence[Answer], actual: Sequence[Answer], opinions: Iterable[Opinion] = ()
) -> Rounding:
    """How a run differs from stock's.

    :param opinions: what stock thinks of the tokens at each parting; it may be shorter.
    """
    apart = zip_longest(partings(expected, actual), opinions)
    pairs = [
        pair
        for reference, served in zip(expected, actual, strict=True)
        for pair in _beside(reference, served)
    ]
    return Rounding(
        tuple(each._replace(log_probabilities=opinion or (None, None)) for each, opinion in apart),
        len(pairs),
        sum(accepted < stocks for stocks, accepted in pairs),
        sum(accepted > stocks for stocks, accepted in pairs),
    )


def _place(reference: Answer, served: Answer) -> int | None:
    """The first position at which two answers have different tokens."""
    pairs = zip(reference.tokens, served.tokens, strict=False)
    return next((place for place, (first, second) in enumerate(pairs) if first != second), None)


def _beside(reference: Answer, served: Answer) -> Iterator[tuple[int, int]]:
    """The accepted drafts of both at each place where both verified drafts of the same text.

    Where the answers part among the tokens that are verified, the drafts are not to blame.
    """
    place = _place(reference, served)
    end = len(served.tokens) if place is None else place
    before = {step.known: step for step in reference.steps}
    for step in served.steps:
        match = before.get(step.known)
        most = 0 if match is None else min(step.drafted, match.drafted)
        if match is not None and step.known - served.prompt + most <= end:
            yield min(match.accepted, most), min(step.accepted, most)
