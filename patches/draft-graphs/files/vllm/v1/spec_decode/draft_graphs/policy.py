# SPDX-License-Identifier: Apache-2.0
"""Decides which draft graphs a configuration gets, and why. Imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from .drafter import Drafter
from .keys import ROLES, Role

MODE_VARIABLE = "OVERLAY_DRAFT_GRAPHS"
CHECK_VARIABLE = "OVERLAY_DRAFT_GRAPHS_CHECK"

Mode = Literal["off", "step", "loop", "auto"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: The cudagraph mode in which vLLM captures nothing; in every other one its `capture_model` runs.
NO_CAPTURE = "NONE"


EAGLE_PROPOSER = "vllm.v1.spec_decode.eagle.EagleProposer"
#: The proposer classes that get draft graphs, by module and name; a subclass is another class.
DRAFTERS = frozenset({EAGLE_PROPOSER, "vllm.v1.spec_decode.draft_model.DraftModelProposer"})
#: The same, by reading and beside upstream's code on CPU; refused until a GPU has run them.
UNTRIED_DRAFTERS = frozenset({"vllm.v1.spec_decode.dflash.DFlashProposer"})

_BY_V2 = "set VLLM_USE_V2_MODEL_RUNNER=1: model runner V2 has graphs for it from"
#: Proposer classes that draft otherwise: what is different, and what the user can do.
OTHER_DRAFTERS: Mapping[str, str] = {
    "vllm.v1.spec_decode.gemma4.Gemma4Proposer": (
        f"its layers read keys and values of several groups of the target's ({_BY_V2} 0.23 on)"
    ),
    "vllm.v1.spec_decode.step3p5.Step3p5MTPProposer": (
        f"each of its passes runs another MTP layer ({_BY_V2} 0.27 on)"
    ),
}

#: By name of an attention backend: the roles whose graphs can build its metadata inside themselves.
AttentionRoles = Mapping[str, frozenset[Role]]

# Attention backends whose `build_for_drafting` is host arithmetic on the numbers of a key, and
# device work that a capture records and every replay repeats: none for FLASH_ATTN, TRITON_ATTN,
# TRITON_MLA and FLASHINFER_MLA; the schedule of FLASH_ATTN_MLA, written to a buffer of its
# builder; that of FLASHMLA, made by the first layer that asks for it; from 0.32 the mapping of
# the block table to smaller blocks. docs/draft-graphs.md has the verdicts.
_ALL_ROLES = frozenset(ROLES)
GRAPH_ATTENTION_BACKENDS: AttentionRoles = {
    "FLASH_ATTN": _ALL_ROLES,
    "TRITON_ATTN": _ALL_ROLES,
    "FLASH_ATTN_MLA": _ALL_ROLES,
    "FLASHMLA": _ALL_ROLES,
}
# The same, by reading and with doubles of their kernels; refused until one of their graphs has run
# on a GPU.
UNTRIED_ATTENTION_BACKENDS: AttentionRoles = {
    "TRITON_MLA": _ALL_ROLES,
    "FLASHINFER_MLA": _ALL_ROLES,
}
# The metadata builder that was read for each of them. Layers with chunked or sink attention keep
# the backend's name and derive a builder from its builder, which may read lengths on the host.
ATTENTION_BUILDERS: Mapping[str, str] = {
    "FLASH_ATTN": "vllm.v1.attention.backends.flash_attn.FlashAttentionMetadataBuilder",
    "TRITON_ATTN": "vllm.v1.attention.backends.triton_attn.TritonAttentionMetadataBuilder",
    "FLASH_ATTN_MLA": "vllm.v1.attention.backends.mla.flashattn_mla.FlashAttnMLAMetadataBuilder",
    "FLASHMLA": "vllm.v1.attention.backends.mla.flashmla.FlashMLAMetadataBuilder",
    "TRITON_MLA": "vllm.v1.attention.backends.mla.triton_mla.TritonMLAMetadataBuilder",
    "FLASHINFER_MLA": "vllm.v1.attention.backends.mla.flashinfer_mla.FlashInferMLAMetadataBuilder",
}


# What the user can do about an attention backend; in 0.20 the drafter uses the target's.
CHOOSE_BACKEND = "from 0.21 on attention_backend in speculative_config chooses another one of"


def mode_from(environ: Mapping[str, str]) -> Mode:
    """The mode that the environment asks for; `auto` where the variable is unset or empty.

    Raises ValueError, naming the modes, for any other value.
    """
    value = environ.get(MODE_VARIABLE) or "auto"
    for mode in MODES:
        if value == mode:
            return mode
    raise ValueError(f"{MODE_VARIABLE} is {value!r}; set it to one of {', '.join(MODES)}")


def check_from(environ: Mapping[str, str]) -> bool:
    """Whether each replay checks the addresses that its graph reads; off where unset or empty.

    Raises ValueError for anything but on and off, or 1 and 0.
    """
    value = environ.get(CHECK_VARIABLE) or "off"
    if value not in ("on", "off", "1", "0"):
        raise ValueError(f"{CHECK_VARIABLE} is {value!r}; set it to on or off")
    return value in ("on", "1")


@dataclass(frozen=True)
class Facts:
    """Facts that the decision depends on. Late ones are None until vLLM captures its graphs."""

    num_speculative_tokens: int
    # The reason why this device cannot make graphs; None where it can.
    no_graphs: str | None = None
    enforce_eager: bool = False
    # Module and name.
    proposer_class: str = EAGLE_PROPOSER
    # What its first pass consists of.
    drafter: Drafter = field(default_factory=Drafter)
    # Methods that the graphs take over or build on and that the proposer has of its own.
    overridden_methods: tuple[str, ...] = ()
    constant_draft_positions: bool = False
    shared_mtp_indices: bool = False
    padded_batch_disabled: bool = False
    xdrope: bool = False
    # Layers of the draft model from which a LoRA adapter cannot be taken off, by name.
    adapted_layers: tuple[str, ...] = ()
    # Whether expert load balancing moves experts of the draft model.
    eplb: bool = False
    micro_batching: bool = False
    # The reason why data-parallel ranks must draft in lockstep; None where they need not.
    data_parallel: str | None = None
    context_parallel_size: int = 1
    sequence_parallel: bool = False
    # Name of the offloader that moves weights between passes; None where there is none.
    weight_offloader: str | None = None
    computes_kv_scales: bool = False
    fast_prefill: bool = False
    rswa: bool = False
    dynamic_k: bool = False
    probabilistic: bool = False
    multimodal: bool = False
    # Late facts.
    cudagraph_mode: str | None = None
    max_num_seqs: int | None = None
    max_capture_tokens: int | None = None
    attention_backends: tuple[str, ...] | None = None
    # The KV-cache group of the draft's layers, where vLLM hands the proposer the metadata of
    # another one; None where it does not.
    unseen_group: int | None = None
    # Metadata builders of known backends that are not the ones of `ATTENTION_BUILDERS`, by name.
    derived_builders: tuple[str, ...] = ()
    # The reason why `first` cannot be staged; None where it can.
    no_first: str | None = None


@dataclass(frozen=True)
class Decision:
    """The roles to capture, and the reasons for what is not captured.

    first: whether the first pass of uniform batches is captured.
    later: the roles of the passes after it.
    sampled: whether all of them are captured once more, for drafts drawn by temperature.
    refusals: reasons why there are no draft graphs at all.
    notes: batches that run as upstream although there are graphs, and why.
    """

    first: bool = False
    later: tuple[Role, ...] = ()
    sampled: bool = False
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def any(self) -> bool:
        """Whether there is anything to capture."""
        return self.first or bool(self.later)


def _yes_no_refusals(facts: Facts) -> list[str]:
    table: list[tuple[bool, str]] = [
        (
            facts.enforce_eager,
            "the drafter has enforce_eager (remove it from speculative_config)",
        ),
        (
            facts.constant_draft_positions,
            "the draft steps do not advance their positions (eagle, eagle3 and mtp get graphs)",
        ),
        (
            facts.shared_mtp_indices,
            f"the draft steps share indices through a host flag ({_BY_V2} 0.32 on)",
        ),
        (
            facts.padded_batch_disabled,
            "disable_padded_drafter_batch makes new inputs on the host (set it to false)",
        ),
        (facts.xdrope, "the drafter has XD-RoPE positions (drafts without them get graphs)"),
        (
            facts.eplb,
            "expert load balancing moves the draft's experts between passes (remove enable_eplb)",
        ),
        (facts.micro_batching, "micro-batching is on (remove enable_dbo)"),
        (
            facts.sequence_parallel,
            "sequence parallelism pads token counts (remove enable_sp, or enable_expert_parallel)",
        ),
        (
            facts.computes_kv_scales,
            "KV scales are computed in the first forward pass (remove calculate_kv_scales)",
        ),
        (
            facts.fast_prefill,
            "kv_sharing_fast_prefill makes other attention metadata (remove it)",
        ),
        (facts.rswa, "R-SWA takes prefix lengths from the host (other models get graphs)"),
    ]
    return [reason for refused, reason in table if refused]


def _late_refusals(facts: Facts, attention: AttentionRoles) -> list[str]:
    reasons = []
    if facts.cudagraph_mode == NO_CAPTURE:
        reasons.append(
            "vLLM captures no graphs, the target's cudagraph mode is NONE (remove enforce_eager, "
            "or set cudagraph_mode in compilation_config to another one; with PIECEWISE it wants "
            "compiled models, so compilation mode VLLM_COMPILE)"
        )
    if facts.attention_backends is not None:
        if not facts.attention_backends:
            reasons.append("the draft model has no attention layers (other drafts get graphs)")
        refused = [name for name in facts.attention_backends if name not in attention]
        untried = [name for name in refused if name in UNTRIED_ATTENTION_BACKENDS]
        unknown = [name for name in refused if name not in UNTRIED_ATTENTION_BACKENDS]
        if untried:
            reasons.append(
                f"no graph with attention backend {', '.join(untried)} of the draft has run on a "
                f"GPU yet ({CHOOSE_BACKEND} {', '.join(sorted(attention))})"
            )
        if unknown:
            reasons.append(
                f"attention backend {', '.join(unknown)} of the draft is not known to build its "
                f"metadata inside a graph ({CHOOSE_BACKEND} {', '.join(sorted(attention))})"
            )
    if facts.unseen_group is not None:
        reasons.append(
            f"the draft model's layers lie in KV-cache group {facts.unseen_group}, and vLLM gives "
            "their proposer the block table of group 0 (a draft model whose attention layers are "
            "of the kinds of the target's shares its group)"
        )
    if facts.derived_builders:
        reasons.append(
            f"the draft's attention builds its metadata by {', '.join(facts.derived_builders)}, "
            "which may read lengths on the host (draft models without chunked or sink attention "
            "get graphs)"
        )
    if facts.max_num_seqs is not None and (facts.max_capture_tokens or 0) < 1:
        reasons.append("there are no cudagraph capture sizes (set cudagraph_capture_sizes)")
    return reasons


def refusals(facts: Facts, attention: AttentionRoles) -> list[str]:
    """Every reason why this configuration gets no draft graphs at all; empty where it does.

    attention: the attention backends that are granted; any other is refused.
    """
    reasons = [] if facts.no_graphs is None else [facts.no_graphs]
    name = facts.proposer_class.rpartition(".")[2]
    if facts.proposer_class in UNTRIED_DRAFTERS:
        reasons.append(
            f"graphs with {name} are not proven on a GPU yet (methods eagle, eagle3, mtp and "
            "draft_model get graphs; model runner V2 has graphs for dflash from 0.24 on)"
        )
    elif facts.proposer_class not in DRAFTERS:
        otherwise = OTHER_DRAFTERS.get(
            facts.proposer_class, "methods eagle, eagle3, mtp and draft_model get them"
        )
        reasons.append(f"{name} drafts otherwise than the graphs do: {otherwise}")
    elif facts.overridden_methods:
        own = ", ".join(sorted(facts.overridden_methods))
        reasons.append(f"{name} has its own {own} (remove what replaces them)")
    if facts.num_speculative_tokens < 1:
        reasons.append(
            f"num_speculative_tokens is {facts.num_speculative_tokens} (set it to 1 or more)"
        )
    reasons += _yes_no_refusals(facts)
    if facts.adapted_layers:
        reasons.append(
            f"LoRA adapters cannot be taken off the draft's {', '.join(facts.adapted_layers)} "
            "(remove enable_lora)"
        )
    if facts.data_parallel is not None:
        reasons.append(facts.data_parallel)
    if facts.context_parallel_size > 1:
        reasons.append(
            "context parallelism computes lengths on the host (set decode_context_parallel_size "
            "and prefill_context_parallel_size to 1)"
        )
    if facts.weight_offloader is not None:
        reasons.append(
            f"{facts.weight_offloader} moves weights between passes (set offload_group_size to 0)"
        )
    return reasons + _late_refusals(facts, attention)


def decide(mode: Mode, facts: Facts, attention: AttentionRoles) -> Decision:
    """Decide what to capture for `facts` in `mode`, with a reason for all that is not captured."""
    if mode == "off":
        return Decision(refusals=(f"{MODE_VARIABLE}=off",))
    reasons = refusals(facts, attention)
    if reasons:
        return Decision(refusals=tuple(reasons))
    barred = _barred_roles(facts, attention)
    role = facts.drafter.first_role
    first = role not in barred
    later, notes = _later_roles(mode, facts, barred)
    if not first:
        notes.append(f"{role}: {barred[role]}")
    if not first and not later:
        return Decision(refusals=tuple(notes))
    sampled = facts.probabilistic and first
    if facts.probabilistic and later:
        notes.append("sampled drafts (probabilistic, not all greedy) in batches with a prefill")
    if facts.multimodal and first:
        notes.append("first passes with multimodal embeddings among them")
    notes += _too_large(facts, first, later)
    return Decision(first=first, later=later, sampled=sampled, notes=tuple(notes))


def _barred_roles(facts: Facts, attention: AttentionRoles) -> dict[Role, str]:
    """Roles that the attention backends cannot build inside a graph, with the reason for each."""
    barred: dict[Role, str] = {}
    for name in facts.attention_backends or ():
        for role in ROLES:
            if role not in attention[name]:
                barred[role] = f"attention backend {name} has no metadata for it inside a graph"
    if facts.no_first is not None:
        barred["first"] = barred["whole"] = facts.no_first
    return barred


def _later_roles(
    mode: Mode, facts: Facts, barred: Mapping[Role, str]
) -> tuple[tuple[Role, ...], list[str]]:
    if facts.drafter.one_pass:
        return (), ["batches with a K below the configured one"] if facts.dynamic_k else []
    if facts.num_speculative_tokens == 1:
        return (), []
    wanted: Role = "step" if mode == "step" else "loop"
    notes = []
    if wanted == "loop" and "loop" in barred:
        wanted = "step"
        if wanted not in barred:
            notes.append(f"no loop, but steps: {barred['loop']}")
    elif wanted == "loop" and facts.dynamic_k and mode == "auto":
        wanted = "step"
        notes.append("no loop, but steps, because K changes from batch to batch")
    elif wanted == "loop" and facts.dynamic_k:
        notes.append("batches with a K below the configured one")
    if wanted in barred:
        return (), [f"{wanted}: {barred[wanted]}"]
    return (wanted,), notes


def _too_large(facts: Facts, first: bool, later: tuple[Role, ...]) -> list[str]:
    if facts.max_num_seqs is None or facts.max_capture_tokens is None:
        return []
    notes = []
    largest = facts.max_capture_tokens // facts.drafter.first_tokens(facts.num_speculative_tokens)
    if first and largest < facts.max_num_seqs:
        notes.append(
            f"first passes over {largest} requests, the largest capture size being "
            f"{facts.max_capture_tokens} tokens"
        )
    if later and facts.max_capture_tokens < facts.max_num_seqs:
        notes.append(f"later passes over {facts.max_capture_tokens} requests")
    return notes
