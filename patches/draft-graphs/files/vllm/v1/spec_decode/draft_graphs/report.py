# SPDX-License-Identifier: Apache-2.0
"""The lines that draft graphs write to the log. Imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Sequence

from .keys import ROLES, DraftKey
from .policy import Decision, Mode


def captured_line(
    mode: Mode, keys: Sequence[DraftKey], notes: Sequence[str], memory: int, seconds: float
) -> str:
    """The one INFO line after the capture. memory: bytes."""
    parts = []
    for role in ROLES:
        sizes = sorted(key.num_reqs for key in keys if key.role == role)
        if sizes:
            parts.append(f"{role} {len(sizes)} ({', '.join(map(str, sizes))} requests)")
    line = (
        f"Draft graphs: mode {mode}, K={keys[0].k}; captured {'; '.join(parts)}; "
        f"{memory / (1 << 20):.0f} MiB, {seconds:.1f} s"
    )
    return f"{line}. As upstream: {'; '.join(notes)}" if notes else f"{line}."


def refused_line(mode: Mode, decision: Decision) -> str:
    """The one INFO line where there is nothing to capture."""
    return (
        f"Draft graphs: none (mode {mode}), the drafter runs as upstream: "
        f"{'; '.join(decision.refusals)}."
    )


def withdrawn_line(reason: str) -> str:
    """The one WARNING when graphs that were to be there are not."""
    return f"Draft graphs withdrawn, the drafter runs as upstream: {reason}"


def told(error: Exception) -> str:
    """An error as a reason."""
    return f"{type(error).__name__}: {error}"


def left_line(reason: str) -> str:
    """The INFO line when batches that graphs were to hold run as upstream, once a reason."""
    return f"Draft graphs: batches run as upstream, because {reason}."


def unprofiled_line(reason: str, memory: int) -> str:
    """The WARNING for graphs that vLLM's profile knows nothing of. memory: bytes."""
    return (
        f"Draft graphs: captured, but not in the profile of the graphs' memory ({reason}); the KV "
        f"cache was sized without their {memory / (1 << 20):.0f} MiB. If memory runs out, lower "
        "gpu_memory_utilization or set OVERLAY_DRAFT_GRAPHS=off."
    )
