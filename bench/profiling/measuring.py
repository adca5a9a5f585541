"""Time the batches of one engine: what the repeats come to, beside others or in turn with them.

An engine measures alone, side by side with others at the same moment, or in turns with others on
the same GPU (:mod:`meeting`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.meeting import Meeting
from overlay.proof.step_time import TimedEngine, milliseconds, repeat, warm_up

#: How long whoever is done first goes on, so that the others do not meet a quieter host.
_KEEP_BUSY_SECONDS = 60


class Engine(TimedEngine, Protocol):
    """What is asked of an engine."""

    def workers(self, method: str, *args: Any) -> list[Any]:
        """What each worker answers, by rank."""


@dataclass(frozen=True)
class Block:
    """Repeats of one batch size, one after the other.

    :ivar repeats: of each repeat its seconds and its engine steps.
    :ivar drafts: how often a request was drafted for.
    :ivar accepted: how many draft tokens were accepted.
    :ivar host: by timed method its median, mean and largest milliseconds on the first rank.
    """

    repeats: tuple[tuple[float, float], ...]
    drafts: float
    accepted: float
    host: dict[str, dict[str, float]]


def measure(engine: Engine, size: int, tokens: int, count: int) -> Block:
    """Time that many repeats."""
    engine.workers("bench_forget")
    drafts, accepted = engine.counter("num_drafts"), engine.counter("num_accepted_tokens")
    repeats = repeat(engine, size, tokens, count)
    return Block(
        tuple(repeats),
        engine.counter("num_drafts") - drafts,
        engine.counter("num_accepted_tokens") - accepted,
        engine.workers("bench_host")[0],
    )


def figures(blocks: Sequence[Block], size: int, tokens: int) -> dict[str, Any]:
    """All that is told of a batch size; the host's times are those of the last block."""
    result = summary([repeat for block in blocks for repeat in block.repeats], size, tokens)
    drafts = sum(block.drafts for block in blocks)
    accepted = sum(block.accepted for block in blocks)
    if drafts:
        result["mean_acceptance_length"] = round(1 + accepted / drafts, 3)
    result["host_ms"] = host = blocks[-1].host
    if "propose" in host:
        result["propose_host_ms"] = host["propose"]["median_ms"]
        result["propose_host_mean_ms"] = host["propose"]["mean_ms"]
        result["propose_host_max_ms"] = host["propose"]["max_ms"]
    return result


def summary(repeats: list[tuple[float, float]], size: int, tokens: int) -> dict[str, Any]:
    """The milliseconds per step of one batch size.

    :param repeats: of each repeat its seconds and its engine steps.
    """
    each = [1000 * seconds / steps for seconds, steps in repeats]
    median = statistics.median(each)
    return {
        "ms_per_step": round(median, 3),
        "tokens_per_s": round(size * tokens / statistics.median(s for s, _ in repeats), 1),
        "spread": round((max(each) - min(each)) / median, 3),
        "best_ms_per_step": round(min(each), 3),
        "p10_ms_per_step": round(percentile(each, 0.1), 3),
        "repeats_ms_per_step": milliseconds(repeats),
    }


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of them lie, between neighbours by their distance."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def side_by_side(
    engine: Engine, size: int, tokens: int, repeats: int, meeting: Meeting
) -> dict[str, Any]:
    """Time one batch size, while the engines beside this one, if any, time it as well."""
    warm_up(engine, size, tokens)
    together = meeting.wait(f"warm-{size}", 200)
    result = figures([measure(engine, size, tokens, repeats)], size, tokens)
    meeting.reach(f"done-{size}")
    last = time.monotonic() + _KEEP_BUSY_SECONDS
    while not meeting.all_at(f"done-{size}") and time.monotonic() < last:
        engine.generate(size, tokens)
    if not meeting.alone:
        result["all_together"] = together and meeting.all_at(f"done-{size}")
    return result


def in_turns(
    engine: Engine,
    sizes: Sequence[int],
    tokens: int,
    repeats: int,
    turns: int,
    meeting: Meeting,
) -> dict[int, dict[str, Any]]:
    """Time every batch size in each turn; a last turn, in which the process ends, has begun then.

    Several turns share out among the engines whatever changes while they measure: the GPU's heat,
    the host's other guests.  No engine ends before all have measured: giving memory back takes the
    GPU and the host, too.

    :param repeats: of all turns together.
    """
    for size in sizes:  # what is compiled at a first call is not counted in any turn
        engine.generate(size, 16)
    blocks: dict[int, list[Block]] = {}
    times: dict[int, dict[str, Any]] = {}
    for turn in range(turns):
        meeting.wait_for_turn(turn)
        for size in sizes:
            warm_up(engine, size, tokens)
            measured = measure(engine, size, tokens, -(-repeats // turns))
            blocks.setdefault(size, []).append(measured)
            times[size] = figures(blocks[size], size, tokens)
            times[size]["repeats_by_turn"] = [len(block.repeats) for block in blocks[size]]
        meeting.end_turn(turn)
    meeting.wait_for_turn(turns)
    return times
