# SPDX-License-Identifier: Apache-2.0
"""Decides on the draft's attention backends by their rows. Imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .capabilities import BACKENDS, EVIDENCE, Backend, Evidence, Platform

UNTRIED_VARIABLE = "OVERLAY_DRAFT_GRAPHS_UNTRIED"

#: What the user can do about a platform.
WHICH_PLATFORMS = "docs/platforms.md of vllm-overlay says which platforms get graphs"
#: The same about an attention backend; in 0.20 the drafter uses the target's.
CHOOSE_BACKEND = "from 0.21 on attention_backend in speculative_config chooses another one of"


@dataclass(frozen=True)
class Attention:
    """An attention backend of the draft, with the row that describes it.

    name: what the backend calls itself.
    builder: the class of its metadata builder, by name.
    row: None where the table has none for these classes.
    derived: whether the table has the backend, with another builder.
    """

    name: str
    builder: str
    row: Backend | None = None
    derived: bool = False

    @property
    def title(self) -> str:
        """Its name; the row's title, with the kernel, where the row has one of several."""
        return self.row.title if self.row is not None and self.row.kernel else self.name


def evidence(platform: Platform, row: Backend) -> Evidence:
    """What shows that a backend works on a platform: the weaker of the evidence for both."""
    return max(row.evidence, platform.evidence, key=EVIDENCE.index)


def refusals(backends: Sequence[Attention], platform: Platform, untried: bool) -> list[str]:
    """Every reason why these backends get no draft graphs; empty where they do.

    untried: whether the user grants what no GPU has shown.
    """
    if not backends:
        return ["the draft model has no attention layers (other drafts get graphs)"]
    reasons = []
    choose = choose_hint(platform)
    derived = sorted({each.builder for each in backends if each.row is None and each.derived})
    if derived:
        reasons.append(
            f"the draft's attention builds its metadata by {', '.join(derived)}, which may read "
            "lengths on the host (draft models without chunked or sink attention get graphs)"
        )
    unread = sorted({each.name for each in backends if each.row is None and not each.derived})
    if unread:
        reasons.append(
            f"attention backend {', '.join(unread)} of the draft is not known to build its "
            f"metadata inside a graph ({choose})"
        )
    for each in backends:
        if each.row is None:
            continue
        shown = evidence(platform, each.row)
        if shown == "refused":
            why = each.row.why or platform.why
            reasons.append(f"attention backend {each.title} of the draft: {why} ({choose})")
        elif shown != "gpu" and not each.row.kept and not untried:
            reasons.append(
                f"no graph with attention backend {each.title} of the draft has run on a GPU of "
                f"platform {platform.name} yet ({UNTRIED_VARIABLE}=on grants it; {choose})"
            )
    return reasons


def untried_grants(backends: Sequence[Attention], platform: Platform) -> Iterator[str]:
    """The granted backends that no GPU has shown, with what shows them instead."""
    for each in backends:
        if each.row is not None and (shown := evidence(platform, each.row)) != "gpu":
            yield (
                f"attention backend {each.title} on platform {platform.name} "
                f"({shown}: {each.row.where})"
            )


def choose_hint(platform: Platform) -> str:
    """What the user can do about an attention backend.

    Names those that a GPU of the platform has shown, but for one of which vLLM may choose a kernel
    that is refused; where there are none, those that the switch for what no GPU has shown grants;
    where there are none either, the page with all platforms.
    """
    names: dict[bool, set[str]] = {True: set(), False: set()}
    refused: set[str] = set()
    for row in BACKENDS:
        shown = evidence(platform, row)
        if platform.name in row.platforms and shown != "refused":
            names[shown == "gpu"].update(row.names)
        elif platform.name in row.platforms:
            refused.update(row.names)
    if names[True] - refused:
        return f"{CHOOSE_BACKEND} {', '.join(sorted(names[True] - refused))}"
    if names[False]:
        untried = ", ".join(sorted(names[False]))
        return f"{CHOOSE_BACKEND} {untried}, with {UNTRIED_VARIABLE}=on"
    return WHICH_PLATFORMS
