# SPDX-License-Identifier: Apache-2.0
"""Copies a batch to where the graphs read it.

The destinations depend only on the key and the number of live requests, so they are sliced once and
kept. All copies of one dtype, the padding of the other rows included, are one call: on a GPU that
is one kernel, and the host's time is what drafting costs.
"""

from __future__ import annotations

from typing import Any

import torch

from . import upstream
from .buffers import DraftBuffers
from .keys import DraftKey

# A block table with more elements is copied by a call of its own: the kernel that copies many
# tensors at once is slow for a large one.
LARGE = 1 << 16

#: (destination, source), of one shape and dtype.
Copy = tuple[torch.Tensor, torch.Tensor]


def _copy(pairs: list[Copy]) -> None:
    """Copy each source to its destination by one call; all of one dtype."""
    destinations, sources = zip(*pairs, strict=True)
    torch._foreach_copy_(destinations, sources)


def _cut(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` rows; the tensor itself where it has no more."""
    return tensor if tensor.shape[0] == length else tensor[:length]


class _Rows:
    """Destinations that both kinds of batch have: block table and padding bits.

    reqs: live rows; key.num_reqs - reqs rows behind them are padding.
    padding_bits: [(destination, source)], empty without mask.
    """

    def __init__(self, buffers: DraftBuffers, key: DraftKey, reqs: int, *, mask: bool) -> None:
        padded = key.num_reqs
        rows = buffers.block_table.shape[0]
        self.block_table = buffers.block_table[:reqs]
        self.block_table_is_large = self.block_table.numel() > LARGE
        self.block_table_padding = buffers.block_table[reqs:padded] if padded > reqs else None
        bits = buffers.live_then_padding[rows - reqs : rows - reqs + padded]
        self.padding_bits: list[Copy] = [(buffers.padding_bits[:padded], bits)] if mask else []

    def copy_block_table(self, block_table: torch.Tensor) -> None:
        """Copy live rows by a call of their own."""
        self.block_table.copy_(block_table)

    def pad_block_table(self) -> None:
        """Give the padded rows null blocks."""
        if self.block_table_padding is not None:
            self.block_table_padding.zero_()


class FirstStaging:
    """Copies a uniform batch of `reqs` requests to where the `first` graph of `key` reads it.

    mask: whether the later passes that follow have padded rows.
    """

    def __init__(
        self, proposer: Any, buffers: DraftBuffers, key: DraftKey, reqs: int, *, mask: bool
    ) -> None:
        padded, padded_tokens = key.num_reqs, key.num_tokens
        tokens = reqs * (padded_tokens // padded)
        self.reqs, self.tokens = reqs, tokens
        self.rows = _Rows(buffers, key, reqs, mask=mask)
        self.no_rejected = buffers.none[:reqs]
        self.last_of_each = buffers.last_of_each[:reqs]
        # Shifted by one: each token's successor is what its row drafts from.
        self.input_ids = proposer.input_ids[: tokens - 1]
        self.next_tokens = buffers.next_tokens[:reqs]
        self.sample_indices = buffers.sample_indices[:reqs]
        self.seq_lens = buffers.seq_lens[:reqs]
        self.rejected = buffers.rejected[:reqs]
        self.slots = proposer._slot_mapping_buffer[:tokens]
        hidden = proposer.hidden_states if buffers.target_hidden is None else buffers.target_hidden
        self.hidden = hidden[:tokens]
        self.positions = upstream.position_rows(proposer)[:, :tokens]
        # Rows of M-RoPE are not one piece of memory, so they are copied by a call of their own.
        self.position_row = self.positions[0] if self.positions.shape[0] == 1 else None
        self.int32_padding: list[Copy] = []
        self.int64_padding: list[Copy] = list(self.rows.padding_bits)
        if padded > reqs:
            self.int32_padding += [
                (buffers.sample_indices[reqs:padded], buffers.last_of_each[reqs:padded]),
                (buffers.seq_lens[reqs:padded], buffers.young[reqs:padded]),
                (buffers.rejected[reqs:padded], buffers.none[reqs:padded]),
            ]
            slots = proposer._slot_mapping_buffer[tokens:padded_tokens]
            self.int64_padding += [(slots, buffers.padding_slots[: padded_tokens - tokens])]

    def stage(
        self,
        *,
        # [tokens] int32
        target_token_ids: torch.Tensor,
        # [tokens] int64, or [dimensions, tokens] where the target has M-RoPE; a drafter without it
        # takes the first row
        target_positions: torch.Tensor,
        # [tokens, width] of the model's dtype
        target_hidden_states: torch.Tensor,
        # [reqs] int32
        next_token_ids: torch.Tensor,
        # [reqs] int32; None: the last token of each request
        token_indices_to_sample: torch.Tensor | None,
        # [reqs] int32; None: no token was rejected
        num_rejected: torch.Tensor | None,
        # [reqs] int32
        seq_lens: torch.Tensor,
        # [reqs, blocks] int32
        block_table: torch.Tensor,
        # [tokens] int64
        slots: torch.Tensor,
    ) -> None:
        """Copy the live rows and pad the others. None of the arguments is written.

        The one-dimensional arguments but token_indices_to_sample and num_rejected may be longer.
        """
        reqs, tokens = self.reqs, self.tokens
        indices = self.last_of_each if token_indices_to_sample is None else token_indices_to_sample
        rejected = self.no_rejected if num_rejected is None else num_rejected
        int32: list[Copy] = [
            (self.input_ids, target_token_ids[1:tokens]),
            (self.next_tokens, _cut(next_token_ids, reqs)),
            (self.sample_indices, indices),
            (self.seq_lens, _cut(seq_lens, reqs)),
            (self.rejected, rejected),
            *self.int32_padding,
        ]
        int64: list[Copy] = [(self.slots, _cut(slots, tokens)), *self.int64_padding]
        if self.position_row is None:
            self.positions.copy_(target_positions[:, :tokens])
        else:
            row = target_positions[0] if target_positions.dim() == 2 else target_positions
            int64.append((self.position_row, _cut(row, tokens)))
        if self.rows.block_table_is_large:
            self.rows.copy_block_table(block_table)
        else:
            int32.append((self.rows.block_table, block_table))
        _copy(int32)
        _copy(int64)
        self.rows.pad_block_table()
        self.hidden.copy_(_cut(target_hidden_states, tokens))


class LaterStaging:
    """Copies `reqs` requests, after upstream's first pass, to where `step` and `loop` read them.

    mask: whether the graph of `key` has padded rows.
    """

    def __init__(
        self, proposer: Any, buffers: DraftBuffers, key: DraftKey, reqs: int, *, mask: bool
    ) -> None:
        padded = key.num_reqs
        self.reqs = reqs
        self.rows = _Rows(buffers, key, reqs, mask=mask)
        self.no_rejected = buffers.none[:reqs]
        self.hidden = proposer.hidden_states[:reqs]
        self.seq_lens = buffers.step_seq_lens[:reqs]
        all_positions = upstream.position_rows(proposer)[0]
        self.positions = all_positions[:reqs]
        self.first_drafts = buffers.drafts[0, :reqs]
        self.step_drafts = buffers.step_drafts[:reqs]
        self.seq_lens_padding: Copy | None = None
        self.positions_padding: torch.Tensor | None = None
        if padded > reqs:
            self.seq_lens_padding = buffers.step_seq_lens[reqs:padded], buffers.young[reqs:padded]
            self.positions_padding = all_positions[reqs:padded]

    def stage(
        self,
        *,
        # [reqs] int64
        draft_token_ids: torch.Tensor,
        # [reqs] int64
        positions: torch.Tensor,
        # [reqs, hidden] of the model's dtype
        hidden_states: torch.Tensor,
        # [reqs] int32; None: no token was rejected
        num_rejected: torch.Tensor | None,
        # [reqs] int32 or longer, rejected tokens included
        seq_lens: torch.Tensor,
        # [reqs, blocks] int32
        block_table: torch.Tensor,
    ) -> None:
        """Copy the live rows and pad the others. None of the arguments is written."""
        rejected = self.no_rejected if num_rejected is None else num_rejected
        torch.sub(_cut(seq_lens, self.reqs), rejected, out=self.seq_lens)
        _copy(
            [
                (self.positions, positions),
                (self.first_drafts, draft_token_ids),
                (self.step_drafts, draft_token_ids),
                *self.rows.padding_bits,
            ]
        )
        self.hidden.copy_(hidden_states)
        self.rows.copy_block_table(block_table)
        self.rows.pad_block_table()
        if self.seq_lens_padding is not None and self.positions_padding is not None:
            destination, source = self.seq_lens_padding
            destination.copy_(source)
            self.positions_padding.zero_()
