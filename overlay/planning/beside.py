"""Land a hunk beside the changes of other features, whose lines may lie in its context.

A hunk was made on a text without some of the features before it: the release's own, most often.
It is looked for there, and carried to the text with all of them; where a line stands between its
changes and theirs, both are made, in whatever order the features come.  Everything that a hunk says
of a text, its guards too, it says of the text that it was made on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from overlay._features.model import Hunk
from overlay.package import is_module
from overlay.planning.attempt import Judged
from overlay.planning.code_lines import blocks_of, is_definition, key_of, twins
from overlay.planning.matching import edits, final_newline_after
from overlay.planning.patched_tree import PatchedTree
from overlay.planning.scopes import UnparsableError
from overlay.planning.text import Edit, TextError
from overlay.planning.weave import Carriage
from overlay.results import HunkResult, State


class Neighbourhood(NamedTuple):
    """What became of a hunk beside other features.

    :ivar landing: where it lands; ``None`` where it does not, or at several places.
    :ivar met: the features, by number, that change the same lines or make the same change.
    """

    landing: Judged | None = None
    met: tuple[int, ...] = ()


class Placement(NamedTuple):
    """A hunk on a text without some features: its state, its edits there, and those on all."""

    result: HunkResult
    data: bytes
    own: tuple[Edit, ...]
    carried: Carriage


def beside(hunk: Hunk, path: str, own: int, tree: PatchedTree) -> Neighbourhood:
    """Land a hunk on a text without some of the features that changed its file.

    :param own: the feature whose hunk it is, by number; what it changed before stays.
    """
    weave = tree.weave(path)
    landings: dict[tuple[Edit, ...], Judged] = {}
    met: dict[int, None] = {}
    for absent in dict.fromkeys((weave.all_but(own), *weave.sets_without_which(hunk.pre, own))):
        place = place_without(hunk, path, absent, tree)
        if place is None:
            continue
        meets = (
            place.carried.met
            or _twins(path, absent, place, tree)
            or _redefined(path, absent, place, tree)
        )
        met |= dict.fromkeys(meets)
        if not meets and (landing := _landing(hunk, path, absent, place, tree)) is not None:
            landings.setdefault(place.carried.edits, landing)
    if len(landings) == 1:
        return Neighbourhood(next(iter(landings.values())))
    return Neighbourhood(met=tuple(met))


def place_without(
    hunk: Hunk, path: str, absent: Collection[int], tree: PatchedTree
) -> Placement | None:
    """Where a hunk lands on the text without some features; ``None``: nowhere, or all are there."""
    if not absent:
        return None
    try:
        data = tree.without(path, absent)
    except (TextError, UnparsableError):
        return None
    result = tree.texts.match(hunk, data)
    if result.state is not State.PRISTINE or result.line is None:
        return None
    own = edits(hunk, result.line - 1)
    return Placement(result, data, own, tree.weave(path).carry(own, absent))


def _landing(
    hunk: Hunk, path: str, absent: Collection[int], place: Placement, tree: PatchedTree
) -> Judged | None:
    """A hunk in its place on the text with all features; ``None`` where it is not Python alone."""
    texts, weave = tree.texts, tree.weave(path)
    try:
        source = texts.source(place.data)
        after = texts.keep(source.splice(place.own, final_newline_after(hunk)))
        if is_module(path):
            texts.scopes(after)
    except (TextError, UnparsableError):
        return None
    at = (place.result.line or 1) - 1
    first, last = weave.line(at, absent), weave.line(at + len(hunk.pre) - 1, absent)
    result = place.result._replace(line=first + 1)
    return Judged(result, place.carried.edits, range(first, last + 1), after)


def _twins(
    path: str, absent: Collection[int], place: Placement, tree: PatchedTree
) -> tuple[int, ...]:
    """The left-out feature that brings the same code to the same blocks: it is not put in twice.

    Equal lines in other blocks, as an argument of another call or a line of another branch, are
    other code.
    """
    own = _code_of(tree.texts.source(place.data).splice(place.own).lines, place.own)
    for layer in tree.layers[path] if own else ():
        there = tree.texts.source(layer.after).lines if layer.after is not None else ()
        if layer.feature in absent and own <= _code_of(there, layer.edits):
            return (layer.feature,)
    return ()


def _redefined(
    path: str, absent: Collection[int], place: Placement, tree: PatchedTree
) -> tuple[int, ...]:
    """The left-out feature that defines the same function or class in the same block."""
    now = tree.texts.source(tree.current(path) or b"")
    after = now.splice(place.carried.edits).lines
    own = set(chain.from_iterable(_rows_of(place.carried.edits)))
    for line in (after[other] for row, other in twins(after, own) if is_definition(after[row])):
        for layer in tree.layers[path]:
            if layer.feature in absent and any(line in edit.lines for edit in layer.edits):
                return (layer.feature,)
    return ()


def _code_of(after: Sequence[str], changes: Sequence[Edit]) -> set[tuple[tuple[str, ...], ...]]:
    """The code that edits brought to a text, each with the blocks that it stands in."""
    code = {
        tuple(blocks_of(after, row) for row in rows if key_of(after[row]))
        for rows in _rows_of(changes)
    }
    return code - {()}


def _rows_of(changes: Sequence[Edit]) -> Iterator[range]:
    """Where the lines of each edit stand in the text with all of them."""
    shift = 0
    for edit in changes:
        yield range(edit.start + shift, edit.start + shift + len(edit.lines))
        shift += len(edit.lines) - (edit.stop - edit.start)
