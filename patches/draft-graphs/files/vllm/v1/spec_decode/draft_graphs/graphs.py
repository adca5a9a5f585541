# SPDX-License-Identifier: Apache-2.0
"""Captures the draft graphs, dispatches batches to them and replays them."""

from __future__ import annotations

import time
from typing import Any

import torch
from vllm.logger import init_logger

from . import compat, report
from .capture import Captured, CaptureFailed, capture_keys
from .data_parallel import token_counts
from .facts import late_facts
from .graph_backend import GraphBackend
from .keys import DraftKey, plan_keys
from .policy import Decision, Facts, Mode, decide
from .staging import FirstStaging, LaterStaging

logger = init_logger(__name__)

# Upstream's profile counts at least this much for each graph beside the largest (bytes).
LEAST_PER_GRAPH = 1 << 20


class DraftGraphs:
    """The draft graphs of one proposer.

    Until `capture` has succeeded, and again once anything was withdrawn, `propose` and
    `later_steps` answer None: vLLM goes on as without them.
    """

    def __init__(
        self, proposer: Any, *, mode: Mode, backend: GraphBackend, check: bool, facts: Facts
    ) -> None:
        self.mode = mode
        self.check = check
        self._proposer = proposer
        self._backend = backend
        self._facts = facts
        self._k = facts.num_speculative_tokens
        self._query_len = self._k + 1
        self._captured: Captured | None = None
        self._withdrawn: str | None = None
        self._unprofiled: str | None = None
        # Whether `capture` has told what became of the graphs.
        self._said = False
        # Why batches were left to upstream that the policy foresaw no reason for.
        self._left: set[str] = set()

    # ---- capture

    def capture(self, runner: Any) -> None:
        """Capture every graph that the policy grants, or none, and say so in one line.

        Called inside vLLM's `graph_capture()`, after the target's graphs. May be called again:
        what was captured before is dropped first. Raises nothing for a failed capture: all draft
        keys are withdrawn, a warning tells why, and vLLM drafts as upstream.
        """
        self.release()
        self._withdrawn = None
        self._said = True
        try:
            decision, plan = self._plan()
        except Exception as error:  # on all ranks alike; vLLM serves without draft graphs
            logger.debug("Draft graphs: the failed plan", exc_info=True)
            self.withdraw(report.told(error))
            return
        if not plan:
            self._say(report.refused_line(self.mode, decision))
            return
        started, free = time.perf_counter(), self._backend.free_memory()
        try:
            self._captured = capture_keys(
                self._proposer, runner, self._backend, plan, plan, check=self.check
            )
        except CaptureFailed as failure:
            logger.debug("Draft graphs: the failed capture", exc_info=True)
            self.withdraw(str(failure))
            return
        for key in plan:
            self._proposer.cudagraph_dispatcher.add_draft_key(key)
        memory = max(free - self._backend.free_memory(), 0)
        seconds = time.perf_counter() - started
        self._say(report.captured_line(self.mode, plan, decision.notes, memory, seconds))
        if self._unprofiled is not None and compat.is_speaker():
            logger.warning("%s", report.unprofiled_line(self._unprofiled, memory))
        self._unprofiled = None

    def profile(self, runner: Any) -> int:
        """Bytes that `capture` will take, from capturing the two largest graphs of each role.

        Called inside `graph_capture()` while vLLM has a minimal KV cache. Keeps nothing. A
        failure counts as nothing: the capture itself will meet it again and say so, or warn that
        the KV cache was sized without what it took.
        """
        self.release()
        self._unprofiled = None
        try:
            _, plan = self._plan()
        except Exception:  # the capture meets it again, and says so
            logger.debug("Draft graphs: the failed plan", exc_info=True)
            return 0
        if not plan:
            return 0
        free = self._backend.free_memory()
        samples: dict[str, list[int]] = {}

        def sample(key: DraftKey) -> None:
            nonlocal free
            now = self._backend.free_memory()
            samples.setdefault(key.role, []).append(max(free - now, 0))
            free = now

        roles = {key.role: [other for other in plan if other.role == key.role] for key in plan}
        largest = [key for keys in roles.values() for key in keys[:2]]
        try:
            capture_keys(
                self._proposer, runner, self._backend, plan, largest, check=False, after_each=sample
            )
        except CaptureFailed as failure:
            logger.debug("Draft graphs: the failed capture of the profile", exc_info=True)
            self._unprofiled = str(failure)
            return 0
        total = 0
        for role, keys in roles.items():
            first, *second = samples[role]
            total += first + (len(keys) - 1) * max([LEAST_PER_GRAPH, *second])
        return total

    def release(self) -> None:
        """Withdraw every draft key and free the graphs with all their memory."""
        self._proposer.cudagraph_dispatcher.withdraw_draft_keys()
        if self._captured is not None:
            self._backend.synchronize()
            self._captured = None

    def _plan(self) -> tuple[Decision, list[DraftKey]]:
        facts = late_facts(self._facts, self._proposer)
        decision = decide(self.mode, facts, self._backend.attention_backends)
        if not decision.any:
            return decision, []
        return decision, plan_keys(
            k=self._k,
            max_num_seqs=facts.max_num_seqs or 0,
            max_capture_tokens=facts.max_capture_tokens or 0,
            first=decision.first,
            later=decision.later,
        )

    def withdraw(self, reason: str) -> None:
        """No draft graph runs from now on; vLLM drafts as upstream. Warns once."""
        self.release()
        if self._withdrawn is None:
            logger.warning("%s", report.withdrawn_line(reason))
        self._withdrawn = reason

    # ---- upstream's own passes

    def token_counts(self, num_tokens: int) -> torch.Tensor | None:
        """The token counts of all data-parallel ranks for a pass that upstream's code runs.

        [ranks] int32, as from upstream's agreement between the ranks, which does not take place:
        where draft graphs are wanted at all, every rank drafts for itself. None without data
        parallelism.
        """
        return token_counts(self._proposer.vllm_config, num_tokens)

    def before_dummy_run(self) -> None:
        """Let the dummy passes of an idle data-parallel rank write no cell of the KV cache.

        Upstream runs them with the slots of the last draft pass, and so with tokens and hidden
        states that need not be those of these slots.
        """
        self._proposer._slot_mapping_buffer.fill_(-1)

    def _say_never_captured(self) -> None:
        """vLLM may lower the mode to NONE for an attention backend, and then captures nothing."""
        self._said = True
        mode = self._proposer.vllm_config.compilation_config.cudagraph_mode.name
        reason = f"vLLM captured no graphs (cudagraph mode {mode})"
        self._say(report.refused_line(self.mode, Decision(refusals=(reason,))))

    def _leave(self, reason: str) -> None:
        """Say, the first time, why batches are left to upstream."""
        if reason not in self._left:
            self._left.add(reason)
            self._say(report.left_line(reason))

    def _say(self, line: str) -> None:
        if compat.is_speaker():
            logger.info("%s", line)

    # ---- replay

    def propose(
        self,
        *,
        num_speculative_tokens: int,
        target_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        token_indices_to_sample: torch.Tensor | None,
        common_attn_metadata: Any,
        sampling_metadata: Any,
        mm_embed_inputs: Any,
        num_rejected_tokens_gpu: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """All drafts [R, K] int64 of a uniform batch, or None if no graphs hold it.

        The arguments are those of upstream's `propose`; none of them is written. Uniform means
        K+1 tokens for each of the R requests, and no multimodal embeddings among them.
        """
        captured = self._captured
        if captured is None:
            if not self._said:
                self._say_never_captured()
            return None
        if mm_embed_inputs is not None and mm_embed_inputs[0]:
            return None
        cad = common_attn_metadata
        reqs, tokens = cad.seq_lens.shape[0], target_token_ids.shape[0]
        query_len = self._query_len
        if cad.max_query_len != query_len or tokens != reqs * query_len:
            return None
        if not self._can_run(captured, num_speculative_tokens, cad, sampling_metadata):
            return None
        width = target_hidden_states.shape[-1]
        if width != captured.hidden_width:
            self._leave(
                f"the target gives hidden states of {width} columns, not {captured.hidden_width}"
            )
            return None
        dispatch = self._proposer.cudagraph_dispatcher.dispatch_draft
        first = dispatch("first", tokens, reqs, self._k)
        if first is None:
            return None
        later = None
        if num_speculative_tokens > 1:
            later = self._dispatch_later(reqs, num_speculative_tokens)
            if later is None or later.num_reqs != first.num_reqs:
                return None
        staging = self._first_staging(captured, first, later, reqs)
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
        self._replay(captured, first)
        if later is not None:
            self._replay_later(captured, later, num_speculative_tokens)
        return _rows(captured, num_speculative_tokens, reqs)

    def later_steps(
        self,
        *,
        draft_token_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        common_attn_metadata: Any,
        sampling_metadata: Any,
        num_rejected_tokens_gpu: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """All drafts [R, K] int64 after a first pass that ran as upstream's, or None.

        draft_token_ids: [R], the first drafts. positions: [R], or [dimensions, R] with M-RoPE,
        of the tokens they follow.
        hidden_states: [R, hidden]. common_attn_metadata is that of the first pass.
        """
        captured = self._captured
        if captured is None:
            return None
        cad = common_attn_metadata
        reqs = cad.seq_lens.shape[0]
        k = int(self._proposer.num_speculative_tokens)
        if k < 2 or draft_token_ids.shape[0] != reqs:
            return None
        if not self._can_run(captured, k, cad, sampling_metadata):
            return None
        key = self._dispatch_later(reqs, k)
        if key is None:
            return None
        staging = captured.later_staging.get((key, reqs))
        if staging is None:
            staging = captured.later_staging[key, reqs] = LaterStaging(
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
        self._replay_later(captured, key, k)
        return _rows(captured, k, reqs)

    def _can_run(self, captured: Captured, k: int, cad: Any, sampling_metadata: Any) -> bool:
        """What both kinds of batch need, beside a key."""
        proposer = self._proposer
        if captured.attn_groups is not proposer.draft_attn_groups:
            self.withdraw("the KV cache was initialized anew after the capture")
            return False
        if self._facts.probabilistic and not sampling_metadata.all_greedy:
            return False
        # A tensor for `causal` (0.25 and later) is a choice per request.
        if cad.causal is not True:
            self._leave("attention is not causal, or not for all requests")
            return False
        blocks = cad.block_table_tensor.shape[1]
        if blocks != captured.blocks:
            self._leave(f"the block table has {blocks} columns, not {captured.blocks}")
            return False
        return 0 < k <= self._k

    def _dispatch_later(self, reqs: int, k: int) -> DraftKey | None:
        """The graph for the passes after the first: the loop if it drafts k tokens, or steps."""
        dispatcher = self._proposer.cudagraph_dispatcher
        key: DraftKey | None = None
        if k == self._k:
            key = dispatcher.dispatch_draft("loop", reqs, reqs, self._k)
        if key is None:
            key = dispatcher.dispatch_draft("step", reqs, reqs, self._k)
        return key

    def _first_staging(
        self, captured: Captured, first: DraftKey, later: DraftKey | None, reqs: int
    ) -> FirstStaging:
        mask = later in captured.masked
        staging = captured.first_staging.get((first, mask, reqs))
        if staging is None:
            staging = captured.first_staging[first, mask, reqs] = FirstStaging(
                self._proposer, captured.buffers, first, reqs, mask=mask
            )
        return staging

    def _replay(self, captured: Captured, key: DraftKey) -> None:
        if captured.addresses is not None:
            captured.addresses.check(key)
        captured.graphs[key].replay()

    def _replay_later(self, captured: Captured, key: DraftKey, k: int) -> None:
        if key.role == "loop":
            self._replay(captured, key)
            return
        buffers, reqs = captured.buffers, key.num_reqs
        for index in range(1, k):
            self._replay(captured, key)
            buffers.drafts[index, :reqs].copy_(buffers.step_drafts[:reqs])


def _rows(captured: Captured, k: int, reqs: int) -> torch.Tensor:
    """A copy of the drafts, [reqs, k]: another stream may still read it after the next replay."""
    return captured.buffers.drafts[:k, :reqs].t().clone(memory_format=torch.contiguous_format)
