# SPDX-License-Identifier: Apache-2.0
"""The life-cycle of a proposer's draft graphs: profile, capture, serve, withdraw.

Longer than other modules: all of it reads and changes the state of one object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.v1 import overlay_effects

from . import figures, messages, ranks, upstream
from .capture import Captured, CaptureFailed, capture_keys
from .dispatch import Keys
from .facts import late_facts
from .graph_backend import GraphBackend
from .keys import FEATURE, DraftKey, plan_keys
from .policy import LET_VLLM_CAPTURE, Decision, Facts, Mode, decide
from .replay import Replay, Unforeseen
from .sizes import most_first_tokens
from .together import WITHDRAW, Together

logger = init_logger(__name__)

#: Captures in a row, each for something that had moved when the next batch came, after which the
#: graphs are withdrawn: that moves with every batch.
MOST_IN_A_ROW = 3
#: Why graphs may not be replayed once vLLM has made the KV cache again.
STALE = "the KV cache was initialized again after the capture"
# Upstream's profile counts at least this much for each graph beside the largest (bytes).
LEAST_PER_GRAPH = 1 << 20


class DraftGraphs:
    """The draft graphs of one proposer.

    Until `capture` has succeeded, and again once they were withdrawn, `propose` and `later_steps`
    return None: vLLM drafts as upstream.

    together: what this rank keeps of the data-parallel ranks' agreements; None where it drafts
        without the others.
    """

    def __init__(
        self, proposer: Any, *, mode: Mode, backend: GraphBackend, check: bool, facts: Facts
    ) -> None:
        self.mode = mode
        self.check = check
        self.replay: Replay | None = None
        self.withdrawn: str | None = None
        self.together = Together() if facts.coupling.together else None
        self._proposer = proposer
        self._backend = backend
        self._facts = facts
        self._offers = False
        self._unprofiled: str | None = None
        self._runner: Any = None
        self._captures_in_a_row = 0
        # Whether the graphs' memory was given back for a sleep.
        self._given_back = False
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
        withdrawn, a warning gives the reason, and vLLM drafts as upstream. Where data-parallel
        ranks draft together all of them have to call this.

        Raises RuntimeError if ranks that draft together have different plans, or if they exchange
        rows through DeepEP's low-latency buffers and a capture failed.
        """
        # Over fifty lines: one sequence, in which each step has its own way to fail.
        self.release()
        self.withdrawn = None
        self._runner = runner
        self._outcome_logged = True
        self._given_back = False
        self._forget_agreements()
        try:
            facts, decision, plan = self._plan()
        except Exception as error:
            logger.debug("Draft graphs: the failed plan", exc_info=True)
            # Other ranks may have a plan, and show it to all before they act on it.
            self._expect_one_plan({"error": messages.reason_of(error)})
            self.withdraw(messages.reason_of(error))
            return
        self._expect_one_plan(messages.plan_table(self.mode, facts, decision, plan))
        if not plan:
            self._refuse(decision)
            return
        started, free = time.perf_counter(), self._backend.free_memory()
        try:
            with upstream.fixed_workspace():
                captured = self._capture_keys(runner, plan, plan, check=self.check)
        except CaptureFailed as failure:
            logger.debug("Draft graphs: the failed capture", exc_info=True)
            self._expect_even_exchanges(str(failure))
            self.withdraw(str(failure))
            return
        self.replay = Replay(self._proposer, captured, self._facts)
        self._offers = decision.offers
        if self._offers:
            upstream.listen_to_agreements(self._heard)
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
        figures.captured(plan, memory)

    def profile(self, runner: Any) -> int:
        """Bytes that `capture` will take, measured on the two largest graphs of each role.

        Called inside `graph_capture()` while vLLM has a minimal KV cache. Keeps nothing. Returns 0
        after a failure: `capture` will fail in the same way and log it, or warn that the KV cache
        was sized without the draft graphs' memory.
        """
        self.release()
        self._unprofiled = None
        self._forget_agreements()
        try:
            facts, decision, plan = self._plan()
        except Exception as error:  # `capture` fails in the same way, and logs it
            logger.debug("Draft graphs: the failed plan", exc_info=True)
            self._expect_one_plan({"error": messages.reason_of(error)})
            return 0
        self._expect_one_plan(messages.plan_table(self.mode, facts, decision, plan))
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
            self._capture_keys(runner, plan, largest, check=False, after_each=sample)
        except CaptureFailed as failure:
            logger.debug("Draft graphs: the failed capture of the profile", exc_info=True)
            self._expect_even_exchanges(str(failure))
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
            figures.dropped(self.replay.captured.graphs)
            self.replay = None

    def give_back(self) -> None:
        """Free the graphs with all their memory; the next batch captures them again.

        For a sleep in which all memory is wanted. Ranks that draft together keep theirs: their
        next batches are not captured for in one step.
        """
        if self.together is not None or self.replay is None:
            return
        self.release()
        self._given_back = True
        self._backend.free_memory()  # what PyTorch has cached goes back, too
        self._log(messages.GIVEN_BACK)

    def withdraw(self, reason: str) -> None:
        """Run no draft graph from now on: vLLM drafts as upstream. Warns once."""
        self.release()
        if self.withdrawn is None:
            logger.warning("%s", messages.withdrawn_line(reason))
        self.withdrawn = reason
        overlay_effects.idle(FEATURE, f"withdrawn: {reason}")
        figures.withdrawn()

    def _plan(self) -> tuple[Facts, Decision, list[DraftKey]]:
        """The facts once vLLM captures, what the policy decides, and the keys to capture for it."""
        facts = late_facts(self._facts, self._proposer, self._backend)
        decision = decide(self.mode, facts)
        drafter = facts.drafter
        if drafter is None or not decision.any:
            return facts, decision, []
        return (
            facts,
            decision,
            plan_keys(
                k=facts.num_speculative_tokens,
                max_num_seqs=facts.max_num_seqs or 0,
                max_capture_tokens=facts.max_capture_tokens or 0,
                max_first_tokens=most_first_tokens(facts),
                max_mixed_tokens=decision.mixed_tokens,
                first=decision.first,
                later=decision.later,
                extra=drafter.extra,
                one_pass=drafter.one_pass,
                sampled=decision.sampled,
            ),
        )

    def _capture_keys(
        self,
        runner: Any,
        plan: list[DraftKey],
        keys: list[DraftKey],
        *,
        check: bool,
        after_each: Callable[[DraftKey], None] | None = None,
    ) -> Captured:
        """Capture `keys` of `plan`; see `capture.capture_keys`."""
        return capture_keys(
            self._proposer,
            runner,
            self._backend,
            plan,
            keys,
            check=check,
            together=self.together is not None,
            after_each=after_each,
        )

    def _expect_one_plan(self, plan: Mapping[str, str]) -> None:
        """Raise RuntimeError with a table if ranks that draft together plan differently."""
        if self.together is None:
            return
        lines = ranks.differences(plan)
        if lines:
            raise RuntimeError(messages.different_plans(lines))

    def _expect_even_exchanges(self, reason: str) -> None:
        """Raise RuntimeError if a failed capture may have left the ranks' exchanges out of step."""
        if self.together is not None and self._facts.low_latency_exchange:
            raise RuntimeError(messages.cannot_go_on(reason))

    def _forget_agreements(self) -> None:
        """Start over: what was agreed or vetoed was about other graphs."""
        if self.together is not None:
            self.together = Together()

    # ---- serving

    def propose(self, **batch: Any) -> torch.Tensor | None:
        """All drafts of a uniform batch, or None where upstream drafts; see `Replay.propose`.

        Where data-parallel ranks draft together, None only where all of them get None.
        """
        if self._given_back:
            self._capture_again(messages.AWAKE)
        replay = self._usable_replay()
        if self.together is None:
            replay = self._with_its_reads(replay)
            return None if replay is None else replay.propose(**batch)
        keys = self._agreed_keys(self.together, replay)
        if replay is None:
            return None
        k, cad = batch["num_speculative_tokens"], batch["common_attn_metadata"]
        if keys is None:
            self._offer(replay.later_requests(k, cad, batch["sampling_metadata"]))
            return None
        try:
            return replay.propose(agreed=keys, **batch)
        except Unforeseen as unforeseen:
            return self._no_drafts(unforeseen, *keys, cad)

    def later_steps(self, **batch: Any) -> torch.Tensor | None:
        """All drafts after upstream's first pass, or None; see `Replay.later_steps`.

        Where data-parallel ranks draft together, None only where all of them get None.
        """
        replay = self._usable_replay()
        if replay is None:
            return None
        if self.together is None:
            # Between two passes of a batch nothing can be captured.
            moved = replay.captured.reads.moved()
            return replay.later_steps(**batch) if moved is None else None
        key = self._agreed_later(self.together, replay)
        if key is None:
            return None
        try:
            return replay.later_steps(agreed=key, **batch)
        except Unforeseen as unforeseen:
            return self._no_drafts(unforeseen, None, key, batch["common_attn_metadata"])

    def dummy_run(self, capturing: bool) -> bool:
        """Whether graphs have taken the place of upstream's dummy passes.

        They do so where data-parallel ranks draft together and have agreed on graphs, on a rank
        that has no requests and on one whose input does not fit into the drafter.

        capturing: whether vLLM captures graphs of the draft's passes, or warms up for that.

        Upstream's passes write to the KV cache with the slots of the last draft pass, and so with
        tokens and hidden states that need not be those of these slots; they are taken away.
        """
        self._proposer._slot_mapping_buffer.fill_(-1)
        if self.together is None:
            return False
        replay = self.replay
        keys = self._agreed_keys(self.together, replay)
        if replay is None or capturing:
            return False
        if keys is None:
            self._offer(0)
            return False
        replay.run_padded(*keys)
        return True

    def later_dummy_runs(self) -> bool:
        """Whether graphs have taken the place of upstream's dummy passes after the first one.

        They do so where all data-parallel ranks have agreed on them in that pass.
        """
        if self.together is None or self.replay is None:
            return False
        key = self._agreed_later(self.together, self.replay)
        if key is None:
            return False
        self.replay.run_padded(None, key)
        return True

    def _agreed_keys(self, together: Together, replay: Replay | None) -> Keys | None:
        """The graphs that all ranks replay now; None where all of them draft as upstream."""
        tokens = together.take()
        if replay is None:
            return None
        keys = None if tokens is None else replay.agreed_keys(tokens)
        if keys is None:
            figures.left("first passes", messages.NOT_AGREED)
        return keys

    def _offer(self, requests: int | None) -> None:
        """Offer the others graphs for the later passes, where ranks do; see `Decision.offers`.

        requests: those that this rank drafts for; None if it has no graphs for them.
        """
        if self.together is not None and requests is not None and self._offers:
            self.together.offer(requests)

    def _agreed_later(self, together: Together, replay: Replay) -> DraftKey | None:
        """The graphs that all ranks replay after a first pass of upstream's; None for no graphs."""
        requests = together.take_requests()
        key = None if requests is None else replay.agreed_later(requests)
        if key is None:
            figures.left("later passes", messages.NOT_OFFERED)
        return key

    def _no_drafts(
        self, unforeseen: Unforeseen, first: DraftKey | None, later: DraftKey | None, cad: Any
    ) -> torch.Tensor:
        """Drafts of zeros, [num_reqs, K] int64, for a batch that the agreed graphs do not hold.

        The other ranks are replaying, so this one does, with padded rows, and vetoes the next step.
        Verification keeps the tokens right.
        """
        if self.together is not None and self.replay is not None:
            self.together.veto(str(unforeseen))
            self.replay.run_padded(first, later)
        drafts = (cad.batch_size(), int(self._proposer.num_speculative_tokens))
        return cad.seq_lens.new_zeros(drafts, dtype=torch.int64)

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
        if self.together is None and self._is_stale(replay):
            self.withdraw(STALE)
            return None
        return replay

    def _with_its_reads(self, replay: Replay | None) -> Replay | None:
        """The replay, after another capture if something lies elsewhere that its graphs read.

        None where that fails. All tensor-parallel ranks come to it in the same batch, before
        anything of the batch is in the proposer's buffers.
        """
        moved = None if replay is None else replay.captured.reads.moved()
        if moved is None:
            self._captures_in_a_row = 0
            return replay
        if self._captures_in_a_row == MOST_IN_A_ROW:
            self.withdraw(f"{moved} moves with every batch")
            return None
        self._captures_in_a_row += 1
        self._capture_again(messages.moved_line(moved))
        return self.replay

    def _capture_again(self, line: str) -> None:
        """Capture within a batch, before anything of it is in the proposer's buffers."""
        self._log(line)
        with self._backend.capturing_again():
            self.capture(self._runner)

    def _is_stale(self, replay: Replay) -> bool:
        return replay.captured.attn_groups is not self._proposer.draft_attn_groups

    # ---- agreements between data-parallel ranks

    def agree(self, mode: Any, num_tokens: int) -> None:
        """Keep what the target's batches agreed on for the draft that follows.

        mode: vLLM's CUDAGraphMode; num_tokens: of each rank's batch, padding included.
        """
        if self.together is not None:
            self.together.agree(mode, num_tokens)

    def vetoes(self) -> bool:
        """Whether this rank must not run a FULL graph of the target in the coming step.

        So that no rank replays draft graphs behind it; see `together`.
        """
        if self.together is None or self.replay is None:
            return False
        if self._is_stale(self.replay):
            self.together.veto(STALE)
        elif self.together.vetoed is None:
            moved = self.replay.captured.reads.moved()
            if moved is not None:
                self.together.veto(messages.moved_together(moved))
        return self.together.vetoed is not None

    def token_counts(self, num_tokens: int) -> torch.Tensor | None:
        """The token counts of all data-parallel ranks for a pass that upstream's code runs.

        Returns [ranks] int32, in place of upstream's agreement between the ranks, where each of
        them drafts for itself. None without data parallelism.
        """
        return ranks.token_counts(self._proposer.vllm_config, num_tokens)

    def vote(self, mode: Any) -> Any:
        """This rank's vote where the drafter asks the others; mode: upstream's, a CUDAGraphMode."""
        if self.together is None or self.replay is None:
            return mode
        return self.together.vote(mode)

    def unpadded(self, num_tokens: int) -> int:
        """What this rank gives as its tokens where the drafter asks the others; see `Together`."""
        return num_tokens if self.together is None else self.together.unpadded(num_tokens)

    def _heard(self, tensor: torch.Tensor) -> None:
        """Keep what the ranks offered; tensor: of any agreement, see `upstream.listening`."""
        if self.together is not None and self.together.listens():
            self.together.hear(tensor[0].tolist())

    def counted(self, mode: int) -> int:
        """The value of the cudagraph mode that the drafters agreed on; mode: their least vote.

        Withdraws the graphs, as every other rank does now, if a rank voted for it.
        """
        if mode != WITHDRAW.value:
            return mode
        vetoed = self.together.vetoed if self.together is not None else None
        self.withdraw(vetoed or "another data-parallel rank cannot replay its draft graphs")
        return 0

    # ---- log

    def _log_never_captured(self) -> None:
        """Log that vLLM captured nothing, as when it lowers the mode for an attention backend."""
        self._outcome_logged = True
        mode = self._proposer.vllm_config.compilation_config.cudagraph_mode.name
        reason = f"vLLM captured no graphs, cudagraph mode {mode} ({LET_VLLM_CAPTURE})"
        self._refuse(Decision(refusals=(reason,)))

    def _refuse(self, decision: Decision) -> None:
        """Log and report why there are no draft graphs."""
        self._log(messages.refused_line(self.mode, decision))
        overlay_effects.idle(FEATURE, "; ".join(decision.refusals))

    def _log(self, line: str) -> None:
        if ranks.writes_log():
            logger.info("%s", line)
