# SPDX-License-Identifier: Apache-2.0
"""Drafts for the requests that fit into the drafter's context, whatever else is in the batch.

Upstream asks whether the longest request of a batch fits, and else drafts for none.  Here the rows
of requests that do not fit are padding to the drafter, in graphs too: they read and write the null
block, which is nobody's, at positions that the drafter has, and their drafts are zeros, as
upstream's are.  No row reads another one's, so that the others' drafts are what they would be.
Each row keeps its number of tokens, so that graphs hold the batch as they did.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

logger = init_logger(__name__)

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "draft-gate"
VARIABLE = "OVERLAY_DRAFT_GATE"
GATED = "steps that did not draft for all of their requests"
#: Upstream's own drafters, which read a batch from what they are handed; others keep block tables.
DRAFTERS = ("EagleProposer", "DraftModelProposer", "DFlashProposer")
#: The block that the block pool gives to nobody.
NULL_BLOCK = 0
LONG = (
    "Draft gate: a request is longer than the drafter's context of %d tokens and gets no drafts "
    "from there on; the others do. A drafter with a longer context would draft for it, too"
)


class DraftGate:
    """Takes the requests that do not fit out of what a GPUModelRunner's drafter is handed.

    Raises ValueError if the switch is neither on nor off.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        #: Which requests of the step are not drafted for, on the host and the device; None: none.
        self._closed: tuple[torch.Tensor, torch.Tensor] | None = None
        #: The longest request of the step.
        self._longest = 0
        self._warned = False
        reason = _reason_against(runner)
        self._is_on = reason is None
        if reason is not None:
            idle(FEATURE, reason)
            return
        active(FEATURE, "requests beyond the drafter's context do not stop drafts for the others")
        drafter = runner.drafter
        # How far a request's drafts reach beyond its tokens.
        self._reach = runner.num_spec_tokens + (drafter.method == "dflash")
        #: Whether the drafter numbers the places of a row itself, from its first one on.
        self._extends = drafter.needs_extra_input_slots or drafter.method == "dflash"

    def close(self, metadata: Any) -> Any:
        """What the drafter is to be told of the batch of a step.

        metadata: CommonAttentionMetadata, or None; it is not written.
        """
        self._closed = None
        if not self._is_on or metadata is None:
            return metadata
        last = self._runner.effective_drafter_max_model_len - self._reach
        requests = self._runner.input_batch.num_reqs
        if metadata.max_seq_len <= last or metadata.seq_lens.shape[0] != requests:
            return metadata
        self._warn()
        if self._extends and metadata.max_query_len > last:
            return metadata
        lengths = self._runner.optimistic_seq_lens_cpu[:requests]
        over = lengths > last
        # The beginning of a long prompt may be another request's, whose drafts read it.
        first = lengths if self._extends else lengths - metadata.query_start_loc_cpu.diff()
        if bool((first > last).all()):
            return metadata
        closed = over.to(metadata.seq_lens.device, non_blocking=True)
        gated = copy.copy(metadata)
        table = metadata.block_table_tensor
        gated.block_table_tensor = table.masked_fill(closed[:, None], NULL_BLOCK)
        gated.max_seq_len = int(lengths.masked_fill(over, 0).max())
        self._closed, self._longest = (over, closed), metadata.max_seq_len
        count(FEATURE, GATED)
        return gated

    def _warn(self) -> None:
        """Say once that a request is too long, unless it comes to the end of its own context."""
        context = self._runner.effective_drafter_max_model_len
        if not self._warned and context < self._runner.max_model_len:
            self._warned = True
            logger.warning(LONG, context)

    def positions(self, positions: torch.Tensor, metadata: Any) -> torch.Tensor:
        """The positions of the step's tokens, those of closed rows inside the drafter's context.

        positions: [tokens], or [dimensions, tokens] with M-RoPE; it is not written.
        metadata: that of `close`, or what was made of it; it is told of the longest request again.
        """
        if self._closed is None:
            return positions
        metadata.max_seq_len = self._longest
        counts = metadata.query_start_loc_cpu.diff().long()
        tokens = self._closed[0].repeat_interleave(counts).to(positions.device, non_blocking=True)
        last = self._runner.effective_drafter_max_model_len - self._reach
        # What fits keeps its place: another request may share the beginning of this one.
        inside = torch.zeros_like(positions) if self._extends else positions.clamp(max=last - 1)
        return torch.where(tokens, inside, positions)

    def drafts(self, drafts: Any) -> Any:
        """The step's drafts, with zeros for closed rows, as if these had been sampled.

        drafts: [requests, K] of the drafters named above; anything of others.
        """
        if self._closed is None:
            return drafts
        closed = self._closed[1][:, None]
        chances = getattr(self._runner, "_draft_probs", None)  # from 0.22 on
        if chances is not None:
            chances.masked_fill_(closed[:, :, None], 0.0)
            chances[:, :, 0].masked_fill_(closed, 1.0)
        return drafts.masked_fill(closed, 0)


def _reason_against(runner: Any) -> str | None:
    """Why a runner's drafts are left as they are; None where they are not."""
    drafter = getattr(runner, "drafter", None)
    if not is_on(VARIABLE):
        return f"{VARIABLE}=off"
    if runner.speculative_config is None or drafter is None:
        return "there is no drafter in this process"
    if type(drafter).__name__ not in DRAFTERS:
        return "a drafter of this kind is asked for each request, or keeps block tables of its own"
    if runner.speculative_config.disable_padded_drafter_batch:
        return "disable_padded_drafter_batch is set"
    if runner.parallel_config.decode_context_parallel_size > 1:
        return "there is decode context parallelism"
    return None
