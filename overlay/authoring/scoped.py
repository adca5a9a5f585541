"""A source text together with its scopes: what composing and carrying hunks look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from overlay._features.model import FILE_SCOPE, Hunk
from overlay.planning.matching import match, places_of
from overlay.planning.scopes import find
from overlay.planning.telling import Place
from overlay.planning.text import SourceText
from overlay.results import HunkResult

Scopes = Mapping[str, Sequence[range]]


@dataclass(frozen=True)
class ScopedText:
    """A source text and the places of its scopes, as 0-based half-open ranges of lines."""

    source: SourceText
    scopes: Scopes

    @classmethod
    def read(cls, data: bytes, *, is_data: bool = False) -> ScopedText:
        """The text of a file.

        :param is_data: it is no module: it has one scope, which is all of it.
        :raises TextError, UnparsableError: if it is not readable, or not Python.
        """
        source = SourceText.from_bytes(data)
        if is_data:
            return cls(source, {FILE_SCOPE: [range(len(source.lines))]})
        return cls(source, find(source.lines))

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines without their ends."""
        return self.source.lines

    @cached_property
    def _evidence(self) -> dict[str, Sequence[Place]]:
        return {}

    def evidence(self, scope: str) -> Sequence[Place]:
        """The lines of a scope, as evidence; worked out once for all hunks."""
        if scope not in self._evidence:
            self._evidence[scope] = places_of(scope, self.source.lines, self.scopes)
        return self._evidence[scope]

    def match(self, hunk: Hunk) -> HunkResult:
        """The state of a hunk in the text."""
        source, evidence = self.source, self.evidence(hunk.scope)
        return match(hunk, source.lines, self.scopes, source.final_newline, evidence)

    def home(self, hunk: Hunk) -> range | None:
        """The place of a hunk's scope that holds the hunk; ``None`` where that cannot be told."""
        places = self.scopes.get(hunk.scope, ())
        line = self.match(hunk).line
        if line is None:
            return places[0] if len(places) == 1 else None
        start, stop = line - 1, line - 1 + len(hunk.pre)
        return next((p for p in places if p.start <= start and stop <= p.stop), None)


def with_base(hunk: Hunk, origin: ScopedText) -> Hunk:
    """A hunk whose base is known: what its scope in the base had of its lines tells nothing."""
    if hunk.base_has is not None:
        return hunk
    home = origin.home(hunk)
    there = () if home is None else origin.source.lines[home.start : home.stop]
    return hunk._replace(base_has=tuple(dict.fromkeys(line.strip() for line in there)))
