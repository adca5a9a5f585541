# ruff: noqa: E501 - lines of code are quoted whole
"""The closed change's defects as mutations, and the hazards of capturing."""

from __future__ import annotations

from tests.draft_graphs.mutation_types import Mutation, one

CAPTURE_MUTATIONS = (
    # ---- the closed change's defects
    Mutation(
        "the largest graph is registered but not captured",
        "defect 1",
        one(
            "graphs.py",
            "self._backend, plan, plan, check=",
            "self._backend, plan, plan[1:], check=",
        ),
        "error",
        says="KeyError",
    ),
    Mutation(
        "a graph is captured with a request less than it stands for",
        "defect 2",
        one("passes.py", "reqs = key.num_reqs\n", "reqs = max(1, key.num_reqs - 1)\n"),
        "acceptance",
    ),
    Mutation(
        "the first pass and the later ones share a key",
        "defect 3",
        one(
            "graphs.py",
            "captured.graphs[key].replay()",
            "next(g for k, g in captured.graphs.items() if k.num_reqs == key.num_reqs).replay()",
        ),
        "error",
        says="IndexError: index out of range",
    ),
    Mutation(
        "later passes keep the query offsets of the first",
        "defect 4",
        one(
            "passes.py",
            "query_start_loc=buffers.query_start_loc[query_len]",
            "query_start_loc=buffers.query_start_loc[self.k + 1]",
        ),
        "audit",
    ),
    Mutation(
        "the offsets of padded rows hold the total, so the first padded row gets a huge query",
        "defect 5",
        one(
            "staging.py",
            "        self.hidden.copy_(_cut(target_hidden_states, tokens))\n",
            "        self.hidden.copy_(_cut(target_hidden_states, tokens))\n"
            "        self.offsets[reqs + 1 :] = self.offsets[-1].clone()\n",
        )
        + one(
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
        one(
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
        one(
            "staging.py",
            "buffers.last_of_each[reqs:padded],",
            "buffers.last_of_each[reqs - 1 : reqs].expand(padded - reqs),",
        ),
        "acceptance",
    ),
    Mutation(
        "the model is replaced by a wrapper",
        "defect 8",
        one(
            "entries.py",
            "    return DraftGraphs(proposer, mode=mode,",
            "    import torch\n\n"
            "    model = proposer.model\n"
            "    proposer.model = torch.nn.Module()\n"
            "    proposer.model.forward = lambda **kwargs: model(**kwargs)\n"
            "    return DraftGraphs(proposer, mode=mode,",
        ),
        "error",
        says="'Module' object has no attribute 'compute_logits'",
    ),
    Mutation(
        "no warm-up before a capture",
        "capture",
        one(
            "capture.py",
            "        self.passes.body(key, mask=True)()\n        backend.synchronize()\n",
            "",
        ),
        "graph double",
        tunes=True,
    ),
    Mutation(
        "the warm-up finds stale slots",
        "defect 11",
        one(
            "buffers.py",
            "        proposer._slot_mapping_buffer[:tokens].fill_(PADDING_SLOT)\n",
            "",
        ),
        "audit",
        says="capture: wrote KV slots",
    ),
    Mutation(
        "sampled drafts are drawn in the graph",
        "defect 10",
        one(
            "graphs.py",
            "        if self._facts.probabilistic and not sampling_metadata.all_greedy:\n            return False\n",
            "",
        ),
        "use",
        engine="sampled drafts",
    ),
    # ---- the hazards of capturing
    Mutation(
        "a static tensor is assigned anew after the capture",
        "hazard 1",
        one(
            "graphs.py",
            "plan, plan, check=self.check\n            )\n",
            "plan, plan, check=self.check\n            )\n"
            "            buffers = self._captured.buffers\n"
            "            buffers.seq_lens = buffers.seq_lens.clone()\n",
        ),
        "address check",
        says="draft buffer seq_lens",
    ),
    Mutation(
        "the same, without the address check",
        "hazard 1",
        one(
            "graphs.py",
            "plan, plan, check=self.check\n            )\n",
            "plan, plan, check=self.check\n            )\n"
            "            buffers = self._captured.buffers\n"
            "            buffers.seq_lens = buffers.seq_lens.clone()\n",
        ),
        "graph double",
        says="only the graph still owns",
        check=False,
    ),
    Mutation(
        "the query offsets are made from host data inside the capture",
        "hazard 2",
        one(
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
        one(
            "passes.py",
            "        torch.sub(\n            buffers.seq_lens[:reqs], buffers.rejected[:reqs], out=buffers.step_seq_lens[:reqs]\n        )\n",
            "        buffers.step_seq_lens[:reqs].copy_(buffers.seq_lens[:reqs])\n",
        ),
        "acceptance",
    ),
    Mutation(
        "rejected tokens are not taken off the lengths after upstream's first pass",
        "hazard 3",
        one(
            "staging.py",
            "torch.sub(_cut(seq_lens, self.reqs), rejected, out=self.seq_lens)",
            "self.seq_lens.copy_(_cut(seq_lens, self.reqs))",
        ),
        "acceptance",
    ),
    Mutation(
        "rejected tokens are taken off the runner's own lengths",
        "hazard 3",
        one(
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
        one(
            "staging.py",
            "            self.int64.insert(1, proposer._slot_mapping_buffer[tokens:padded_tokens])\n"
            "            self.int64_tail.insert(0, buffers.padding_slots[: padded_tokens - tokens])\n",
            "",
        ),
        "audit",
        says="wrote KV slots",
    ),
    Mutation(
        "neither the blocks nor the slots of padded rows are padded in later passes",
        "hazard 4",
        one(
            "passes.py",
            "            slots.bitwise_or_(buffers.padding_bits[:reqs])\n",
            "            pass\n",
        )
        + one("staging.py", "            self.block_table_tail.zero_()\n", "            pass\n"),
        "audit",
        says="wrote KV slots",
    ),
    Mutation(
        "the metadata, and with it the kernel's block table, is made outside the graph",
        "hazard 5",
        one(
            "passes.py",
            "        _, metadata = proposer.build_per_group_and_layer_attn_metadata(\n"
            "            self.metadata(reqs, query_len, seq_lens), draft_index=draft_index\n"
            "        )\n",
            "        made = vars(self).setdefault('made', {})\n"
            "        if (reqs, query_len) not in made:\n"
            "            made[reqs, query_len] = proposer.build_per_group_and_layer_attn_metadata(\n"
            "                self.metadata(reqs, query_len, seq_lens), draft_index=draft_index\n"
            "            )[1]\n"
            "        metadata = made[reqs, query_len]\n",
        ),
        "acceptance",
        engine="kernel blocks",
    ),
    Mutation(
        "the largest length is that of the capture",
        "hazard 6",
        one("passes.py", "max_seq_len=self.proposer.max_model_len", "max_seq_len=query_len"),
        "audit",
        says="longer than max_seq_len",
    ),
    Mutation(
        "the query length of the first pass is baked as one",
        "hazard 6",
        one("passes.py", "max_query_len=query_len", "max_query_len=1"),
        "audit",
        says="longer than max_query_len",
    ),
    Mutation(
        "a length is read by the host inside the capture",
        "hazard 6",
        one(
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
        one("passes.py", "num_actual_tokens=tokens", "num_actual_tokens=tokens - 1"),
        "acceptance",
    ),
    Mutation(
        "the drafts of later passes are not kept",
        "hazard 10",
        one(
            "passes.py",
            "drafts.copy_(greedy_sample(proposer, last))",
            "greedy_sample(proposer, last)",
        ),
        "acceptance",
    ),
    Mutation(
        "the caller gets a view of what the next replay writes",
        "hazard 10",
        one("graphs.py", ".t().clone(memory_format=torch.contiguous_format)", ".t()"),
        "audit",
        says="memory of a graph",
    ),
    Mutation(
        "the largest part of a row is added as one token, not as many as it has",
        "sampling",
        one("greedy.py", "alpha=size // parts", "alpha=1")
        + one("greedy.py", "if size in _ONE_BLOCK", "if size not in _ONE_BLOCK"),
        "acceptance",
    ),
)
