# SPDX-License-Identifier: Apache-2.0
"""Decides which draft graphs a configuration gets, and why. Imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from . import attention, sizes
from .attention import UNTRIED_VARIABLE, WHICH_PLATFORMS, Attention
from .capabilities import PLATFORMS, Platform
from .coupling import Coupling, Manner
from .drafter import (
    BY_V2,
    DRAFTERS,
    EAGLE_PROPOSER,
    OTHER_DRAFTERS,
    OTHER_METHODS,
    Drafter,
)
from .keys import UNIFORM_ROLES, Role

MODE_VARIABLE = "OVERLAY_DRAFT_GRAPHS"
CHECK_VARIABLE = "OVERLAY_DRAFT_GRAPHS_CHECK"

Mode = Literal["off", "step", "loop", "auto"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: The cudagraph mode in which vLLM captures nothing; in every other one its `capture_model` runs.
NO_CAPTURE = "NONE"
#: What the user can do about that.
LET_VLLM_CAPTURE = (
    "remove enforce_eager, or set cudagraph_mode in compilation_config to another one; with "
    "PIECEWISE it wants compiled models, so compilation mode VLLM_COMPILE"
)
#: The modes in which a FULL graph of the target means a uniform batch.
UNIFORM_FULL = ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


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
    return _flag(environ, CHECK_VARIABLE)


def untried_from(environ: Mapping[str, str]) -> bool:
    """Whether what no GPU has shown is granted, too; off where unset or empty.

    Raises ValueError for anything but on and off, or 1 and 0.
    """
    return _flag(environ, UNTRIED_VARIABLE)


def _flag(environ: Mapping[str, str], variable: str) -> bool:
    value = environ.get(variable) or "off"
    if value not in ("on", "off", "1", "0"):
        raise ValueError(f"{variable} is {value!r}; set it to on or off")
    return value in ("on", "1")


@dataclass(frozen=True)
class Facts:
    """Facts that the decision depends on. Late ones are None until vLLM captures its graphs."""

    num_speculative_tokens: int
    # The reason why this device cannot make graphs; None where it can.
    no_graphs: str | None = None
    platform: Platform = PLATFORMS[0]
    tensor_parallel_size: int = 1
    # Whether the user grants what no GPU has shown.
    untried: bool = False
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
    # How data-parallel ranks draft.
    coupling: Coupling = field(default_factory=Coupling)
    # Whether their experts exchange rows through buffers that alternate with every call.
    low_latency_exchange: bool = False
    decode_context_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    # Of dense layers; that of experts takes any token count.
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
    # Tokens that the proposer has room for.
    max_num_tokens: int | None = None
    attention: tuple[Attention, ...] | None = None
    # The KV-cache group of the draft's layers, where vLLM hands the proposer the metadata of
    # another one; None where it does not.
    unseen_group: int | None = None
    # Classes of KV connectors that act in each attention layer.
    per_layer_connectors: tuple[str, ...] = ()
    # The reason why `first` cannot be staged; None where it can.
    no_first: str | None = None


@dataclass(frozen=True)
class Decision:
    """The roles to capture, and the reasons for what is not captured.

    first: whether the first pass of uniform batches is captured.
    mixed_tokens: the most tokens for which it is captured over mixed batches, too; 0 for none.
    later: the roles of the passes after it.
    sampled: whether all of them are captured once more, for drafts drawn by temperature.
    refusals: reasons why there are no draft graphs at all.
    notes: batches that run as upstream although there are graphs, and why.
    offers: whether ranks that draft together offer each other the graphs of the later passes where
    upstream's code runs the first one.
    untried: what is captured although no GPU has shown it, and what shows it instead.
    """

    first: bool = False
    mixed_tokens: int = 0
    later: tuple[Role, ...] = ()
    sampled: bool = False
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    offers: bool = False
    untried: tuple[str, ...] = ()

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
            f"the draft steps share indices through a host flag ({BY_V2} 0.32 on)",
        ),
        (
            facts.padded_batch_disabled,
            "disable_padded_drafter_batch makes new inputs on the host (set it to false)",
        ),
        (facts.xdrope, "the drafter has XD-RoPE positions (drafts without them get graphs)"),
        (
            facts.sequence_parallel,
            "sequence parallelism of dense layers bounds token counts (remove enable_sp)",
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


def _refusals_together(facts: Facts) -> list[str]:
    """The reasons why ranks that must draft together do so as upstream."""
    table: list[tuple[bool, str]] = [
        (
            facts.low_latency_exchange and not facts.untried,
            (
                "no GPU has shown graphs beside low-latency exchanges of experts yet "
                f"({UNTRIED_VARIABLE}=on on all ranks grants them; or set another all2all_backend)"
            ),
        ),
        (
            facts.cudagraph_mode not in (None, NO_CAPTURE, *UNIFORM_FULL),
            (
                "a step with graphs needs K+1 tokens a request on every rank, which cudagraph mode "
                f"{facts.cudagraph_mode} does not tell (set cudagraph_mode to "
                f"{' or '.join(UNIFORM_FULL)})"
            ),
        ),
        (
            facts.probabilistic,
            "one rank's sampled drafts would change the graphs of all (remove draft_sample_method)",
        ),
        (
            facts.multimodal,
            "one rank's images would change the graphs of all (drafts without them get graphs)",
        ),
        (
            facts.dynamic_k,
            "K changes from rank to rank (remove num_speculative_tokens_per_batch_size)",
        ),
    ]
    return [f"{facts.coupling.reason}; {reason}" for refused, reason in table if refused]


def _late_refusals(facts: Facts) -> list[str]:
    reasons = []
    if facts.cudagraph_mode == NO_CAPTURE:
        reasons.append(
            f"vLLM captures no graphs, the target's cudagraph mode is NONE ({LET_VLLM_CAPTURE})"
        )
    if facts.attention is not None:
        reasons += attention.refusals(facts.attention, facts.platform, facts.untried)
    if facts.unseen_group is not None:
        reasons.append(
            f"the draft model's layers lie in KV-cache group {facts.unseen_group}, and vLLM gives "
            "their proposer the block table of group 0 (a draft model whose attention layers are "
            "of the kinds of the target's shares its group)"
        )
    if facts.per_layer_connectors:
        reasons.append(
            f"the KV connector {', '.join(facts.per_layer_connectors)} saves or loads in each "
            "attention layer, by Python that no replay runs (set kv_connector to one that moves "
            "whole requests, such as NixlConnector; with LMCache remove use_layerwise)"
        )
    if facts.max_num_seqs is not None and (facts.max_capture_tokens or 0) < 1:
        reasons.append("there are no cudagraph capture sizes (set cudagraph_capture_sizes)")
    return reasons


def refusals(facts: Facts) -> list[str]:
    """Every reason why this configuration gets no draft graphs at all; empty where it does."""
    reasons = []
    if facts.no_graphs is not None:
        reasons.append(f"{facts.no_graphs} ({WHICH_PLATFORMS})")
    name = facts.proposer_class.rpartition(".")[2]
    if facts.proposer_class not in DRAFTERS:
        otherwise = OTHER_DRAFTERS.get(
            facts.proposer_class, f"its code has not been read ({OTHER_METHODS})"
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
    if facts.coupling.manner is Manner.REFUSED:
        reasons.append(facts.coupling.reason)
    if facts.coupling.together:
        reasons += _refusals_together(facts)
    if facts.decode_context_parallel_size > 1:
        reasons.append(
            "with decode context parallelism vLLM's own drafts go wrong from the second on, since "
            "model runner V1 takes their slots for those of one rank (set "
            "decode_context_parallel_size to 1; from 0.29 on model runner V2 serves it)"
        )
    if facts.prefill_context_parallel_size > 1:
        reasons.append(
            "prefill context parallelism is not written for model runner V1 (set "
            "prefill_context_parallel_size to 1; from 0.28 on model runner V2 serves it)"
        )
    if facts.weight_offloader is not None:
        reasons.append(
            f"{facts.weight_offloader} moves weights between passes (set offload_group_size to 0)"
        )
    return reasons + _late_refusals(facts)


def decide(mode: Mode, facts: Facts) -> Decision:
    """Decide what to capture for `facts` in `mode`, with a reason for all that is not captured."""
    if mode == "off":
        return Decision(refusals=(f"{MODE_VARIABLE}=off",))
    reasons = refusals(facts)
    if reasons:
        return Decision(refusals=tuple(reasons))
    barred = _barred_roles(facts)
    role = facts.drafter.first_role
    first = role not in barred
    later, notes = _later_roles(mode, facts, barred)
    if not first:
        notes.append(f"{role}: {barred[role]}")
    if not first and not later:
        return Decision(refusals=tuple(notes))
    one_pass = facts.drafter.one_pass or facts.num_speculative_tokens == 1
    # Mode `step` leaves steps without an agreed FULL graph to upstream.
    offers = facts.coupling.together and bool(later) and mode != "step"
    every_pass = first and (later or one_pass)
    if facts.coupling.together and not every_pass and not offers:
        reason = (
            f"{facts.coupling.reason}; all ranks need a graph for every pass ({'; '.join(notes)}; "
            "set attention_backend in speculative_config)"
        )
        return Decision(refusals=(reason,))
    sampled = facts.probabilistic and first
    if facts.probabilistic and later:
        notes.append("sampled drafts (probabilistic, not all greedy) in batches with a prefill")
    mixed = sizes.most_mixed_tokens(facts) if every_pass else 0
    if mixed and mixed < (facts.max_num_tokens or 0):
        notes.append(f"first passes of more than {mixed} tokens in batches with a prefill")
    if facts.multimodal and first:
        notes.append("first passes with multimodal embeddings among them")
    if facts.coupling.together and first:
        passes = "first passes of " if offers else ""
        notes.append(f"{passes}all data-parallel ranks in steps in which one of them has a prefill")
    notes += sizes.too_large(facts, first, later)
    return Decision(
        first=first,
        mixed_tokens=mixed,
        later=later,
        sampled=sampled,
        notes=tuple(notes),
        offers=offers,
        untried=tuple(_untried(facts, mixed)),
    )


def _untried(facts: Facts, mixed_tokens: int) -> list[str]:
    """What is granted although no GPU has shown it, with what shows it instead."""
    shown = list(attention.untried_grants(facts.attention or (), facts.platform))
    shown += sizes.untried(facts, mixed_tokens)
    if facts.coupling.together and facts.low_latency_exchange:
        shown.append("low-latency exchanges of experts (reading: docs/many-gpus.md)")
    return shown


def _barred_roles(facts: Facts) -> dict[Role, str]:
    """Roles that platform or attention backends do not get, with the reason for each."""
    barred: dict[Role, str] = {
        bar.role: bar.why
        for bar in facts.platform.bars
        if facts.tensor_parallel_size >= bar.tensor_parallel
    }
    for each in facts.attention or ():
        for role in UNIFORM_ROLES:
            if each.row is not None and role not in each.row.roles:
                choose = attention.choose_hint(facts.platform)
                barred[role] = (
                    f"attention backend {each.title} has no metadata for it in a graph ({choose})"
                )
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
