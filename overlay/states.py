"""The states of a hunk, a file, a feature and a target, and how they combine."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class State(str, Enum):
    """One word on how a piece of a patch stands in a target; ordered from best to worst."""

    APPLIED = "applied"
    UPSTREAMED = "upstreamed"
    INAPPLICABLE = "inapplicable"
    PRISTINE = "pristine"
    PARTIAL = "partial"
    DRIFTED = "drifted"
    AMBIGUOUS = "ambiguous"
    MISSING = "missing"

    @property
    def needs_attention(self) -> bool:
        """Whether somebody has to act before the target can be patched or trusted."""
        return self.rank >= State.PARTIAL.rank

    @property
    def rank(self) -> int:
        """Position in the order from best (0) to worst."""
        return _ORDER.index(self)


_ORDER = tuple(State)


def worst(states: Iterable[State]) -> State:
    """The worst of independent things, such as the features of a target.

    Nothing at all is ``inapplicable``: there is nothing to do.
    """
    return max(states, key=lambda state: state.rank, default=State.INAPPLICABLE)


def combine(states: Iterable[State]) -> State:
    """The state of a whole from its parts: the hunks of a file, the files of a feature.

    A whole of which one part stands (``applied`` or ``upstreamed``) while another could
    still be applied (``pristine``) is ``partial``; otherwise the worst part wins.
    """
    found = set(states)
    whole = worst(found)
    if whole is State.PRISTINE and found & {State.APPLIED, State.UPSTREAMED}:
        return State.PARTIAL
    return whole
