# SPDX-License-Identifier: Apache-2.0
"""Lets the other requests of a batch draft where one is too long for the drafter.

Upstream asks whether the longest request of a batch and its drafts fit into the drafter's context,
and runs no drafter for anybody where they do not.  Here the drafter runs as long as one request
fits.  The rows of those that do not are closed: what lies at the end of the drafter's context or
beyond gets position 0 and no slot, and the row's blocks are the null block while the drafter runs,
so that it reads and writes nothing of theirs.  Their drafts are zeros, as upstream's are.
The shape of the batch stays, so that graphs go on.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "draft-gate"
VARIABLE = "OVERLAY_DRAFT_GATE"
OPENED = "steps in which the requests that fit drafted beside one that does not"
PADDING_SLOT = -1


class DraftGate:
    """The gate of one GPUModelRunner.

    Raises ValueError if the switch is neither on nor off.
    """

    def __init__(self, runner: Any) -> None:
        self._closed: Any = None  # [requests] bool, in a step that it concerns
        self._table: tuple[Any, Any] | None = None  # the block table, and what it held
        reason = _reason(runner)
        self.works = reason is None
        if reason is None:
            active(FEATURE, "requests that fit into the drafter go on beside longer ones")
        else:
            idle(FEATURE, reason)

    def some_fit(self, runner: Any, metadata: Any) -> bool:
        """Whether a request of a batch whose longest one does not fit does.

        metadata: CommonAttentionMetadata of the drafter; None where there is none.
        """
        if not self.works or metadata is None:
            return False
        # The rows of the batch, without those of a graph's padding.
        lengths = runner.optimistic_seq_lens_cpu[: runner.input_batch.num_reqs]
        return bool(int(lengths.min()) + runner.num_spec_tokens <= _limit(runner))

    def close(self, runner: Any, metadata: Any, positions: Any) -> Any:
        """Close the rows that do not fit; the positions that the drafter may have.

        metadata: CommonAttentionMetadata of the drafter's first pass.
        positions: [tokens] of the first pass.
        """
        self._closed = self._table = None
        last = _limit(runner) - runner.num_spec_tokens
        if not self.works or metadata.max_seq_len <= last:
            return positions
        table = metadata.block_table_tensor
        self._closed = metadata.seq_lens > last
        self._table = (table, table.clone())
        table.masked_fill_(self._closed[: len(table), None], 0)
        beyond = positions >= last
        metadata.slot_mapping[: len(positions)].masked_fill_(beyond, PADDING_SLOT)
        count(FEATURE, OPENED)
        return positions.masked_fill(beyond, 0)

    def reopen(self, runner: Any, drafts: Any) -> Any:
        """Give the rows their blocks back; the drafts, those of closed rows zeros.

        drafts: [requests, K] of the drafter.
        """
        if self._table is None:
            return drafts
        table, held = self._table
        table.copy_(held)
        closed, self._closed, self._table = self._closed[: len(drafts)], None, None
        probabilities = getattr(runner, "_draft_probs", None)
        if probabilities is not None:
            # A draft that is certain: the rejection sampler then gives the target's distribution.
            certain = torch.zeros_like(probabilities)
            certain[..., 0] = 1
            rows = closed.view(-1, *(1,) * (probabilities.dim() - 1))
            runner._draft_probs = torch.where(rows, certain, probabilities)
        return drafts.masked_fill(closed[:, None], 0)


def _limit(runner: Any) -> int:
    """How many tokens the drafter takes of a request, its drafts among them."""
    return int(runner.effective_drafter_max_model_len)


def _reason(runner: Any) -> str | None:
    """Why the gate does not work with a runner; None where it does."""
    config = runner.speculative_config
    # It is off unless it is asked for.
    if not is_on(VARIABLE, {VARIABLE: os.environ.get(VARIABLE) or "off"}):
        return f"{VARIABLE} is not on"
    if config is None:
        return "there is no speculative decoding"
    if config.method not in ("eagle", "eagle3", "mtp", "draft_model"):
        return f"drafts of {config.method} are gated by upstream"
    if config.disable_padded_drafter_batch or getattr(config, "parallel_drafting", False):
        return "drafts of one pass, and those of batches that are not padded, are gated by upstream"
    if runner.uses_mrope or getattr(runner, "uses_xdrope_dim", 0):
        return "positions of several dimensions are gated by upstream"
    return None
