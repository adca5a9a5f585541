# SPDX-License-Identifier: Apache-2.0
"""Static tensors that the graphs read and write, beside the proposer's own.

They lie outside every graph pool, so that no replay can reuse their memory.
"""

from __future__ import annotations

from typing import Any

import torch

from . import upstream
from .drafter import Drafter

PADDING_SLOT = -1
NULL_BLOCK = 0


class DraftBuffers:
    """Static tensors for up to R requests, and for T tokens of first passes.

    A uniform batch has K+1 tokens a request; the first pass over it may have more, where the
    drafter adds some.

    A padded row looks like a young request that owns no memory: K+1 tokens long from position 0
    on, none rejected, all its blocks the null block, all its slots -1. So every kernel sees an
    ordinary row, and nothing that it computes is written to the KV cache.

    next_tokens: [R] int32, the token that the target has just sampled.
    sample_indices: [R] int32, rows of a shifted first pass to draft from.
    seq_lens: [R] int32, rejected tokens included, as the target's are.
    rejected: [R] int32, tokens that the target has just rejected.
    block_table: [R, blocks] int32.
    padding_bits: [R] int64, 0 for live rows and -1 for padding.
    step_seq_lens: [R] int32, without the rejected tokens; advanced by every later pass.
    drafts: [K, R] int64, one row a pass.
    whole_drafts: [R, K] int64, of a drafter with one pass; None for others.
    step_drafts: [R] int64, the tokens of the last `step`.
    target_hidden: [T, width], the target's hidden states; None where they are staged in the
        proposer's own buffer, or not used.
    target_tokens, target_positions: [T] int32 and int64, inputs of `set_inputs_first_pass`; None
        for shifted first passes, which staging makes in the proposer's own buffers.
    query_start_loc, query_start_loc_cpu: [R+1] int32 by tokens a request (K+1 and 1).
    mixed_start_loc: [R+1] int32, the same of a mixed batch; padded rows begin and end behind the
        last live one, so that they have no token.
    seq_lens_bound: [R] int32 on the host, the maximal length.
    """

    def __init__(
        self,
        proposer: Any,
        drafter: Drafter,
        *,
        max_reqs: int,
        max_first_reqs: int,
        max_mixed_tokens: int,
        blocks: int,
        target_width: int | None,
    ) -> None:
        # Over fifty lines: one list of buffers with their shapes.
        device = proposer.device
        k = int(proposer.speculative_config.num_speculative_tokens)
        query_len = k + 1
        max_tokens = max(max_first_reqs * query_len, max_mixed_tokens)
        max_first_tokens = max(max_first_reqs * drafter.first_tokens(k), max_mixed_tokens)

        def int32(*size: int, fill: int = 0) -> torch.Tensor:
            return torch.full(size, fill, dtype=torch.int32, device=device)

        def int64(*size: int, fill: int = 0) -> torch.Tensor:
            return torch.full(size, fill, dtype=torch.int64, device=device)

        self.next_tokens = int32(max_reqs)
        self.sample_indices = int32(max_reqs)
        self.seq_lens = int32(max_reqs)
        self.rejected = int32(max_reqs)
        self.block_table = int32(max_reqs, blocks, fill=NULL_BLOCK)
        self.padding_bits = int64(max_reqs)
        self.step_seq_lens = int32(max_reqs)
        self.drafts = int64(k, max_reqs)
        self.step_drafts = int64(max_reqs)
        self.whole_drafts = int64(max_reqs, k) if drafter.one_pass else None
        self.target_hidden: torch.Tensor | None = None
        if target_width is not None and max_tokens:
            self.target_hidden = torch.zeros(
                (max_tokens, target_width), dtype=proposer.dtype, device=device
            )
        self.target_tokens: torch.Tensor | None = None
        self.target_positions: torch.Tensor | None = None
        if drafter.inputs != "shifted":
            self.target_tokens, self.target_positions = int32(max_tokens), int64(max_tokens)
        rows = torch.arange(max_reqs + 1, dtype=torch.int32)
        self.query_start_loc_cpu = {1: rows, query_len: rows * query_len}
        self.query_start_loc = {
            length: start.to(device) for length, start in self.query_start_loc_cpu.items()
        }
        self.mixed_start_loc = int32(max_reqs + 1)
        self.seq_lens_bound = torch.full((max_reqs,), proposer.max_model_len, dtype=torch.int32)

        # Sources that padded rows are overwritten with.
        self.last_of_each = (rows[1:] * query_len - 1).to(device)
        self.young = int32(max_reqs, fill=query_len)
        self.none = int32(max_reqs)
        self.padding_slots = int64(max(max_first_tokens, max_reqs), fill=PADDING_SLOT)
        self.zero_positions = int64(max_tokens)
        self.live_then_padding = torch.cat([int64(max_reqs), int64(max_reqs, fill=-1)])
        self.pad_all(proposer)

    def pad_all(self, proposer: Any) -> None:
        """Make every row padding, the proposer's buffers included."""
        self.next_tokens.zero_()
        self.sample_indices.copy_(self.last_of_each)
        self.seq_lens.copy_(self.young)
        self.rejected.zero_()
        self.mixed_start_loc.zero_()
        self.block_table.fill_(NULL_BLOCK)
        self.padding_bits.fill_(-1)
        self.step_seq_lens.copy_(self.young)
        self.drafts.zero_()
        self.step_drafts.zero_()
        for tensor in (
            self.whole_drafts,
            self.target_hidden,
            self.target_tokens,
            self.target_positions,
        ):
            if tensor is not None:
                tensor.zero_()
        # A proposer's buffer may be shorter: dflash has positions and slots for queries alone.
        # Slices end where it does.
        tokens = int(self.padding_slots.shape[0])
        proposer.input_ids[:tokens].zero_()
        upstream.position_rows(proposer)[:, :tokens].zero_()
        proposer.hidden_states[:tokens].zero_()
        proposer._slot_mapping_buffer[:tokens].fill_(PADDING_SLOT)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by name."""
        tensors = {
            name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        for length, start in self.query_start_loc.items():
            tensors[f"query_start_loc[{length}]"] = start
        return tensors
