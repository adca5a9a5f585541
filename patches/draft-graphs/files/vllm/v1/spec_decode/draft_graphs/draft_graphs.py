# SPDX-License-Identifier: Apache-2.0
"""The life-cycle of a proposer's draft graphs: profile, capture, serve, withdraw."""

from __future__ import annotations

import time
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.v1 import overlay_effects

from . import messages, ranks
from .capture import Captured, CaptureFailed, capture_keys
from .facts import late_facts
from .graph_backend import GraphBackend
from .keys import FEATURE, DraftKey, plan_keys
from .policy import Decision, Facts, Mode, decide
from .replay import Replay

logger = init_logger(__name__)

# Upstream's profile counts at least this much for each graph beside the largest (bytes).
LEAST_PER_GRAPH = 1 << 20


class DraftGraphs:
    """The draft graphs of one proposer.

    Until `capture` has succeeded, and again once they were withdrawn, `propose` and `later_steps`
    return None: vLLM drafts as upstream.
    """

    def __init__(
        self, proposer: Any, *, mode: Mode, backend: GraphBackend, check: bool, facts: Facts
    ) -> None:
        self.mode = mode
        self.check = check
        self.replay: Replay | None = None
        self.withdrawn: str | None = None
        self._proposer = proposer
        self._backend = backend
        self._facts = facts
        self._unprofiled: str | None = None
        # Whether `capture` has logged its outcome.
        self._outcome_logged = False

    @property
    def captured(self) -> Captured | None:
        """The graphs and their memory; None before the capture and once they were withdrawn."""
        return None if self.replay is None else self.replay.captured

    # ---- capture

    def capture(self, runner: Any) -> None:
        """Capture every graph that the policy grants, or none, and log the outcome in one line.

        Called inside vLLM's `graph_capture()`, after the target's graphs. May be called again:
        earlier graphs are dropped first. Raises nothing for a failed capture: all draft keys are
        withdrawn, a warning gives the reason, and vLLM drafts as upstream.
        """
        self.release()
        self.withdrawn = None
        self._outcome_logged = True
        try:
            decision, plan = self._plan()
        except Exception as error:  # the same on all ranks; vLLM serves without draft graphs
            logger.debug("Draft graphs: the failed plan", exc_info=True)
            self.withdraw(messages.reason_of(error))
            return
        if not plan:
            self._refuse(decision)
            return
        started, free = time.perf_counter(), self._backend.free_memory()
        try:
            captured = capture_keys(
                self._proposer, runner, self._backend, plan, plan, check=self.check
            )
        except CaptureFailed as failure:
            logger.debug("Draft graphs: the failed capture", exc_info=True)
            self.withdraw(str(failure))
            return
        self.replay = Replay(self._proposer, captured, self._facts)
        for key in plan:
            self._proposer.cudagraph_dispatcher.add_draft_key(key)
        memory = max(free - self._backend.free_memory(), 0)
        seconds = time.perf_counter() - started
        self._log(messages.captured_line(self.mode, plan, decision.notes, memory, seconds))
        if decision.untried and ranks.writes_log():
            # Granted without the switch, it was granted before there was a table of evidence.
            say = logger.warning if self._facts.untried else logger.info
            say("%s", messages.untried_line(decision.untried))
        if self._unprofiled is not None and ranks.writes_log():
            logger.warning("%s", messages.unprofiled_line(self._unprofiled, memory))
        self._unprofiled = None
        overlay_effects.active(
            FEATURE, f"{len(plan)} graphs, K={plan[0].k}: {messages.captured_sizes(plan)}"
        )

    def profile(self, runner: Any) -> int:
        """Bytes that `capture` will take, measured on the two largest graphs of each role.

        Called inside `graph_capture()` while vLLM has a minimal KV cache. Keeps nothing. Returns 0
        after a failure: `capture` will fail in the same way and log it, or warn that the KV cache
        was sized without the draft graphs' memory.
        """
        self.release()
        self._unprofiled = None
        try:
            _, plan = self._plan()
        except Exception:  # `capture` fails in the same way, and logs it
            logger.debug("Draft graphs: the failed plan", exc_info=True)
            return 0
        if not plan:
            return 0
        free = self._backend.free_memory()
        samples: dict[tuple[str, bool], list[int]] = {}

        def sample(key: DraftKey) -> None:
            nonlocal free
            now = self._backend.free_memory()
            samples.setdefault((key.role, key.sampled), []).append(max(free - now, 0))
            free = now

        roles: dict[tuple[str, bool], list[DraftKey]] = {}
        for key in plan:
            roles.setdefault((key.role, key.sampled), []).append(key)
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
        if self.replay is not None:
            self._backend.synchronize()
            self.replay = None

    def withdraw(self, reason: str) -> None:
        """Run no draft graph from now on: vLLM drafts as upstream. Warns once."""
        self.release()
        if self.withdrawn is None:
            logger.warning("%s", messages.withdrawn_line(reason))
        self.withdrawn = reason
        overlay_effects.idle(FEATURE, f"withdrawn: {reason}")

    def _plan(self) -> tuple[Decision, list[DraftKey]]:
        """What the policy decides once vLLM captures, and the keys to capture for it."""
        facts = late_facts(self._facts, self._proposer, self._backend)
        decision = decide(self.mode, facts)
        drafter = facts.drafter
        if drafter is None or not decision.any:
            return decision, []
        return decision, plan_keys(
            k=facts.num_speculative_tokens,
            max_num_seqs=facts.max_num_seqs or 0,
            max_capture_tokens=facts.max_capture_tokens or 0,
            first=decision.first,
            later=decision.later,
            extra=drafter.extra,
            one_pass=drafter.one_pass,
            sampled=decision.sampled,
        )

    # ---- serving

    def propose(self, **batch: Any) -> torch.Tensor | None:
        """All drafts of a uniform batch, or None where upstream drafts; see `Replay.propose`."""
        replay = self._usable_replay()
        return None if replay is None else replay.propose(**batch)

    def later_steps(self, **batch: Any) -> torch.Tensor | None:
        """All drafts after upstream's first pass, or None; see `Replay.later_steps`."""
        replay = self._usable_replay()
        return None if replay is None else replay.later_steps(**batch)

    def _usable_replay(self) -> Replay | None:
        """The replay of the captured graphs; None without any.

        vLLM makes another list of attention groups whenever it initializes a KV cache, and graphs
        of the previous one would write to freed memory.
        """
        replay = self.replay
        if replay is None:
            if not self._outcome_logged:
                self._log_never_captured()
            return None
        if replay.captured.attn_groups is not self._proposer.draft_attn_groups:
            self.withdraw("the KV cache was initialized again after the capture")
            return None
        return replay

    # ---- upstream's own passes

    def token_counts(self, num_tokens: int) -> torch.Tensor | None:
        """The token counts of all data-parallel ranks for a pass that upstream's code runs.

        Returns [ranks] int32, in place of upstream's agreement between the ranks: where draft
        graphs are wanted at all, every rank drafts for itself. None without data parallelism.
        """
        return ranks.token_counts(self._proposer.vllm_config, num_tokens)

    def before_dummy_run(self) -> None:
        """Keep the dummy passes of an idle data-parallel rank from writing to the KV cache.

        Upstream runs them with the slots of the last draft pass, and so with tokens and hidden
        states that need not be those of these slots.
        """
        self._proposer._slot_mapping_buffer.fill_(-1)

    # ---- log

    def _log_never_captured(self) -> None:
        """Log that vLLM captured nothing, as when it lowers the mode for an attention backend."""
        self._outcome_logged = True
        mode = self._proposer.vllm_config.compilation_config.cudagraph_mode.name
        reason = f"vLLM captured no graphs (cudagraph mode {mode})"
        self._refuse(Decision(refusals=(reason,)))

    def _refuse(self, decision: Decision) -> None:
        """Log and report why there are no draft graphs."""
        self._log(messages.refused_line(self.mode, decision))
        overlay_effects.idle(FEATURE, "; ".join(decision.refusals))

    def _log(self, line: str) -> None:
        if ranks.writes_log():
            logger.info("%s", line)
