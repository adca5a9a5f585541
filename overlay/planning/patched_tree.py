"""The files of a tree in a plan, and what patches and added modules make of them.

A file that nothing touched is read once; of a touched one every layer keeps the text that it left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from overlay._features.model import Feature
from overlay.package import ReadOnce, Tree
from overlay.planning.attempt import Texts
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.telling import Place
from overlay.planning.text import TextError
from overlay.results import Reason


class Layer(NamedTuple):
    """One patch or added file of the plan: which it is, and what it left of its file.

    :ivar after: ``None`` where it removed the file.
    """

    feature: int
    file: int
    label: str
    after: bytes | None


#: A layer that a hunk meets on its lines, and why neither is applied.
Met = tuple[Layer, Reason]


class PatchedTree:
    """The files of a tree, and what the layers so far make of them.

    :ivar pristine_files: the tree's own; :ivar texts: what is known about their texts.
    :ivar layers: path -> the layers that changed the file, in order.
    """

    def __init__(self, tree: Tree, syntax: Syntax) -> None:
        self.pristine_files = ReadOnce(tree)
        self.texts = Texts(syntax)
        self.layers: dict[str, list[Layer]] = {}

    def pristine(self, path: str) -> bytes | None:
        """The bytes of the tree's own file."""
        return self.pristine_files.read(path)

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
        """The bytes that the layers so far leave."""
        layers = self.layers.get(path)
        return layers[-1].after if layers else self.pristine(path)

    def place(self, layer: Layer, feature: Feature, path: str, lines: range) -> str:
        """What to call a layer of a feature: the hunk of it that touches some lines, if one does.

        :param lines: 1-based, in the tree's own file.
        """
        own = self.pristine(path)
        for topic in feature.topics:
            for variant in topic.variants:
                for hunk in variant.patch.hunks if variant.patch.name == layer.label else ():
                    at = self.texts.match(hunk, own).line
                    if at is not None and at < lines.stop and lines.start < at + len(hunk.pre):
                        return f"{layer.label}:{hunk.patch_line}"
        return layer.label
