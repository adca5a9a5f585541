"""Runs of a client against one server: how many, at which load, and which of them count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

#: Runs of a cell until two in a row agree, at most, and the share by which these may differ.
_MOST_RUNS, _AGREE = 5, 0.03
_SECONDS_AT_RATE = 6
_SHARE_OF_SATURATION = 0.5


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


def steady(measure: Callable[[], float], limit: Limit) -> dict[str, Any] | None:
    """Measure until two runs in a row agree; these two, and whether they do.

    :return: ``None`` where the limit left no time for two.
    """
    values = list[float]()
    while len(values) < _MOST_RUNS and (len(values) < 2 or not agree(*values[-2:])):
        if limit.reached:
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
