"""The appendix that says which draft graphs a configuration gets, from the policy itself.

``python -m tests.draft_graphs.policy_table`` writes it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.draft_graphs.added_modules import added

policy: Any = added("policy")
attention: Any = added("attention")
capabilities: Any = added("capabilities")
drafters: Any = added("drafter")
coupling: Any = added("coupling")
Coupling, Manner = coupling.Coupling, coupling.Manner

PAGE = Path(__file__).parents[2] / "docs/appendix/draft-configurations.md"
TOP = """\
<!-- Written by tests/draft_graphs/policy_table.py; a test compares. -->

# Draft graphs: what each configuration gets

With `OVERLAY_DRAFT_GRAPHS=auto`. Where several rows describe a configuration, one that gets nothing
decides.

"""


def backend(name: str, kernel: str = "") -> Any:
    """The draft's attention backend of this name, with its row."""
    rows = [row for row in capabilities.BACKENDS if name in row.names and row.kernel == kernel]
    return attention.Attention(name, rows[0].builder.rpartition(".")[2], rows[0], derived=True)


FLASH_ATTN = backend("FLASH_ATTN", "fa3")
PLAIN = policy.Facts(
    num_speculative_tokens=3,
    cudagraph_mode="FULL_AND_PIECEWISE",
    max_num_seqs=128,
    max_capture_tokens=512,
    max_num_tokens=4096,
    attention=(FLASH_ATTN,),
)
DRAFT_MODEL = "vllm.v1.spec_decode.draft_model.DraftModelProposer"
DFLASH = "vllm.v1.spec_decode.dflash.DFlashProposer"
#: The kinds of drafters beside EAGLE, with K=3.
DRAFTERS = {
    "draft_model": drafters.Drafter("extended", 1, takes_hidden_states=False, hands_over=False),
    "P-EAGLE": drafters.Drafter("extended", 2, one_pass=True, combines=True),
    "PARD": drafters.Drafter(
        "extended", 3, one_pass=True, takes_hidden_states=False, hands_over=False
    ),
    "dflash": drafters.Drafter("context", one_pass=True, hands_over=False, combines=True),
}
#: Why ranks with experts in the draft do not draft alone.
LOCKSTEP = (
    "2 data-parallel ranks draft in lockstep: layers of the draft model reach other ranks "
    "(FusedMoE)"
)
#: So few requests that a pass with additional tokens holds them all.
SMALL = {"max_num_seqs": 64}
#: (the configuration in words, how its facts differ from `PLAIN`'s).
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("eagle, eagle3 or a plain MTP method; K = 3", {}),
    ("K = 1", {"num_speculative_tokens": 1}),
    (
        "draft_model, also with another vocabulary than the target's (from 0.25)",
        {"proposer_class": DRAFT_MODEL, "drafter": DRAFTERS["draft_model"], **SMALL},
    ),
    ("PARD", {"proposer_class": DRAFT_MODEL, "drafter": DRAFTERS["PARD"], **SMALL}),
    ("P-EAGLE", {"drafter": DRAFTERS["P-EAGLE"], **SMALL}),
    ("dflash", {"proposer_class": DFLASH, "drafter": DRAFTERS["dflash"]}),
    (
        "a draft model in another KV-cache group than 0",
        {"proposer_class": DRAFT_MODEL, "drafter": DRAFTERS["draft_model"], "unseen_group": 1},
    ),
    ("target in PIECEWISE, FULL or FULL_DECODE_ONLY", {"cudagraph_mode": "PIECEWISE"}),
    (
        "K by batch size (`num_speculative_tokens_per_batch_size`, from 0.24)",
        {"dynamic_k": True, "cudagraph_mode": "PIECEWISE"},
    ),
    ("`draft_sample_method: probabilistic`", {"probabilistic": True}),
    ("a draft that takes embeddings of images", {"multimodal": True}),
    (
        "256 requests, 512 captured tokens and steps of up to 8,192",
        {"max_num_seqs": 256, "max_num_tokens": 8192},
    ),
    (
        "the same with another attention backend than FlashAttention 2 or 3 (TRITON_ATTN)",
        {"max_num_seqs": 256, "max_num_tokens": 8192, "attention": (backend("TRITON_ATTN"),)},
    ),
    (
        "the same with tensor parallelism",
        {"max_num_seqs": 256, "max_num_tokens": 8192, "tensor_parallel_size": 2},
    ),
    (
        "EAGLE3 drafts whose `fc` layer does not tell its width",
        {
            "no_first": "the width of the target's hidden states is not known from the draft's fc "
            "layer (drafts get it whose fc is a linear layer with in_features or input_size)"
        },
    ),
    ("drafts with an eager setting of their own", {"enforce_eager": True}),
    ("a target without graphs", {"cudagraph_mode": policy.NO_CAPTURE}),
    ("no capture sizes", {"max_capture_tokens": 0}),
    ("no draft tokens", {"num_speculative_tokens": 0}),
    (
        "a device without graphs",
        {"no_graphs": "the platform (cpu) has neither CUDA nor HIP graphs"},
    ),
    ("gemma4", {"proposer_class": "vllm.v1.spec_decode.gemma4.Gemma4Proposer"}),
    ("step3p5", {"proposer_class": "vllm.v1.spec_decode.step3p5.Step3p5MTPProposer"}),
    ("a proposer that somebody changed", {"overridden_methods": ("propose",)}),
    ("drafts whose positions do not advance", {"constant_draft_positions": True}),
    ("MTP layers that share indices (from 0.23)", {"shared_mtp_indices": True}),
    ("`disable_padded_drafter_batch`", {"padded_batch_disabled": True}),
    ("XD-RoPE of the drafter (until 0.29)", {"xdrope": True}),
    (
        "LoRA, where a layer of the draft has an adapter and none below it (no layer of vLLM's)",
        {"adapted_layers": ("model.norm",)},
    ),
    ("micro-batching (`enable_dbo`, `ubatch_size`)", {}),
    ("sequence parallelism of experts (`use_sequence_parallel_moe`)", {}),
    ("expert load balancing (`enable_eplb`)", {}),
    (
        "data parallelism, where the draft has experts",
        {"coupling": Coupling(Manner.TOGETHER, LOCKSTEP)},
    ),
    (
        "the same, with a target in PIECEWISE or FULL",
        {
            "coupling": Coupling(Manner.TOGETHER, LOCKSTEP),
            "cudagraph_mode": "FULL",
        },
    ),
    (
        "the same, with `draft_sample_method: probabilistic`",
        {"coupling": Coupling(Manner.TOGETHER, LOCKSTEP), "probabilistic": True},
    ),
    (
        "the same, with low-latency exchanges (DeepEP, NIXL)",
        {"coupling": Coupling(Manner.TOGETHER, LOCKSTEP), "low_latency_exchange": True},
    ),
    (
        "the same, with `OVERLAY_DRAFT_GRAPHS_UNTRIED=on`; a failed capture stops the start",
        {
            "coupling": Coupling(Manner.TOGETHER, LOCKSTEP),
            "low_latency_exchange": True,
            "untried": True,
        },
    ),
    (
        "data parallelism with elastic expert parallelism",
        {
            "coupling": Coupling(
                Manner.REFUSED,
                "2 data-parallel ranks draft in lockstep: elastic expert parallelism changes how "
                "many there are (remove enable_elastic_ep)",
            )
        },
    ),
    ("decode context parallelism", {"decode_context_parallel_size": 2}),
    ("prefill context parallelism", {"prefill_context_parallel_size": 2}),
    ("sequence parallelism of dense layers (`enable_sp`, until 0.31)", {"sequence_parallel": True}),
    (
        "a KV connector that acts in each attention layer, also below a MultiConnector (Example)",
        {"per_layer_connectors": ("ExampleConnector",)},
    ),
    (
        "other KV connectors (NIXL, Mooncake, Offloading, HF3FS, LMCache without `use_layerwise`)",
        {},
    ),
    ("an offloader that copies weights", {"weight_offloader": "PrefetchOffloader"}),
    ("KV scales computed on the fly (until 0.27)", {"computes_kv_scales": True}),
    ("`kv_sharing_fast_prefill`", {"fast_prefill": True}),
    ("R-SWA (from 0.25)", {"rswa": True}),
    (
        "an attention backend that is not in the table below",
        {"attention": (attention.Attention("HPC_ATTN", "HpcAttnMetadataBuilder"),)},
    ),
    ("one that was read, and cannot have graphs", {"attention": (backend("FLEX_ATTENTION"),)}),
    ("one that no GPU has run with graphs", {"attention": (backend("TRITON_MLA"),)}),
    (
        "the same with `OVERLAY_DRAFT_GRAPHS_UNTRIED=on`",
        {"attention": (backend("TRITON_MLA"),), "untried": True},
    ),
    (
        "MUSA with tensor parallelism (and `OVERLAY_DRAFT_GRAPHS_UNTRIED=on`)",
        {
            "platform": capabilities.platform_row("vllm_musa.platform.MtmlMUSAPlatform"),
            "tensor_parallel_size": 2,
            "attention": (backend("TRITON_ATTN"),),
            "untried": True,
        },
    ),
    (
        "chunked or sink attention in the draft",
        {
            "attention": (
                attention.Attention("FLASH_ATTN", "ChunkedLocalAttentionBuilder", derived=True),
            )
        },
    ),
)


def names_a_remedy(reason: str) -> bool:
    """Whether a refusal ends with something to change, in brackets."""
    if not reason.endswith(")"):
        return False
    depth = 0
    for start in reversed(range(len(reason))):  # to the bracket that the last one closes
        depth += {")": 1, "(": -1}.get(reason[start], 0)
        if depth == 0:
            break
    verbs = ("remove", "set", "get graphs", "get it", "chooses", "grants", "shares its group")
    return any(verb in reason[start:] for verb in (*verbs, "replaces", "log says why"))


def row(words: str, changes: dict[str, Any]) -> str:
    """One row: what the default mode captures, and what the log says of the rest."""
    facts = replace(PLAIN, **changes)
    decision = policy.decide("auto", facts)
    roles = [facts.drafter.first_role] * decision.first
    roles += ["mixed"] * bool(decision.mixed_tokens) + list(decision.later)
    said = "; ".join([*decision.refusals, *decision.notes])
    return f"| {words} | {', '.join(f'`{role}`' for role in roles) or 'nothing'} | {said} |"


def render() -> str:
    """The page."""
    head = "| configuration | graphs by default | what the log says of the rest |\n|---|---|---|\n"
    return TOP + head + "".join(f"{row(*case)}\n" for case in CASES)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
