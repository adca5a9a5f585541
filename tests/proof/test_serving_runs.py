"""Runs of a client against servers that take turns: how many, with how many requests, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.proof import serving_runs
from overlay.proof.meeting import Meeting
from overlay.proof.serving_runs import Limit, Load, Turns

LOAD = Load((1, 64), None)


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
    folder: Path,
    client: Client,
    party: int,
    *,
    load: Load = LOAD,
    turns: int = 3,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Measure one server whose turns have all come; what it kept last."""
    kept: dict[str, Any] = {}
    with mock.patch.object(serving_runs, "time", client.clock):
        limit = Limit(seconds)
        made = Turns(client, load, limit, kept.update, Meeting(folder, party, 1), turns)
        with mock.patch.object(made.meeting, "wait_for_turn"):
            made.measure()
    return kept


@given(speeds=st.lists(st.floats(0.5, 500), min_size=1, max_size=3), turns=st.integers(1, 4))
def test_every_server_answers_the_same_requests_at_the_same_rate(
    tmp_path_factory: pytest.TempPathFactory, speeds: list[float], turns: int
) -> None:
    folder, clock = tmp_path_factory.mktemp("meet"), Clock()
    clients = [Client(clock, speed) for speed in speeds]
    kept = [serve(folder, each, party, turns=turns) for party, each in enumerate(clients)]
    for size, whole in ((1, 8), (64, 256)):
        # A run that takes longer than 20 seconds is made once, by the first of them.
        later = whole if whole / speeds[0] <= 20 else max(8, whole // 2)
        runs = [each.requests(size) for each in clients]
        assert [each[0] for each in runs] == [whole] + [later] * (len(clients) - 1)
        assert {requests for each in runs for requests in each[1:]} == {later}
    rates = {each["first_token"]["rate"] for each in kept}
    assert rates == {round(0.5 * speeds[0], 3)}
    for each in kept:
        counted = 2 if turns == 1 else turns
        for cell in each["concurrency"].values():
            assert (len(cell["values"]), sum(cell["by_turn"])) == (counted, counted)
            assert (cell["runs"], cell["agreed"]) == (2, True)
        assert len(each["first_token"]["values"]) == counted


@given(speed=st.floats(0.1, 100), turns=st.integers(1, 4))
def test_runs_that_do_not_agree_are_repeated_until_warming_has_taken_its_time(
    tmp_path_factory: pytest.TempPathFactory, speed: float, turns: int
) -> None:
    client = Client(Clock(), speed, uneven=True)
    folder = tmp_path_factory.mktemp("meet")
    kept = serve(folder, client, 0, load=Load((1,), 0.0), turns=turns)
    cell = kept["concurrency"]["1"]
    # Seconds behind each run. With one turn alone five may be made, however long they take.
    spent = [*accumulate([8 / speed] * 5)]
    warming = 5 if turns == 1 else next(n for n in range(2, 6) if n == 5 or spent[n - 1] >= 15)
    assert (cell["runs"], cell["agreed"]) == (warming, False)
    assert len(client.asked) == warming + turns - 1
    assert len(cell["values"]) == (2 if turns == 1 else turns)


@given(seconds=st.floats(0, 400), speed=st.floats(0.5, 100))
def test_no_run_begins_when_the_time_is_over_and_every_value_was_measured(
    tmp_path_factory: pytest.TempPathFactory, seconds: float, speed: float
) -> None:
    client = Client(Clock(), speed)
    kept = serve(tmp_path_factory.mktemp("meet"), client, 0, seconds=seconds)
    took = [requests / speed for requests, _ in client.asked]
    assert sum(took[:-1]) < seconds or not took
    values = [len(cell["values"]) for cell in kept.get("concurrency", {}).values()]
    assert sum(values) <= len(took)
    # Of a concurrency there are two runs that were compared, or nothing is said of it.
    assert len(values) <= 2
    assert all(len(client.requests(int(size))) >= 2 for size in kept.get("concurrency", {}))


def test_the_time_to_the_first_token_may_be_left_out_or_asked_for_at_a_rate(
    tmp_path: Path,
) -> None:
    for number, rate in enumerate((0.0, 7.0)):
        client = Client(Clock(), 10.0)
        (tmp_path / str(number)).mkdir()
        kept = serve(tmp_path / str(number), client, 0, load=Load((1,), rate))
        asked = [each for each in client.asked if each[1][0] == "--request-rate"]
        if not rate:
            assert (kept["first_token"], asked) == (None, [])
        else:
            # The first run warms up and does not count; each has the requests of six seconds.
            assert asked == [(42, ("--request-rate", "7.0"))] * 4
            assert kept["first_token"] == {"rate": 7.0, "values": [100.0] * 3}
