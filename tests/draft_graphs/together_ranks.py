"""Data-parallel ranks in one process, whose agreements are made here, as vLLM makes them.

A FULL graph only if all ranks have one; the largest number of tokens; the least vote. Needs vLLM.

What a rank does in a step is a number of requests to draft for, or one of `DOINGS`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from tests.draft_graphs.drafters import Drafter
from tests.draft_graphs.twin_model import Shape

# The feature's modules lie beside vLLM's own once `drafters` is imported.
# isort: split
from vllm.config import CUDAGraphMode
from vllm.v1.spec_decode.draft_graphs import coupling, replay

#: What a rank may do but draft for requests in a uniform batch: it has none; has no room to draft
#: for its only one; has a prefill; finds in its batch that no graph holds it; the same beside a
#: prefill, before its first pass and behind it.
DOINGS = ("idle", "no room", "prefill", "unforeseen", "odd prefill", "changed prefill")
#: Three graphs of each role.
SHAPE = Shape(k=2, mode="auto", max_num_seqs=3, max_capture_tokens=9)
K = SHAPE.k
#: Tokens of the target's FULL graphs.
FULL_SIZES = (3, 6, 9)
TOGETHER = coupling.Coupling(coupling.Manner.TOGETHER, "experts")


@dataclass
class Rank:
    """One rank, what it replayed in a step, and how often upstream's code asked the others."""

    drafter: Drafter
    replayed: list[str] = field(default_factory=list)
    asked: int = 0

    @property
    def graphs(self) -> Any:
        return self.drafter.graphs

    def full_tokens(self, doing: int | str) -> int | None:
        """The tokens of its FULL graph in the target's agreement; None if it has none."""
        if self.graphs.vetoes() or str(doing).endswith("prefill"):
            return None
        tokens = (K + 1) * (doing if isinstance(doing, int) else 1)
        return next((size for size in FULL_SIZES if size >= tokens), None)

    def draft(self, doing: int | str) -> Any:
        """Draft as vLLM's runner does; the drafts, None where upstream's code makes them."""
        self.replayed.clear()
        if doing in ("idle", "no room"):
            self.asked += not self.graphs.dummy_run(False)
            return None
        batch = self.drafter.batch(doing if isinstance(doing, int) else 1)
        if doing in ("unforeseen", "odd prefill"):
            batch["common_attn_metadata"].causal = False
        drafts = self.graphs.propose(**batch)
        self.asked += drafts is None
        return drafts

    def draft_later(self, doing: int | str) -> Any:
        """The same behind a first pass that upstream's code has run."""
        if doing in ("idle", "no room"):
            self.asked += not self.graphs.later_dummy_runs()
            return None
        batch = self.drafter.batch(doing if isinstance(doing, int) else 1)
        if doing in ("unforeseen", "odd prefill", "changed prefill"):
            batch["common_attn_metadata"].causal = False
        shared = {"common_attn_metadata": batch["common_attn_metadata"]}
        requests = doing if isinstance(doing, int) else 1
        drafts = self.drafter.later_steps(requests=requests, **shared)
        self.asked += drafts is None
        return drafts


def prepare(both: list[Rank]) -> None:
    """Let all ranks capture, unless they can go on with what they have."""
    for rank in both:
        if rank.graphs.captured is None or rank.graphs.together.vetoed:
            rank.drafter.capture()
        assert rank.graphs.captured is not None
        rank.asked = 0


def watched(both: list[Rank]) -> Any:
    """A context in which each rank's replays are noted."""
    run = replay.Replay.run

    def noted(self: Any, key: Any) -> None:
        (rank,) = [each for each in both if each.graphs.replay is self]
        rank.replayed.append(f"{key.role} {key.num_reqs}")
        run(self, key)

    return mock.patch.object(replay.Replay, "run", noted)


def step(both: list[Rank], doings: list[int | str]) -> list[Any]:
    """One step of all ranks: the target's agreement, the drafts, the drafter's agreements.

    Returns the drafts of each rank; None where it has none, or upstream's code makes them.
    """
    sizes = [rank.full_tokens(doing) for rank, doing in zip(both, doings, strict=True)]
    full = None not in sizes
    for rank in both:
        mode = CUDAGraphMode.FULL if full else CUDAGraphMode.NONE
        rank.graphs.agree(mode, max(size or 0 for size in sizes))
    before = [rank.asked for rank in both]
    drafts = [rank.draft(doing) for rank, doing in zip(both, doings, strict=True)]
    asked = [rank.asked - old for rank, old in zip(both, before, strict=True)]
    assert len(set(asked)) == 1, "a rank asks, and another replays"
    if asked[0]:
        assert both[0].replayed == both[1].replayed == []
        meet(both)
        drafts = [rank.draft_later(doing) for rank, doing in zip(both, doings, strict=True)]
        asked = [rank.asked - old for rank, old in zip(both, before, strict=True)]
        assert len(set(asked)) == 1, "a rank asks for its later passes, and another replays them"
        if asked[0] == 2:
            meet(both)
        assert len(both[0].replayed) == (asked[0] == 1), "a loop, or nothing"
    else:
        assert full
        assert len(both[0].replayed) == 2, "first, and loop"
    assert both[0].replayed == both[1].replayed
    return drafts


def meet(both: list[Rank]) -> None:
    """The drafter's agreement: the least vote, and what each rank gives as its tokens."""
    votes = [rank.graphs.vote(CUDAGraphMode.NONE).value for rank in both]
    unpadded = [rank.graphs.unpadded(K + 1) for rank in both]
    rows = torch.tensor([unpadded] * 4)
    for rank in both:
        rank.graphs._heard(rows)
    modes = {rank.graphs.counted(min(votes)) for rank in both}
    assert modes == {0}


def step_watched(both: list[Rank], doings: list[int | str]) -> list[Any]:
    with watched(both):
        return step(both, doings)
