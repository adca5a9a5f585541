"""Requests that end so that the batch has, one after the other, every size that matters.

Which sizes draft graphs have is written down here once more, on purpose: a test says that it is
what ``vllm.v1.spec_decode.draft_graphs.keys`` makes of it.
"""

from __future__ import annotations

from dataclasses import replace

from overlay.proof import oracle
from tests.engine.engine_spec import Request, make_requests

#: vLLM's largest capture size, in tokens, where nothing else is asked for.
DEFAULT_CAPTURED = 512
#: How far below the limit the largest size may be: vLLM takes the last multiple of 16, and makes it
#: a multiple of K+1 if that is no more than the limit.
BELOW = 24
#: Steps for which the batch keeps each size.  A request may be scheduled once more after its end.
STEPS = 2


def levels(seqs: int, k: int, captured: int = DEFAULT_CAPTURED) -> list[int]:
    """Batch sizes, descending: each that a draft graph has, and one more than each.

    One more is the smallest batch for the next larger graph.  Which graph of first passes is the
    largest is known but for a few requests, which are all there.

    :param captured: the limit of the capture sizes, in tokens.
    """
    sizes = {1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, seqs, 32), seqs}
    sizes |= {tokens // (k + 1) for tokens in range(captured - BELOW, captured + 1)}
    found = {level for size in sizes for level in (size, size + 1)}
    return sorted((level for level in found if level <= seqs), reverse=True)


def at_every_size(
    seqs: int,
    k: int,
    rule: oracle.Rule | None = None,
    requests: tuple[Request, ...] | None = None,
    captured: int = DEFAULT_CAPTURED,
) -> tuple[Request, ...]:
    """``seqs`` requests that begin together, of which all `levels` are live for ``STEPS`` steps.

    :param rule: the rule of the models; ``None`` for that of ``tiny_models``.
    :param requests: ``seqs`` of them, whose prompts are taken; ``None`` for random ones.
    :param captured: the limit of the capture sizes, in tokens.
    """
    rule = rule or oracle.make_rule()
    ends = [0] * seqs
    for place, level in enumerate(levels(seqs, k, captured)):
        # The first ones live on; the others have ended before.
        ends[:level] = [STEPS * (place + 1)] * level
    made = make_requests(seqs, lengths=(2, 12)) if requests is None else requests
    return tuple(_with_steps(rule, *each, k) for each in zip(made, ends, strict=True))


#: Requests that are always there, for each of the request counts that mixed graphs have, and the
#: tokens that a batch has once prompts join them: almost those of each graph, and more than all.
ALWAYS = (0, 17, 70)
TOGETHER = (120, 250, 500, 760, 1020, 1530, 2040, 3060, 4090, 6000)
#: Tokens of a prompt at most, and steps between two joins, by when those that joined have ended.
PROMPT, APART = 400, 7


def at_every_mixed_size(k: int) -> tuple[Request, ...]:
    """Requests with whose prompts every graph of mixed batches has a batch, of up to 256 requests.

    Wants room for 8,192 tokens in a step, and for 512 in a sequence.
    """
    rule = oracle.make_rule()
    made: list[Request] = []
    step = seed = 0
    for always in ALWAYS:
        seed += 1
        lasting = make_requests(always, lengths=(2, 12), seed=seed)
        waits = APART * len(TOGETHER) + STEPS
        made += [replace(_with_steps(rule, each, waits, k), arrival=step) for each in lasting]
        for together in TOGETHER:
            step += APART
            tokens = together - always * (k + 1)
            if tokens < 2:
                continue
            count = -(-tokens // PROMPT)
            seed += 1
            prompts = make_requests(count, lengths=(tokens // count,) * 2, seed=seed)
            made += [replace(_with_steps(rule, each, STEPS, k), arrival=step) for each in prompts]
        step += 2 * APART
    return tuple(made)


def _with_steps(rule: oracle.Rule, request: Request, steps: int, k: int) -> Request:
    """The request with as many tokens as it has after so many verifications."""
    known = [*request.prompt, *oracle.continuation(rule, request.prompt, 1)]
    for _ in range(steps):
        known += oracle.continuation(rule, known, oracle.accepted(rule, known, k) + 1)
    return Request(request.prompt, len(known) - len(request.prompt))
