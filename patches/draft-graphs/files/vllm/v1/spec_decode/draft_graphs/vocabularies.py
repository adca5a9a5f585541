# SPDX-License-Identifier: Apache-2.0
"""The mapping between the target's vocabulary and the draft's, as a graph can hold it.

Upstream's `VocabMapping` (0.25 and later) looks tokens up in a table, and then replaces those that
the other vocabulary does not have; until 0.32 it asks on the host whether there are any. The tables
here have them replaced already, so that a look-up is all there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class StaticMapping:
    """Takes the place of a proposer's `vocab_mapping` while its graphs are captured.

    target_to_draft: [target's vocabulary] int64, the draft's token, or its unknown token.
    draft_to_target: [draft's vocabulary] int64, the target's token, or its unknown token.
    outside: [draft's vocabulary] bool, the tokens that the target does not have.
    """

    def __init__(self, mapping: Any) -> None:
        to_draft, to_target = mapping.target_to_draft_ids, mapping.draft_to_target_ids
        self.target_to_draft = to_draft.masked_fill(to_draft == -1, mapping.draft_unk_token_id)
        self.draft_to_target = to_target.masked_fill(to_target == -1, mapping.target_unk_token_id)
        self.outside: torch.Tensor = ~mapping.intersection_mask_draft

    def map_target_to_draft_ids(self, target_ids: torch.Tensor) -> torch.Tensor:
        """Tokens of the target as those of the draft, of the same shape and type."""
        mapped: torch.Tensor = self.target_to_draft[target_ids]
        return mapped.to(target_ids.dtype)

    def map_draft_to_target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Tokens of the draft as those of the target, of the same shape and type."""
        mapped: torch.Tensor = self.draft_to_target[draft_ids]
        return mapped.to(draft_ids.dtype)

    def constrain_draft_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits, [rows, draft's vocabulary], with -inf for tokens that the target lacks."""
        return logits.masked_fill(self.outside, float("-inf"))


def static_mapping(proposer: Any) -> StaticMapping | None:
    """The tables of a proposer; None where draft and target have one vocabulary."""
    if not getattr(proposer, "use_heterogeneous_vocab", False):
        return None
    return StaticMapping(proposer.vocab_mapping)


def tables_of(proposer: Any) -> tuple[object, ...]:
    """The tables of upstream's mapping, of which `StaticMapping` has copies; empty without one."""
    if not getattr(proposer, "use_heterogeneous_vocab", False):
        return ()
    mapping = proposer.vocab_mapping
    names = ("target_to_draft_ids", "draft_to_target_ids", "intersection_mask_draft")
    return (mapping, *(getattr(mapping, name, None) for name in names))


@contextmanager
def mapped_by(proposer: Any, mapping: StaticMapping | None) -> Iterator[None]:
    """Let the proposer map tokens by `mapping`; None changes nothing."""
    if mapping is None:
        yield
        return
    kept, proposer.vocab_mapping = proposer.vocab_mapping, mapping
    try:
        yield
    finally:
        proposer.vocab_mapping = kept
