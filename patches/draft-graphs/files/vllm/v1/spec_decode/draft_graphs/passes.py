# SPDX-License-Identifier: Apache-2.0
"""The draft passes that graphs record: a function for each role, run to warm up and captured.

All of it is device work on memory that outlives the graphs, or host work that depends only on
the key. No function here reads a value of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from . import upstream
from .argmax import greedy_sample
from .buffers import DraftBuffers
from .drafter import Drafter
from .keys import DraftKey, Role
from .sampling import Sampling


class Passes:
    """The draft passes of one proposer over one set of buffers.

    The first pass is that of EAGLE, EAGLE3 and MTP; `extended_passes` has those of others.

    keeps_steps: whether the first pass also writes step_drafts, for `step` graphs.
    sampling: the static tensors of sampled drafts; None where drafts are greedy.
    observe: called with (name, value) for everything that a pass hands to the model: the keyword
        arguments and the attention metadata. Set by the address check.
    """

    def __init__(self, proposer: Any, buffers: DraftBuffers, drafter: Drafter) -> None:
        self.proposer = proposer
        self.buffers = buffers
        self.drafter = drafter
        self.k = int(proposer.speculative_config.num_speculative_tokens)
        self.returns_tuple = bool(proposer.model_returns_tuple())
        self.keeps_steps = False
        self.sampling: Sampling | None = None
        self._sampled = False
        self.observe: Callable[[str, Any], None] | None = None
        # Tokens up to which vLLM bounds FlashAttention's number of splits.
        compilation = proposer.vllm_config.compilation_config
        self._bounded = int(compilation.max_cudagraph_capture_size or 0)

    def body(self, key: DraftKey, *, mask: bool) -> Callable[[], None]:
        """The function whose work the graph of `key` records.

        mask: whether slots that are computed in the graph are forced to -1 for padded rows.
        """
        reqs = key.num_reqs

        def work() -> None:
            self._sampled = key.sampled
            if key.role == "mixed":
                self.mixed(reqs, key.num_tokens)
            else:
                self.run(key.role, reqs, mask=mask)

        return work

    def run(self, role: Role, reqs: int, *, mask: bool) -> None:
        """Run the pass or passes of a uniform role for `reqs` requests; mask: as in `body`."""
        if role == "first":
            self.first(reqs)
        elif role == "step":
            self.step(reqs, mask=mask)
        else:
            self.loop(reqs, mask=mask)

    def draft(
        self,
        # [reqs, hidden], or [reqs * K, hidden] of a drafter with one pass
        hidden_states: torch.Tensor,
        reqs: int,
        # which of the K drafts of each request these are; None: that of a `step`
        index: int | None,
    ) -> torch.Tensor:
        """Choose a draft for each row, [rows] int64, by argmax or by temperature."""
        if self._sampled and self.sampling is not None:
            return self.sampling.draw(self.proposer, hidden_states, reqs, index)
        return greedy_sample(self.proposer, hidden_states)

    def first(self, reqs: int) -> None:
        """Run the pass over the K+1 tokens of each of `reqs` requests.

        Reads the proposer's input_ids (shifted by one already), positions, hidden states or
        target_hidden, and slots; next_tokens, sample_indices, seq_lens, rejected, block_table.
        Writes drafts[0] and the inputs of the later passes: the proposer's positions and hidden
        states of the first `reqs` rows, and step_seq_lens.
        """
        proposer, buffers = self.proposer, self.buffers
        indices = buffers.sample_indices[:reqs]
        proposer.input_ids[indices] = buffers.next_tokens[:reqs]
        metadata = self.metadata(reqs, self.k + 1, buffers.seq_lens)
        self._shifted(reqs, reqs * (self.k + 1), indices, metadata)

    def mixed(self, reqs: int, tokens: int) -> None:
        """Run the pass over `tokens` tokens, of which mixed_start_loc says whose they are.

        Reads and writes what `first` does. Tokens behind those of the last request belong to none:
        attention leaves their rows alone, and no row that is drafted from depends on them.
        """
        proposer, buffers = self.proposer, self.buffers
        starts = buffers.mixed_start_loc[: reqs + 1]
        # No token is free for a padded row, whose next token would overwrite one of a live row. It
        # does again what the first one does.
        live = starts[1:] > starts[:-1]
        indices = torch.where(live, buffers.sample_indices[:reqs], buffers.sample_indices[:1])
        next_tokens = torch.where(live, buffers.next_tokens[:reqs], buffers.next_tokens[:1])
        proposer.input_ids[indices] = next_tokens
        # On the host each request has one token: no builder of a mixed graph asks there.
        metadata = replace(
            self.metadata(reqs, 1, buffers.seq_lens),
            query_start_loc=starts,
            num_actual_tokens=tokens,
            max_query_len=tokens,
            slot_mapping=proposer._slot_mapping_buffer[:tokens],
        )
        self._shifted(reqs, tokens, indices, metadata)

    def _shifted(
        self,
        reqs: int,
        tokens: int,
        # [reqs] int32, rows to draft from
        indices: torch.Tensor,
        metadata: Any,
    ) -> None:
        """Run a first pass over tokens that were shifted by one; see `first`."""
        proposer, buffers = self.proposer, self.buffers
        if self.drafter.combines and buffers.target_hidden is not None:
            proposer.hidden_states[:tokens].copy_(
                proposer.model.combine_hidden_states(buffers.target_hidden[:tokens])
            )
        last, hidden = self._run(metadata, tokens, self.inputs(tokens), draft_index=0)
        draft = self.draft(last.index_select(0, indices), reqs, 0)
        buffers.drafts[0, :reqs].copy_(draft)
        if self.k == 1:
            return
        if self.keeps_steps:
            buffers.step_drafts[:reqs].copy_(draft)
        positions = upstream.position_rows(proposer)[0]
        positions[:reqs].copy_(positions[:tokens].index_select(0, indices))
        _gather(hidden, indices, proposer.hidden_states[:reqs])
        torch.sub(
            buffers.seq_lens[:reqs], buffers.rejected[:reqs], out=buffers.step_seq_lens[:reqs]
        )

    def step(self, reqs: int, *, mask: bool) -> None:
        """Run one later pass, which reads its tokens from step_drafts and writes them there."""
        tokens = self.buffers.step_drafts[:reqs]
        self._later(reqs, tokens, tokens, draft_index=1, hand_over=True, mask=mask)

    def loop(self, reqs: int, *, mask: bool) -> None:
        """Run all later passes: each reads a row of drafts and writes the next one."""
        drafts = self.buffers.drafts
        for index in range(1, self.k):
            self._later(
                reqs,
                drafts[index - 1, :reqs],
                drafts[index, :reqs],
                draft_index=index,
                hand_over=index + 1 < self.k,
                mask=mask,
            )

    def _later(
        self,
        reqs: int,
        # [reqs] int64, read
        tokens: torch.Tensor,
        # [reqs] int64, written; may be `tokens`
        drafts: torch.Tensor,
        *,
        draft_index: int,
        hand_over: bool,
        mask: bool,
    ) -> None:
        """Run one pass over one token a request.

        hand_over: whether a further pass needs the hidden states.
        """
        proposer, buffers = self.proposer, self.buffers
        slots = proposer._slot_mapping_buffer[:reqs]
        positions = upstream.position_rows(proposer)[:, :reqs]
        proposer.input_ids[:reqs].copy_(upstream.draft_token_ids(proposer, tokens))
        upstream.advance(
            positions=positions[0],
            block_table=buffers.block_table[:reqs],
            seq_lens=buffers.step_seq_lens[:reqs],
            slots=slots,
            block_size=proposer.block_size,
            max_model_len=proposer.max_model_len,
        )
        if positions.shape[0] > 1:
            positions[1:].copy_(positions[0].expand_as(positions[1:]))
        if mask:
            slots.bitwise_or_(buffers.padding_bits[:reqs])
        last, hidden = self._forward(reqs, 1, buffers.step_seq_lens, draft_index=draft_index)
        drafts.copy_(self.draft(last, reqs, None if drafts is tokens else draft_index))
        if hand_over and self.drafter.hands_over:
            proposer.hidden_states[:reqs].copy_(hidden)

    def _forward(
        self, reqs: int, query_len: int, seq_lens: torch.Tensor, *, draft_index: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the draft model over `reqs * query_len` tokens of the proposer's buffers.

        seq_lens: [reqs] int32 or longer.

        Returns the hidden states for the logits and those for the next pass, [tokens, hidden] each.
        """
        tokens = reqs * query_len
        metadata = self.metadata(reqs, query_len, seq_lens)
        return self._run(metadata, tokens, self.inputs(tokens), draft_index=draft_index)

    def _run(
        self,
        common_metadata: Any,
        tokens: int,
        inputs: dict[str, torch.Tensor | None],
        *,
        draft_index: int,
        slots: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Build the attention metadata and run the draft model over `tokens` tokens.

        slots: [tokens] int64, to be copied to the proposer's buffer; None: they are there.

        Returns the hidden states for the logits and those for the next pass, [tokens, hidden] each.
        """
        proposer = self.proposer
        _, metadata = proposer.build_per_group_and_layer_attn_metadata(
            common_metadata, draft_index=draft_index
        )
        if tokens > self._bounded:
            upstream.split_nothing(metadata)
        if self.observe is not None:
            self.observe("keyword argument", inputs)
            self.observe("attention metadata", metadata)
        with upstream.forward_context(proposer, metadata, tokens, slots):
            result = proposer.model(**inputs)
        if self.returns_tuple:
            last, hidden = result
            return last, hidden
        return result, result

    def inputs(self, tokens: int) -> dict[str, torch.Tensor | None]:
        """Keyword arguments of the draft model, as upstream's proposer makes them.

        A multimodal drafter embeds the tokens for it, which is device work, too.
        """
        inputs: dict[str, torch.Tensor | None]
        inputs, _ = self.proposer.build_model_inputs_first_pass(tokens, tokens, None)
        return inputs

    def metadata(self, reqs: int, query_len: int, seq_lens: torch.Tensor) -> Any:
        """Input of the attention builders: `reqs` rows over static memory, with maximal lengths."""
        buffers = self.buffers
        tokens = reqs * query_len
        return upstream.common_attention_metadata(
            query_start_loc=buffers.query_start_loc[query_len][: reqs + 1],
            query_start_loc_cpu=buffers.query_start_loc_cpu[query_len][: reqs + 1],
            seq_lens=seq_lens[:reqs],
            seq_lens_cpu_upper_bound=buffers.seq_lens_bound[:reqs],
            num_reqs=reqs,
            num_actual_tokens=tokens,
            max_query_len=query_len,
            max_seq_len=self.proposer.max_model_len,
            block_table_tensor=buffers.block_table[:reqs],
            slot_mapping=self.proposer._slot_mapping_buffer[:tokens],
            causal=True,
        )


def _gather(source: torch.Tensor, rows: torch.Tensor, into: torch.Tensor) -> None:
    """Set into[i] = source[rows[i]], through a copy only where the two share memory."""
    if source.dtype == into.dtype and (
        source.untyped_storage().data_ptr() != into.untyped_storage().data_ptr()
    ):
        torch.index_select(source, 0, rows, out=into)
    else:
        into.copy_(source.index_select(0, rows))
