"""The mutations that `test_same_as_upstream.py` must catch, where no engine on CPU has the case."""

from __future__ import annotations

from tests.draft_graphs.mutation_types import TwinMutation, one

# What a module would do that builds the metadata once and keeps it: a schedule of the warm-up.
_KEPT = one(
    "passes.py",
    "Passes._run",
    "_, metadata = proposer.build_per_group_and_layer_attn_metadata(...)",
    """
                kept = vars(self).setdefault('kept', {})
                shape = common_metadata.num_reqs, common_metadata.max_query_len
                if shape not in kept:
                    kept[shape] = proposer.build_per_group_and_layer_attn_metadata(
                        common_metadata, draft_index=draft_index
                    )
                _, metadata = kept[shape]
            """,
)

#: Script and options of a twin with sampled drafts.
_SAMPLED = "upstream_twin.py", ("--cases", "30", "--only", "sampled='rows'")

#: Of the shapes with mixed batches, one whose graphs are larger than most of them.
_MIXED = "max_num_seqs=20"
#: The one with sampled drafts, by the fields from there to the end.
_MIXED_SAMPLED = (
    "sampled='rows', parallel=False, vocabularies=False, causal=False, ranges=False, mixed=True"
)


def _beside_upstream(
    stands_for: str, cases: int, *bugs: tuple[str, str, str, str, str, str, str]
) -> list[TwinMutation]:
    """Mutations that `upstream_twin.py` shows within so many batches of a shape.

    bugs: of each the name, the module, the scope, the old and the new text, a part of the shape as
        Python prints it, and a part of the error.
    """
    return [
        TwinMutation(
            name,
            stands_for,
            one(module, scope, old, new),
            "upstream_twin.py",
            ("--cases", str(cases), "--only", only),
            says,
        )
        for name, module, scope, old, new, only, says in bugs
    ]


