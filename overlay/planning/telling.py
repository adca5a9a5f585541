"""The lines of code by which a text shows that it has a change, or which of them it lacks.

Comments, docstrings, blank lines and bare punctuation are not code.  Of the lines of code that a
hunk adds, those tell that nothing else explains: the hunk's own pre-image, its scope in the base
(``base_has``) and the words of Python give the others a reason of their own to be there.  Such a
line counts where it stands between its neighbours.  White space never counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from overlay.features.model import Hunk
from overlay.results import Reason

#: Least number of characters, blanks aside, of a line that identifies a change: shorter lines are
#: in every file.
TELLING = 6

#: A text that has at least this share of a hunk's telling lines is not taken for one without the
#: change: a person has to look (``docs/keeping-up.md`` says how it was measured).
SHARE = 0.6

#: The most missing lines that a message names, and letters of each.
_NAMED, _LETTERS = 3, 60

#: So many telling lines in a row are a change wherever they stand in their scope; fewer need a
#: neighbour of the hunk's beside them.
_ALONE = 2

#: So many lines of code may have come between a line and its neighbour.
_REACH = 5

#: What to do where a text has a part of a change.
REVIEW = (
    "review: where the release has what you need of the change, note the release as `merged` in "
    "feature.toml; otherwise give the patch a variant with what is missing"
)

_WORD = re.compile(r"[^\W\d]\w*")
_COMMON = frozenset(
    "and as assert async await break case class continue def del elif else except finally for from "
    "global if import in is lambda match nonlocal not or pass raise return try while with yield "
    "None True False self cls".split()
)
_QUOTES = re.compile(r"[rRuU]?(\"\"\"|''')")
_HEADER = re.compile(r"(?:(?:async\s+)?def|class)\b.*:$|\)\s*(?:->.*)?:$")


class Present(NamedTuple):
    """What a text has of a hunk.

    :ivar whole: whether nothing is missing, in the hunk's order, and nothing is left of what it
        removes.
    :ivar share: share of its telling lines that are there, from 0 to 1.
    :ivar wanted: how many lines of code it adds; :ivar missing: those that are not there.
    :ivar left: a line that it removes and that still stands in the scope; empty without one.
    """

    whole: bool = False
    share: float = 0.0
    wanted: int = 0
    missing: tuple[str, ...] = ()
    left: str = ""


class _Traces(NamedTuple):
    """A hunk's lines of code.

    :ivar code: those of its post-image, white space aside; :ivar texts: the same as written.
    :ivar added: which of them it adds; :ivar telling: which of these tell.
    :ivar before: those of its pre-image; :ivar removed: which of these the post-image lacks, and
        tell, as written.
    :ivar tells: the telling lines themselves.
    """

    code: tuple[str, ...]
    texts: tuple[str, ...]
    added: tuple[int, ...]
    telling: frozenset[int]
    before: tuple[str, ...]
    removed: dict[int, str]
    tells: frozenset[str]


class Place:
    """The lines of a scope, as evidence; each part of it is worked out when it is asked for."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    @cached_property
    def there(self) -> frozenset[str]:
        """Which lines are there, white space aside."""
        return frozenset(map(_key, self._lines))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """All lines that could be code, in order, white space aside."""
        return tuple(filter(None, map(_key, self._lines)))

    @cached_property
    def counts(self) -> Counter[str]:
        """How often each line is there."""
        return Counter(self.keys)

    @cached_property
    def code(self) -> tuple[str, ...]:
        """The lines without docstrings."""
        return tuple(key for _, key in code_lines(self._lines))


