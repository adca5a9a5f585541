"""Derive the scopes of an edited text from those of the text before, parsing only the edits.

A hunk changes the inside of a function, and vLLM's model runner has seven thousand lines around
it.  This and ``scope_cache`` each pay for themselves: planning the shipped features on vLLM 0.32.0
takes 1.50 s of processor time without either, 0.38 s with this, 0.06 s with a warm cache and 1.44 s
with a cold one (0.42 s with both; 2026-11-26, fastest of 7 in turn, two busy cores).  The first
plan in a new container has a cold cache, and the first process that patches in memory has none.

A definition whose first line and whose surroundings stay parses alone as it does in its
place: the tokenizer is between two statements before it and after it, and the only indentation
that its lines are compared with is its own.  So its new text is parsed by itself, the places behind
it move, and the rest stays.  Where any of that is uncertain the answer is ``None``, and the whole
text is parsed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlay._features.model import MODULE_SCOPE
from overlay.planning.scopes import Scopes, UnparsableError, find
from overlay.planning.text import Edit

#: Characters that make line ends or indentation ambiguous.
_ODD = ("\r", "\f")

_Place = tuple[str, range]


def rescope(
    before: Sequence[str], scopes: Scopes, edits: Sequence[Edit], after: Sequence[str]
) -> Scopes | None:
    """The scopes that ``scopes.find`` would give for ``after``; ``None`` where it has to be asked.

    :param before: the lines without their ends; :param scopes: what ``find`` says of them.
    :param edits: what makes ``after`` of them; they count lines in ``before``.
    """
    ordered = sorted(edits, key=lambda edit: (edit.start, edit.stop))
    if list(after) != _edited(before, ordered) or _odd(before) or _odd(after):
        return None
    places = [(name, place) for name, ranges in scopes.items() for place in ranges]
    definitions = _definitions_around(ordered, places)
    if definitions is None or not all(
        _stands_alone(before, place, places) for _, place in definitions
    ):
        return None
    moved = _moved(places, definitions, ordered)
    try:
        for name, place in definitions:
            parsed = _parsed(name, _shifted(place, ordered), after)
            if parsed is None:
                return None
            moved += parsed
    except UnparsableError:
        return None  # parsing the whole text gives the better error
    derived: dict[str, list[range]] = {}
    for name, place in sorted(moved, key=lambda entry: (entry[0] != MODULE_SCOPE, entry[1].start)):
        derived.setdefault(name, []).append(place)
    return derived


def _odd(lines: Sequence[str]) -> bool:
    text = "".join(lines)
    return any(character in text for character in _ODD)


def _edited(lines: Sequence[str], edits: Sequence[Edit]) -> list[str] | None:
    lines_after: list[str] = []
    position = 0
    for edit in edits:
        if edit.start < position:
            return None
        lines_after += lines[position : edit.start]
        lines_after += edit.lines
        position = edit.stop
    return lines_after + list(lines[position:])


def _definitions_around(edits: Sequence[Edit], places: Sequence[_Place]) -> list[_Place] | None:
    """Find the definitions, none inside another, that hold the edits behind their first line."""
    definitions: list[_Place] = []
    for edit in edits:
        around = [
            (name, place)
            for name, place in places
            if name != MODULE_SCOPE and place.start < edit.start and edit.stop < place.stop
        ]
        if not around:
            return None
        definitions.append(min(around, key=lambda place: len(place[1])))
    return [
        place
        for place in dict.fromkeys(definitions)
        if not any(other != place and _inside(place, other) for other in definitions)
    ]


def _inside(place: _Place, other: _Place) -> bool:
    return other[1].start <= place[1].start and place[1].stop <= other[1].stop


def _stands_alone(lines: Sequence[str], definition: range, places: Sequence[_Place]) -> bool:
    """Whether every place holds the chosen one, lies in it or lies beside it, and none of those
    that hold it begins behind a line that goes on (whose indentation would be the one that counts).
    """
    for name, place in places:
        if place.stop <= definition.start or definition.stop <= place.start:
            continue
        if place.start <= definition.start and definition.stop <= place.stop:
            goes_on = place.start and lines[place.start - 1].endswith("\\")
            if name != MODULE_SCOPE and goes_on:
                return False
        elif not (definition.start <= place.start and place.stop <= definition.stop):
            return False
    return True


def _moved(
    places: Sequence[_Place], definitions: Sequence[_Place], edits: Sequence[Edit]
) -> list[_Place]:
    """The places that are not parsed again, moved to where they are after the edits."""
    return [
        (name, _shifted(place, edits))
        for name, place in places
        if name == MODULE_SCOPE or not any(_inside((name, place), other) for other in definitions)
    ]


def _shifted(place: range, edits: Sequence[Edit]) -> range:
    def shift(line: int) -> int:
        grown = (len(edit.lines) - (edit.stop - edit.start) for edit in edits if edit.stop <= line)
        return line + sum(grown)

    return range(shift(place.start), shift(place.stop))


def _parsed(name: str, place: range, lines: Sequence[str]) -> list[_Place] | None:
    """Parse a definition by itself; ``None`` unless it takes up all of its place."""
    text = list(lines[place.start : place.stop])
    indented = text[0][:1].isspace()
    offset = place.start - indented
    scopes = find(["if 1:", *text] if indented else text)
    outer, _, last = name.rpartition(".")
    if list(scopes.get(last, ())) != [range(indented, indented + len(text))]:
        return None
    prefix = f"{outer}." if outer else ""
    return list(_qualified(prefix, offset, scopes))


def _qualified(prefix: str, offset: int, scopes: Scopes) -> Iterator[_Place]:
    for name, places in scopes.items():
        if name != MODULE_SCOPE:
            for place in places:
                yield prefix + name, range(place.start + offset, place.stop + offset)
