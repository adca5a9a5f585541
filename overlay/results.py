"""Result types that plans compute, ledgers store and reports show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


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


class HunkResult(NamedTuple):
    """How one hunk stands.  ``line`` is where its pre-image (or post-image) begins, 1-based."""

    scope: str
    state: State
    line: int | None = None
    why: str | None = None
    candidates: tuple[int, ...] = ()


class FileResult(NamedTuple):
    """How one file of a feature stands; an added module is a file with no hunks."""

    path: str
    state: State
    patch: str | None = None
    hunks: tuple[HunkResult, ...] = ()
    why: str | None = None


class FeatureResult(NamedTuple):
    """How one feature stands in a target.

    :ivar untested: the release is covered by no variant's range and was judged by content.
    """

    feature: str
    state: State
    files: tuple[FileResult, ...] = ()
    why: str | None = None
    untested: bool = False


#: Stands in a ``why`` before what to do, where the cause tells it better than the state alone.
NEXT = "; next: "


@dataclass(frozen=True)
class Change:
    """What becomes of one file: ``None`` stands for no file."""

    path: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Plan:
    """Every feature's state, and the changes from the pristine tree to the patched one.

    :ivar changes: empty unless every selected feature can be applied; sorted by path.
    """

    features: tuple[FeatureResult, ...]
    changes: tuple[Change, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """The target's state: the worst of its features."""
        return worst(feature.state for feature in self.features)


def file_state(hunks: tuple[HunkResult, ...]) -> State:
    """The state of a patched file from its hunks."""
    return combine(hunk.state for hunk in hunks)
