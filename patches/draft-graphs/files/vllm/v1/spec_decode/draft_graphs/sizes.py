# SPDX-License-Identifier: Apache-2.0
"""Up to which size batches get draft graphs. Imports neither torch nor vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `policy` asks this module
    from .keys import Role
    from .policy import Facts


def most_first_tokens(facts: Facts) -> int:
    """The largest number of tokens of a first pass that gets a graph.

    Up to the largest capture size vLLM bounds FlashAttention's number of splits. Beyond it the
    kernel would choose that number by the lengths of a batch, which no graph can hold; there the
    graphs of the first pass split nothing (`upstream.split_nothing`). No GPU has shown it, so the
    user has to grant it; drafters with one pass, and ranks that replay what the target's graphs
    agreed on, stay below the largest capture size.
    """
    largest = facts.max_capture_tokens or 0
    rows = [each.row for each in facts.attention or ()]
    if (
        not facts.untried
        or not largest
        or facts.drafter.one_pass
        or facts.coupling.together
        or not all(row is not None and row.any_size for row in rows)
    ):
        return largest
    # The later passes of a batch, with one token a request, need graphs as well.
    requests = min(facts.max_num_seqs or 0, largest)
    wanted = requests * facts.drafter.first_tokens(facts.num_speculative_tokens)
    return max(largest, min(wanted, facts.max_num_tokens or 0))


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
