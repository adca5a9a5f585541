"""Random batches for a draft: rows with and without rejected tokens, short, long and padded."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from tests.ascend.twin_model import BLOCK, BLOCKS, HIDDEN, LONGEST, TABLE, VOCAB


@dataclass(frozen=True)
class Batch:
    """What a drafter is given after a step of the target.

    :ivar lengths: query length of each request; K+1 where all K drafts of it were verified.
    :ivar seen: length of each request's context, with all of its queries.
    :ivar rejected: count by request; `None` where nothing was verified.
    """

    k: int
    lengths: tuple[int, ...]
    seen: tuple[int, ...]
    table: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    rejected: torch.Tensor | None
    ids: torch.Tensor
    hidden: torch.Tensor
    next_ids: torch.Tensor

    @property
    def ends(self) -> torch.Tensor:
        """[requests + 1]: where the queries of each request begin."""
        return torch.tensor([0, *self.lengths]).cumsum(0).int()

    @property
    def last(self) -> torch.Tensor | None:
        """[requests]: the last accepted token of each."""
        return None if self.rejected is None else self.ends[1:] - 1 - self.rejected

    @property
    def uniform(self) -> bool:
        """Whether every request has K+1 queries."""
        return all(length == self.k + 1 for length in self.lengths)

    def within(self, row: int) -> int:
        """How many drafts of a row are at positions that the model has.

        The others are drafted and thrown away; vLLM and vllm-ascend differ in them.
        """
        rejected = 0 if self.rejected is None else int(self.rejected[row])
        # The first draft is made at the last accepted token.
        return max(1, min(self.k, LONGEST - (self.seen[row] - rejected) + 1))


def draw(
    dice: random.Random, k: int, requests: int, wide: int, *, uniform: bool | None = None
) -> Batch:
    """Draw a batch.

    :param wide: values of a hidden state that the drafter is given.
    :param uniform: whether all rows have K+1 queries; `None`: two batches in three.
    """
    if uniform is None:
        uniform = dice.random() < 0.67
    # One token: a row without drafts. Others: a part of a prompt.
    lengths = [k + 1 if uniform else dice.choice([k + 1, 1, 5]) for _ in range(requests)]
    free = dice.sample(range(1, BLOCKS), BLOCKS - 1)
    table = torch.zeros(requests, TABLE, dtype=torch.int32)
    seen: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    rejected: list[int] = []
    for row, length in enumerate(lengths):
        near_the_end = dice.random() < 0.25
        lowest = LONGEST - k if near_the_end else length
        context = dice.randint(max(lowest, length), LONGEST)
        blocks = [free.pop() for _ in range(TABLE)]
        table[row] = torch.tensor(blocks)
        seen.append(context)
        places = range(context - length, context)
        positions += places
        slots += [blocks[place // BLOCK] * BLOCK + place % BLOCK for place in places]
        rejected.append(dice.randint(0, k) if length == k + 1 and dice.random() < 0.8 else 0)
    noise = torch.Generator().manual_seed(dice.randrange(1 << 30))
    tokens = sum(lengths)
    return Batch(
        k,
        tuple(lengths),
        tuple(seen),
        table,
        torch.tensor(positions),
        torch.tensor(slots),
        None if dice.random() < 0.1 else torch.tensor(rejected, dtype=torch.int32),
        torch.randint(0, VOCAB, (tokens,), generator=noise).int(),
        torch.randn(tokens, wide * HIDDEN, generator=noise),
        torch.randint(0, VOCAB, (requests,), generator=noise).int(),
    )
