"""The closed change's defects as mutations, and the hazards of capturing."""

from __future__ import annotations

from tests.draft_graphs.mutation_types import Mutation, one

#: An argmax over two parts of each row that takes a part for one token.
_ONE_TOKEN = """
    halves, places = args[0].unflatten(1, (2, -1)).max(dim=-1)
    part = halves.argmax(dim=-1, keepdim=True)
    return torch.add(places.gather(-1, part), part, alpha=1).squeeze(-1)
"""

CAPTURE_MUTATIONS = (
    # ---- the closed change's defects
    Mutation(
        "the largest graph is registered but not captured",
        "defect 1",
        one(
            "draft_graphs.py",
            "DraftGraphs.capture",
            "self._capture_keys(runner, plan, plan, check=self.check)",
            "self._capture_keys(runner, plan, plan[1:], check=self.check)",
        ),
        "error",
        says="KeyError",
    ),
    Mutation(
        "a graph is captured with a request less than its key says",
        "defect 2",
        one("passes.py", "Passes.body", "key.num_reqs", "max(1, MATCH - 1)"),
        "acceptance",
    ),
    Mutation(
        "the first pass and the later ones share a key",
        "defect 3",
        one(
            "replay.py",
            "Replay.run",
            "captured.graphs[key]",
            "next(g for k, g in captured.graphs.items() if k.num_reqs == key.num_reqs)",
        ),
        "audit",
        says="later_steps with 4 requests: wrote KV slots of others",
    ),
    Mutation(
        "later passes keep the query offsets of the first",
        "defect 4",
        one(
            "passes.py",
            "Passes.metadata",
            "buffers.query_start_loc[query_len]",
            "buffers.query_start_loc[self.k + 1]",
        ),
        "audit",
    ),
    Mutation(
        "the offsets of padded rows hold the total, so the first padded row gets a huge query",
        "defect 5",
        one(
            "staging.py",
            "FirstStaging.stage",
            "self.hidden.copy_(...)",
            "MATCH\nself.offsets[self.rows.reqs + 1 :] = self.offsets[-1].clone()",
        )
        + one(
            "staging.py",
            "FirstStaging.__init__",
            "self.tokens = tokens",
            """
                MATCH
                self.offsets = buffers.query_start_loc[padded_tokens // padded][: padded + 1]
            """,
        ),
        "audit",
        says="longer than max_query_len",
    ),
    Mutation(
        "the runner's query offsets are written in place",
        "defect 6",
        one(
            "replay.py",
            "Replay.propose",
            "self.run(first)",
            """
                cad.query_start_loc.copy_(self.captured.buffers.query_start_loc[1][: reqs + 1])
                MATCH
            """,
        ),
        "audit",
        says="query_start_loc",
    ),
    Mutation(
        "padded rows sample where the last request does",
        "defect 7",
        one(
            "staging.py",
            "FirstStaging.__init__",
            "buffers.last_of_each[reqs:padded]",
            "buffers.last_of_each[reqs - 1 : reqs].expand(padded - reqs)",
        ),
        "acceptance",
    ),
    Mutation(
        "the model is replaced by a wrapper",
        "defect 8",
        one(
            "hooks.py",
            "create_draft_graphs",
            "return DraftGraphs(...)",
            """
                import torch

                model = proposer.model
                proposer.model = torch.nn.Module()
                proposer.model.forward = lambda **kwargs: model(**kwargs)
                MATCH
            """,
        ),
        "error",
        says="'Module' object has no attribute 'compute_logits'",
    ),
    Mutation(
        "no warm-up before a capture",
        "capture",
        one(
            "capture.py",
            "Captured.capture",
            "self.passes.body(key, mask=True)()\nbackend.synchronize()",
            "pass",
        ),
        "graph double",
        tunes=True,
    ),
    Mutation(
        "the warm-up finds stale slots",
        "defect 11",
        one(
            "buffers.py",
            "DraftBuffers.pad_all",
            "proposer._slot_mapping_buffer[:tokens].fill_(...)",
            "None",
        ),
        "audit",
        says="capture: wrote KV slots",
    ),
    # ---- the hazards of capturing
    Mutation(
        "a static tensor is assigned again after the capture",
        "hazard 1",
        one(
            "draft_graphs.py",
            "DraftGraphs.capture",
            "self.replay = Replay(...)",
            "captured.buffers.seq_lens = captured.buffers.seq_lens.clone()\nMATCH",
        ),
        "address check",
        says="draft buffer seq_lens",
    ),
    Mutation(
        "the same, without the address check",
        "hazard 1",
        one(
            "draft_graphs.py",
            "DraftGraphs.capture",
            "self.replay = Replay(...)",
            "captured.buffers.seq_lens = captured.buffers.seq_lens.clone()\nMATCH",
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
            "Passes.metadata",
            "buffers.query_start_loc[query_len][: reqs + 1]",
            "torch.tensor(range(0, tokens + 1, query_len), dtype=torch.int32)",
        ),
        "graph double",
        says="torch.tensor",
    ),
    Mutation(
        "rejected tokens are not taken off the lengths after the first graph",
        "hazard 3",
        one(
            "passes.py",
            "Passes._shifted",
            "torch.sub(...)",
            "buffers.step_seq_lens[:reqs].copy_(buffers.seq_lens[:reqs])",
        ),
        "acceptance",
    ),
    Mutation(
        "rejected tokens are not taken off the lengths after upstream's first pass",
        "hazard 3",
        one(
            "staging.py",
            "LaterStaging.stage",
            "torch.sub(...)",
            "self.seq_lens.copy_(_cut(seq_lens, self.reqs))",
        ),
        "acceptance",
    ),
    Mutation(
        "rejected tokens are taken off the runner's own lengths",
        "hazard 3",
        one(
            "staging.py",
            "LaterStaging.stage",
            "torch.sub(...)",
            "self.seq_lens.copy_(_cut(seq_lens, self.reqs).sub_(rejected))",
        ),
        "audit",
        says="seq_lens, which is the runner's, was written",
    ),
    Mutation(
        "the slots of padded rows stay what they were",
        "hazard 4",
        one("staging.py", "FirstStaging.__init__", "self.rows.int64_padding.append(...)", "pass"),
        "audit",
        says="wrote KV slots",
    ),
    Mutation(
        "neither the blocks nor the slots of padded rows are padded in later passes",
        "hazard 4",
        one("passes.py", "Passes._later", "slots.bitwise_or_(...)", "None")
        + one("staging.py", "_Rows.pad_block_table", "...", "pass"),
        "audit",
        says="wrote KV slots",
    ),
    Mutation(
        "the metadata, and with it the kernel's block table, is made outside the graph",
        "hazard 5",
        one(
            "passes.py",
            "Passes._run",
            "_, metadata = proposer.build_per_group_and_layer_attn_metadata(...)",
            """
                made = vars(self).setdefault('made', {})
                shape = common_metadata.num_reqs, common_metadata.max_query_len
                if shape not in made:
                    made[shape] = proposer.build_per_group_and_layer_attn_metadata(
                        common_metadata, draft_index=draft_index
                    )
                _, metadata = made[shape]
            """,
        ),
        "acceptance",
        engine="kernel blocks",
    ),
    Mutation(
        "the largest length is that of the capture",
        "hazard 6",
        one("passes.py", "Passes.metadata", "max_seq_len=...", "max_seq_len=query_len"),
        "audit",
        says="longer than max_seq_len",
    ),
    Mutation(
        "the query length of the first pass is baked as one",
        "hazard 6",
        one("passes.py", "Passes.metadata", "max_query_len=...", "max_query_len=1"),
        "audit",
        says="longer than max_query_len",
    ),
    Mutation(
        "a length is read by the host inside the capture",
        "hazard 6",
        one(
            "passes.py",
            "Passes.metadata",
            "max_seq_len=...",
            "max_seq_len=int(seq_lens[:reqs].max())",
        ),
        "graph double",
        says="_local_scalar_dense",
    ),
    Mutation(
        "the number of tokens is a token short",
        "hazard 6",
        one(
            "passes.py",
            "Passes.metadata",
            "num_actual_tokens=tokens",
            "num_actual_tokens=tokens - 1",
        ),
        "acceptance",
    ),
    Mutation(
        "the drafts of later passes are not kept",
        "hazard 10",
        one(
            "passes.py",
            "Passes._later",
            "drafts.copy_(...)",
            "None",
        ),
        "acceptance",
    ),
    Mutation(
        "the caller gets a view of what the next replay writes",
        "hazard 10",
        one("replay.py", "_drafts", "return ...", "return captured.buffers.drafts[:k, :reqs].t()"),
        "audit",
        says="memory of a graph",
    ),
    Mutation(
        "the largest part of a row is added as one token, not as many as it has",
        "sampling",
        one(
            "argmax.py", "_SplitArgmax.__torch_function__", "return first_largest(...)", _ONE_TOKEN
        ),
        "acceptance",
    ),
)
