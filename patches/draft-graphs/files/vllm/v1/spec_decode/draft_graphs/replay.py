# SPDX-License-Identifier: Apache-2.0
"""Serves batches from captured draft graphs: dispatch, staging, replay."""

from __future__ import annotations

from typing import Any

import torch
from vllm.logger import init_logger

from . import figures, messages, ranks
from .capture import Captured
from .dispatch import Dispatch, Keys
from .keys import DraftKey
from .policy import Facts
from .staging import ExtendedStaging, FirstBatch, FirstStaging, LaterStaging, MixedStaging

logger = init_logger(__name__)

NO_GRAPH = "no graph for so many requests or this K"
NOT_UNIFORM = "not K+1 tokens for each request"
TOO_MIXED = "no mixed graph for so many tokens or requests or this K"

#: Copies a batch to where the graph of its first pass reads it.
Staging = FirstStaging | MixedStaging | ExtendedStaging


class Unforeseen(Exception):
    """A batch that no graph of the agreed size can hold, although the policy granted graphs."""


class Replay:
    """Serves batches from one capture.

    captured: the graphs and their memory.
    first_staging, later_staging: by key and number of live requests, made when first needed.
    """

    def __init__(self, proposer: Any, captured: Captured, facts: Facts) -> None:
        self.captured = captured
        self.first_staging: dict[tuple[DraftKey, bool, int], Staging] = {}
        self.later_staging: dict[tuple[DraftKey, int], LaterStaging] = {}
        self._proposer = proposer
        self._k = facts.num_speculative_tokens
        self._drafter = captured.drafter
        self._first_tokens = captured.drafter.first_tokens(self._k)
        self._dispatch = Dispatch(proposer.cudagraph_dispatcher, captured.drafter, self._k)
        self._mixed = any(key.role == "mixed" for key in captured.plan)
        self._probabilistic = facts.probabilistic
        self._together = facts.coupling.together
        # Reasons, unforeseen by the policy, that were logged for batches left to upstream.
        self._logged: set[str] = set()

    def agreed_keys(self, num_tokens: int) -> Keys | None:
        """The graphs of a step for which data-parallel ranks agreed on a FULL graph.

        num_tokens: of the target's batch, padding included, the same on all ranks. No rank has more
        requests than it has room for, nor than vLLM admits. None if no graphs hold so many; the
        same on all ranks, which have captured the same ones.
        """
        reqs = -(-num_tokens // (self._k + 1))
        return self._dispatch.uniform(
            min(reqs, int(self._proposer.max_batch_size)), self._k, sampled=False
        )

    def agreed_later(self, requests: int) -> DraftKey | None:
        """The graphs of the passes after upstream's first one, on all data-parallel ranks.

        requests: the most that any rank drafts for. None if no graph holds so many, or there are
        none; the same on all ranks.
        """
        return self._dispatch.later(requests, self._k)

    def later_requests(
        self, k: int, common_attn_metadata: Any, sampling_metadata: Any
    ) -> int | None:
        """The number of requests of a batch, if graphs can run its later passes; else None."""
        if k != self._k or self._is_sampled(sampling_metadata):
            return None
        if self._mismatch(k, common_attn_metadata) is not None:
            return None
        return int(common_attn_metadata.seq_lens.shape[0])

    def run_padded(self, first: DraftKey | None, later: DraftKey | None) -> None:
        """Replay the graphs with every row padded: for the other ranks, without a draft."""
        self.captured.buffers.pad_all(self._proposer)
        _count_experts_tokens(self._proposer, 0)
        if first is not None:
            self.run(first)
        if later is not None:
            self._run_later(later, self._k)
        figures.padded()

    def propose(
        self,
        *,
        # the graphs that all data-parallel ranks replay now; None where this rank drafts alone
        agreed: Keys | None = None,
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
        """All drafts of a batch, [num_reqs, K] int64; None if no graphs hold it.

        The other arguments are those of upstream's `propose`; none of them is written. A batch is
        uniform if each request has K+1 tokens, else mixed.

        Raises Unforeseen, having replayed nothing, if the agreed graphs do not hold the batch.
        """
        # Over fifty lines: half are the arguments of upstream, with their shapes.
        cad = common_attn_metadata
        reqs, tokens = cad.seq_lens.shape[0], target_token_ids.shape[0]
        k = num_speculative_tokens
        sampled = self._is_sampled(sampling_metadata)
        reason = _other_inputs(cad, mm_embed_inputs) or self._mismatch(k, cad, target_hidden_states)
        uniform = cad.max_query_len == self._k + 1 and tokens == reqs * (self._k + 1)
        mixed = self._mixed and not sampled and tokens == cad.num_actual_tokens
        keys: Keys | None = None
        if agreed is not None:
            other = None if uniform else NOT_UNIFORM
            keys = self._checked(agreed, reason or other, reqs, k, sampled)
        elif reason is None and uniform:
            keys = self._dispatch.uniform(reqs, k, sampled)
        elif reason is None and mixed:
            keys = self._dispatch.mixed(tokens, reqs, k)
        if keys is None:
            other = NO_GRAPH if uniform else TOO_MIXED if mixed else NOT_UNIFORM
            self._leave("first passes", reason or other)
            return None
        first, later = keys
        sampling = self.captured.sampling if sampled else None
        self._first_staging(first, later, reqs).stage(
            FirstBatch(
                target_token_ids=target_token_ids,
                target_positions=target_positions,
                target_hidden_states=target_hidden_states,
                next_token_ids=next_token_ids,
                token_indices_to_sample=token_indices_to_sample,
                num_rejected=num_rejected_tokens_gpu,
                seq_lens=cad.seq_lens,
                block_table=cad.block_table_tensor,
                slots=cad.slot_mapping,
                starts=cad.query_start_loc,
            )
        )
        if sampling is not None:
            sampling.stage(sampling_metadata.temperature, reqs, first.num_reqs)
        in_first = reqs * self._first_tokens if uniform else tokens
        _count_experts_tokens(self._proposer, in_first)
        self.run(first)
        if later is not None:
            _count_experts_tokens(self._proposer, reqs)
            self._run_later(later, k)
        if self._probabilistic:
            # Where upstream's `propose` leaves them for vLLM to take.
            self._proposer._last_draft_probs = sampling and sampling.taken(reqs, k)
        return _drafts(self.captured, k, reqs)

    def later_steps(
        self,
        *,
        # the graphs that all data-parallel ranks replay now; None where this rank drafts alone
        agreed: DraftKey | None = None,
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

        Raises Unforeseen, having replayed nothing, if the agreed graphs do not hold the batch.
        """
        cad = common_attn_metadata
        reqs = cad.seq_lens.shape[0]
        k = int(self._proposer.num_speculative_tokens)
        one_each = draft_token_ids.shape[0] == reqs
        if agreed is None and (k < 2 or not one_each):
            return None
        # The probabilities of the first drafts are upstream's, and not handed over.
        sampled = self._is_sampled(sampling_metadata)
        reason = "sampled drafts" if sampled else self._mismatch(k, cad)
        if agreed is not None:
            other = None if one_each else "another number of first drafts than of requests"
            key: DraftKey | None = self._held(agreed, reason or other, reqs, k)
        else:
            key = None if reason else self._dispatch.later(reqs, k)
        if key is None:
            self._leave("later passes", reason or NO_GRAPH)
            return None
        self._later_staging(key, reqs).stage(
            draft_token_ids=draft_token_ids,
            positions=positions[0] if positions.dim() == 2 else positions,
            hidden_states=hidden_states,
            num_rejected=num_rejected_tokens_gpu,
            seq_lens=cad.seq_lens,
            block_table=cad.block_table_tensor,
        )
        _count_experts_tokens(self._proposer, reqs)
        self._run_later(key, k)
        return _drafts(self.captured, k, reqs)

    def run(self, key: DraftKey) -> None:
        """Replay one graph; its inputs have been staged."""
        captured = self.captured
        if captured.address_check is not None:
            captured.address_check.check(key)
        captured.graphs[key].replay()
        figures.replayed(key)

    def _run_later(self, key: DraftKey, k: int) -> None:
        """Replay the passes after the first: the loop, or k-1 steps."""
        if key.role == "loop":
            self.run(key)
            return
        buffers, reqs = self.captured.buffers, key.num_reqs
        for index in range(1, k):
            self.run(key)
            if key.sampled and self.captured.sampling is not None:
                self.captured.sampling.keep_step(reqs, index)
            buffers.drafts[index, :reqs].copy_(buffers.step_drafts[:reqs])

    # ---- which graphs hold a batch

    def _checked(self, agreed: Keys, reason: str | None, reqs: int, k: int, sampled: bool) -> Keys:
        """`agreed`, if it holds this rank's batch; else raise Unforeseen."""
        if reason is None and sampled:
            reason = "sampled drafts"
        self._held(agreed[0], reason, reqs, k)
        return agreed

    def _held(self, agreed: DraftKey, reason: str | None, reqs: int, k: int) -> DraftKey:
        """The agreed graphs, if they hold this rank's batch; else, or if `reason` is given, raise.

        Raises Unforeseen.
        """
        if reason is None and (k != self._k or reqs > agreed.num_reqs):
            reason = f"{reqs} requests for {k} drafts, where {agreed.num_reqs} for {self._k} fit"
        if reason is not None:
            raise Unforeseen(reason)
        return agreed

    def _is_sampled(self, sampling_metadata: Any) -> bool:
        """Whether the drafts of a batch are drawn by temperature."""
        return self._probabilistic and not sampling_metadata.all_greedy

    def _mismatch(self, k: int, cad: Any, hidden_states: torch.Tensor | None = None) -> str | None:
        """The reason why no graph of any size may serve the batch; None where one may.

        hidden_states: the target's, [tokens, width], where they are staged.
        """
        # A tensor for `causal` (0.25 and later) is a choice per request.
        if cad.causal is not True:
            return self._log_once("attention is not causal, or not for all requests")
        replaced = self.captured.replaced()
        if replaced is not None:
            return self._log_once(replaced)
        blocks = cad.block_table_tensor.shape[1]
        if blocks != self.captured.blocks:
            return self._log_once(
                f"the block table has {blocks} columns, not {self.captured.blocks}"
            )
        if not 0 < k <= self._k:
            return NO_GRAPH
        width = None if hidden_states is None else hidden_states.shape[-1]
        expected = self.captured.hidden_width
        if width is not None and expected is not None and width != expected:
            return self._log_once(
                f"the target gives hidden states of {width} columns, not {expected}"
            )
        return None

    # ---- staging

    def _first_staging(self, first: DraftKey, later: DraftKey | None, reqs: int) -> Staging:
        masked, buffers = self.captured.masked, self.captured.buffers
        mask = first in masked or later in masked
        staging = self.first_staging.get((first, mask, reqs))
        if staging is None:
            if first.role == "mixed":
                staging = MixedStaging(self._proposer, buffers, first, reqs, mask=mask)
            elif self._drafter.inputs == "shifted":
                staging = FirstStaging(self._proposer, buffers, first, reqs, mask=mask)
            else:
                staging = ExtendedStaging(buffers, self._drafter, first, reqs, mask=mask)
            self.first_staging[first, mask, reqs] = staging
        return staging

    def _later_staging(self, key: DraftKey, reqs: int) -> LaterStaging:
        staging = self.later_staging.get((key, reqs))
        if staging is None:
            staging = self.later_staging[key, reqs] = LaterStaging(
                self._proposer,
                self.captured.buffers,
                self._drafter,
                key,
                reqs,
                mask=key in self.captured.masked,
            )
        return staging

    # ---- batches left to upstream

    def _leave(self, passes: str, reason: str) -> None:
        """Count a batch whose passes upstream's code runs."""
        figures.left(passes, reason)

    def _log_once(self, reason: str) -> str:
        """Log a reason that the policy did not foresee, the first time; return it.

        Where ranks draft together no batch is left to upstream for it: the graphs are withdrawn.
        """
        if reason not in self._logged and not self._together:
            self._logged.add(reason)
            if ranks.writes_log():
                logger.info("%s", messages.left_line(reason))
        return reason


def _other_inputs(cad: Any, mm_embed_inputs: Any) -> str | None:
    """What goes into the first pass that no graph takes; None for nothing."""
    if mm_embed_inputs is not None and mm_embed_inputs[0]:
        return "multimodal embeddings among the inputs"
    # 0.24 and later: tokens of one image see each other. Batches of drafts come without.
    if getattr(cad, "mm_req_doc_ranges", None):
        return "ranges of a prefix language model among the inputs"
    return None


def _count_experts_tokens(proposer: Any, num_tokens: int) -> None:
    """Tell expert load balancing how many tokens of the next passes are not padding.

    From 0.25 on the layers of experts read it from the device, in a graph as elsewhere; until then,
    and without load balancing of the draft's experts, there is nobody to tell.
    """
    state = getattr(proposer, "eplb_state", None)
    if state is not None:
        state.prepare_forward(proposer.draft_model_config, num_tokens)


def _drafts(captured: Captured, k: int, reqs: int) -> torch.Tensor:
    """A copy of the drafts, [reqs, k]: another stream may still read it after the next replay."""
    whole = captured.buffers.whole_drafts
    drafts = captured.buffers.drafts[:k, :reqs].t() if whole is None else whole[:reqs]
    return drafts.clone(memory_format=torch.contiguous_format)
