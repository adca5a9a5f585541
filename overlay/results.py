"""How features, files and hunks stand, as plans work it out and ledgers keep it.

The lower half of ``overlay.model``, apart because each process of vLLM that is patched on disk
reads a ledger, and pays for each data class that is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlay.states import State


@dataclass(frozen=True)
class HunkResult:
    """How one hunk stands.  ``line`` is where its pre-image (or post-image) begins, 1-based."""

    scope: str
    state: State
    line: int | None = None
    why: str | None = None
    candidates: tuple[int, ...] = ()


@dataclass(frozen=True)
class FileResult:
    """How one file of a feature stands; an added module is a file with no hunks."""

    path: str
    state: State
    patch: str | None = None
    hunks: tuple[HunkResult, ...] = ()
    why: str | None = None


@dataclass(frozen=True)
class FeatureResult:
    """How one feature stands in a target.

    :ivar untested: the release is covered by no variant's range and was judged by content.
    """

    feature: str
    state: State
    files: tuple[FileResult, ...] = ()
    why: str | None = None
    untested: bool = False
