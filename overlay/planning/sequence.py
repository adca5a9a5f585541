"""The sequence of a plan: the files of a tree, and what patches and added modules make of them.

A file that nothing touched is read once; of a touched one every step keeps the text that it left.
"""

from __future__ import annotations

from typing import NamedTuple

from overlay.features.model import Feature
from overlay.package import ReadOnce, Tree
from overlay.planning.attempt import Texts
from overlay.planning.scopes import Syntax


class Step(NamedTuple):
    """One patch or added module in the sequence: which it is, and what it left of its file."""

    feature: int
    file: int
    label: str
    after: bytes


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
