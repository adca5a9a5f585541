"""The bugs of drafting together that `test_together.py` must catch, and what nothing here can show.

A number is that of a hazard of drafting on many GPUs: what parts ranks that must stay together.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.code_edits import Edit


@dataclass(frozen=True)
class TogetherMutation:
    """One bug.

    :ivar stands_for: "many GPUs N" of the hazards of drafting on many GPUs, or as in
        `mutation_types.Mutation`.
    :ivar change: as `tests.support.code_edits` makes it.
    :ivar test: the name of the test that fails, and its arguments.
    """

    name: str
    stands_for: str
    change: Edit
    test: str
    arguments: tuple[object, ...] = ()


_PROPOSE = ("replay.py", "Replay.propose")
_PADDED = ("replay.py", "Replay.run_padded")
_LATER_DUMMIES = ("draft_graphs.py", "DraftGraphs.later_dummy_runs")
_HEAR = ("together.py", "Together.hear")

TOGETHER_MUTATIONS = (
    TogetherMutation(
        "nobody looks at the layers of the draft model",
        "defect 9",
        ("coupling.py", "looks_beyond_its_rank", "...", "return False"),
        "test_a_draft_whose_layers_reach_other_ranks_does_not_draft_alone",
    ),
    TogetherMutation(
        "a rank replays the smallest graph that holds its own batch",
        "many GPUs 1",
        (*_PROPOSE, "self._checked(...)", "self._dispatch.uniform(reqs, k, sampled)"),
        "test_the_agreed_size_is_that_of_the_rank_with_most_requests",
    ),
    TogetherMutation(
        "a rank drafts as upstream, alone, what it cannot replay",
        "many GPUs 2",
        ("draft_graphs.py", "DraftGraphs.propose", "self._no_drafts(...)", "None"),
        "test_a_batch_that_no_graph_holds_gets_drafts_of_zeros",
    ),
    TogetherMutation(
        "an idle rank makes upstream's dummy passes while the others replay",
        "many GPUs 2",
        ("draft_graphs.py", "DraftGraphs.dummy_run", "replay.run_padded(*keys)", "return False"),
        "test_the_agreed_size_is_that_of_the_rank_with_most_requests",
    ),
    TogetherMutation(
        "a rank drafts as upstream, alone, what it cannot replay behind a prefill",
        "many GPUs 2",
        ("draft_graphs.py", "DraftGraphs.later_steps", "self._no_drafts(...)", "None"),
        "test_a_batch_that_changes_behind_the_first_pass_gets_drafts_of_zeros",
    ),
    TogetherMutation(
        "an idle rank makes upstream's later passes while the others replay them",
        "many GPUs 2",
        (*_LATER_DUMMIES, "self.replay.run_padded(None, key)", "return False"),
        "test_behind_a_prefill_the_later_passes_have_the_size_of_the_rank_with_most_requests",
    ),
    TogetherMutation(
        "an idle rank offers no graphs for the later passes",
        "many GPUs 2",
        ("draft_graphs.py", "DraftGraphs.dummy_run", "self._offer(0)", "None"),
        "test_behind_a_prefill_the_later_passes_have_the_size_of_the_rank_with_most_requests",
    ),
    TogetherMutation(
        "the offer of one rank is taken for that of all",
        "many GPUs 2",
        (*_HEAR, "max(unpadded) < 0", "min(unpadded) < 0"),
        "test_a_rank_without_these_patches_offers_nothing",
    ),
    TogetherMutation(
        "a rank offers graphs for a batch that none can hold",
        "many GPUs 2",
        (
            "replay.py",
            "Replay.later_requests",
            "self._mismatch(k, common_attn_metadata) is not None",
            "False",
        ),
        "test_one_rank_whose_batch_has_no_graph_leaves_the_later_passes_of_all_to_upstream",
        ("prefill",),
    ),
    TogetherMutation(
        "a rank offers graphs in mode step, as only some of them may",
        "many GPUs 2",
        ("draft_graphs.py", "DraftGraphs.capture", "self._offers = ...", "self._offers = True"),
        "test_in_mode_step_all_passes_behind_a_prefill_are_upstreams",
    ),
    TogetherMutation(
        "the later passes have the size of the rank with the fewest requests",
        "many GPUs 1",
        (*_HEAR, "-1 - min(unpadded)", "-1 - max(unpadded)"),
        "test_behind_a_prefill_the_later_passes_have_the_size_of_the_rank_with_most_requests",
    ),
    TogetherMutation(
        "what was agreed on for the later passes is used again",
        "many GPUs 5",
        (
            "together.py",
            "Together.take_requests",
            "requests, self._requests = ...",
            "requests = self._requests",
        ),
        "test_an_agreement_of_the_drafters_is_used_once",
    ),
    TogetherMutation(
        "what was agreed on for the later passes lasts into the next step",
        "many GPUs 5",
        ("together.py", "Together.take", "self._offered = self._requests = None", "None"),
        "test_an_agreement_of_the_drafters_is_used_once",
    ),
    TogetherMutation(
        "an idle rank replays the first pass alone",
        "many GPUs 3",
        (*_PADDED, "self._run_later(later, self._k)", "None"),
        "test_the_agreed_size_is_that_of_the_rank_with_most_requests",
    ),
    TogetherMutation(
        "an idle rank replays over the rows of its last draft",
        "many GPUs 4",
        (*_PADDED, "self.captured.buffers.pad_all(self._proposer)", "None"),
        "test_an_idle_rank_writes_nothing_behind_its_last_draft",
        (3,),
    ),
    TogetherMutation(
        "graphs in which no smaller batch runs do not mask their slots",
        "many GPUs 4",
        ("capture.py", "Captured.__init__", "together or has_padding(key, plan)", "False"),
        "test_every_graph_of_ranks_that_draft_together_masks_its_slots",
    ),
    TogetherMutation(
        "what was agreed on is used again",
        "many GPUs 5",
        ("together.py", "Together.take", "tokens, self._tokens = ...", "tokens = self._tokens"),
        "test_an_agreement_is_used_once",
    ),
    TogetherMutation(
        "graphs are replayed while vLLM captures",
        "many GPUs 5",
        ("draft_graphs.py", "DraftGraphs.dummy_run", "capturing", "False"),
        "test_an_agreement_is_used_once",
    ),
    TogetherMutation(
        "a rank that failed waits without end for those in an exchange of rows",
        "many GPUs 6",
        ("ranks.py", "_meet", "raise RuntimeError(...) from error", "pass"),
        "test_no_rank_waits_without_end_for_one_that_does_not_vote",
    ),
    TogetherMutation(
        "only tensor-parallel ranks vote on a capture",
        "many GPUs 7",
        (
            "capture.py",
            "_agreed",
            "ranks.all_ranks_agree(True, data_parallel=data_parallel)",
            "ranks.all_ranks_agree(True, data_parallel=False)",
        ),
        "test_data_parallel_ranks_vote_on_each_graph_only_if_they_draft_together",
        (True,),
    ),
    TogetherMutation(
        "a warm-up may move the workspace that the target's graphs read",
        "many GPUs 8",
        ("upstream.py", "fixed_workspace", "manager.lock()", "None"),
        "test_no_capture_moves_the_workspace_that_the_targets_graphs_read",
    ),
    TogetherMutation(
        "ranks go on after a failed capture although their buffers alternate",
        "many GPUs 9",
        ("draft_graphs.py", "DraftGraphs._expect_even_exchanges", "...", "pass"),
        "test_a_failed_capture_stops_ranks_whose_buffers_alternate",
        ("capture",),
    ),
    TogetherMutation(
        "load balancing counts the rows of a rank without requests",
        "many GPUs 11",
        (*_PADDED, "_count_experts_tokens(self._proposer, 0)", "None"),
        "test_load_balancing_is_told_how_many_rows_are_no_padding",
        ("idle", [0]),
    ),
    TogetherMutation(
        "load balancing counts the tokens of the first pass in the later ones",
        "hazard 12",
        (*_PROPOSE, "_count_experts_tokens(self._proposer, reqs)", "None"),
        "test_load_balancing_is_told_how_many_rows_are_no_padding",
        (3, [9, 3]),
    ),
    TogetherMutation(
        "a rank whose KV cache was made again does not veto",
        "many GPUs 13",
        ("draft_graphs.py", "DraftGraphs.vetoes", "self.together.veto(STALE)", "None"),
        "test_a_kv_cache_that_is_made_again_on_one_rank_withdraws_on_all",
    ),
    TogetherMutation(
        "the other ranks do not see the vote to withdraw",
        "many GPUs 13",
        ("draft_graphs.py", "DraftGraphs.counted", "mode != WITHDRAW.value", "True"),
        "test_a_kv_cache_that_is_made_again_on_one_rank_withdraws_on_all",
    ),
    TogetherMutation(
        "ranks do not compare their plans",
        "many GPUs 14",
        ("draft_graphs.py", "DraftGraphs._expect_one_plan", "...", "pass"),
        "test_ranks_with_different_plans_stop_with_a_table",
    ),
)

#: What no machine of the project can show, by hazard.
NOT_SHOWN = {
    6: "how NCCL ends an exchange of rows that a rank has not joined because it failed in its "
    "warm-up: that rank ends after ten minutes, and over gloo the exchange of the others ends with "
    "it (`test_unequal_ranks.py`)",
    10: "exchanges of several NCCL communicators, in graphs and eager, on one stream in one order: "
    "gloo has no streams; on GPUs the cells of `tests/gpu/data_parallel.py` run so",
    12: "the host of a rank runs ahead of the others by up to a step, as with model runner V2 from "
    "0.30 on: a matter of time, not of code",
}
