# SPDX-License-Identifier: Apache-2.0
"""The agreement by which data-parallel ranks with experts in the draft replay the same graphs.

In every step the ranks agree, in upstream's one all-reduce before the target runs, on a cudagraph
mode and a number of tokens. `Together` keeps what they agreed on until the rank drafts:

- mode FULL: every rank's batch is uniform, K+1 tokens a request, and no rank has more requests than
  tokens / (K+1). All ranks replay the keys of that size: a busy one with its other rows padded, an
  idle one and one whose input does not fit into the drafter with every row padded.
- any other mode, as where one rank has a prefill: upstream's code makes the first pass, before
  which it lets the drafters agree on its size. In that all-reduce each rank gives, in a place of
  which the drafter has no other use, how many requests it drafts for, if graphs can run what comes
  after that pass. If all of them can, all replay the graphs of the largest number, and upstream's
  second agreement, before the later passes, is left out; else all draft as upstream.

So whether to replay, and what, follows from values that are the same on all ranks, and nothing is
asked while serving that upstream does not ask.

A rank that must not replay any more can neither fall back alone nor ask the others. It *vetoes*:
for the next agreement of the target it has no FULL graph, so that all ranks draft as upstream; and
in the drafter's agreement of that step it votes `WITHDRAW`, which all ranks see in that very
all-reduce, whereupon all of them withdraw their graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Vote(NamedTuple):
    """A vote in place of a cudagraph mode, as far as upstream's code looks at one."""

    value: int


#: A vote below every cudagraph mode: the ranks go by the least vote. Upstream pads all ranks to one
#: size for any vote but NONE, this one included.
WITHDRAW = Vote(-1)


class Together:
    """What one rank keeps of an agreement, and how it leaves the others.

    vetoed: why this rank cannot replay any more; None while it can.
    """

    def __init__(self) -> None:
        self.vetoed: str | None = None
        self._tokens: int | None = None
        # What this rank offers in the drafter's next agreement, and what all have agreed on in it.
        self._offered: int | None = None
        self._requests: int | None = None
        self._listens = False

    def agree(self, mode: Any, num_tokens: int) -> None:
        """Keep an agreement of the target for the draft that follows, in place of the last one.

        mode: vLLM's CUDAGraphMode.
        num_tokens: of each rank's batch, padding included.
        """
        from vllm.config import CUDAGraphMode

        self._tokens = num_tokens if mode is CUDAGraphMode.FULL else None

    def take(self) -> int | None:
        """The tokens of the agreed FULL step, once; None after any other agreement."""
        tokens, self._tokens = self._tokens, None
        self._offered = self._requests = None
        return tokens

    def offer(self, requests: int) -> None:
        """Tell the other ranks, in the drafter's next agreement, that graphs can follow that pass.

        requests: how many this rank drafts for; 0 on one without any, or without room.
        """
        self._offered = requests

    def unpadded(self, num_tokens: int) -> int:
        """This rank's number of tokens without padding, as the drafter's agreement gets it.

        vLLM reads it to split batches in two, which drafters never do. An offer is negative, and so
        no count of tokens: a rank that offers nothing, whatever the reason, is seen by all ranks.

        num_tokens: of the pass.
        """
        requests, self._offered = self._offered, None
        self._requests = None
        self._listens = requests is not None
        return num_tokens if requests is None else -1 - requests

    def listens(self) -> bool:
        """Whether the agreement that is being made carries an offer of this rank; told once."""
        listens, self._listens = self._listens, False
        return listens

    def hear(self, unpadded: Sequence[int]) -> None:
        """Keep what the ranks offered; unpadded: what each of them gave."""
        self._requests = -1 - min(unpadded) if max(unpadded) < 0 else None

    def take_requests(self) -> int | None:
        """The most requests that any rank drafts for, once; None if one has offered no graphs."""
        requests, self._requests = self._requests, None
        return requests

    def veto(self, reason: str) -> None:
        """Let all ranks draft as upstream from the next step on."""
        if self.vetoed is None:
            self.vetoed = reason

    def vote(self, mode: Any) -> Any:
        """This rank's vote in the drafter's own agreement; mode: upstream's, a CUDAGraphMode."""
        return mode if self.vetoed is None else WITHDRAW
