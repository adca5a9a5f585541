"""The files of a tree as they are, and as the patches simulated so far would leave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlay.features.model import Hunk
from overlay.package import Tree
from overlay.planning.matching import match
from overlay.planning.rescope import rescope
from overlay.planning.scopes import Scopes, Syntax, UnparsableError
from overlay.planning.text import Edit, SourceText, TextError
from overlay.results import HunkResult, Reason, State


@dataclass(frozen=True)
class Step:
    """One patch or added module, simulated: which it is, and what it left of its file."""

    feature: int
    file: int
    label: str
    after: bytes


class Simulation:
    """Reads each file of a tree once, and keeps what the steps make of it."""

    def __init__(self, tree: Tree, syntax: Syntax) -> None:
        self._tree, self.syntax = tree, syntax
        self._pristine: dict[str, bytes | None] = {}
        self._sources: dict[bytes, SourceText | TextError] = {}
        self.steps: dict[str, list[Step]] = {}

    def pristine(self, path: str) -> bytes | None:
        """The bytes of the tree's own file."""
        if path not in self._pristine:
            self._pristine[path] = self._tree.read(path)
        return self._pristine[path]

    def current(self, path: str) -> bytes | None:
        """The bytes that the steps so far leave."""
        steps = self.steps.get(path)
        return steps[-1].after if steps else self.pristine(path)

    def source(self, data: bytes) -> SourceText:
        """The text of a file.

        :raises TextError: if it is no source text.
        """
        known = self._sources.get(data)
        if known is None:
            try:
                known = SourceText.from_bytes(data)
            except TextError as error:
                known = error
            self._sources[data] = known
        if isinstance(known, TextError):
            raise known
        return known

    def scopes(self, data: bytes) -> Scopes:
        """The scopes of a file.

        :raises TextError, UnparsableError: if it is no source text, or no Python.
        """
        return self.syntax.scopes(data, self.source(data).lines)

    def scopes_after(self, after: bytes, before: bytes, edits: Sequence[Edit]) -> Scopes:
        """The scopes of what edits make of a file whose scopes are known.

        :raises TextError, UnparsableError: if it is no source text, or no Python.
        """
        lines = self.source(after).lines

        def derive() -> Scopes | None:
            return rescope(self.source(before).lines, self.scopes(before), edits, lines)

        return self.syntax.scopes(after, lines, derive)

    def match(self, hunk: Hunk, data: bytes | None) -> HunkResult:
        """How a hunk stands in these bytes; what cannot be read is ``drifted``."""
        if data is None:
            return HunkResult(hunk.scope, State.MISSING)
        try:
            source = self.source(data)
            return match(hunk, source.lines, self.scopes(data), source.final_newline)
        except (TextError, UnparsableError) as error:
            return HunkResult(
                hunk.scope, State.DRIFTED, reason=Reason(f"the file cannot be read: {error}")
            )
