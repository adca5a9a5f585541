# SPDX-License-Identifier: Apache-2.0
"""Serves batches from captured draft graphs: dispatch, staging, replay."""

from __future__ import annotations

from typing import Any

import torch
from vllm.logger import init_logger

from . import messages, ranks
from .capture import Captured
from .keys import DraftKey
from .policy import Facts
from .staging import FirstStaging, LaterStaging

logger = init_logger(__name__)


class Replay:
    """Serves batches from one capture.

    captured: the graphs and their memory.
    first_staging, later_staging: by key and number of live requests, made when first needed.
    """

    def __init__(self, proposer: Any, captured: Captured, facts: Facts) -> None:
        self.captured = captured
        self.first_staging: dict[tuple[DraftKey, bool, int], FirstStaging] = {}
        self.later_staging: dict[tuple[DraftKey, int], LaterStaging] = {}
        self._proposer = proposer
        self._k = facts.num_speculative_tokens
        self._probabilistic = facts.probabilistic
        # Reasons, unforeseen by the policy, that were logged for batches left to upstream.
        self._logged: set[str] = set()

    def propose(
        self,
        *,
        # K of this batch, at most the configured one
        num_speculative_tokens: int,
        # [tokens] int32
        target_token_ids: torch.Tensor,
        # [tokens] int64, or [dimensions, tokens] with M-RoPE
        target_positions: torch.Tensor,
        # [tokens, width] of the model's dtype
        target_hidden_states: torch.Tensor,
        # [num_reqs] int32
        next_token_ids: torch.Tensor,
        # [num_reqs] int32, rows of the batch's tokens; None: the last token of each request
        token_indices_to_sample: torch.Tensor | None,
        common_attn_metadata: Any,
        sampling_metadata: Any,
        # (embeddings, mask [tokens]), or None
        mm_embed_inputs: Any,
        # [num_reqs] int32; None: no token was rejected
        num_rejected_tokens_gpu: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """All drafts of a uniform batch, [num_reqs, K] int64; None if no graphs hold it.

        The arguments are those of upstream's `propose`; none of them is written. A batch is uniform
        if each request has K+1 tokens and none of them is a multimodal embedding.
        """
        captured = self.captured
        if mm_embed_inputs is not None and mm_embed_inputs[0]:
            return None
        cad = common_attn_metadata
        reqs, tokens = cad.seq_lens.shape[0], target_token_ids.shape[0]
        query_len = self._k + 1
        if cad.max_query_len != query_len or tokens != reqs * query_len:
            return None
        if not self._can_run(num_speculative_tokens, cad, sampling_metadata):
            return None
        width = target_hidden_states.shape[-1]
        if width != captured.hidden_width:
            self._log_left(
                f"the target gives hidden states of {width} columns, not {captured.hidden_width}"
            )
            return None
        first = self._dispatch("first", tokens, reqs)
        if first is None:
            return None
        later = None
        if num_speculative_tokens > 1:
            later = self._dispatch_later(reqs, num_speculative_tokens)
            if later is None or later.num_reqs != first.num_reqs:
                return None
        staging = self._first_staging(first, later, reqs)
        staging.stage(
            target_token_ids=target_token_ids,
            target_positions=target_positions,
            target_hidden_states=target_hidden_states,
            next_token_ids=next_token_ids,
            token_indices_to_sample=token_indices_to_sample,
            num_rejected=num_rejected_tokens_gpu,
            seq_lens=cad.seq_lens,
            block_table=cad.block_table_tensor,
            slots=cad.slot_mapping,
        )
        self.run(first)
        if later is not None:
            self._run_later(later, num_speculative_tokens)
        return _drafts(captured, num_speculative_tokens, reqs)

    def later_steps(
        self,
        *,
        # [num_reqs] int64, the first draft of each request
        draft_token_ids: torch.Tensor,
        # [num_reqs] int64, or [dimensions, num_reqs] with M-RoPE, of the tokens that they follow
        positions: torch.Tensor,
        # [num_reqs, hidden] of the model's dtype
        hidden_states: torch.Tensor,
        # that of the first pass
        common_attn_metadata: Any,
        sampling_metadata: Any,
        # [num_reqs] int32; None: no token was rejected
        num_rejected_tokens_gpu: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """All drafts, [num_reqs, K] int64, after a first pass that upstream's code ran.

        None if no graph holds the batch. None of the arguments is written.
        """
        captured = self.captured
        cad = common_attn_metadata
        reqs = cad.seq_lens.shape[0]
        k = int(self._proposer.num_speculative_tokens)
        if k < 2 or draft_token_ids.shape[0] != reqs:
            return None
        if not self._can_run(k, cad, sampling_metadata):
            return None
        key = self._dispatch_later(reqs, k)
        if key is None:
            return None
        staging = self.later_staging.get((key, reqs))
        if staging is None:
            staging = self.later_staging[key, reqs] = LaterStaging(
                self._proposer, captured.buffers, key, reqs, mask=key in captured.masked
            )
        staging.stage(
            draft_token_ids=draft_token_ids,
            positions=positions[0] if positions.dim() == 2 else positions,
            hidden_states=hidden_states,
            num_rejected=num_rejected_tokens_gpu,
            seq_lens=cad.seq_lens,
            block_table=cad.block_table_tensor,
        )
        self._run_later(key, k)
        return _drafts(captured, k, reqs)

    def run(self, key: DraftKey) -> None:
        """Replay one graph; its inputs have been staged."""
        captured = self.captured
        if captured.address_check is not None:
            captured.address_check.check(key)
        captured.graphs[key].replay()

    def _run_later(self, key: DraftKey, k: int) -> None:
        """Replay the passes after the first: the loop, or k-1 steps."""
        if key.role == "loop":
            self.run(key)
            return
        buffers, reqs = self.captured.buffers, key.num_reqs
        for index in range(1, k):
            self.run(key)
            buffers.drafts[index, :reqs].copy_(buffers.step_drafts[:reqs])

    def _can_run(self, k: int, cad: Any, sampling_metadata: Any) -> bool:
        """Whether graphs of any role may serve the batch, whatever its size."""
        if self._probabilistic and not sampling_metadata.all_greedy:
            return False
        # A tensor for `causal` (0.25 and later) is a choice per request.
        if cad.causal is not True:
            self._log_left("attention is not causal, or not for all requests")
            return False
        blocks = cad.block_table_tensor.shape[1]
        if blocks != self.captured.blocks:
            self._log_left(f"the block table has {blocks} columns, not {self.captured.blocks}")
            return False
        return 0 < k <= self._k

    def _dispatch(self, role: str, tokens: int, reqs: int) -> DraftKey | None:
        """The smallest graph of a role that holds the batch; vLLM's dispatcher knows."""
        key: DraftKey | None = self._proposer.cudagraph_dispatcher.dispatch_draft(
            role, tokens, reqs, self._k
        )
        return key

    def _dispatch_later(self, reqs: int, k: int) -> DraftKey | None:
        """The graph for the passes after the first: the loop if it drafts k tokens, or steps."""
        key: DraftKey | None = None
        if k == self._k:
            key = self._dispatch("loop", reqs, reqs)
        if key is None:
            key = self._dispatch("step", reqs, reqs)
        return key

    def _first_staging(self, first: DraftKey, later: DraftKey | None, reqs: int) -> FirstStaging:
        mask = later in self.captured.masked
        staging = self.first_staging.get((first, mask, reqs))
        if staging is None:
            staging = self.first_staging[first, mask, reqs] = FirstStaging(
                self._proposer, self.captured.buffers, first, reqs, mask=mask
            )
        return staging

    def _log_left(self, reason: str) -> None:
        """Log, once a reason, that batches are left to upstream."""
        if reason not in self._logged:
            self._logged.add(reason)
            if ranks.writes_log():
                logger.info("%s", messages.left_line(reason))


def _drafts(captured: Captured, k: int, reqs: int) -> torch.Tensor:
    """A copy of the drafts, [reqs, k]: another stream may still read it after the next replay."""
    return captured.buffers.drafts[:k, :reqs].t().clone(memory_format=torch.contiguous_format)
