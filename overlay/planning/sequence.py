"""The sequence of a plan: the files of a tree, and what patches and added modules make of them.

A file that nothing touched is read once; of a touched one every step keeps the text that it left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from overlay.features.model import Feature
from overlay.package import ReadOnce, Tree
from overlay.planning.attempt import Texts
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.telling import Place
from overlay.planning.text import TextError
from overlay.results import Reason


class Step(NamedTuple):
    """One patch or added module in the sequence: which it is, and what it left of its file."""

    feature: int
    file: int
    label: str
    after: bytes


#: A step that a hunk meets on its lines, and why neither is applied.
Met = tuple[Step, Reason]


class Series:
    """The files of a tree, and what the steps so far make of them.

    :ivar tree: the tree's own files; :ivar texts: what is known about their texts.
    :ivar steps: path -> the steps that changed the file, in order.
    """

    def __init__(self, tree: Tree, syntax: Syntax) -> None:
        self.tree = ReadOnce(tree)
        self.texts = Texts(syntax)
        self.steps: dict[str, list[Step]] = {}

    def pristine(self, path: str) -> bytes | None:
        """The bytes of the tree's own file."""
        return self.tree.read(path)

    def scope_lines(self, path: str, scope: str) -> list[Sequence[str]]:
        """The lines of each place that a scope has in the tree's own file."""
        data = self.pristine(path)
        try:
            places = self.texts.scopes(data).get(scope, ()) if data is not None else ()
            lines = self.texts.source(data).lines if data is not None else ()
        except (TextError, UnparsableError):
            return []
        return [lines[place.start : place.stop] for place in places]

    def places(self, path: str, scope: str) -> Sequence[Place]:
        """The same as evidence."""
        data = self.pristine(path)
        try:
            return () if data is None else self.texts.places(data, scope)
        except (TextError, UnparsableError):
            return ()

    def current(self, path: str) -> bytes | None:
        """The bytes that the steps so far leave."""
        steps = self.steps.get(path)
        return steps[-1].after if steps else self.pristine(path)

    def place(self, step: Step, feature: Feature, path: str, lines: range) -> str:
        """What to call a step of a feature: the hunk of it that touches some lines, if one does.

        :param lines: 1-based, in the tree's own file.
        """
        own = self.pristine(path)
        for topic in feature.topics:
            for variant in topic.variants:
                for hunk in variant.patch.hunks if variant.patch.name == step.label else ():
                    at = self.texts.match(hunk, own).line
                    if at is not None and at < lines.stop and lines.start < at + len(hunk.pre):
                        return f"{step.label}:{hunk.patch_line}"
        return step.label