TWIN_MUTATIONS = (
    *(
        TwinMutation(
            f"the schedule of {backend} is not made again",
            "hazard 5",
            _KEPT,
            "mla_twin.py",
            ("--cases", "6", "--only", backend),
            "AssertionError: case ",  # drafts or KV cache, not the capture
        )
        for backend in ("FLASH_ATTN_MLA", "FLASHMLA")
    ),
    TwinMutation(
        "the loop runs for a dynamic K that is smaller than its own",
        "hazard 13",
        one("dispatch.py", "Dispatch.later", "k == self._k", "True"),
        "upstream_twin.py",
        ("--cases", "30", "--only", "dynamic_k=True"),
        ": KV cache",
    ),
    *_beside_upstream(
        "hazard 7",
        12,
        (
            "padded rows of a draft model keep their slots",
            "capture.py",
            "Captured.capture",
            "key in self.masked",
            "False",
            "method='draft_model'",
            "the null block was written",
        ),
        (
            "the positions of padded rows stay what they were",
            "staging.py",
            "ExtendedStaging.__init__",
            "self.rows.int64_padding.append(...)",
            "pass",
            "method='draft_model'",
            "positions beyond the longest",
        ),
        (
            "rejected tokens go to the KV cache as if they had been accepted",
            "extended_passes.py",
            "ExtendedPasses._set_inputs",
            "num_rejected_tokens_gpu=buffers.rejected[:reqs]",
            "num_rejected_tokens_gpu=buffers.none[:reqs]",
            "method='draft_model'",
            "AssertionError: case ",
        ),
        (
            "drafts are not mapped back to the draft's vocabulary",
            "upstream.py",
            "draft_token_ids",
            "not getattr(...)",
            "True",
            "vocabularies=True",
            "AssertionError: case ",
        ),
        (
            "the tokens that a draft model adds are left out of the lengths",
            "extended_passes.py",
            "ExtendedPasses.extended",
            "metadata.seq_lens",
            "buffers.seq_lens[:reqs]",
            "method='draft_model'",
            "AssertionError: case ",
        ),
        (
            "the context of padded rows keeps its slots",
            "extended_passes.py",
            "ContextPasses._mask_slots",
            "...",
            "super()._mask_slots(reqs, metadata)",
            "dflash",
            "the null block was written",
        ),
    ),
    TwinMutation(
        "a first pass beyond the largest capture size leaves the number of splits to the kernel",
        "hazard 6",
        one("passes.py", "Passes._run", "tokens > self._bounded", "False"),
        "upstream_twin.py",
        ("--cases", "1", "--only", "max_capture_tokens=8"),
        "CaptureRefused: attention chooses its number of splits",
        captured=False,
    ),
    TwinMutation(
        "a graph serves a batch with ranges of a prefix language model",
        "dispatch",
        one(
            "replay.py",
            "_other_inputs",
            "getattr(cad, 'mm_req_doc_ranges', None)",
            "False",
        ),
        "upstream_twin.py",
        ("--cases", "30", "--only", "ranges=True"),
        "AssertionError: case ",
    ),
    TwinMutation(
        "the temperatures of sampled drafts stay what they were",
        "defect 10",
        one("replay.py", "Replay.propose", "sampling.stage(...)", "None"),
        *_SAMPLED,
        "AssertionError: case ",
    ),
    TwinMutation(
        "a greedy graph serves sampled drafts",
        "defect 10",
        one("replay.py", "Replay._is_sampled", "not sampling_metadata.all_greedy", "False"),
        *_SAMPLED,
        "AssertionError: case ",
    ),
    TwinMutation(
        "vLLM is not given the probabilities of sampled drafts",
        "sampling",
        one("replay.py", "Replay.propose", "self._proposer._last_draft_probs = ...", "pass"),
        *_SAMPLED,
        ": probabilities",
    ),
    TwinMutation(
        "the probabilities of steps are those of the last one",
        "sampling",
        one("replay.py", "Replay._run_later", "self.captured.sampling.keep_step(...)", "None"),
        "upstream_twin.py",
        ("--cases", "30", "--only", "mode='step', max_num_seqs=8"),
        ": probabilities",
    ),
    TwinMutation(
        "greedy requests among sampled ones are drawn, too",
        "sampling",
        one("sampling.py", "_Temperatures", "all_random: bool = False", "all_random: bool = True"),
        *_SAMPLED,
        "AssertionError: case ",
    ),
    *_beside_upstream(
        "mixed batches",
        30,
        (
            "a padded row writes its next token among those of a live one",
            "passes.py",
            "Passes.mixed",
            "torch.where(live, buffers.sample_indices[:reqs], buffers.sample_indices[:1])",
            "buffers.sample_indices[:reqs]",
            _MIXED,
            "AssertionError: case ",
        ),
        (
            "padded rows keep the tokens of an earlier batch",
            "staging.py",
            "MixedStaging.stage",
            "self.starts_padding.fill_(tokens)",
            "None",
            _MIXED,
            "AssertionError: case ",
        ),
        (
            "tokens behind the last request keep their slots",
            "staging.py",
            "MixedStaging.stage",
            "int64.append((padding, self.padding_slots[:padding.shape[0]]))",
            "None",
            _MIXED,
            "AssertionError: case ",
        ),
        (
            "where each request begins stays what it was",
            "staging.py",
            "MixedStaging.stage",
            "(self.starts, starts)",
            "(self.starts, self.starts.clone())",
            _MIXED,
            "AssertionError: case ",
        ),
        (
            "the last token of each request stays what it was where none was rejected",
            "staging.py",
            "MixedStaging.stage",
            "torch.sub(...)",
            "None",
            _MIXED,
            "AssertionError: case ",
        ),
        (
            "all queries of a mixed batch are taken for those of a uniform one",
            "passes.py",
            "Passes.mixed",
            "max_query_len=tokens",
            "max_query_len=self.k + 1",
            _MIXED,
            "AssertionError: case ",
        ),
        (
            "only behind a uniform batch does a later pass expect padded rows",
            "keys.py",
            "has_padding",
            "key.num_reqs in mixed",
            "False",
            "max_num_seqs=2",
            "the null block was written",
        ),
        (
            "a greedy graph serves a mixed batch with sampled drafts",
            "replay.py",
            "Replay.propose",
            "self._mixed and not sampled and tokens == cad.num_actual_tokens",
            "self._mixed and tokens == cad.num_actual_tokens",
            _MIXED_SAMPLED,
            "AssertionError: case ",
        ),
    ),
)
