# SPDX-License-Identifier: Apache-2.0
"""Copies a batch to where the graphs read it.

The destinations depend only on the key and the number of live requests, so they are cut once and
kept. Everything of one dtype is copied by one call, tails of padded rows included: on a GPU that
is one kernel, and the host's time is what drafting costs.
"""

from __future__ import annotations

from typing import Any

import torch

from .buffers import DraftBuffers
from .keys import DraftKey

# Rows of the block table above this many elements are copied by a call of their own: the kernel
# that copies many tensors at once is slow for a large one.
LARGE = 1 << 16


def _cut(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` rows; the tensor itself where it has no more."""
    return tensor if tensor.shape[0] == length else tensor[:length]


class _Rows:
    """What both kinds of batch need: block table, padding bits and tails, for `reqs` live rows."""

    def __init__(self, buffers: DraftBuffers, key: DraftKey, reqs: int, *, mask: bool) -> None:
        padded = key.num_reqs
        rows = buffers.block_table.shape[0]
        self.reqs = reqs
        self.block_table = buffers.block_table[:reqs]
        self.block_table_is_large = self.block_table.numel() > LARGE
        self.block_table_tail = buffers.block_table[reqs:padded] if padded > reqs else None
        self.padding_bits = [buffers.padding_bits[:padded]] if mask else []
        self.padding_bits_from = (
            [buffers.live_then_padding[rows - reqs : rows - reqs + padded]] if mask else []
        )

    def copy_block_table(self, block_table: torch.Tensor) -> None:
        """Live rows where they are large, and null blocks for the padded rows."""
        if self.block_table_is_large:
            self.block_table.copy_(block_table)
        if self.block_table_tail is not None:
            self.block_table_tail.zero_()


class FirstStaging:
    """Puts a uniform batch of `reqs` requests where the `first` graph of `key` reads it."""

    def __init__(
        self, proposer: Any, buffers: DraftBuffers, key: DraftKey, reqs: int, *, mask: bool
    ) -> None:
        padded, padded_tokens = key.num_reqs, key.num_tokens
        tokens = reqs * (padded_tokens // padded)
        self.reqs, self.tokens = reqs, tokens
        self.rows = rows = _Rows(buffers, key, reqs, mask=mask)
        self.no_rejected = buffers.none[:reqs]
        self.last_of_each = buffers.last_of_each[:reqs]
        hidden = buffers.target_hidden if buffers.target_hidden is not None else None
        self.hidden = (proposer.hidden_states if hidden is None else hidden)[:tokens]
        self.int32 = [
            proposer.input_ids[: tokens - 1],
            buffers.next_tokens[:reqs],
            buffers.sample_indices[:reqs],
            buffers.seq_lens[:reqs],
            buffers.rejected[:reqs],
        ]
        if not rows.block_table_is_large:
            self.int32.append(rows.block_table)
        self.int64 = [
            proposer.positions[:tokens],
            proposer._slot_mapping_buffer[:tokens],
            *rows.padding_bits,
        ]
        self.int32_tail: list[torch.Tensor] = []
        self.int64_tail: list[torch.Tensor] = list(rows.padding_bits_from)
        if padded > reqs:
            self.int32 += [
                buffers.sample_indices[reqs:padded],
                buffers.seq_lens[reqs:padded],
                buffers.rejected[reqs:padded],
            ]
            self.int32_tail = [
                buffers.last_of_each[reqs:padded],
                buffers.young[reqs:padded],
                buffers.none[reqs:padded],
            ]
            self.int64.append(proposer._slot_mapping_buffer[tokens:padded_tokens])
            self.int64_tail.append(buffers.padding_slots[: padded_tokens - tokens])

    def stage(
        self,
        *,
        target_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        token_indices_to_sample: torch.Tensor | None,
        num_rejected: torch.Tensor | None,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """Copy the live rows and pad the others.

        target_token_ids, target_positions, slots: [tokens] (positions may be [3, tokens], all
        rows alike, where only the target has M-RoPE). target_hidden_states: [tokens, width].
        The others: [reqs]; block_table: [reqs, blocks]. None for the indices to sample means the
        last token of each request, None for the rejected tokens that there are none.
        """
        reqs, tokens = self.reqs, self.tokens
        if target_positions.dim() == 2:
            target_positions = target_positions[0]
        int32 = [
            target_token_ids[1:tokens],
            _cut(next_token_ids, reqs),
            self.last_of_each if token_indices_to_sample is None else token_indices_to_sample,
            _cut(seq_lens, reqs),
            self.no_rejected if num_rejected is None else num_rejected,
        ]
        if not self.rows.block_table_is_large:
            int32.append(block_table)
        torch._foreach_copy_(self.int32, int32 + self.int32_tail)
        torch._foreach_copy_(
            self.int64, [_cut(target_positions, tokens), _cut(slots, tokens), *self.int64_tail]
        )
        self.rows.copy_block_table(block_table)
        self.hidden.copy_(_cut(target_hidden_states, tokens))


class LaterStaging:
    """Puts `reqs` requests, whose first pass ran as upstream's, where `step` and `loop` read."""

    def __init__(
        self, proposer: Any, buffers: DraftBuffers, key: DraftKey, reqs: int, *, mask: bool
    ) -> None:
        padded = key.num_reqs
        self.reqs = reqs
        self.rows = _Rows(buffers, key, reqs, mask=mask)
        self.hidden = proposer.hidden_states[:reqs]
        self.seq_lens = buffers.step_seq_lens[:reqs]
        self.no_rejected = buffers.none[:reqs]
        self.tail = buffers.step_seq_lens[reqs:padded] if padded > reqs else None
        self.tail_from = buffers.young[reqs:padded]
        self.int64 = [
            proposer.positions[:reqs],
            buffers.drafts[0, :reqs],
            buffers.step_drafts[:reqs],
            *self.rows.padding_bits,
        ]
        self.positions_tail = proposer.positions[reqs:padded] if padded > reqs else None

    def stage(
        self,
        *,
        draft_token_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        num_rejected: torch.Tensor | None,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
    ) -> None:
        """Copy the live rows and pad the others.

        All [reqs] but hidden_states [reqs, hidden] and block_table [reqs, blocks]. seq_lens
        count the rejected tokens still. None of the arguments is written.
        """
        rejected = self.no_rejected if num_rejected is None else num_rejected
        torch.sub(_cut(seq_lens, self.reqs), rejected, out=self.seq_lens)
        torch._foreach_copy_(
            self.int64,
            [positions, draft_token_ids, draft_token_ids, *self.rows.padding_bits_from],
        )
        self.hidden.copy_(hidden_states)
        if not self.rows.block_table_is_large:
            self.rows.block_table.copy_(block_table)
        self.rows.copy_block_table(block_table)
        if self.tail is not None and self.positions_tail is not None:
            self.tail.copy_(self.tail_from)
            self.positions_tail.zero_()
