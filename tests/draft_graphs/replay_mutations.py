# ruff: noqa: E501 - lines of code are quoted whole
"""The mutations of what stages, dispatches and replays, and of the hooks."""

from __future__ import annotations

from typing import cast

from tests.draft_graphs.mutation_types import Catcher, Mutation, one
from tests.draft_graphs.package_copies import HOOKED

REPLAY_MUTATIONS = (
    # ---- what a replay must do
    Mutation(
        "nothing is replayed",
        "replay",
        one("graphs.py", "captured.graphs[key].replay()", "captured.graphs[key]"),
        "acceptance",
    ),
    Mutation(
        "the later passes are not replayed",
        "replay",
        one(
            "graphs.py",
            "            self._replay_later(captured, later, num_speculative_tokens)\n",
            "            pass\n",
        ),
        "acceptance",
    ),
    Mutation(
        "one step too few is replayed",
        "replay",
        one("graphs.py", "for index in range(1, k):", "for index in range(1, k - 1):"),
        "acceptance",
        mode="step",
    ),
    Mutation(
        "the columns of the steps are not collected",
        "replay",
        one(
            "graphs.py",
            "            buffers.drafts[index, :reqs].copy_(buffers.step_drafts[:reqs])\n",
            "",
        ),
        "acceptance",
        mode="step",
    ),
    Mutation(
        "the first step does not get the first pass's token",
        "replay",
        one(
            "passes.py",
            "            buffers.step_drafts[:reqs].copy_(draft)\n",
            "            pass\n",
        ),
        "acceptance",
        mode="step",
    ),
    Mutation(
        "a step does not get the token of the one before",
        "replay",
        one(
            "passes.py",
            "                drafts[index - 1, :reqs],\n",
            "                drafts[0, :reqs],\n",
        ),
        "acceptance",
    ),
    Mutation(
        "a later pass does not get the hidden states of the one before",
        "replay",
        one(
            "passes.py",
            "            proposer.hidden_states[:reqs].copy_(hidden)\n",
            "            pass\n",
        ),
        "acceptance",
    ),
    Mutation(
        "the later passes do not get the hidden states of the first",
        "replay",
        one("passes.py", "        _gather(hidden, indices, proposer.hidden_states[:reqs])\n", ""),
        "acceptance",
    ),
    Mutation(
        "the later passes do not get the positions of the first",
        "replay",
        one(
            "passes.py",
            "        positions[:reqs].copy_(positions[:tokens].index_select(0, indices))\n",
            "",
        ),
        "audit",
    ),
    Mutation(
        "the metadata is that of the first pass's lengths",
        "replay",
        one(
            "passes.py",
            "self._forward(reqs, 1, buffers.step_seq_lens",
            "self._forward(reqs, 1, buffers.seq_lens",
        ),
        "acceptance",
    ),
    # ---- what staging must do
    *(
        Mutation(
            f"{what} stay what they were ({kind})",
            "staging",
            one("staging.py", old, new),
            cast(Catcher, catcher),
            # Only this draft reads the past through the tokens that it is given.
            engine="eagle3" if what == "the target's tokens" else "eagle3hid",
        )
        for what, kind, old, new, catcher in (
            (
                "the target's tokens",
                "first",
                "target_token_ids[1:tokens],",
                "self.int32[0].clone(),",
                "acceptance",
            ),
            (
                "the next tokens",
                "first",
                "_cut(next_token_ids, reqs),",
                "self.int32[1].clone(),",
                "acceptance",
            ),
            (
                "the sample indices",
                "first",
                "self.last_of_each if token_indices_to_sample is None else token_indices_to_sample,",
                "self.int32[2].clone(),",
                "audit",
            ),
            (
                "the lengths",
                "first",
                "_cut(seq_lens, reqs),",
                "self.int32[3].clone(),",
                "audit",
            ),
            (
                "the rejected tokens",
                "first",
                "self.no_rejected if num_rejected is None else num_rejected,",
                "self.int32[4].clone(),",
                "acceptance",
            ),
            (
                "the positions",
                "first",
                "int64.append(_cut(target_positions, tokens))",
                "int64.append(self.int64[-1].clone())",
                "audit",
            ),
            (
                "the slots",
                "first",
                "int64 = [_cut(slots, tokens), ",
                "int64 = [self.int64[0].clone(), ",
                "audit",
            ),
            (
                "the hidden states",
                "first",
                "self.hidden.copy_(_cut(target_hidden_states, tokens))",
                "pass",
                "acceptance",
            ),
            (
                "the blocks",
                "first",
                "int32.append(block_table)",
                "int32.append(self.rows.block_table.clone())",
                "audit",
            ),
            (
                "the blocks",
                "later",
                "            self.rows.block_table.copy_(block_table)\n",
                "            pass\n",
                "audit",
            ),
            (
                "the positions",
                "later",
                "[positions, draft_token_ids, draft_token_ids,",
                "[self.int64[0].clone(), draft_token_ids, draft_token_ids,",
                "audit",
            ),
            (
                "the first drafts",
                "later",
                "[positions, draft_token_ids, draft_token_ids,",
                "[positions, self.int64[1].clone(), draft_token_ids,",
                "acceptance",
            ),
            (
                "the hidden states",
                "later",
                "self.hidden.copy_(hidden_states)",
                "pass",
                "acceptance",
            ),
        )
    ),
    Mutation(
        "destinations are kept for another number of requests",
        "staging",
        one(
            "graphs.py",
            "staging = captured.first_staging.get((first, mask, reqs))",
            "staging = next((s for (f, *_), s in captured.first_staging.items() if f == first), None)",
        ),
        "error",
    ),
    # ---- which batches may run
    Mutation(
        "a batch with prefill in it is taken for a uniform one",
        "dispatch",
        one(
            "graphs.py",
            "if cad.max_query_len != query_len or tokens != reqs * query_len:",
            "if False:",
        )
        + one("keys.py", " or num_tokens * key.num_reqs != key.num_tokens * num_reqs", ""),
        "error",
    ),
    Mutation(
        "a graph for fewer requests than there are is chosen",
        "dispatch",
        one("keys.py", "key = fits[num_reqs]\n", "key = fits[max(1, num_reqs - 1)]\n")
        + one("keys.py", " or num_tokens * key.num_reqs != key.num_tokens * num_reqs", ""),
        "acceptance",
    ),
    Mutation(
        "uniform batches are left to upstream",
        "dispatch",
        one(
            "graphs.py",
            "        if mm_embed_inputs is not None and mm_embed_inputs[0]:",
            "        if True:",
        ),
        "use",
    ),
    # ---- the hooks in upstream's `propose`
    Mutation(
        "upstream drafts once more what a graph has drafted",
        "hooks",
        one(
            HOOKED,
            "            mm_embed_inputs=mm_embed_inputs,\n"
            "            num_rejected_tokens_gpu=num_rejected_tokens_gpu,\n"
            "        )\n"
            "        if graph_draft_token_ids is not None:",
            "            mm_embed_inputs=mm_embed_inputs,\n"
            "            num_rejected_tokens_gpu=num_rejected_tokens_gpu,\n"
            "        )\n"
            "        if False:",
        ),
        "use",
    ),
    Mutation(
        "upstream runs the later passes once more",
        "hooks",
        one(
            HOOKED,
            "            sampling_metadata=sampling_metadata,\n"
            "            num_rejected_tokens_gpu=num_rejected_tokens_gpu,\n"
            "        )\n"
            "        if graph_draft_token_ids is not None:",
            "            sampling_metadata=sampling_metadata,\n"
            "            num_rejected_tokens_gpu=num_rejected_tokens_gpu,\n"
            "        )\n"
            "        if False:",
        ),
        "use",
    ),
    Mutation(
        "the hidden states of all tokens are handed over instead of those that are sampled",
        "hooks",
        one(
            HOOKED,
            "            hidden_states=hidden_states,\n            common",
            "            hidden_states=last_hidden_states[:batch_size],\n            common",
        ),
        "acceptance",
    ),
)
