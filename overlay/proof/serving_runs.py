"""Runs of a client against one server: how many, at which load, and which of them count.

A server measures alone, or in turns with others that started at the same moment on the same GPU
(:mod:`meeting`); then all that decides about a run (how many requests, at which rate) is what the
first of them found, so that the figures can be compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from overlay.proof.meeting import Meeting
from overlay.proof.serving_turns import AT_RATE, ServingTurn, serving_turns

#: Runs of a cell until two in a row agree, at most, and the share by which these may differ.
_MOST_RUNS, _AGREE = 5, 0.03
_SECONDS_AT_RATE = 6
_SHARE_OF_SATURATION = 0.5
#: A run that takes longer than so many seconds is made with half the requests from then on.
_LONG = 20.0
#: A server that warms up in a turn of its own does so for no more than so many seconds, two runs at
#: least: in each later turn it is run again, and whoever waits has a budget.
_WARMING = 15.0


class Client(Protocol):
    """What is asked of a client."""

    def ask(self, requests: int, limit: tuple[str, str]) -> dict[str, Any]:
        """Send that many requests; the client's result.

        :param limit: the client's option, and its value, that says how fast it sends them.
        """


@dataclass(frozen=True)
class Load:
    """What a client asks.

    :ivar concurrency: numbers of requests at a time.
    :ivar rate: requests a second while the time to first token is taken; ``None``: half of what
        the first server answered at the highest concurrency; 0: it is not taken.
    """

    concurrency: tuple[int, ...]
    rate: float | None


class Limit:
    """The time after which no further run of the client begins.

    :param seconds: ``None``: there is none.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._began = seconds, time.monotonic()

    @property
    def reached(self) -> bool:
        """Whether the time is over."""
        return self._seconds is not None and self.spent >= self._seconds

    @property
    def spent(self) -> float:
        """Seconds since this was made."""
        return time.monotonic() - self._began


def steady(
    measure: Callable[[], float], limit: Limit, warming: Limit | None = None
) -> dict[str, Any] | None:
    """Measure until two runs in a row agree; these two, and whether they do.

    :param warming: beyond it two runs are enough, even if they do not agree.
    :return: ``None`` where the limit left no time for two.
    """
    values = list[float]()
    while len(values) < _MOST_RUNS and (len(values) < 2 or not agree(*values[-2:])):
        if limit.reached or (len(values) > 1 and warming is not None and warming.reached):
            break
        values.append(measure())
    if len(values) < 2:
        return None
    return {"values": values[-2:], "runs": len(values), "agreed": agree(*values[-2:])}


def agree(one: float, other: float) -> bool:
    """Whether two runs differ so little that warming up has ended."""
    return abs(one - other) <= _AGREE * max(one, other)


def measure(
    client: Client, load: Load, limit: Limit, keep: Callable[[dict[str, Any]], None]
) -> None:
    """Take the throughput at each concurrency, and the time to first token at one rate.

    :param keep: is called with all that is measured, whenever something is.
    """
    answered = [0.0]

    def throughput(size: int) -> float:
        result = client.ask(requests_of(size), ("--max-concurrency", str(size)))
        answered.append(float(result["request_throughput"]))
        return float(result["output_throughput"])

    cells: dict[str, Any] = {}
    found: dict[str, Any] = {"concurrency": cells, "first_token": None}
    for size in load.concurrency:
        cell = steady(partial(throughput, size), limit)
        if cell is None:
            return
        cells[str(size)] = cell
        keep(found)
    rate = load.rate
    if rate is None:
        rate = half_of(statistics.fmean(answered[-2:]))
    if not rate:
        return
    values = list[float]()
    for _ in range(3):
        if limit.reached:
            return
        values.append(first_token(client, rate))
    # The first run at this rate meets batches that were not there before.
    found["first_token"] = {"rate": rate, "values": values[1:]}
    keep(found)


def requests_of(size: int) -> int:
    """The requests of a run with that many at a time."""
    return max(8, 4 * size)


def requests_at(rate: float) -> int:
    """The requests of a run at a rate of so many a second."""
    return max(8, round(rate * _SECONDS_AT_RATE))


def half_of(answered: float) -> float:
    """The rate of requests that is far enough from saturation for a time to first token."""
    return round(_SHARE_OF_SATURATION * answered, 3)


