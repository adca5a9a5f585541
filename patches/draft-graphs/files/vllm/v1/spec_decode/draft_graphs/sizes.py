# SPDX-License-Identifier: Apache-2.0
"""Up to which size batches get draft graphs. Imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .capabilities import EVIDENCE, Backend, Evidence
from .keys import MIXED_TOKENS

if TYPE_CHECKING:  # `policy` asks this module
    from .keys import Role
    from .policy import Facts


def most_first_tokens(facts: Facts) -> int:
    """The largest number of tokens of a first pass that gets a graph.

    Up to the largest capture size vLLM bounds FlashAttention's number of splits. Beyond it the
    kernel would choose that number by the lengths of a batch, which no graph can hold; there the
    graphs of the first pass split nothing (`upstream.split_nothing`). Where no GPU has shown it,
    the user has to grant it; drafters with one pass, and ranks that replay what the target's
    graphs agreed on, stay below the largest capture size.
    """
    largest = facts.max_capture_tokens or 0
    if (
        not _granted(facts, any_size(facts))
        or not largest
        or facts.drafter.one_pass
        or facts.coupling.together
    ):
        return largest
    # The later passes of a batch, with one token a request, need graphs as well.
    requests = min(facts.max_num_seqs or 0, largest)
    wanted = requests * facts.drafter.first_tokens(facts.num_speculative_tokens)
    return max(largest, min(wanted, facts.max_num_tokens or 0))


def most_mixed_tokens(facts: Facts) -> int:
    """The largest number of tokens of a first pass over a mixed batch that gets a graph, or 0.

    In a mixed batch requests have different numbers of tokens, as where one has a prefill. Its
    graph takes what is staged, so the drafter must not make its own inputs; data-parallel ranks
    agree on graphs for uniform batches alone.
    """
    if (
        not _granted(facts, mixed(facts))
        or facts.drafter.inputs != "shifted"
        or facts.coupling.together
    ):
        return 0
    return min(facts.max_num_tokens or 0, MIXED_TOKENS[-1])


def untried(facts: Facts, mixed_tokens: int) -> Iterator[str]:
    """The granted sizes that no GPU has shown, with what shows them instead.

    mixed_tokens: as of a decision.
    """
    most, largest = most_first_tokens(facts), facts.max_capture_tokens or 0
    where = "(doubles: tests/draft_graphs/upstream_twin.py)"
    if most > largest and any_size(facts) != "gpu":
        sizes = f"{largest + 1} to {most} tokens"
        yield f"first passes of {sizes}, above the largest capture size {where}"
    if mixed_tokens and mixed(facts) != "gpu":
        yield f"first passes over batches with a prefill {where}"


def any_size(facts: Facts) -> Evidence | None:
    """What shows first passes beyond the largest capture size; None where they have no graph."""
    return _weakest(facts, lambda row: row.any_size)


def mixed(facts: Facts) -> Evidence | None:
    """What shows first passes over mixed batches; None where they have no graph."""
    return _weakest(facts, lambda row: row.mixed)


def _granted(facts: Facts, shown: Evidence | None) -> bool:
    return shown == "gpu" or (shown is not None and facts.untried)


def _weakest(facts: Facts, evidence: Callable[[Backend], Evidence | None]) -> Evidence | None:
    """The weakest evidence of the draft's attention backends; None where one has none."""
    found = [evidence(each.row) if each.row else None for each in facts.attention or ()]
    shown = [each for each in found if each is not None]
    if len(shown) < len(found):
        return None
    return max(shown, key=EVIDENCE.index, default=None)


def too_large(facts: Facts, first: bool, later: tuple[Role, ...]) -> list[str]:
    """Batches that no graph holds, and what the user can change, as notes of a decision."""
    if facts.max_num_seqs is None or facts.max_capture_tokens is None:
        return []
    notes = []
    largest, most = facts.max_capture_tokens, most_first_tokens(facts)
    requests = most // facts.drafter.first_tokens(facts.num_speculative_tokens)
    if first and requests < min(facts.max_num_seqs, largest) and most > largest:
        notes.append(
            f"first passes over {requests} requests, the drafter having room for {most} tokens "
            "(set max_num_batched_tokens to more)"
        )
    elif first and requests < facts.max_num_seqs:
        notes.append(
            f"first passes over {requests} requests, the largest capture size being "
            f"{largest} tokens (set max_cudagraph_capture_size to more)"
        )
    if later and largest < facts.max_num_seqs:
        notes.append(f"later passes over {largest} requests")
    return notes
