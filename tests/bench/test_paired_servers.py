"""Servers are asked in turn: the order turns, and half of what the first answers is the rate."""

from __future__ import annotations

import argparse
from typing import Any

from bench.paired_load import party
from bench.paired_servers import FIRST_TOKEN, command_of, measure

ARGS = argparse.Namespace(requests=[4, 1], rounds=2, seconds=60.0, timeout=1.0)


class Double:
    """A server that answers so many requests a second, and is asked nothing else."""

    def __init__(self, name: str, answered: float, asked: list[tuple[str, Any]]) -> None:
        self.party, self._answered, self._asked = party(name), answered, asked

    def ask(self, question: Any, word: str, seconds: float) -> Any:
        self._asked.append((self.party.name, question))
        return [10 * self._answered, self._answered, 1000 / self._answered]


def test_each_round_asks_all_the_same_and_the_order_turns() -> None:
    asked: list[tuple[str, Any]] = []
    kept: list[Any] = []
    servers: Any = [Double("stock", 8.0, asked), Double("overlay", 16.0, asked)]
    measure(servers, ARGS, lambda *what: kept.append(what))
    cells, rate = kept[-1]
    assert rate == 4.0  # of the first server, however it is asked later
    assert cells["4 at a time"] == {"stock": [80.0] * 2, "overlay": [160.0] * 2}
    assert cells[FIRST_TOKEN] == {"stock": [125.0] * 2, "overlay": [62.5] * 2}
    names = [name for name, question in asked if question[1:] == ("--max-concurrency", 4)]
    assert names == ["stock", "overlay", "overlay", "stock", "stock", "overlay"]
    for number, (_, question) in enumerate(asked[::2]):
        assert question == asked[2 * number + 1][1]


def test_a_server_that_died_has_no_figure_and_the_others_go_on() -> None:
    kept: list[Any] = []
    servers: Any = [Double("stock", 8.0, []), Double("overlay", 16.0, [])]
    servers[1].ask = lambda *_: None
    measure(servers, ARGS, lambda *what: kept.append(what))
    assert kept[-1][0]["1 at a time"] == {"stock": [80.0] * 2, "overlay": [None] * 2}


def test_a_party_has_its_own_drafts_and_options() -> None:
    args = argparse.Namespace(**vars(ARGS), engine='{"a": 1}', k=3, shape="1b")
    args.accept, args.prompt, args.answer = 2.5, 8, 9
    script, serve, given = command_of(party('x;;{"k": 0, "b": 2}'), args)
    assert script.endswith("paired_servers.py")
    assert serve == "--serve"
    assert '"k": 0, "most": 4, "options": {"a": 1, "b": 2}' in given