def code_lines(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Index and key of each line of code: no comment, docstring, blank line or bare punctuation.

    A docstring is left out where all of it is in the lines: an opening without an end may be the
    end of a text that begins before them.
    """
    before, at, inside = "", 0, ""
    while at < len(lines):
        text = lines[at].strip()
        if not inside and (end := _docstring_end(lines, at, text, before)) is not None:
            before, at = '"""', end
            continue
        key = _key(text)
        if key:
            before = text
            yield at, key
        for quotes in ('"""', "'''"):
            if (not inside or inside == quotes) and text.count(quotes) % 2:
                inside = "" if inside else quotes
                break
        at += 1


def _docstring_end(lines: Sequence[str], at: int, text: str, before: str) -> int | None:
    """The index behind a docstring that begins at a line; ``None`` where none does."""
    opening = _QUOTES.match(text)
    if opening is None or not before:
        return None
    quotes, rest = opening[1], text[opening.end() :]
    # Behind a statement a text is prose as well, if it cannot be the end of one or an argument.
    if not _HEADER.search(before) and (
        before[-1] in "([{,=+\\:" or not re.match(r"\w", rest.strip())
    ):
        return None
    if quotes in rest:
        return at + 1 if rest.endswith(quotes) else None
    for end in range(at + 1, len(lines)):
        if quotes in lines[end]:
            return end + 1 if lines[end].strip().endswith(quotes) else None
    return None


@lru_cache(maxsize=1 << 16)
def _key(line: str) -> str:
    """A line without white space and comment; empty where no code is left."""
    if "#" in line and not ('"' in line or "'" in line):
        line = line.partition("#")[0]
    key = "".join(line.split())
    if key[:1] == "#" or not any(letter.isalnum() for letter in key):
        return ""
    return key


def _tells(key: str, text: str) -> bool:
    """Whether a line says more than the words of Python do."""
    return len(key) >= TELLING and any(word not in _COMMON for word in _WORD.findall(text))


def new_lines(hunk: Hunk, known: Iterable[str] = ()) -> tuple[str, ...]:
    """The lines of code, without indentation, that tell whether a text has a hunk.

    They are those that it adds, but short ones, those of its own pre-image, and ``base_has``.

    :param known: further lines that tell nothing, such as those of its scope in its base.
    """
    traces = _traces(hunk)
    dull = {_key(line) for line in known}
    found = {
        traces.code[at]: traces.texts[at]
        for at in reversed(traces.added)
        if at in traces.telling and traces.code[at] not in dull
    }
    return tuple(reversed(found.values()))


def share_of(wanted: Sequence[str], lines: Iterable[str]) -> float:
    """Share of ``wanted`` that is among ``lines``, white space aside: 0 to 1; 0 of nothing."""
    there = {_key(line) for line in lines}
    keys = [_key(line) for line in wanted]
    return sum(key in there for key in keys) / len(keys) if keys else 0.0


def missing_of(wanted: Sequence[str], lines: Iterable[str]) -> list[str]:
    """Those of ``wanted`` that are code and not among ``lines``, each as often as it is missing."""
    there = Counter(_key(line) for line in lines)
    missing = []
    for line in wanted:
        key = _key(line)
        if key and not there[key]:
            missing.append(line.strip())
        there[key] -= 1
    return missing


@lru_cache(maxsize=4096)
def _traces(hunk: Hunk) -> _Traces:
    post = [(op, text) for op, text in hunk.lines if op != "-"]
    kept = list(code_lines([text for _, text in post]))
    dull = {_key(line) for line in (*hunk.pre, *(hunk.base_has or ()))}
    code = tuple(key for _, key in kept)
    texts = tuple(post[at][1].strip() for at, _ in kept)
    added = tuple(number for number, (at, _) in enumerate(kept) if post[at][0] == "+")
    telling = frozenset(at for at in added if code[at] not in dull and _tells(code[at], texts[at]))
    after = set(code)
    pre = list(code_lines(hunk.pre))
    removed = {
        number: hunk.pre[at].strip()
        for number, (at, key) in enumerate(pre)
        if key not in after and _tells(key, hunk.pre[at])
    }
    tells = frozenset(code[at] for at in telling)
    before = tuple(key for _, key in pre)
    return _Traces(code, texts, added, telling, before, removed, tells)


def present(hunk: Hunk, places: Iterable[Place], others: Sequence[Hunk] = ()) -> Present:
    """What a text has of a hunk, where it has most of it.

    Nothing is known of a hunk whose base is not known: its lines may have been there before.

    :param places: the places of the hunk's scope; :param others: the hunks of its patch, whose
        equal lines in the same scope are wanted beside its own.
    """
    if hunk.base_has is None:
        return Present()
    traces = _traces(hunk)
    if not traces.added:
        return Present()
    wanted = _wanted(hunk, others)
    found = [_in_place(traces, place, wanted) for place in places]
    none = Present(wanted=len(traces.added), missing=tuple(traces.texts[at] for at in traces.added))
    return max(found, key=lambda each: (each.whole, each.share, -len(each.missing)), default=none)


def stands_together(hunk: Hunk, places: Iterable[Sequence[str]]) -> bool:
    """Whether two or more lines of code that a hunk adds stand in a text as it puts them.

    That is what is left to tell where none of its lines tells by itself.
    """
    traces = _traces(hunk)
    before = set(map(_key, hunk.pre))
    added = [at for at in traces.added if traces.code[at] not in before]
    runs = [tuple(traces.code[at] for at in run) for run in _runs(added)]
    longest = max(runs, key=len, default=())
    if len(longest) < _ALONE:
        return False
    for lines in places:
        keys = Place(lines).code
        if longest in zip(*(keys[at:] for at in range(len(longest))), strict=False):
            return True
    return False


def partly(hunk: Hunk, there: Present) -> Reason:
    """What a text has of a hunk, and what it lacks, in words."""
    number = there.wanted - len(there.missing)
    text = f"{number} of the {there.wanted} lines that it adds are in {hunk.scope} already"
    if there.missing:
        text += f"; missing: {named(there.missing)}"
    elif there.left:
        text += f", and so is a line that it removes: {named([there.left])}"
    else:
        text += ", but not in its order, or not beside its lines"
    return Reason(text, REVIEW)


def named(lines: Sequence[str]) -> str:
    """The first of some lines of code, in quotes and cut."""
    shown = [line if len(line) <= _LETTERS else f"{line[: _LETTERS - 3]}..." for line in lines]
    more = f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
    return ", ".join(map(repr, shown[:_NAMED])) + more


def _wanted(hunk: Hunk, others: Sequence[Hunk]) -> Counter[str]:
    """How often each telling line of a hunk has to stand in its scope."""
    beside = [other for other in others if other.scope == hunk.scope] or [hunk]
    wanted: Counter[str] = Counter()
    for other in beside:
        traces = _traces(other)
        wanted.update(traces.code[at] for at in traces.telling)
    return wanted


def _in_place(traces: _Traces, place: Place, wanted: Counter[str]) -> Present:
    if traces.tells.isdisjoint(place.there):
        texts = tuple(traces.texts[at] for at in traces.added)
        return Present(wanted=len(texts), missing=texts)
    counts = place.counts
    lacking = {key: number - counts[key] for key, number in wanted.items()}
    missing: list[int] = []
    there = 0
    near = [_rows(place.keys), _rows(place.code)]
    for at in traces.added:
        key = traces.code[at]
        if at not in traces.telling:
            if counts[key] < traces.code.count(key) or not any(
                all(sides) for rows in near for sides in _sides(traces.code, at, rows, 1)
            ):
                missing.append(at)
        elif lacking.get(key, 0) > 0:
            lacking[key] -= 1
            missing.append(at)
        else:
            there += 1
    left = _left(traces, near)
    whole = (
        bool(traces.telling)
        and not missing
        and not left
        and _in_order(traces, place.keys)
        and all(_anchored(traces, run, near) for run in _runs(traces.added))
    )
    texts = tuple(traces.texts[at] for at in missing)
    share = there / len(traces.telling)
    return Present(whole, share, len(traces.added), texts, left)


#: The lines of a text -> where each of them stands.
_Rows = dict[str, list[int]]


def _left(traces: _Traces, near: Sequence[_Rows]) -> str:
    """A line that a hunk removes and that stands beside a neighbour that it had; empty without one.

    The scope may have had such a line elsewhere, too, which the hunk leaves there.
    """
    for at, text in traces.removed.items():
        for rows in near:
            if any(not sides or any(sides) for sides in _sides(traces.before, at, rows)):
                return text
    return ""


@lru_cache(maxsize=64)
def _rows(keys: tuple[str, ...]) -> _Rows:
    rows: _Rows = {}
    for at, key in enumerate(keys):
        rows.setdefault(key, []).append(at)
    return rows


def _sides(
    code: Sequence[str], at: int, rows: _Rows, reach: int = _REACH
) -> Iterator[tuple[bool, ...]]:
    """For each place of a line, whether the neighbours that it has in a hunk are near, in order."""
    before, after = code[at - 1] if at else None, code[at + 1] if at + 1 < len(code) else None
    for row in rows.get(code[at], ()):
        sides = []
        if before is not None:
            sides.append(any(row - reach <= near < row for near in rows.get(before, ())))
        if after is not None:
            sides.append(any(row < near <= row + reach for near in rows.get(after, ())))
        yield tuple(sides)


def _in_order(traces: _Traces, keys: Sequence[str]) -> bool:
    """Whether the telling lines stand in the order that the hunk gives them."""
    rest = iter(keys)
    return all(
        any(key == traces.code[at] for key in rest) for at in traces.added if at in traces.telling
    )


def _runs(added: Sequence[int]) -> list[list[int]]:
    """The added lines, those beside each other together."""
    runs: list[list[int]] = []
    for at in added:
        if runs and runs[-1][-1] == at - 1:
            runs[-1].append(at)
        else:
            runs.append([at])
    return runs


def _anchored(traces: _Traces, run: Sequence[int], near: Sequence[_Rows]) -> bool:
    """Whether lines beside each other are enough, or have a neighbour of the hunk's near them."""
    if sum(at in traces.telling for at in run) >= _ALONE or len(traces.code) == len(run):
        return True
    return any(any(sides) for at in run for rows in near for sides in _sides(traces.code, at, rows))
