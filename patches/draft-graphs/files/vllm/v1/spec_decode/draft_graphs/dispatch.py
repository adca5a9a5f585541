# SPDX-License-Identifier: Apache-2.0
"""Chooses the graphs of a batch: those of its first pass, and of the later ones behind it."""

from __future__ import annotations

from typing import Any

from .drafter import Drafter
from .keys import DraftKey

#: The graphs of all passes of a batch; the second is None where there is one pass.
Keys = tuple[DraftKey, DraftKey | None]


class Dispatch:
    """Asks vLLM's dispatcher of one proposer, which knows the captured graphs.

    dispatcher: the proposer's `cudagraph_dispatcher`.
    k: the K (num_speculative_tokens) that the graphs were captured for.
    """

    def __init__(self, dispatcher: Any, drafter: Drafter, k: int) -> None:
        self._dispatcher = dispatcher
        self._drafter = drafter
        self._first_tokens = drafter.first_tokens(k)
        self._k = k

    def uniform(self, reqs: int, k: int, sampled: bool) -> Keys | None:
        """The graphs for all passes of a uniform batch; None unless all of them exist."""
        if self._drafter.one_pass and k != self._k:
            return None
        tokens = reqs * self._first_tokens
        first = self._ask(self._drafter.first_role, tokens, reqs, sampled)
        if first is None or k == 1 or self._drafter.one_pass:
            return None if first is None else (first, None)
        return self._with_later(first, self.later(reqs, k, sampled))

    def mixed(self, tokens: int, reqs: int, k: int) -> Keys | None:
        """The graphs for all passes of a mixed batch; None unless all of them exist."""
        first = self._ask("mixed", tokens, reqs)
        if first is None or k == 1:
            return None if first is None else (first, None)
        # As many rows as the first pass has, so that what it leaves for them is theirs.
        return self._with_later(first, self.later(first.num_reqs, k))

    def later(self, reqs: int, k: int, sampled: bool = False) -> DraftKey | None:
        """The graph for the passes after the first: the loop if it drafts k tokens, or steps."""
        key: DraftKey | None = None
        if k == self._k:
            key = self._ask("loop", reqs, reqs, sampled)
        if key is None:
            key = self._ask("step", reqs, reqs, sampled)
        return key

    def _with_later(self, first: DraftKey, later: DraftKey | None) -> Keys | None:
        """Both, if they have the same rows."""
        if later is None or later.num_reqs != first.num_reqs:
            return None
        return first, later

    def _ask(self, role: str, tokens: int, reqs: int, sampled: bool = False) -> DraftKey | None:
        """The smallest graph of a role that holds the batch."""
        key: DraftKey | None = self._dispatcher.dispatch_draft(role, tokens, reqs, self._k, sampled)
        return key
