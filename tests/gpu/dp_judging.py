"""What the requests and the events of a data-parallel cell come to.  Pure: needs no engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from overlay.proof import oracle
from tests.engine.engine_spec import Request

RANKS = 2
#: The targets whose draft has experts.
TOGETHER = ("glm", "eplb")
#: Replays of a step with K = 3 in mode ``step``.
LONGEST_STEP = 3
#: Each request and its tokens, by name; a name is ``rank.phase.number``.
Served = dict[str, tuple[Request, list[int]]]


def judge(
    k: int, rule: oracle.Rule, served: Served, told: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The findings on each rank, from its requests and from what its processes told."""
    steps: dict[str, list[oracle.OracleStep]] = defaultdict(list)
    for event in told:
        if event["kind"] == "step":
            step = oracle.OracleStep(event["known"], event["drafted"], event["accepted"])
            steps[event["id"]].append(step)
    same = _same_replays(told)
    return [
        {
            **answers(k, rule, _of_rank(served, rank), steps),
            **actions([event for event in told if event.get("rank") == rank]),
            "same_replays": same,
        }
        for rank in range(RANKS)
    ]


def _same_replays(told: list[dict[str, Any]]) -> bool:
    """Whether all ranks replayed the same graphs in the same order.

    The engine is stopped while ranks may be in a step, so one may have replayed a step less.
    """
    lists = [
        [(event["role"], event["size"]) for event in told if _replayed(event, rank)]
        for rank in range(RANKS)
    ]
    shortest = min(map(len, lists))
    step = max((len(each) - shortest for each in lists), default=0)
    return step <= LONGEST_STEP and all(each[:shortest] == lists[0][:shortest] for each in lists)


def _replayed(event: dict[str, Any], rank: int) -> bool:
    return bool(event["kind"] == "replay" and event["rank"] == rank)


def _of_rank(served: Served, rank: int) -> Served:
    return {name: each for name, each in served.items() if name.startswith(f"{rank}.")}


def answers(
    k: int, rule: oracle.Rule, served: Served, steps: dict[str, list[oracle.OracleStep]]
) -> dict[str, Any]:
    """Tokens and accepted drafts of one rank, beside the oracle's."""
    seen, right, tokens_ok = [], [], 0
    for name, (request, tokens) in served.items():
        prompt = list(request.prompt)
        text = prompt + oracle.continuation(rule, prompt, request.tokens)
        tokens_ok += prompt + tokens == text
        seen += steps[name]
        right += [
            replace(step, accepted=oracle.accepted(rule, text[: step.known], step.drafted))
            for step in steps[name]
        ]
    return {
        "requests": len(served),
        "tokens_ok": tokens_ok,
        "drafts": len(seen),
        "accepted": list(oracle.count_steps(seen, k).per_position),
        "oracle": list(oracle.count_steps(right, k).per_position),
        "every_step_ok": bool(seen) and seen == right,
    }


def actions(told: list[dict[str, Any]]) -> dict[str, Any]:
    """What the drafter of one rank did."""
    dummies = [event for event in told if event["kind"] == "dummy"]
    replays = [event for event in told if event["kind"] == "replay"]
    return {
        "ranks_known": [event["ranks"] for event in told if event["kind"] == "loaded"],
        "captured": [event for event in told if event["kind"] == "captured"],
        "replays": dict(Counter(event["role"] for event in replays)),
        "sizes": dict(Counter(f"{each['role']} {each['size']}" for each in replays)),
        "asked": sum(event["kind"] == "asked" for event in told),
        "dummy_batches": len(dummies),
        "dummies_compared": sum(event["wrote"] is not None for event in dummies),
        "dummy_replays": sum(event["replays"] for event in dummies),
        "dummy_wrote": sorted({name for each in dummies for name in each["wrote"] or ()}),
    }


def why_wrong(target: str, mode: str, ranks: list[dict[str, Any]]) -> list[str]:
    """What is not as it must be on each rank; nothing if all is right."""
    wrong = []
    for rank, found in enumerate(ranks):
        lockstep = target != "dense"
        together = target in TOGETHER and mode != "off"
        replays = sum(found["replays"].values())
        checks = {
            "tokens": found["requests"] > 0 and found["tokens_ok"] == found["requests"],
            "accepted drafts": found["every_step_ok"] and found["accepted"] == found["oracle"],
            "replays": bool(found["replays"]) == (mode != "off"),
            "roles": mode == "off" or set(found["replays"]) == {"first", mode},
            "ranks known": found["ranks_known"] == [RANKS if lockstep else 1],
            "asked": found["asked"] < replays
            if together
            else (found["asked"] > 0) == (lockstep and mode == "off"),
            "later passes behind a prefill": not (together and mode == "loop")
            or found["replays"].get("loop", 0) > found["replays"].get("first", 0),
            "dummy batches": (found["dummies_compared"] > 0) == lockstep,
            "replays in dummy batches": (found["dummy_replays"] > 0) == together,
            "the other rank's replays": not together or found["same_replays"],
            # Without graphs it is upstream's affair what its dummy batches write.
            "writes of dummy batches": mode == "off" or not found["dummy_wrote"],
            "withdrawn": not any(event["withdrawn"] for event in found["captured"]),
        }
        wrong += [f"rank {rank}: {name}" for name, right in checks.items() if not right]
    return wrong
