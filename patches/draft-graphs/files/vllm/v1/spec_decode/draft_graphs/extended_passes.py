# SPDX-License-Identifier: Apache-2.0
"""First passes whose inputs the proposer's own `set_inputs_first_pass` makes, inside the graph.

For a uniform batch every number that it computes on the host follows from the key, and it reads
no value of a tensor, so that a graph records all of its work.
"""

from __future__ import annotations

from typing import Any

import torch

from . import upstream
from .buffers import DraftBuffers
from .drafter import Drafter
from .keys import Role
from .passes import Passes


class ExtendedPasses(Passes):
    """The passes of draft_model, PARD and P-EAGLE, which add tokens to those of the target."""

    def run(self, role: Role, reqs: int, *, mask: bool) -> None:
        """Run the pass or passes of a role; see `Passes.run`."""
        if role in ("first", "whole"):
            self.extended(reqs, mask=mask)
        else:
            super().run(role, reqs, mask=mask)

    def extended(self, reqs: int, *, mask: bool) -> None:
        """Run the pass over the K+1 tokens, and those that the drafter adds, of each request.

        mask: whether the slots of padded rows are forced to -1. Upstream computes slots from the
            block table, and that of a padded row holds null blocks.

        Reads target_tokens, target_positions, target_hidden, next_tokens, seq_lens, rejected and
        block_table. Writes the drafts (one for each request, or all K of them), and what the later
        passes read: the proposer's positions and hidden states of the first `reqs` rows, and
        step_seq_lens.
        """
        proposer, buffers = self.proposer, self.buffers
        tokens, indices, metadata = self._set_inputs(reqs)
        if mask:
            self._mask_slots(reqs, metadata)
        inputs, _ = proposer.build_model_inputs_first_pass(tokens, tokens, None)
        last, hidden = self._run(
            metadata, tokens, inputs, draft_index=0, slots=metadata.slot_mapping
        )
        draft = self.draft(last.index_select(0, indices), reqs, 0)
        if buffers.whole_drafts is not None:
            buffers.whole_drafts[:reqs].copy_(draft.view(reqs, self.k))
            return
        buffers.drafts[0, :reqs].copy_(draft)
        if self.k == 1:
            return
        if self.keeps_steps:
            buffers.step_drafts[:reqs].copy_(draft)
        positions = upstream.position_rows(proposer)[0]
        positions[:reqs].copy_(positions[:tokens].index_select(0, indices))
        if self.drafter.hands_over:
            proposer.hidden_states[:reqs].copy_(hidden.index_select(0, indices))
        # Those of the metadata include the tokens that the drafter added.
        torch.sub(metadata.seq_lens, buffers.rejected[:reqs], out=buffers.step_seq_lens[:reqs])

    def _set_inputs(self, reqs: int) -> tuple[int, torch.Tensor, Any]:
        """Call upstream's `set_inputs_first_pass` on static memory.

        Returns the tokens of the pass, the rows to draft from (int32, one or K for each request,
        request by request), and the common attention metadata of the pass.
        """
        proposer, buffers = self.proposer, self.buffers
        batch_tokens = reqs * (self.k + 1)
        if buffers.target_tokens is None or buffers.target_positions is None:
            raise ValueError("no static tensors for the target's tokens and positions")
        # Not used by drafters that take none, but named in the signature.
        hidden = buffers.target_hidden
        if hidden is None:
            hidden = proposer.hidden_states
        hidden = hidden[:batch_tokens]
        if self.drafter.combines:
            hidden = proposer.model.combine_hidden_states(hidden)
        tokens, indices, metadata = proposer.set_inputs_first_pass(
            target_token_ids=buffers.target_tokens[:batch_tokens],
            next_token_ids=buffers.next_tokens[:reqs],
            target_positions=buffers.target_positions[:batch_tokens],
            target_hidden_states=hidden,
            token_indices_to_sample=None,
            cad=self.metadata(reqs, self.k + 1, buffers.seq_lens),
            num_rejected_tokens_gpu=buffers.rejected[:reqs],
        )
        return tokens, indices, metadata

    def _mask_slots(self, reqs: int, metadata: Any) -> None:
        """Set the slots of padded rows to -1."""
        slots: torch.Tensor = metadata.slot_mapping
        slots.view(reqs, -1).bitwise_or_(self.buffers.padding_bits[:reqs, None])


class ContextPasses(ExtendedPasses):
    """The one pass of dflash: the target's hidden states become keys and values of the context.

    `build_model_inputs_first_pass` writes these to the KV cache before the queries run. Those of
    rejected tokens go to slots that the queries overwrite right after.
    """

    def inputs(self, tokens: int) -> dict[str, torch.Tensor | None]:
        """Keyword arguments of the draft model, without the writes to the KV cache."""
        proposer = self.proposer
        return {
            "input_ids": proposer.input_ids[:tokens],
            "positions": proposer._get_positions(tokens),
            "inputs_embeds": None,
        }

    def extended(self, reqs: int, *, mask: bool) -> None:
        """Run the pass; see `ExtendedPasses.extended`."""
        super().extended(reqs, mask=mask)
        # Upstream keeps the hidden states for its next line; memory of the graph's would stay.
        self.proposer._dflash_hidden_states = None

    def _mask_slots(self, reqs: int, metadata: Any) -> None:
        """Set the slots of padded rows to -1, those of their context as well."""
        super()._mask_slots(reqs, metadata)
        context: torch.Tensor = self.proposer._context_slot_mapping_buffer
        rows = context[: reqs * (self.k + 1)].view(reqs, -1)
        rows.bitwise_or_(self.buffers.padding_bits[:reqs, None])


def passes_of(proposer: Any, buffers: DraftBuffers, drafter: Drafter) -> Passes:
    """The passes of a proposer of this kind."""
    kinds = {"shifted": Passes, "extended": ExtendedPasses, "context": ContextPasses}
    return kinds[drafter.inputs](proposer, buffers, drafter)
