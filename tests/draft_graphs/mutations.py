"""The bugs that the proof must catch: each a small change of the module, and what catches it.

A mutation that nothing catches means that the proof is too weak, or that the code it changes is
not needed. `docs/mutations.md` is this table, written out by `render`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What shows the mutation: wrong counts of accepted drafts; the audit around every call; the
#: module's own address check; an error while serving; the graph double refusing; the graphs not
#: being used, or used for what they must not be.
Catcher = Literal["acceptance", "audit", "address check", "error", "graph double", "use"]


@dataclass(frozen=True)
class Mutation:
    """One bug.

    :ivar stands_for: "defect N" of the closed upstream change, "hazard N" of the table of capture
        hazards, or what else it is about.
    :ivar changes: (file of the package, old text, new text).
    :ivar says: a part of what the error, or the module's warning, must say.
    """

    name: str
    stands_for: str
    changes: tuple[tuple[str, str, str], ...]
    catcher: Catcher
    mode: str = "loop"
    says: str = ""
    check: bool = True


def _one(file: str, old: str, new: str) -> tuple[tuple[str, str, str], ...]:
    return ((file, old, new),)


MUTATIONS = (
    # ---- the closed change's defects
    Mutation(
        "the largest graph is registered but not captured",
        "defect 1",
        _one(
            "graphs.py",
            "self._capture_keys(runner, plan, plan)",
            "self._capture_keys(runner, plan, plan[1:])",
        ),
        "error",
        says="KeyError",
    ),
    Mutation(
        "a graph is captured with a request less than it stands for",
        "defect 2",
        _one("passes.py", "reqs = key.num_reqs\n", "reqs = max(1, key.num_reqs - 1)\n"),
        "acceptance",
    ),
    Mutation(
        "the first pass and the later ones share a key",
        "defect 3",
        _one(
            "graphs.py",
            "captured.graphs[key].replay()",
            "next(g for k, g in captured.graphs.items() if k.num_reqs == key.num_reqs).replay()",
        ),
        "acceptance",
    ),
    Mutation(
        "later passes keep the query offsets of the first",
        "defect 4",
        _one(
            "passes.py",
            "query_start_loc=buffers.query_start_loc[query_len]",
            "query_start_loc=buffers.query_start_loc[self.k + 1]",
        ),
        "acceptance",
    ),
    Mutation(
        "the offsets of padded rows hold the total, so the first padded row gets a huge query",
        "defect 5",
        _one(
            "staging.py",
            "        self.hidden.copy_(_cut(target_hidden_states, tokens))\n",
            "        self.hidden.copy_(_cut(target_hidden_states, tokens))\n"
            "        self.offsets[reqs + 1 :] = self.offsets[-1].clone()\n",
        )
        + _one(
            "staging.py",
            "        self.reqs, self.tokens = reqs, tokens\n",
            "        self.reqs, self.tokens = reqs, tokens\n"
            "        self.offsets = buffers.query_start_loc[padded_tokens // padded][: padded + 1]\n",
        ),
        "audit",
        says="longer than max_query_len",
    ),
    Mutation(
        "the runner's query offsets are written in place",
        "defect 6",
        _one(
            "graphs.py",
            "        self._replay(captured, first)\n",
            "        cad.query_start_loc.copy_(captured.buffers.query_start_loc[1][: reqs + 1])\n"
            "        self._replay(captured, first)\n",
        ),
        "audit",
        says="query_start_loc",
    ),
    Mutation(
        "padded rows sample where the last request does",
        "defect 7",
        _one(
            "staging.py",
            "buffers.last_of_each[reqs:padded],",
            "buffers.last_of_each[reqs - 1 : reqs].expand(padded - reqs),",
        ),
        "acceptance",
    ),
    Mutation(
        "the model is replaced by a wrapper",
        "defect 8",
        _one(
            "graphs.py",
            "    return DraftGraphs(proposer, mode=mode,",
            "    model = proposer.model\n"
            "    proposer.model = torch.nn.Module()\n"
            "    proposer.model.forward = lambda **kwargs: model(**kwargs)\n"
            "    return DraftGraphs(proposer, mode=mode,",
        ),
        "use",
    ),
    Mutation(
        "the warm-up finds stale slots",
        "defect 11",
        _one(
            "buffers.py",
            "        proposer._slot_mapping_buffer[:tokens].fill_(PADDING_SLOT)\n",
            "",
        ),
        "audit",
        says="capture: wrote KV cells",
    ),
    # ---- the hazards of capturing
    Mutation(
        "a static tensor is assigned anew after the capture",
        "hazard 1",
        _one(
            "graphs.py",
            "self._captured = self._capture_keys(runner, plan, plan)\n",
            "self._captured = self._capture_keys(runner, plan, plan)\n"
            "            self._captured.buffers.seq_lens = self._captured.buffers.seq_lens.clone()\n",
        ),
        "address check",
        says="draft buffer seq_lens",
    ),
    Mutation(
        "the same, without the address check",
        "hazard 1",
        _one(
            "graphs.py",
            "self._captured = self._capture_keys(runner, plan, plan)\n",
            "self._captured = self._capture_keys(runner, plan, plan)\n"
            "            self._captured.buffers.seq_lens = self._captured.buffers.seq_lens.clone()\n",
        ),
        "graph double",
        says="only the graph still owns",
        check=False,
    ),
    Mutation(
        "the query offsets are made from host data inside the capture",
        "hazard 2",
        _one(
            "passes.py",
            "query_start_loc=buffers.query_start_loc[query_len][: reqs + 1]",
            "query_start_loc=torch.tensor(range(0, tokens + 1, query_len), dtype=torch.int32)",
        ),
        "graph double",
        says="torch.tensor",
    ),
    Mutation(
        "rejected tokens are not taken off the lengths after the first graph",
        "hazard 3",
        _one(
            "passes.py",
            "        torch.sub(\n            buffers.seq_lens[:reqs], buffers.rejected[:reqs], out=buffers.step_seq_lens[:reqs]\n        )\n",
            "        buffers.step_seq_lens[:reqs].copy_(buffers.seq_lens[:reqs])\n",
        ),
        "acceptance",
    ),
    Mutation(
        "rejected tokens are not taken off the lengths after upstream's first pass",
        "hazard 3",
        _one(
            "staging.py",
            "torch.sub(_cut(seq_lens, self.reqs), rejected, out=self.seq_lens)",
            "self.seq_lens.copy_(_cut(seq_lens, self.reqs))",
        ),
        "acceptance",
    ),
    Mutation(
        "rejected tokens are taken off the runner's own lengths",
        "hazard 3",
        _one(
            "staging.py",
            "torch.sub(_cut(seq_lens, self.reqs), rejected, out=self.seq_lens)",
            "self.seq_lens.copy_(_cut(seq_lens, self.reqs).sub_(rejected))",
        ),
        "audit",
        says="seq_lens, which is the runner's, was written",
    ),
    Mutation(
        "the slots of padded rows stay what they were",
        "hazard 4",
        _one(
            "staging.py",
            "            self.int64.append(proposer._slot_mapping_buffer[tokens:padded_tokens])\n"
            "            self.int64_tail.append(buffers.padding_slots[: padded_tokens - tokens])\n",
            "",
        ),
        "audit",
        says="wrote KV cells",
    ),
    Mutation(
        "neither the blocks nor the slots of padded rows are padded in later passes",
        "hazard 4",
        _one(
            "passes.py",
            "            slots.bitwise_or_(buffers.padding_bits[:reqs])\n",
            "            pass\n",
        )
        + _one("staging.py", "            self.block_table_tail.zero_()\n", "            pass\n"),
        "audit",
        says="wrote KV cells",
    ),
    Mutation(
        "the largest length is that of the capture",
        "hazard 6",
        _one("passes.py", "max_seq_len=self.proposer.max_model_len", "max_seq_len=query_len"),
        "audit",
        says="longer than max_seq_len",
    ),
    Mutation(
        "the query length of the first pass is baked as one",
        "hazard 6",
        _one("passes.py", "max_query_len=query_len", "max_query_len=1"),
        "audit",
        says="longer than max_query_len",
    ),
    Mutation(
        "a length is read by the host inside the capture",
        "hazard 6",
        _one(
            "passes.py",
            "max_seq_len=self.proposer.max_model_len",
            "max_seq_len=int(seq_lens[:reqs].max())",
        ),
        "graph double",
        says="_local_scalar_dense",
    ),
    Mutation(
        "the number of tokens is a token short",
        "hazard 6",
        _one("passes.py", "num_actual_tokens=tokens", "num_actual_tokens=tokens - 1"),
        "acceptance",
    ),
    Mutation(
        "the drafts of later passes are not kept",
        "hazard 10",
        _one(
            "passes.py",
            "drafts.copy_(proposer._greedy_sample(last))",
            "proposer._greedy_sample(last)",
        ),
        "acceptance",
    ),
    Mutation(
        "the caller gets a view of what the next replay writes",
        "hazard 10",
        _one("graphs.py", ".t().clone(memory_format=torch.contiguous_format)", ".t()"),
        "audit",
        says="memory of a graph",
    ),
    # ---- what a replay must do
    Mutation(
        "nothing is replayed",
        "replay",
        _one("graphs.py", "captured.graphs[key].replay()", "captured.graphs[key]"),
        "acceptance",
    ),
    Mutation(
        "the later passes are not replayed",
        "replay",
        _one(
            "graphs.py",
            "            self._replay_later(captured, later, num_speculative_tokens)\n",
            "            pass\n",
        ),
        "acceptance",
    ),
    Mutation(
        "one step too few is replayed",
        "replay",
        _one("graphs.py", "for index in range(1, k):", "for index in range(1, k - 1):"),
        "acceptance",
        mode="step",
    ),
    Mutation(
        "the columns of the steps are not collected",
        "replay",
        _one(
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
        _one(
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
        _one(
            "passes.py",
            "                drafts[index - 1, :reqs],\n",
            "                drafts[0, :reqs],\n",
        ),
        "acceptance",
    ),
    Mutation(
        "a later pass does not get the hidden states of the one before",
        "replay",
        _one(
            "passes.py",
            "            proposer.hidden_states[:reqs].copy_(hidden)\n",
            "            pass\n",
        ),
        "acceptance",
    ),
    Mutation(
        "the later passes do not get the hidden states of the first",
        "replay",
        _one("passes.py", "        _gather(hidden, indices, proposer.hidden_states[:reqs])\n", ""),
        "acceptance",
    ),
    Mutation(
        "the later passes do not get the positions of the first",
        "replay",
        _one("passes.py", "        proposer.positions[:reqs].copy_(positions)\n", ""),
        "acceptance",
    ),
    Mutation(
        "the metadata is that of the first pass's lengths",
        "replay",
        _one(
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
            _one("staging.py", old, new),
            catcher,
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
                "acceptance",
            ),
            (
                "the lengths",
                "first",
                "_cut(seq_lens, reqs),",
                "self.int32[3].clone(),",
                "acceptance",
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
                "_cut(target_positions, tokens), _cut(slots, tokens)",
                "self.int64[0].clone(), _cut(slots, tokens)",
                "acceptance",
            ),
            (
                "the slots",
                "first",
                "_cut(target_positions, tokens), _cut(slots, tokens)",
                "_cut(target_positions, tokens), self.int64[1].clone()",
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
                "acceptance",
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
        _one(
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
        _one(
            "graphs.py",
            "if cad.max_query_len != query_len or tokens != reqs * query_len:",
            "if False:",
        )
        + _one("keys.py", " or num_tokens * key.num_reqs != key.num_tokens * num_reqs", ""),
        "error",
    ),
    Mutation(
        "a graph for fewer requests than there are is chosen",
        "dispatch",
        _one("keys.py", "key = fits[num_reqs]\n", "key = fits[max(1, num_reqs - 1)]\n")
        + _one("keys.py", " or num_tokens * key.num_reqs != key.num_tokens * num_reqs", ""),
        "error",
    ),
)
