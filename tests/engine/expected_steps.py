"""What engines of tests are expected to do beyond what ``overlay verify`` asks of the oracle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from overlay.proof import oracle


def swapped(rule: oracle.Rule, adapter: str) -> tuple[tuple[int, int], ...]:
    """The pairs of tokens that an adapter of this name lets the target take for each other."""
    ids = random.Random(adapter).sample(range(oracle.FIRST_TOKEN, rule.vocab), 8)
    return tuple(zip(ids[::2], ids[1::2], strict=True))


def adapted(rule: oracle.Rule, adapter: str | None) -> oracle.Rule:
    """The rule where the target, and not its drafts, has an adapter; the rule itself without."""
    if adapter is None:
        return rule
    successor = list(rule.successor)
    for first, second in swapped(rule, adapter):
        successor[first], successor[second] = successor[second], successor[first]
    return replace(rule, successor=tuple(successor))


def undisturbed(
    rule: oracle.Rule, prompt: Sequence[int], count: int, k: int
) -> list[oracle.OracleStep]:
    """Every verification of a request that is never preempted and never near its length limit.

    The prefill gives one token; then each step verifies ``k`` proposals and adds one token more
    than it accepts, the last one possibly running past ``count``.
    """
    tokens = [*prompt, *oracle.continuation(rule, prompt, 1)]
    steps = []
    while len(tokens) < len(prompt) + count:
        right = oracle.accepted(rule, tokens, k)
        steps.append(oracle.OracleStep(len(tokens), k, right))
        tokens += oracle.continuation(rule, tokens, right + 1)
    return steps
