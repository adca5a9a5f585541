# SPDX-License-Identifier: Apache-2.0
"""Copies a batch to where the graphs read it.

The destinations depend only on the key and the number of live requests, so they are sliced once and
kept. All copies of one dtype, the padding of the other rows included, are one call: on a GPU that
is one kernel, and the host's time is what drafting costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from . import upstream
from .buffers import DraftBuffers
from .drafter import Drafter
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


def _target_hidden(proposer: Any, buffers: DraftBuffers) -> torch.Tensor:
    """Where a shifted first pass reads the target's hidden states."""
    own: torch.Tensor | None = buffers.target_hidden
    return proposer.hidden_states if own is None else own


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


@dataclass
class FirstBatch:
    """A batch of `reqs` requests, as `propose` gets it: in a uniform one each has K+1 tokens.

    The one-dimensional tensors but token_indices_to_sample and num_rejected may be longer.

    target_token_ids: [tokens] int32.
    target_positions: [tokens] int64, or [dimensions, tokens] where the target has M-RoPE; a
        drafter without it takes the first row.
    target_hidden_states: [tokens, width] of the model's dtype.
    next_token_ids: [reqs] int32.
    token_indices_to_sample: [reqs] int32; None: the last token of each request.
    num_rejected: [reqs] int32; None: no token was rejected.
    seq_lens: [reqs] int32, rejected tokens included.
    block_table: [reqs, blocks] int32.
    slots: [tokens] int64.
    starts: [reqs + 1] int32, where the tokens of each request begin.
    """

    target_token_ids: torch.Tensor
    target_positions: torch.Tensor
    target_hidden_states: torch.Tensor
    next_token_ids: torch.Tensor
    token_indices_to_sample: torch.Tensor | None
    num_rejected: torch.Tensor | None
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    starts: torch.Tensor

    @property
    def first_positions(self) -> torch.Tensor:
        """[tokens] int64: the first row where there are several."""
        positions = self.target_positions
        return positions[0] if positions.dim() == 2 else positions


class _FirstRows(_Rows):
    """Destinations that all kinds of first pass have, and those copies by one call a dtype.

    int32_padding, int64_padding: copies that make the rows behind the live ones padding.
    """

    def __init__(self, buffers: DraftBuffers, key: DraftKey, reqs: int, *, mask: bool) -> None:
        super().__init__(buffers, key, reqs, mask=mask)
        self.reqs, padded = reqs, key.num_reqs
        self.no_rejected = buffers.none[:reqs]
        self.next_tokens = buffers.next_tokens[:reqs]
        self.seq_lens = buffers.seq_lens[:reqs]
        self.rejected = buffers.rejected[:reqs]
        self.int32_padding: list[Copy] = []
        self.int64_padding: list[Copy] = list(self.padding_bits)
        if padded > reqs:
            self.int32_padding += [
                (buffers.seq_lens[reqs:padded], buffers.young[reqs:padded]),
                (buffers.rejected[reqs:padded], buffers.none[reqs:padded]),
            ]

    def copy(self, batch: FirstBatch, int32: list[Copy], int64: list[Copy]) -> None:
        """Copy the live rows of a batch and pad the others.

        int32, int64: the copies that only one kind of first pass has.
        """
        reqs = self.reqs
        rejected = self.no_rejected if batch.num_rejected is None else batch.num_rejected
        int32 += [
            (self.next_tokens, _cut(batch.next_token_ids, reqs)),
            (self.seq_lens, _cut(batch.seq_lens, reqs)),
            (self.rejected, rejected),
            *self.int32_padding,
        ]
        if self.block_table_is_large:
            self.copy_block_table(batch.block_table)
        else:
            int32.append((self.block_table, batch.block_table))
        _copy(int32)
        _copy(int64 + self.int64_padding)
        self.pad_block_table()


