"""What the tiny models must say, computed exactly, without PyTorch.

The target's rule is ``x[t+1] = successor[x[t-1]]``: the next token depends on the one *before*
the current one, so a model can only follow it by looking one position back, through its KV cache.
The drafts follow the same rule except after the tokens in :attr:`Rule.wrong`, where they are wrong
on purpose.  So the number of accepted tokens at each position is known too, whatever the device,
the batch or the schedule.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Token ids below this one (padding, begin and end of text) are never produced.
FIRST_TOKEN = 3


@dataclass(frozen=True)
class Rule:
    """The target's and the drafts' tables, one entry a token id.

    :ivar successor: the token that follows two positions after each token.
    :ivar draft_successor: the same as the drafts believe it.
    :ivar answers: for drafts that are all made in one pass, what is drafted where each token is
        right; empty where each draft follows from the ones before it.
    """

    successor: tuple[int, ...]
    draft_successor: tuple[int, ...]
    answers: tuple[int, ...] = ()

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return len(self.successor)

    @property
    def wrong(self) -> tuple[int, ...]:
        """The tokens after which the drafts are wrong."""
        pairs = zip(self.successor, self.draft_successor, strict=True)
        return tuple(token for token, (true, drafted) in enumerate(pairs) if true != drafted)


@dataclass(frozen=True)
class OracleStep:
    """One verification of drafts in one request.

    :ivar known: tokens of the request, prompt included, that were known before it.
    :ivar drafted: tokens that were proposed.
    :ivar accepted: how many of them, from the first on, were right.
    """

    known: int
    drafted: int
    accepted: int


class Answer(NamedTuple):
    """What one request got.

    :ivar prompt: the number of its prompt's tokens.
    :ivar tokens: the ids that were generated.
    :ivar steps: each verification of its drafts, in order.
    """

    prompt: int
    tokens: tuple[int, ...]
    steps: tuple[OracleStep, ...]


@dataclass(frozen=True)
class Counts:
    """What vLLM's metrics of speculative decoding add up to.

    :ivar per_position: for each draft position, how many verifications accepted it.
    """

    drafts: int
    draft_tokens: int
    accepted: int
    per_position: tuple[int, ...]


def make_rule(vocab: int = 192, wrong_every: int = 7, seed: int = 0) -> Rule:
    """A rule whose successors form one cycle through all ids from ``FIRST_TOKEN`` on.

    :param wrong_every: the drafts are wrong after each multiple of it; 0 for never.
    """
    ids = list(range(FIRST_TOKEN, vocab))
    random.Random(seed).shuffle(ids)
    successor = list(range(vocab))
    for here, there in zip(ids, ids[1:] + ids[:1], strict=True):
        successor[here] = there
    drafted = list(successor)
    for token in range(FIRST_TOKEN, vocab):
        if wrong_every and token % wrong_every == 0:
            drafted[token] = successor[successor[token]]
    return Rule(tuple(successor), tuple(drafted))


def swapped(rule: Rule, adapter: str) -> tuple[tuple[int, int], ...]:
    """The pairs of tokens that an adapter of this name lets the target take for each other."""
    ids = random.Random(adapter).sample(range(FIRST_TOKEN, rule.vocab), 8)
    return tuple(zip(ids[::2], ids[1::2], strict=True))


def _extend(table: Sequence[int], tokens: Sequence[int], count: int) -> list[int]:
    if len(tokens) < 2:
        raise ValueError(f"the rule needs two known tokens, not {len(tokens)}")
    before, last = tokens[-2], tokens[-1]
    tokens_after = []
    for _ in range(count):
        before, last = last, table[before]
        tokens_after.append(last)
    return tokens_after


def continuation(rule: Rule, prompt: Sequence[int], count: int) -> list[int]:
    """The ``count`` tokens that follow ``prompt``.

    :raises ValueError: if the prompt has fewer than two tokens.
    """
    return _extend(rule.successor, prompt, count)


def drafts(rule: Rule, tokens: Sequence[int], k: int) -> list[int]:
    """The ``k`` tokens that the drafts propose after the known ones."""
    if rule.answers:
        return [rule.answers[token] for token in continuation(rule, tokens, k)]
    return _extend(rule.draft_successor, tokens, k)


def accepted(rule: Rule, tokens: Sequence[int], k: int) -> int:
    """How many of the ``k`` proposals after the known tokens are right, from the first on."""
    proposed = drafts(rule, tokens, k)
    true = continuation(rule, tokens, k)
    return next((i for i in range(k) if proposed[i] != true[i]), k)


def count_steps(steps: Iterable[OracleStep], k: int) -> Counts:
    """Add up the steps of any number of requests."""
    all_steps = list(steps)
    return Counts(
        drafts=len(all_steps),
        draft_tokens=sum(step.drafted for step in all_steps),
        accepted=sum(step.accepted for step in all_steps),
        per_position=tuple(sum(step.accepted > i for step in all_steps) for i in range(k)),
    )
