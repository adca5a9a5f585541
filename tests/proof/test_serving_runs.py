"""Runs of a client against servers that take turns: how many, with how many requests, and when."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.proof import meeting, serving_runs, turns
from overlay.proof.meeting import Meeting
from overlay.proof.serving_runs import Limit, Load, Turns
from overlay.proof.serving_turns import round_of

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


#: More than the runs of any test: what a numbered client answers beyond it is no number.
MANY = 1_000_000


@dataclass
class NumberedClient(Client):
    """Answers with the number of the run among those of all servers, so that it is found again.

    :ivar runs: of all servers, in their order: whose they were, and their limits.
    :ivar begun: when each began.
    """

    party: int = 0
    runs: list[tuple[int, tuple[str, str]]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)

    def ask(self, requests: int, limit: tuple[str, str]) -> dict[str, Any]:
        self.begun.append(self.clock.now)
        result = {**super().ask(requests, limit), "request_throughput": float(limit[1])}
        share = 2 if self.uneven and len(self.asked) % 2 else 1
        number = MANY * share + len(self.runs)
        self.runs.append((self.party, limit))
        return {**result, "output_throughput": number, "median_ttft_ms": number}


@dataclass
class Sitting:
    """Servers that take turns as the conductor gives them; no processes.

    :ivar uneven: of each server whether no two of its runs in a row agree.
    """

    folder: Path
    load: Load
    rounds: int
    uneven: list[bool]
    seconds: float | None = None
    runs: list[tuple[int, tuple[str, str]]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    kept: dict[int, dict[str, Any]] = field(default_factory=dict)

    def conduct(self) -> Sitting:
        clock = Clock()
        with mock.patch.object(serving_runs, "time", clock):
            servers = [self._server(clock, party) for party in range(len(self.uneven))]

            def give_turn(folder: Path, number: int, party: int) -> None:
                self.given.append(number)
                if number == len(servers[party].turns):
                    return meeting.leave(folder, party)
                servers[party].take(servers[party].turns[number])
                return servers[party].meeting.end_turn(number)

            of_turn = partial(round_of, servers[0].turns)
            conductor = turns.Turns(self.folder, len(servers), round_of=of_turn)
            for party, server in enumerate(servers):
                conductor.begun(party, 1_000_000 + party)
                server.meeting.reach(meeting.STARTED)
            with (
                mock.patch.object(turns.os, "killpg"),
                mock.patch.object(turns.meeting, "give_turn", give_turn),
            ):
                conductor.conduct()
        return self

    def _server(self, clock: Clock, party: int) -> Turns:
        uneven = self.uneven[party]
        client = NumberedClient(clock, 10.0 + party, uneven, [], party, self.runs, self.begun)

        def keep(found: dict[str, Any]) -> None:
            self.kept[party] = json.loads(json.dumps(found))

        place = Meeting(self.folder, party, 1)
        return Turns(client, self.load, Limit(self.seconds), keep, place, self.rounds)

    @property
    def cells(self) -> list[str]:
        """What is measured, in its order."""
        rate = [] if self.load.rate == 0 else ["rate"]
        return [*dict.fromkeys(map(str, self.load.concurrency)), *rate]

    @staticmethod
    def is_of(run: tuple[int, tuple[str, str]], cell: str, party: int) -> bool:
        """Whether a run is one of a server's runs of a cell."""
        option, value = run[1]
        return run[0] == party and cell == ("rate" if option == "--request-rate" else value)

    def counted(self, cell: str, party: int) -> list[int]:
        """The numbers of the runs that count."""
        kept = self.kept.get(party, {"concurrency": {}, "first_token": None})
        found = kept["first_token"] if cell == "rate" else kept["concurrency"].get(cell)
        if found is None:
            return []
        assert sum(found["by_turn"]) == len(found["values"])
        return [int(value) % MANY for value in found["values"]]


