"""The mutations of what stages, dispatches and replays, and of the hooks."""

from __future__ import annotations

from typing import cast

from tests.draft_graphs.mutation_types import Catcher, Mutation, one
from tests.draft_graphs.package_copies import HOOKED, PROPOSE

#: What all kinds of first pass have in common.
_SHARED = ("the next tokens", "the lengths", "the rejected tokens", "the blocks")


def _staged_in(what: str, kind: str) -> str:
    """The function that stages a thing for graphs of a kind."""
    shared = kind == "First" and what in _SHARED
    return "_FirstRows.copy" if shared else f"{kind}Staging.stage"


REPLAY_MUTATIONS = (
    # ---- what a replay must do
    Mutation(
        "nothing is replayed",
        "replay",
        one("replay.py", "Replay.run", "captured.graphs[key].replay()", "captured.graphs[key]"),
        "acceptance",
    ),
    Mutation(
        "the later passes are not replayed",
        "replay",
        one("replay.py", "Replay.propose", "self._run_later(later, k)", "None"),
        "acceptance",
    ),
    Mutation(
        "one step too few is replayed",
        "replay",
        one("replay.py", "Replay._run_later", "range(1, k)", "range(1, k - 1)"),
        "acceptance",
        mode="step",
    ),
    Mutation(
        "the columns of the steps are not collected",
        "replay",
        one("replay.py", "Replay._run_later", "buffers.drafts[index, :reqs].copy_(...)", "None"),
        "acceptance",
        mode="step",
    ),
    Mutation(
        "the first step does not get the first pass's token",
        "replay",
        one("passes.py", "Passes._shifted", "buffers.step_drafts[:reqs].copy_(draft)", "None"),
        "acceptance",
        mode="step",
    ),
    Mutation(
        "a step does not get the token of the one before",
        "replay",
        one("passes.py", "Passes.loop", "drafts[index - 1, :reqs]", "drafts[0, :reqs]"),
        "acceptance",
        engine="eagle3",  # which reads the past through its tokens
    ),
    Mutation(
        "a later pass does not get the hidden states of the one before",
        "replay",
        one("passes.py", "Passes._later", "proposer.hidden_states[:reqs].copy_(hidden)", "None"),
        "acceptance",
    ),
    Mutation(
        "the later passes do not get the hidden states of the first",
        "replay",
        one("passes.py", "Passes._shifted", "_gather(...)", "None"),
        "acceptance",
    ),
    Mutation(
        "the later passes do not get the positions of the first",
        "replay",
        one("passes.py", "Passes._shifted", "positions[:reqs].copy_(...)", "None"),
        "audit",
    ),
    Mutation(
        "the metadata is that of the first pass's lengths",
        "replay",
        one(
            "passes.py",
            "Passes._later",
            "self._forward(reqs, 1, buffers.step_seq_lens, draft_index=draft_index)",
            "self._forward(reqs, 1, buffers.seq_lens, draft_index=draft_index)",
        ),
        "acceptance",
    ),
    # ---- what staging must do
    *(
        Mutation(
            f"{what} stay what they were ({kind.lower()})",
            "staging",
            one("staging.py", _staged_in(what, kind), old, new),
            cast("Catcher", catcher),
            # Only this draft reads the past through the tokens that it is given.
            engine="eagle3" if what == "the target's tokens" else "eagle3hid",
        )
        for what, kind, old, new, catcher in (
            (
                "the target's tokens",
                "First",
                "(self.input_ids, ...)",
                "(self.input_ids, self.input_ids.clone())",
                "acceptance",
            ),
            (
                "the next tokens",
                "First",
                "(self.next_tokens, ...)",
                "(self.next_tokens, self.next_tokens.clone())",
                "acceptance",
            ),
            (
                "the sample indices",
                "First",
                "(self.sample_indices, ...)",
                "(self.sample_indices, self.sample_indices.clone())",
                "audit",
            ),
            (
                "the lengths",
                "First",
                "(self.seq_lens, ...)",
                "(self.seq_lens, self.seq_lens.clone())",
                "audit",
            ),
            (
                "the rejected tokens",
                "First",
                "(self.rejected, ...)",
                "(self.rejected, self.rejected.clone())",
                "acceptance",
            ),
            ("the positions", "First", "int64.append(...)", "None", "audit"),
            (
                "the slots",
                "First",
                "(self.slots, ...)",
                "(self.slots, self.slots.clone())",
                "audit",
            ),
            ("the hidden states", "First", "self.hidden.copy_(...)", "None", "acceptance"),
            ("the blocks", "First", "int32.append(...)", "None", "audit"),
            ("the blocks", "Later", "self.rows.copy_block_table(...)", "None", "audit"),
            (
                "the positions",
                "Later",
                "(self.positions, ...)",
                "(self.positions, self.positions.clone())",
                "audit",
            ),
            (
                "the first drafts",
                "Later",
                "(self.first_drafts, ...)",
                "(self.first_drafts, self.first_drafts.clone())",
                "acceptance",
            ),
            ("the hidden states", "Later", "self.hidden.copy_(...)", "None", "acceptance"),
        )
    ),
    Mutation(
        "destinations are kept for another number of requests",
        "staging",
        one(
            "replay.py",
            "Replay._first_staging",
            "self.first_staging.get(...)",
            "next((s for (f, *_), s in self.first_staging.items() if f == first), None)",
        ),
        "error",
    ),
    # ---- which batches may run
    Mutation(
        "a batch with prefill in it is taken for a uniform one",
        "dispatch",
        one(
            "replay.py",
            "Replay.propose",
            "cad.max_query_len == self._k + 1 and tokens == reqs * (self._k + 1)",
            "True",
        )
        + one(
            "keys.py",
            "DraftKeys.dispatch",
            "num_tokens * key.num_reqs != key.num_tokens * num_reqs",
            "False",
        ),
        "error",
    ),
    Mutation(
        "a graph for fewer requests than there are is chosen",
        "dispatch",
        one("keys.py", "DraftKeys.dispatch", "fits[num_reqs]", "fits[max(1, num_reqs - 1)]")
        + one(
            "keys.py",
            "DraftKeys.dispatch",
            "num_tokens * key.num_reqs != key.num_tokens * num_reqs",
            "False",
        ),
        "acceptance",
    ),
    Mutation(
        "uniform batches are left to upstream",
        "dispatch",
        one(
            "replay.py",
            "_other_inputs",
            "mm_embed_inputs is not None and mm_embed_inputs[0]",
            "True",
        ),
        "use",
    ),
    # ---- the hooks in upstream's `propose`
    Mutation(
        "upstream drafts once more what a graph has drafted",
        "hooks",
        one(HOOKED, PROPOSE, "self.draft_graphs.propose(...)", "(MATCH, None)[1]"),
        "use",
    ),
    Mutation(
        "upstream runs the later passes once more",
        "hooks",
        one(HOOKED, PROPOSE, "self.draft_graphs.later_steps(...)", "(MATCH, None)[1]"),
        "use",
    ),
    Mutation(
        "the hidden states of all tokens are handed over instead of those that are sampled",
        "hooks",
        one(
            HOOKED,
            PROPOSE,
            "graph_draft_token_ids = self.draft_graphs.later_steps(...)",
            "hidden_states = last_hidden_states[:batch_size]\nMATCH",
        ),
        "acceptance",
    ),
)
