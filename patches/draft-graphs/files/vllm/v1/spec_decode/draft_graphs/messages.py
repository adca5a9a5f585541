# SPDX-License-Identifier: Apache-2.0
"""Lines that draft graphs write to the log. Imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass

from .keys import ROLES, DraftKey
from .policy import Decision, Facts, Mode

#: Why upstream's code runs the first pass, and why the later ones, of ranks that draft together.
NOT_AGREED = "the data-parallel ranks agreed on no FULL graph"
NOT_OFFERED = "the data-parallel ranks agreed on no graph for them"


def reason_of(error: Exception) -> str:
    """An error as a reason: its type and its message."""
    return f"{type(error).__name__}: {error}"


def captured_sizes(keys: Sequence[DraftKey]) -> str:
    """Number and sizes of the graphs of each role, such as "first 2 (1, 2 requests)"."""
    parts = []
    for sampled in (False, True):
        for role in ROLES:
            own = [key for key in keys if (key.role, key.sampled) == (role, sampled)]
            if own:
                name = f"sampled {role}" if sampled else role
                sizes = ", ".join(map(str, sorted({key.num_reqs for key in own})))
                most = max(key.num_tokens for key in own)
                tokens = f", up to {most} tokens" if role == "mixed" else ""
                parts.append(f"{name} {len(own)} ({sizes} requests{tokens})")
    return "; ".join(parts)


def captured_line(
    mode: Mode, keys: Sequence[DraftKey], notes: Sequence[str], memory: int, seconds: float
) -> str:
    """The INFO line after a capture. memory: bytes."""
    line = (
        f"Draft graphs: mode {mode}, K={keys[0].k}; captured {captured_sizes(keys)}; "
        f"{memory / (1 << 20):.0f} MiB, {seconds:.1f} s"
    )
    return f"{line}. As upstream: {'; '.join(notes)}" if notes else f"{line}."


def refused_line(mode: Mode, decision: Decision) -> str:
    """The INFO line where the configuration gets no draft graphs."""
    return (
        f"Draft graphs: none (mode {mode}), the drafter runs as upstream: "
        f"{'; '.join(decision.refusals)}."
    )


def untried_line(untried: Sequence[str]) -> str:
    """The WARNING line where graphs were captured that no GPU has shown to be right."""
    return (
        f"Draft graphs: no GPU has shown that these draft as upstream: {'; '.join(untried)}. "
        "docs/platforms.md of vllm-overlay says how to show it; OVERLAY_DRAFT_GRAPHS=off drafts as "
        "upstream."
    )


def unadapted_line(layers: Sequence[str]) -> str:
    """The INFO line where layers that the draft shares with the target lose its LoRA adapters."""
    return (
        f"Draft graphs: the draft model's {', '.join(layers)} runs without LoRA adapters, as on "
        "model runner V2; the target keeps them."
    )


def withdrawn_line(reason: str) -> str:
    """The WARNING line where a capture failed or its graphs can no longer be used."""
    return (
        f"Draft graphs withdrawn, the drafter runs as upstream: {reason}. A restart captures "
        "again; OVERLAY_DRAFT_GRAPHS=off drafts so from the start."
    )


#: The INFO lines at a sleep, and in the first batch behind it.
GIVEN_BACK = (
    "Draft graphs: their memory is given back for a sleep of level 2; the first batch behind it "
    "captures them again."
)
AWAKE = "Draft graphs: awake again; capturing them again."


def moved_line(moved: str) -> str:
    """The INFO line where the graphs are captured again; moved: what they read elsewhere."""
    return (
        f"Draft graphs: {moved} is not where the graphs read it (weights loaded again, or a wake "
        "from sleep); capturing them again."
    )


def moved_together(moved: str) -> str:
    """Why ranks that draft together withdraw their graphs; see `moved_line`."""
    return (
        f"{moved} is not where the graphs read it (weights loaded again, or a wake from sleep), "
        "and data-parallel ranks cannot capture while they serve"
    )


def left_line(reason: str) -> str:
    """The INFO line, once a reason, where the policy granted graphs and batches run as upstream."""
    return f"Draft graphs: batches run as upstream, because {reason}."


def unprofiled_line(reason: str, memory: int) -> str:
    """The WARNING line for graphs that vLLM's memory profile does not include. memory: bytes."""
    return (
        f"Draft graphs: captured, but not in the profile of the graphs' memory ({reason}); the KV "
        f"cache was sized without their {memory / (1 << 20):.0f} MiB. If memory runs out, lower "
        "gpu_memory_utilization or set OVERLAY_DRAFT_GRAPHS=off."
    )


def plan_table(
    mode: Mode, facts: Facts, decision: Decision, keys: Sequence[DraftKey]
) -> Mapping[str, str]:
    """What ranks that draft together must have in common, by name."""
    return {
        "mode": mode,
        "graphs": captured_sizes(keys) or "none",
        "refused": "; ".join(decision.refusals) or "nothing",
        **{each.name: _words(getattr(facts, each.name)) for each in fields(facts)},
    }


def _words(value: object) -> str:
    """A fact in words that are the same in every process: sets come in another order in each."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_words, value)))}}}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_words, value))})"
    if is_dataclass(value):
        parts = [f"{each.name}={_words(getattr(value, each.name))}" for each in fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    return str(value)


def different_plans(lines: Sequence[str]) -> str:
    """The error where ranks that draft together plan different graphs."""
    return "\n".join(
        [
            (
                "Draft graphs: the ranks draft together, and would capture different graphs. Give "
                "all ranks the same vLLM, patches, variables and attention backends, or set "
                "OVERLAY_DRAFT_GRAPHS=off on all of them. They differ in:"
            ),
            *lines,
        ]
    )


def cannot_go_on(reason: str) -> str:
    """The error where a failed capture may have left the ranks' exchange of rows out of step."""
    return (
        f"Draft graphs: a capture failed ({reason}), and the buffers through which the experts "
        "exchange rows with low latency may be out of step between the ranks. Set "
        "OVERLAY_DRAFT_GRAPHS=off on all ranks and start them again."
    )