@st.composite
def sittings(draw: st.DrawFn) -> dict[str, Any]:
    sizes = st.lists(st.sampled_from((1, 4, 16, 64)), min_size=1, max_size=3)
    return {
        "load": Load(tuple(draw(sizes)), draw(st.sampled_from((None, 0.0, 7.0)))),
        "rounds": draw(st.integers(1, 5)),
        "uneven": draw(st.lists(st.booleans(), min_size=1, max_size=4)),
    }


@given(given_=sittings())
def test_in_each_round_all_servers_measure_a_cell_before_any_measures_the_next(
    tmp_path_factory: pytest.TempPathFactory, given_: dict[str, Any]
) -> None:
    made = Sitting(tmp_path_factory.mktemp("meet"), **given_).conduct()
    parties, wanted = range(len(made.uneven)), 2 if made.rounds == 1 else made.rounds
    counted = {cell: [made.counted(cell, party) for party in parties] for cell in made.cells}
    assert {len(numbers) for each in counted.values() for numbers in each} == {wanted}
    if "rate" in made.cells:
        half = 0.5 * max(made.load.concurrency)
        assert {kept["first_token"]["rate"] for kept in made.kept.values()} == {
            made.load.rate or half
        }
    # Behind the turns of each cell, to warm up and to be measured, there is one to end in.
    last = len(made.cells) * (1 if made.rounds == 1 else made.rounds + 1)
    assert made.given == [number for number in range(last + 1) for _ in parties]
    if made.rounds == 1:
        groups = [group for group, _ in itertools.groupby(made.runs)]
        assert [party for party, _ in groups] == [*parties] * len(made.cells)
        assert len({limit for _, limit in groups}) == len(made.cells)
        return
    begins = list[int]()
    last = -1
    for number in range(made.rounds):
        orders = set[tuple[int, ...]]()
        for cell in made.cells:
            runs = [counted[cell][party][number] for party in parties]
            # Nothing lies between the runs that are compared, not even a run that warms up.
            assert sorted(runs) == [*range(min(runs), min(runs) + len(parties))]
            assert min(runs) > last
            last = max(runs)
            orders.add(tuple(sorted(parties, key=runs.__getitem__)))
        (order,) = orders
        begins.append(order[0])
    for first in range(made.rounds - len(parties) + 1):
        assert sorted(begins[first : first + len(parties)]) == [*parties]


@given(given_=sittings(), share=st.floats(0, 1.1))
def test_of_what_a_limit_cuts_all_that_was_measured_before_it_counts_once(
    tmp_path_factory: pytest.TempPathFactory, given_: dict[str, Any], share: float
) -> None:
    whole = Sitting(tmp_path_factory.mktemp("meet"), **given_).conduct()
    seconds = share * whole.begun[-1]
    cut = Sitting(tmp_path_factory.mktemp("meet"), **given_, seconds=seconds).conduct()
    assert cut.runs == whole.runs[: len(cut.runs)]
    assert all(begun < seconds for begun in cut.begun)
    every = list[int]()
    for cell in cut.cells:
        each = [cut.counted(cell, party) for party in range(len(cut.uneven))]
        every += itertools.chain(*each)
        for party, numbers in enumerate(each):
            expected = [n for n in whole.counted(cell, party) if n < len(cut.runs)]
            if cut.rounds == 1:  # the last two runs, also where the limit came before they agreed
                own = [n for n, run in enumerate(cut.runs) if cut.is_of(run, cell, party)]
                expected = own[1:] if cell == "rate" else own[-2:] if len(own) > 1 else []
            assert numbers == expected
        if cut.rounds > 1:
            # Whatever every server has measured in a round counts for all.
            assert max(map(len, each)) - min(map(len, each)) <= 1
    assert len(every) == len(set(every))


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
    assert len(client.asked) == warming + (0 if turns == 1 else turns)
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
            assert kept["first_token"] == {
                "rate": 7.0,
                "values": [100.0] * 3,
                "by_turn": [1] * 3,
            }