class FirstStaging:
    """Copies a uniform batch of `reqs` requests to where the `first` graph of `key` reads it.

    mask: whether the later passes that follow have padded rows.
    """

    def __init__(
        self, proposer: Any, buffers: DraftBuffers, key: DraftKey, reqs: int, *, mask: bool
    ) -> None:
        padded, padded_tokens = key.num_reqs, key.num_tokens
        tokens = reqs * (padded_tokens // padded)
        self.tokens = tokens
        self.rows = _FirstRows(buffers, key, reqs, mask=mask)
        self.last_of_each = buffers.last_of_each[:reqs]
        # Shifted by one: each token's successor is what its row drafts from.
        self.input_ids = proposer.input_ids[: tokens - 1]
        self.sample_indices = buffers.sample_indices[:reqs]
        self.slots = proposer._slot_mapping_buffer[:tokens]
        self.hidden = _target_hidden(proposer, buffers)[:tokens]
        self.positions = upstream.position_rows(proposer)[:, :tokens]
        # Rows of M-RoPE are not one piece of memory, so they are copied by a call of their own.
        self.position_row = self.positions[0] if self.positions.shape[0] == 1 else None
        if padded > reqs:
            indices = buffers.sample_indices[reqs:padded]
            self.rows.int32_padding.append((indices, buffers.last_of_each[reqs:padded]))
            slots = proposer._slot_mapping_buffer[tokens:padded_tokens]
            self.rows.int64_padding.append((slots, buffers.padding_slots[: slots.shape[0]]))

    def stage(self, batch: FirstBatch) -> None:
        """Copy the live rows and pad the others. No tensor of `batch` is written."""
        tokens = self.tokens
        indices = batch.token_indices_to_sample
        indices = self.last_of_each if indices is None else indices
        int32: list[Copy] = [
            (self.input_ids, batch.target_token_ids[1:tokens]),
            (self.sample_indices, indices),
        ]
        int64: list[Copy] = [(self.slots, _cut(batch.slots, tokens))]
        if self.position_row is None:
            self.positions.copy_(batch.target_positions[:, :tokens])
        else:
            int64.append((self.position_row, _cut(batch.first_positions, tokens)))
        self.rows.copy(batch, int32, int64)
        self.hidden.copy_(_cut(batch.target_hidden_states, tokens))


class MixedStaging:
    """Copies a mixed batch of `reqs` requests to where the `mixed` graph of `key` reads it.

    The destinations depend on the number of tokens as well, so that none is kept but those of rows.

    mask: whether the later passes that follow have padded rows.
    """

    def __init__(
        self, proposer: Any, buffers: DraftBuffers, key: DraftKey, reqs: int, *, mask: bool
    ) -> None:
        self.rows = _FirstRows(buffers, key, reqs, mask=mask)
        self.sample_indices = buffers.sample_indices[:reqs]
        self.starts = buffers.mixed_start_loc[: reqs + 1]
        self.starts_padding = buffers.mixed_start_loc[reqs + 1 : key.num_reqs + 1]
        self.padding_slots = buffers.padding_slots
        self.input_ids = proposer.input_ids[: key.num_tokens]
        self.slots = proposer._slot_mapping_buffer[: key.num_tokens]
        self.positions = upstream.position_rows(proposer)[:, : key.num_tokens]
        self.hidden = _target_hidden(proposer, buffers)[: key.num_tokens]

    def stage(self, batch: FirstBatch) -> None:
        """Copy the live rows and pad the others. No tensor of `batch` is written."""
        tokens = int(batch.target_token_ids.shape[0])
        starts = _cut(batch.starts, self.rows.reqs + 1)
        indices = batch.token_indices_to_sample
        int32: list[Copy] = [(self.starts, starts)]
        if tokens > 1:
            int32.append((self.input_ids[: tokens - 1], batch.target_token_ids[1:]))
        if indices is not None:
            int32.append((self.sample_indices, indices))
        int64: list[Copy] = [(self.slots[:tokens], _cut(batch.slots, tokens))]
        padding = self.slots[tokens:]
        if padding.shape[0]:
            int64.append((padding, self.padding_slots[: padding.shape[0]]))
        if self.positions.shape[0] == 1:
            int64.append((self.positions[0, :tokens], _cut(batch.first_positions, tokens)))
        else:
            self.positions[:, :tokens].copy_(batch.target_positions[:, :tokens])
        self.rows.copy(batch, int32, int64)
        if indices is None:
            torch.sub(starts[1:], 1, out=self.sample_indices)
        self.starts_padding.fill_(tokens)
        self.hidden[:tokens].copy_(_cut(batch.target_hidden_states, tokens))


class ExtendedStaging:
    """Copies a uniform batch of `reqs` requests to where `set_inputs_first_pass` reads it.

    The graph of `key` calls the proposer's own `set_inputs_first_pass`, which computes positions
    and slots of all rows. So padded rows start at position 0, where nothing that is counted on
    from there runs past the longest position.

    mask: whether the graph, or that of the later passes, has padded rows.
    """

    def __init__(
        self, buffers: DraftBuffers, drafter: Drafter, key: DraftKey, reqs: int, *, mask: bool
    ) -> None:
        padded = key.num_reqs
        per_request = key.k + 1
        tokens, padded_tokens = reqs * per_request, padded * per_request
        if buffers.target_tokens is None or buffers.target_positions is None:
            raise ValueError(f"{drafter} has no static tensors for tokens and positions")
        self.tokens = tokens
        self.rows = _FirstRows(buffers, key, reqs, mask=mask)
        self.target_tokens = buffers.target_tokens[:tokens]
        self.target_positions = buffers.target_positions[:tokens]
        self.hidden = None if buffers.target_hidden is None else buffers.target_hidden[:tokens]
        if padded > reqs:
            positions = buffers.target_positions[tokens:padded_tokens]
            zero = buffers.zero_positions[tokens:padded_tokens]
            self.rows.int64_padding.append((positions, zero))

    def stage(self, batch: FirstBatch) -> None:
        """Copy the live rows and pad the others. No tensor of `batch` is written."""
        tokens = self.tokens
        self.rows.copy(
            batch,
            [(self.target_tokens, _cut(batch.target_token_ids, tokens))],
            [(self.target_positions, _cut(batch.first_positions, tokens))],
        )
        if self.hidden is not None:
            self.hidden.copy_(_cut(batch.target_hidden_states, tokens))


class LaterStaging:
    """Copies `reqs` requests, after upstream's first pass, to where `step` and `loop` read them.

    mask: whether the graph of `key` has padded rows.
    """

    def __init__(
        self,
        proposer: Any,
        buffers: DraftBuffers,
        drafter: Drafter,
        key: DraftKey,
        reqs: int,
        *,
        mask: bool,
    ) -> None:
        padded = key.num_reqs
        self.reqs = reqs
        self.rows = _Rows(buffers, key, reqs, mask=mask)
        self.no_rejected = buffers.none[:reqs]
        self.hidden = proposer.hidden_states[:reqs] if drafter.hands_over else None
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
        if self.hidden is not None:
            self.hidden.copy_(hidden_states)
        self.rows.copy_block_table(block_table)
        self.rows.pad_block_table()
        if self.seq_lens_padding is not None and self.positions_padding is not None:
            destination, source = self.seq_lens_padding
            destination.copy_(source)
            self.positions_padding.zero_()
