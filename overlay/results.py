"""How features, files and hunks stand, as plans work it out and ledgers keep it.

The lower half of ``overlay.model``, apart because each process of vLLM that is patched on disk
reads a ledger.  What such a process needs is a named tuple, for Python takes four times as long
to make a frozen data class.
"""

from __future__ import annotations

from typing import NamedTuple

from overlay.states import State


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
