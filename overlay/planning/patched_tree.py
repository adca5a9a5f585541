"""The files of a tree in a plan, and what patches and added modules make of them.

A file that nothing touched is read once; of a touched one every layer keeps the text that it left.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from overlay._features.model import Feature
from overlay.errors import TargetError
from overlay.package import ReadOnce, Tree, hiding, is_module, module_name
from overlay.planning.attempt import Texts
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.telling import Place
from overlay.planning.text import Edit, TextError
from overlay.planning.weave import Weave
from overlay.results import Notice, Reason


class Layer(NamedTuple):
    """One patch or added file of the plan: which it is, and what it left of its file.

    :ivar after: ``None`` where it removed the file.
    :ivar edits: what it changed of the text before it; an added file has none.
    :ivar whole: whether it put other bytes in the place of all that was there, or none.
    """

    feature: int
    file: int
    label: str
    after: bytes | None
    edits: tuple[Edit, ...] = ()
    whole: bool = False


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
        self._weaves: dict[str, tuple[list[Layer], Weave]] = {}

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

    def drop(self, feature: int) -> None:
        """Take out the layers of the feature that was planned last."""
        kept_layers = {
            path: [layer for layer in layers if layer.feature != feature]
            for path, layers in self.layers.items()
        }
        self.layers = {path: layers for path, layers in kept_layers.items() if layers}

    def weave(self, path: str) -> Weave:
        """The lines of a file that has layers, with the features that brought and took them.

        :raises TextError: if the file is not source text.
        """
        layers = self.layers[path]
        woven, weave = self._weaves.get(path, ([], None))
        if weave is None or layers[: len(woven)] != woven:
            woven, weave = [], Weave(self.texts.source(self._origin(path)).lines)
        for layer in layers[len(woven) :]:
            if layer.edits:
                weave.add(layer.feature, layer.edits)
        self._weaves[path] = list(layers), weave
        return weave

    def without(self, path: str, absent: Collection[int]) -> bytes:
        """The bytes of a file that has layers, without some of the features.

        :raises TextError, UnparsableError: if there is no such text, or it is not Python.
        """
        origin = self._origin(path)
        edits = self.weave(path).edits_without(absent)
        if not edits:
            return origin
        source = self.texts.source(origin)
        finished = before = source.final_newline
        for layer in self.layers[path]:
            after = self.texts.source(layer.after or b"").final_newline
            if after is not before and layer.feature not in absent:
                finished = after
            before = after
        data = self.texts.keep(source.splice(edits, finished))
        if is_module(path):
            self.texts.scopes(data)
        return data

    def untouched(self, path: str, lines: range) -> bool:
        """Whether no layer changed some lines (0-based) of a file, nor anything between them."""
        start, stop = lines.start, lines.stop
        for layer in reversed(self.layers[path]):
            moved = before = 0
            for edit in sorted(layer.edits, key=lambda edit: (edit.start, edit.stop)):
                first = edit.start + moved
                last = first + len(edit.lines)
                moved = last - edit.stop
                if last <= start:
                    before = moved
                elif first < stop:
                    return False
            start, stop = start - before, stop - before
        return True

    def _origin(self, path: str) -> bytes:
        """What the edits of a file begin from: its own text, or that of the module it is."""
        own = self.pristine(path)
        return (self.layers[path][0].after or b"") if own is None else own

    def place(self, layer: Layer, feature: Feature, path: str, lines: range) -> str:
        """What to call a layer of a feature: the hunk of it that touches some lines, if one does.

        :param lines: 1-based, in the tree's own file.
        """
        own = self.pristine(path)
        for patch in feature.patches:
            for hunk in patch.hunks if patch.name == layer.label else ():
                at = self.texts.match(hunk, own).line
                if at is not None and at < lines.stop and lines.start < at + len(hunk.pre):
                    return f"{layer.label}:{hunk.patch_line}"
        return layer.label


#: How many importers are named, and how many files are looked at.
_NAMED_IMPORTERS, _MOST_FILES = 5, 20_000

_FROM = re.compile(
    r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE
)


def importers_of_removed(tree: PatchedTree) -> list[Notice]:
    """A notice for each module that the layers remove and other modules still name.

    The texts are searched and not parsed: a package has thousands of modules, and a warning that
    names one too many is better than one that misses what only a string names, as registries do.
    """
    lost = [path for path in tree.layers if is_module(path) and tree.current(path) is None]
    removed = [path for path in lost if tree.current(hiding(path)) is None]
    if not removed:
        return []
    importers: dict[str, list[str]] = {path: [] for path in removed}
    names = {path: module_name(path) for path in removed}
    for path in sorted({*tree.pristine_files.paths(), *tree.layers})[:_MOST_FILES]:
        text = _text(tree, path) if is_module(path) else ""
        for module, name in names.items():
            if name.rpartition(".")[2] in text and _names(text, path, name):
                importers[module].append(path)
    return [_notice(path, importers[path]) for path in removed if importers[path]]


def hidden_modules(tree: PatchedTree) -> Iterator[Notice]:
    """A notice for each module in whose place Python imports a package that the layers add."""
    for path in tree.layers:
        folder, _, name = path.rpartition("/")
        added = tree.current(path) is not None and tree.pristine(path) is None
        if name == "__init__.py" and added and tree.current(f"{folder}.py") is not None:
            text = f"Python imports {path} in its place: let the feature remove it, or rename that"
            yield Notice(f"{folder}.py", text)


def _notice(path: str, importers: list[str]) -> Notice:
    rest = len(importers) - _NAMED_IMPORTERS
    more = f" and {rest} more" if rest > 0 else ""
    return Notice(
        path,
        f"it is removed, and {', '.join(importers[:_NAMED_IMPORTERS])}{more} still "
        f"{'names' if len(importers) == 1 else 'name'} it: let the feature change these, too",
    )


def _text(tree: PatchedTree, path: str) -> str:
    try:
        return (tree.current(path) or b"").decode("utf-8", "replace")
    except TargetError:
        return ""  # nothing is done by a warning, so nothing ends by one


def _names(text: str, path: str, name: str) -> bool:
    """Whether a text of a module names another one by its dotted name, or imports it."""
    if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text):
        return True
    above, _, last = name.rpartition(".")
    word = re.compile(rf"(?<!\w){re.escape(last)}(?!\w)")
    return any(
        base == name or (base == above and word.search(what)) for base, what in _imports(text, path)
    )


def _imports(text: str, path: str) -> Iterator[tuple[str, str]]:
    """What ``from ... import ...`` takes from where, each as an absolute dotted name."""
    parts = path.removesuffix(".py").split("/")
    for match in _FROM.finditer(text):
        level, base = len(match[1]), match[2]
        if level:
            around = ".".join(parts[: len(parts) - level])
            base = ".".join(part for part in (around, base) if part)
        yield base, match[3]