def first_token(client: Client, rate: float) -> float:
    """The median milliseconds to the first token of one run at a rate of requests."""
    return float(client.ask(requests_at(rate), ("--request-rate", str(rate)))["median_ttft_ms"])


@dataclass
class Turns:
    """The runs of a server that measures in turns with others, cell by cell.

    Where it warms up, a concurrency is run until two runs agree; else it is run once.  Where there
    are several rounds, two runs that take long are enough, and none of them counts; where there is
    one, the last two do.

    :ivar rounds: how many there are; a last turn, in which the server ends, begins after them.
    :ivar keep: is called with all that is measured, whenever something is.
    """

    client: Client
    load: Load
    limit: Limit
    keep: Callable[[dict[str, Any]], None]
    meeting: Meeting
    rounds: int
    _warmed: dict[str, dict[str, Any]] = field(default_factory=dict)
    _cells: dict[str, Any] = field(default_factory=dict)
    _first: dict[str, Any] | None = None
    _answered: float | None = None

    @property
    def turns(self) -> tuple[ServingTurn, ...]:
        """The turns in which this server and the others measure."""
        at_rate = self.load.rate != 0
        return serving_turns(self.load.concurrency, at_rate=at_rate, rounds=self.rounds)

    def measure(self) -> None:
        """Measure in each turn, and return once the turn has come in which the server ends."""
        for number, turn in enumerate(self.turns):
            self.meeting.wait_for_turn(number)
            self.take(turn)
            self.meeting.end_turn(number)
        self.meeting.wait_for_turn(len(self.turns))

    def take(self, turn: ServingTurn) -> None:
        """Do what a turn is there for, until the limit is reached."""
        if not self.limit.reached:
            (self._at_rate if turn.requests == AT_RATE else self._at_a_time)(turn)

    def _at_a_time(self, turn: ServingTurn) -> None:
        """Run one concurrency."""
        name, run = str(turn.requests), partial(self._throughput, turn.requests)
        if turn.warms:
            warmed = steady(run, self.limit, None if turn.counts else Limit(_WARMING))
            if warmed is None:
                return
            self._warmed[name] = warmed
        if turn.counts and name in self._warmed:
            warmed = self._warmed[name]
            counted = warmed["values"] if turn.warms else [run()]
            cell = self._cells.setdefault(name, {**warmed, "values": [], "by_turn": []})
            cell["values"] += counted
            cell["by_turn"].append(len(counted))
        self._keep()

    def _throughput(self, size: int) -> float:
        """Run one concurrency once; the output tokens a second."""
        result = self._ask(size)
        if size == max(self.load.concurrency):
            self._answered = float(result["request_throughput"])
        return float(result["output_throughput"])

    def _at_rate(self, turn: ServingTurn) -> None:
        """Take the time to the first token."""
        rate, name = self._rate(), str(AT_RATE)
        if not rate:
            return
        if turn.warms:
            # The first run at this rate meets batches that were not there before.
            self._warmed[name] = {"values": [first_token(self.client, rate)], "runs": 1}
            self._keep()
        if not turn.counts or name not in self._warmed:
            return
        values = list[float]()
        before = self._first or {"values": [], "by_turn": []}
        while len(values) < (2 if turn.warms else 1) and not self.limit.reached:
            values.append(first_token(self.client, rate))
            self._first = {
                "rate": rate,
                "values": [*before["values"], *values],
                "by_turn": [*before["by_turn"], len(values)],
            }
            self._keep()

    def _rate(self) -> float | None:
        """The rate that all servers get; ``None`` while none has answered the most requests."""
        if self.load.rate is not None:
            return self.load.rate
        if self._answered is None:
            return self.meeting.noted("rate")
        return self.meeting.note("rate", half_of(self._answered))

    def _ask(self, size: int) -> dict[str, Any]:
        """Run once; where the first run of all took long, later ones have half the requests."""
        limit, name = ("--max-concurrency", str(size)), f"requests-{size}"
        noted = self.meeting.noted(name)
        if noted is not None:
            return self.client.ask(int(noted), limit)
        began, requests = time.monotonic(), requests_of(size)
        result = self.client.ask(requests, limit)
        if time.monotonic() - began > _LONG:
            requests = max(8, 2 * size)
        self.meeting.note(name, requests)
        return result

    def _keep(self) -> None:
        cells = {"warmed": self._warmed, "concurrency": self._cells}
        self.keep({**cells, "first_token": self._first})
