"""Tell whether a file is the release's own, by its RECORD, and who else edited it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from packaging.version import Version

from overlay._features.model import Feature
from overlay.package import Tree
from overlay.planning.upstream import ScopeLines
from overlay.results import Notice
from overlay.untrusted import sha256

#: What other patchers leave in the files that they edit.
_MARKS = (("Genesis", re.compile(rb"#[ \t]*\[Genesis\b[^\]\n]*\]")),)


class Provenance:
    """Origin of the files of a tree.

    :param tree: the tree without the overlay's patches.
    :param record: sha256 (hex) of the release's own files by path; ``None`` where there is none,
        and then every file counts as its own.
    """

    def __init__(self, tree: Tree, record: Mapping[str, str] | None) -> None:
        self._tree, self._record = tree, record
        self._foreign: dict[str, str | None] = {}
        self._used: set[str] = set()

    def use(self, path: str) -> None:
        """Note that a file matters, so that ``notices`` may name it."""
        self._used.add(path)

    def foreign(self, path: str) -> str | None:
        """Why a file is not the release's own; ``None`` where it is, or without a RECORD."""
        if path not in self._foreign:
            self._foreign[path] = self._look(path)
        return self._foreign[path]

    def original(self, path: str) -> bool | None:
        """Whether a file is the release's own; ``None`` where there is no RECORD."""
        return None if self._record is None else self.foreign(path) is None

    def telling(
        self, feature: Feature, release: Version | None, scope_lines: ScopeLines
    ) -> ScopeLines:
        """The lines that may show that a release has a feature itself.

        On a release that its patches are made for, those of an edited file show what somebody put
        there: the release lacks the change.
        """
        made_for = {
            variant.patch.path
            for topic in feature.topics
            for variant in topic.variants
            if release in variant.releases and not variant.patch.retired
        }

        def lines(path: str, scope: str) -> Sequence[Sequence[str]]:
            edited = path in made_for and self.foreign(path) is not None
            return [] if edited else scope_lines(path, scope)

        return lines

    def notices(self) -> tuple[Notice, ...]:
        """One notice for each file that matters and is not the release's own, by path."""
        return tuple(
            Notice(path, f"{why}; it is taken as it is, and revert restores it like that")
            for path in sorted(self._used)
            if (why := self.foreign(path)) is not None
        )

    def _look(self, path: str) -> str | None:
        if self._record is None:
            return None
        data = self._tree.read(path)
        if data is None:
            return None
        expected, present = self._record.get(path), sha256(data)
        if expected == present:
            return None
        what = (
            "it is not the release's own file: the RECORD does not list it"
            if expected is None
            else "it is not the release's own file: expected the sha256 "
            f"{expected[:12]}... of the RECORD, found {present[:12]}..."
        )
        patcher = other_patcher(data)
        return f"{what}, with {patcher}" if patcher else what


def other_patcher(data: bytes) -> str | None:
    """The known patcher whose mark is in a file, with the line, in words."""
    for name, mark in _MARKS:
        match = mark.search(data)
        if match is not None:
            line = data[: match.start()].count(b"\n") + 1
            return f"a mark of {name} at line {line}"
    return None
