"""Name the modules that still import what a plan removes; pure.

The texts are searched and not parsed: a package has thousands of modules, and a warning that names
one too many is better than one that misses what only a string names, as registries do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from overlay.errors import TargetError
from overlay.package import is_module, module_name
from overlay.planning.patched_tree import PatchedTree
from overlay.results import Notice

#: How many importers are named, and how many files are looked at.
_NAMED, _MOST = 5, 20_000

_FROM = re.compile(
    r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE
)


def importers_of_removed(tree: PatchedTree) -> list[Notice]:
    """A notice for each module that the layers remove and other modules still name."""
    removed = [path for path in tree.layers if is_module(path) and tree.current(path) is None]
    if not removed:
        return []
    importers: dict[str, list[str]] = {path: [] for path in removed}
    names = {path: module_name(path) for path in removed}
    for path in sorted({*tree.pristine_files.paths(), *tree.layers})[:_MOST]:
        text = _text(tree, path) if is_module(path) else ""
        for module, name in names.items():
            if name.rpartition(".")[2] in text and _names(text, path, name):
                importers[module].append(path)
    return [_notice(path, importers[path]) for path in removed if importers[path]]


def _notice(path: str, importers: list[str]) -> Notice:
    more = f" and {len(importers) - _NAMED} more" if len(importers) > _NAMED else ""
    return Notice(
        path,
        f"it is removed, and {', '.join(importers[:_NAMED])}{more} still "
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
