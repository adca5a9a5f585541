"""Runs of a client against a server: how many, with how many requests, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from overlay.proof import serving
from overlay.proof.serving import Limit, measure


@dataclass
class Clock:
    """Seconds that pass only while a client runs."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Client:
    """Answers so many requests a second.

    :ivar uneven: whether no two runs in a row agree.
    :ivar asked: of each run its requests and its limit.
    """

    clock: Clock
    speed: float
    uneven: bool = False
    asked: list[tuple[int, tuple[str, str]]] = field(default_factory=list)

    def ask(self, requests: int, limit: tuple[str, str]) -> dict[str, Any]:
        self.asked.append((requests, limit))
        self.clock.now += requests / self.speed
        share = 0.5 if self.uneven and len(self.asked) % 2 else 1.0
        return {
            "output_throughput": 256 * self.speed * share,
            "request_throughput": self.speed,
            "median_ttft_ms": 1000 / self.speed,
        }

    def requests(self, size: int) -> list[int]:
        wanted = ("--max-concurrency", str(size))
        return [requests for requests, limit in self.asked if limit == wanted]


def serve(
    client: Client,
    concurrency: tuple[int, ...] = (1, 64),
    rate: float | None = None,
    *,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Measure one server; what it kept last."""
    kept: dict[str, Any] = {}
    with mock.patch.object(serving, "time", client.clock):
        measure(client.ask, concurrency, rate, Limit(seconds), kept.update)
    return kept


@given(speed=st.floats(0.5, 500))
def test_a_server_answers_four_rounds_of_requests_and_half_of_them_at_a_rate(speed: float) -> None:
    client = Client(Clock(), speed)
    kept = serve(client)
    assert (client.requests(1), client.requests(64)) == ([8, 8], [256, 256])
    assert kept["first_token"]["rate"] == round(0.5 * speed, 3)
    for cell in kept["concurrency"].values():
        assert (len(cell["values"]), cell["runs"], cell["agreed"]) == (2, 2, True)
    assert len(kept["first_token"]["values"]) == 2


@given(speed=st.floats(0.1, 100))
def test_runs_that_do_not_agree_are_repeated(speed: float) -> None:
    client = Client(Clock(), speed, uneven=True)
    cell = serve(client, (1,), 0.0)["concurrency"]["1"]
    assert (cell["runs"], cell["agreed"], len(cell["values"])) == (5, False, 2)
    assert len(client.asked) == 5


@given(seconds=st.floats(0, 400), speed=st.floats(0.5, 100))
def test_no_run_begins_when_the_time_is_over_and_every_value_was_measured(
    seconds: float, speed: float
) -> None:
    client = Client(Clock(), speed)
    kept = serve(client, seconds=seconds)
    took = [requests / speed for requests, _ in client.asked]
    assert sum(took[:-1]) < seconds or not took
    values = [len(cell["values"]) for cell in kept.get("concurrency", {}).values()]
    assert sum(values) <= len(took)
    # Of a concurrency there are two runs that were compared, or nothing is said of it.
    assert len(values) <= 2
    assert all(len(client.requests(int(size))) >= 2 for size in kept.get("concurrency", {}))


def test_the_time_to_the_first_token_may_be_left_out_or_asked_for_at_a_rate() -> None:
    client = Client(Clock(), 10.0)
    assert serve(client, (1,), 0.0)["first_token"] is None
    assert not any(limit[0] == "--request-rate" for _, limit in client.asked)
    client = Client(Clock(), 10.0)
    kept = serve(client, (1,), 7.0)
    # The first run warms up and does not count; each has the requests of six seconds.
    asked = [each for each in client.asked if each[1][0] == "--request-rate"]
    assert asked == [(42, ("--request-rate", "7.0"))] * 3
    assert kept["first_token"] == {"rate": 7.0, "values": [100.0] * 2}
