"""Fills the static memory of the draft graphs with what a careless module would trip over.

Before a call, everything that the call stages: whatever it forgets to stage, or to pad, is then
wrong instead of being right by chance. Before a replay, the inputs of padded rows: what they
compute must never matter. All integers are in range, as those of an earlier, larger batch are.
"""

from __future__ import annotations

from typing import Any

import torch


class Junk:
    """Junk for the buffers of one proposer's draft graphs; always the same sequence of it."""

    def __init__(self, proposer: Any, buffers: Any, slots: int) -> None:
        self.proposer, self.buffers, self.slots = proposer, buffers, slots
        self.k = int(proposer.speculative_config.num_speculative_tokens)
        self.vocab = int(proposer.vllm_config.model_config.get_vocab_size())
        self.random = torch.Generator().manual_seed(0)

    def _fill(self, tensor: torch.Tensor, low: int, high: int) -> None:
        """Random integers, `low` included and `high` not."""
        tensor.copy_(torch.randint(low, high, tensor.shape, generator=self.random))

    def before_call(self) -> None:
        """Everything that staging is to write."""
        buffers, proposer, longest = self.buffers, self.proposer, self.proposer.max_model_len
        tokens = buffers.padding_slots.shape[0]
        for tensor in (buffers.next_tokens, buffers.drafts, buffers.step_drafts):
            self._fill(tensor, 3, self.vocab)
        self._fill(proposer.input_ids[:tokens], 3, self.vocab)
        self._fill(proposer.positions[:tokens], 0, longest)
        self._fill(proposer._slot_mapping_buffer[:tokens], 0, self.slots)
        self._fill(buffers.sample_indices, 0, tokens)
        self._fill(buffers.seq_lens, 1, longest)
        self._fill(buffers.step_seq_lens, 1, longest)
        self._fill(buffers.rejected, 0, self.k + 1)
        self._fill(buffers.mixed_start_loc, 0, tokens)
        buffers.mixed_start_loc.copy_(buffers.mixed_start_loc.sort().values)
        self._fill(buffers.block_table, 1, self.slots // proposer.block_size)
        self._fill(buffers.padding_bits, -1, 1)
        if buffers.target_tokens is not None:
            self._fill(buffers.target_tokens, 3, self.vocab)
            # Near the end, where whatever is counted on from there runs over.
            self._fill(buffers.target_positions, longest - 2, longest)
        if buffers.whole_drafts is not None:
            self._fill(buffers.whole_drafts, 3, self.vocab)
        proposer.hidden_states[:tokens].fill_(float("nan"))
        if buffers.target_hidden is not None:
            buffers.target_hidden.fill_(float("nan"))

    def before_replay(self, role: str, live: int) -> None:
        """What padded rows of a graph read: hidden states, and token ids."""
        buffers, proposer = self.buffers, self.proposer
        tokens = buffers.padding_slots.shape[0]
        first = live * (self.k + 1) if role in ("first", "whole") else live
        if buffers.target_tokens is not None and role in ("first", "whole"):
            self._fill(buffers.target_tokens[first:], 3, self.vocab)
            self._fill(buffers.next_tokens[live:], 3, self.vocab)
            if buffers.target_hidden is not None:
                buffers.target_hidden[first:].fill_(float("nan"))
            return
        if role == "mixed":
            first = int(buffers.mixed_start_loc[live])
        proposer.hidden_states[first:tokens].fill_(float("nan"))
        if role in ("first", "mixed"):
            self._fill(proposer.input_ids[first:tokens], 3, self.vocab)
            self._fill(buffers.next_tokens[live:], 3, self.vocab)
            if buffers.target_hidden is not None:
                buffers.target_hidden[first:].fill_(float("nan"))
        else:
            self._fill(buffers.drafts[0, live:], 3, self.vocab)
            self._fill(buffers.step_drafts[live:], 3, self.vocab)
