"""Train an EAGLE3 draft on a model's own answers, and say how well it drafts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from bench.pair.answers import Answers
from bench.pair.draft import Draft

#: What a further step counts for beside the one before it, as EAGLE-3 has it.
_FALL = 0.8
_WARM_UP, _LEAST = 0.03, 0.02


class Plan(NamedTuple):
    """How to train.

    :ivar steps: draft steps a place.
    :ivar batch: answers in one update.
    :ivar rate: the learning rate at its height.
    :ivar seconds: time for all updates; :ivar updates: how many at most.
    :ivar checks: how often the draft is measured on the way.
    """

    steps: int
    batch: int
    rate: float
    seconds: float
    updates: int
    seed: int
    checks: int = 10


def batches(answers: Answers, plan: Plan, device: str) -> Iterator[Answers]:
    """Batches of answers of similar lengths, without end, in an order of the seed."""
    generator = torch.Generator().manual_seed(plan.seed)
    count = len(answers.ends)
    while True:
        order = torch.randperm(count, generator=generator)
        parts = []
        for group in order.split(plan.batch * 16):
            parts += list(group[answers.ends[group].argsort()].split(plan.batch))
        for number in torch.randperm(len(parts), generator=generator).tolist():
            batch = answers.part(parts[number])
            yield Answers(*(each.to(device) for each in batch))


def measured(draft: Draft, answers: Answers, plan: Plan) -> dict[str, Any]:
    """How a draft does on answers that were not sampled.

    ``accepted``: of all places of these answers, the share where the drafts up to each position
    are what the model answered; ``loss``: the cross entropy of each position.
    """
    losses, chains, places = [0.0] * plan.steps, [0] * plan.steps, 0
    parts = torch.arange(len(answers.ends)).split(plan.batch)
    with torch.no_grad():
        for part in parts:
            batch = Answers(*(each.to(draft.target.device) for each in answers.part(part)))
            found = draft.steps(batch, plan.steps)
            whole = torch.stack([step.asked for step in found]).all(0)
            places += int(whole.sum())
            for number, step in enumerate(found):
                whole &= step.right
                chains[number] += int(whole.sum())
                losses[number] += step.value / len(parts)
    shares = [round(chain / max(places, 1), 4) for chain in chains]
    return {
        "accepted": shares,
        "tokens_a_step": round(1 + sum(shares), 3),
        "loss": [round(loss, 3) for loss in losses],
    }


def train(draft: Draft, answers: Answers, held_out: Answers, plan: Plan) -> list[dict[str, Any]]:
    """Train; the curve: what :func:`measured` says at the beginning, on the way and at the end."""
    weights = list(draft.weights.values())
    optimizer = torch.optim.AdamW(weights, lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.0)
    stream = batches(answers, plan, draft.target.device)
    used, update, told, value = 0.0, 0, 0, float("nan")
    curve = [{"update": 0, "seconds": 0.0, **measured(draft, held_out, plan)}]
    print(curve[-1], flush=True)
    while used < plan.seconds and update < plan.updates:
        began = time.monotonic()
        share = max(used / plan.seconds, update / plan.updates)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate * height(share)
        found = draft.steps(next(stream), plan.steps)
        loss = sum(step.loss * _FALL**number for number, step in enumerate(found))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        value = found[0].value
        update += 1
        used += time.monotonic() - began
        share = max(used / plan.seconds, update / plan.updates)
        if share >= (told + 1) / plan.checks:
            told = int(share * plan.checks)
            figures = {"update": update, "seconds": round(used, 1), "train_loss": round(value, 3)}
            curve.append({**figures, **measured(draft, held_out, plan)})
            print(curve[-1], flush=True)
    return curve


def height(share: float) -> float:
    """The learning rate at a share of the training: up in a line, down in half a cosine."""
    if share < _WARM_UP:
        return (share + 0.001) / _WARM_UP
    down = (share - _WARM_UP) / (1 - _WARM_UP)
    return _LEAST + (1 - _LEAST) * 0.5 * (1 + math.cos(math.pi * min(down, 1.0)))
