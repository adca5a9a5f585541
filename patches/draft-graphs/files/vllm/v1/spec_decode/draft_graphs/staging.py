# SPDX-License-Identifier: Apache-2.0
"""Copies a batch to where the graphs read it.

The destinations depend only on the key and the number of live requests, so they are cut once and
kept. Everything of one dtype is copied by one call, tails of padded rows included: on a GPU that
is one kernel, and the host's time is what drafting costs.
"""

from __future__ import annotations

from typing import Any

import torch

from . import compat
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
        combined_from = buffers.target_hidden
        self.hidden = (proposer.hidden_states if combined_from is None else combined_from)[:tokens]
        self.int32 = [
            proposer.input_ids[: tokens - 1],
            buffers.next_tokens[:reqs],
            buffers.sample_indices[:reqs],
            buffers.seq_lens[:reqs],
            buffers.rejected[:reqs],
        ]
        if not rows.block_table_is_large:
            self.int32.append(rows.block_table)
        positions = compat.position_rows(proposer)
        # M-RoPE has several rows, which are no one piece of memory.
        self.position_rows = positions[:, :tokens] if positions.shape[0] > 1 else None
        self.int64 = [proposer._slot_mapping_buffer[:tokens], *rows.padding_bits]
        if self.position_rows is None:
            self.int64.append(positions[0, :tokens])
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
            self.int64.insert(1, proposer._slot_mapping_buffer[tokens:padded_tokens])
            self.int64_tail.insert(0, buffers.padding_slots[: padded_tokens - tokens])

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

        target_token_ids, slots: [tokens]. target_positions: [tokens], or [dimensions, tokens]
        where the target has M-RoPE; a drafter without it takes the first row.
        target_hidden_states: [tokens, width]. The others: [reqs]; block_table: [reqs, blocks].
        None for the indices to sample means the last token of each request, None for the
        rejected tokens that there are none.
        """
        reqs, tokens = self.reqs, self.tokens
        int64 = [_cut(slots, tokens), *self.int64_tail]
        if self.position_rows is not None:
            self.position_rows.copy_(target_positions[:, :tokens])
        elif target_positions.dim() == 2:
            int64.append(target_positions[0, :tokens])
        else:
            int64.append(_cut(target_positions, tokens))
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
        torch._foreach_copy_(self.int64, int64)
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
        all_positions = compat.position_rows(proposer)[0]
        self.int64 = [
            all_positions[:reqs],
            buffers.drafts[0, :reqs],
            buffers.step_drafts[:reqs],
            *self.rows.padding_bits,
        ]
        self.positions_tail = all_positions[reqs:padded] if padded > reqs else None

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
