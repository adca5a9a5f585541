"""What two data-parallel ranks of `test_data_parallel.py` do: their requests, run by run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.draft_graphs.dp_client import busy, dp_run, idle, make_dp_spec
from tests.draft_graphs.dp_rank import DpOutcome, DpRun
from tests.engine.engine_spec import Request

K = 3
#: Rank 0 runs into the largest length, where upstream stops to draft; rank 1 stays below it.
LONG = ((Request(tuple(range(5, 105)), 25), Request(tuple(range(7, 19)), 16)), busy()[:3])

#: Captures before the one that fails: none; all but the last.
FAILING = (0, 7)
#: Those of the profile and two more, which repeats it.
FAILING_BETWEEN = 6


def glm_spec(models: Path, draft: str) -> dict[str, Any]:
    """A GLM-4-MoE with its MTP layer."""
    spec = make_dp_spec(models, draft, K)
    spec["engine"]["model"] = f"{models}/{draft}"
    spec["speculative"] = {"method": "mtp"}
    return spec


def good_runs(*, thorough: bool) -> list[DpRun]:
    """Runs that must succeed, in one pair of engines.

    :param thorough: whether with a capture that fails between the first and the last.
    """
    mostly_first, mostly_second = (busy(), idle()), (idle(), busy())
    return [
        dp_run("loop", "loop", requests=mostly_first),
        dp_run("step", "step", requests=mostly_second),
        dp_run("off", "off", requests=mostly_first),
        dp_run("one capture fails", "loop", requests=mostly_second, fails=(1,)),
        dp_run("one has no graphs", "loop", requests=mostly_first, without=(1,)),
        dp_run("long", "loop", requests=LONG),
        dp_run("long and off", "off", requests=LONG),
        *together_runs((*FAILING, FAILING_BETWEEN) if thorough else FAILING),
    ]


def together_runs(failing: Sequence[int]) -> list[DpRun]:
    """Runs in which a layer of the draft model exchanges its rows with the other rank."""
    mostly_first, mostly_second = (busy(), idle()), (idle(), busy())
    short = (busy()[:3], idle()[:1])

    def run(name: str, *modes: str, requests: Any = short, **more: Any) -> DpRun:
        return dp_run(f"together: {name}", *modes, requests=requests, reaches=True, **more)

    return [
        run("loop", "loop", requests=mostly_first),
        run("step", "step", requests=mostly_second),
        # Both are busy at first; rank 0 runs out of room.
        run("long", "loop", requests=LONG),
        run("one has no graphs", "loop", without=(1,)),
        run("one declines", "loop", declining=(0,), requests=mostly_first),
        run("unforeseen on one rank", "loop", unforeseen=(1,), requests=mostly_second),
        *(
            run(f"capture {captures} fails", "loop", fails=(1,), captures=captures)
            for captures in failing
        ),
    ]


def different_plans() -> DpRun:
    """Ranks that would capture different graphs: both fail, so it is the last run of a pair."""
    return dp_run(
        "together: different plans", "loop", "step", requests=(busy()[:1], idle()[:1]), reaches=True
    )


def glm_runs() -> list[DpRun]:
    """Runs whose draft is an MTP layer with experts; rank 1 is mostly idle."""
    requests = (at_least_three(busy()), at_least_three(idle()))
    return [
        dp_run("loop", "loop", requests=requests),
        # Nothing can come behind it.
        dp_run("one is killed", "loop", requests=requests, killed=(1,)),
    ]


def at_least_three(requests: Sequence[Request]) -> tuple[Request, ...]:
    """The requests with prompts that an MTP layer can read, which sees nothing at position 0."""
    return tuple(
        replace(each, prompt=(7,) * (3 - len(each.prompt)) + each.prompt) for each in requests
    )


def soak(seed: int) -> tuple[Request, ...]:
    """Forty requests of all lengths, at random times, with pauses."""
    rng = random.Random(seed)
    arrival, made = 0, []
    for _ in range(40):
        arrival += rng.choice([0, 0, 1, 2, 5, 25])
        prompt = tuple(rng.randrange(3, 192) for _ in range(rng.randint(2, 60)))
        made.append(Request(prompt, rng.randint(1, 60), arrival=arrival))
    return tuple(made)


def soak_runs() -> list[DpRun]:
    """Eight runs of forty requests a rank, with an exchange in every pass of the draft model."""
    return [
        dp_run(f"soak {seed}, {mode}", mode, requests=(soak(seed), soak(seed + 50)), reaches=True)
        for seed in range(4)
        for mode in ("loop", "step")
    ]


def soak_faults(ranks: Sequence[DpOutcome]) -> list[str]:
    """What is wrong with the outcomes of one soak, by rank; empty if nothing is."""
    faults = []
    for rank, outcome in enumerate(ranks):
        checks = {
            f"failed: {outcome.error}": outcome.error is None,
            "tokens are not the oracle's": outcome.tokens_ok,
            f"accepted {outcome.accepted}, expected {outcome.expected}": (
                outcome.accepted == outcome.expected and sum(outcome.accepted) > 0
            ),
            f"dummy batches wrote the KV cache of {outcome.dummy_writes}": not outcome.dummy_writes,
            "has no draft graphs": bool(outcome.captured),
            "drafted otherwise than rank 0": outcome.trail == ranks[0].trail,
        }
        faults += [f"rank {rank} {fault}" for fault, right in checks.items() if not right]
    return faults
