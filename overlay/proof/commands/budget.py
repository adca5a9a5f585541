"""The time that ``overlay bench`` may take, and what it measures first.

The most telling figures come first: the step times of stock and of the overlay, with the smallest
number of requests before larger ones, then those of other engines, then servers.  What the budget
no longer allows is left out, in the first round as in later ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from overlay.proof.repeats import order
from overlay.proof.reports.benched import DEFAULT, OVERLAY, STOCK, V2
from overlay.report.words import count, enumeration

#: Seconds for all engines of a comparison together, where the user names none.
BUDGET = 1800.0

#: The last seconds of a budget, in which an engine only ends what it is measuring; and their share
#: of a small budget, at most.
LAST, LAST_SHARE = 30.0, 0.1
ENGINES = (STOCK, OVERLAY, V2)
#: What is measured, in the order of the first round, by the word that the user gives; and the
#: engine without which there is nothing to compare.
AGAINST = {
    "default": (DEFAULT, OVERLAY),
    "both": ENGINES,
    "stock": (STOCK, OVERLAY),
    "v2": (OVERLAY, V2),
}
REFERENCES = {"default": DEFAULT, "both": STOCK, "stock": STOCK, "v2": V2}


class Part(Enum):
    """What is measured of an engine; each in a process of its own.

    A server's engine and its API run in processes of their own; an engine step is timed in the one
    process of ``vllm.LLM``, without both.  So the two parts cannot share the start of an engine.
    """

    STEPS = "steps"
    SERVING = "serving"

    @property
    def words(self) -> str:
        """What is measured, in words."""
        return {Part.STEPS: "step times", Part.SERVING: "servers"}[self]


class Start(NamedTuple):
    """One start of an engine; :ivar number: of the round, from 0 on."""

    part: Part
    engine: str
    number: int


class Schedule(NamedTuple):
    """The engines that ``bench`` means to start.

    :ivar parts: in the order in which they are measured; :ivar rounds: how many there are.
    :ivar budget: seconds for all of them.
    :ivar engines: in the order of the first round.
    """

    parts: tuple[Part, ...]
    rounds: int
    budget: float
    engines: tuple[str, ...] = ENGINES

    def round(self, number: int) -> tuple[Start, ...]:
        """The starts of a round, counted from 0, in their order."""
        engines = order(self.engines, number)
        return tuple(Start(part, engine, number) for part in self.parts for engine in engines)

    @property
    def text(self) -> str:
        """The schedule as one sentence, for whoever waits."""
        rounds, starts = count(self.rounds, "round"), count(len(self.round(0)), "engine start")
        each = (f"{part.words} of {enumeration(self.engines)}" for part in self.parts)
        return (
            f"bench: at most {rounds} of {starts}, first {', then '.join(each)}; what does not fit "
            f"into --budget {self.budget:g} s is left out"
        )


class Budget:
    """The time of all engines together, at whose end none runs.

    :param seconds: how long they may take.
    :param clock: seconds, for tests.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._last = min(LAST, LAST_SHARE * seconds)
        self._began = clock()
        self._starts: dict[Part, float] = {}

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    @property
    def remaining(self) -> float:
        """Seconds in which something may still begin, 0 at least."""
        return max(0.0, self._seconds - self._last - self.spent)

    def until_killed(self, deadline: float) -> float:
        """Seconds after which an engine that starts now is killed.

        :param deadline: seconds that any engine may take.
        """
        return min(deadline, max(0.0, self._seconds - self.spent))

    def note_start(self, part: Part, seconds: float) -> None:
        """Note how long an engine took until it could be measured."""
        self._starts[part] = min(seconds, self._starts.get(part, seconds))

    def allows(self, part: Part) -> bool:
        """Whether an engine can be measured in what is left, by the quickest start so far."""
        return self.remaining > self._starts.get(part, 0.0)
