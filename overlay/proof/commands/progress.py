"""What engines of ``overlay bench`` that take turns have come to, in words for whoever waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overlay.proof.commands.budget import Part
from overlay.proof.commands.question import Question
from overlay.proof.serving_turns import AT_RATE, ServingTurn, round_of, serving_turns
from overlay.proof.turns import Event, Step
from overlay.report.words import count

_NOTHING = "nothing was measured in it, since --budget is spent"


class Progress:
    """Tells of the turns of one part.

    :param question: says how many turns there are; of servers, what they are for.
    """

    def __init__(self, question: Question, part: Part) -> None:
        self._rounds, self._servers = question.rounds, part is Part.SERVING
        at_rate = question.rate != 0
        self._turns = serving_turns(question.concurrency, at_rate=at_rate, rounds=question.rounds)
        self._measured: dict[int, Mapping[str, Any] | None] = {}
        self._spent = set[int]()

    def round_of(self, number: int) -> int:
        """The round of a turn: engines of step times have one in each."""
        return round_of(self._turns, number) if self._servers else number

    def text(self, event: Event, result: Mapping[str, Any] | None) -> str:
        """What an engine has come to; empty where that says nothing new.

        :param result: all that the engine has measured, where a turn of it has ended.
        """
        if event.step is Step.STARTED:
            return "can be measured, waits for its turn"
        if event.step is Step.LATE:
            return "has not started in time, and is killed"
        if event.turn >= (len(self._turns) if self._servers else self._rounds):
            return "the turn in which it ends begins"
        if self._servers:
            return self._of_server(event, self._turns[event.turn], result)
        turn = f"round {event.turn + 1} of {self._rounds}"
        if event.step is Step.BEGAN:
            return f"{turn} begins"
        before, self._measured[event.party] = self._measured.get(event.party), result
        return f"{turn} has ended; {news(result, before)}"

    def _of_server(self, event: Event, turn: ServingTurn, result: Mapping[str, Any] | None) -> str:
        """Tell of a server's turn: a line for what it gave, and one before where that takes long.

        A round has a turn for each cell: a server that has no time left says so once.
        """
        words = f"round {turn.round + 1} of {self._rounds}, {cell_text(turn.requests)}"
        if event.party in self._spent:
            return ""
        if event.step is Step.BEGAN:
            return f"{words}: begins to warm up" if turn.warms else ""
        gave = figure(result or {}, turn)
        if gave is None:
            self._spent.add(event.party)
        return f"{words}: {gave or _NOTHING}"


def cell_text(requests: int) -> str:
    """What a server measures in a turn, in words."""
    return "first token" if requests == AT_RATE else f"{count(requests, 'request')} at a time"


def figure(result: Mapping[str, Any], turn: ServingTurn) -> str | None:
    """What a turn of a server gave, in words; ``None`` where that is nothing.

    :param result: all that it has measured, in this turn or by now.
    """
    name = str(turn.requests)
    if not turn.counts:
        warmed = result.get("warmed", {}).get(name)
        return None if warmed is None else f"warm after {count(warmed['runs'], 'run')}"
    at_rate = turn.requests == AT_RATE
    cell = result.get("first_token") if at_rate else result.get("concurrency", {}).get(name)
    if cell is None or len(cell["by_turn"]) <= turn.round:
        return None
    value = cell["values"][sum(cell["by_turn"][: turn.round + 1]) - 1]
    return f"{value:.1f} ms at {cell['rate']:g} requests/s" if at_rate else f"{value:.0f} tokens/s"


def news(result: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> str:
    """What a turn of an engine of step times gave, in words.

    :param result: all that the engine has measured.
    :param before: what it had measured when the turn began.
    """
    if result is None or result == before:
        return _NOTHING
    return ", ".join(
        f"{name.removeprefix('batch')}: {figures['repeats_ms_per_step'][-1]} ms"
        for name, figures in result.items()
        if name.startswith("batch")
    )
