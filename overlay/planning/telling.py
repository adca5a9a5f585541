"""The lines of code by which a text shows that it has a change, or which of them it lacks.

Comments, docstrings, blank lines and bare punctuation are not code.  Of the lines of code that a
hunk adds, those tell that nothing else explains: the hunk's own pre-image, its scope in the base
(``base_has``) and the words of Python give the others a reason of their own to be there.  Such a
line counts where it stands between its neighbours, a removed one as gone where it does not stand
between them (``overlay.planning.neighbours``).  All of them stand in the hunk's order, beside the
lines that stay, and as far in as these.  Other white space never counts, but that inside a text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import NamedTuple

from overlay._features.model import Hunk
from overlay.planning.code_lines import code_lines, key_of, margin_of, written_of
from overlay.planning.neighbours import (
    HunkLine,
    Removal,
    Rows,
    as_often,
    astray,
    flanked,
    is_absent,
    near,
    placed,
    rows_of,
)
from overlay.results import Reason

#: Least number of characters, blanks aside, of a line that identifies a change: shorter lines occur
#: everywhere.
MIN_DISTINCTIVE = 6

#: A text that has at least this share of a hunk's telling lines is not taken for one without the
#: change: a person has to look (``docs/keeping-up.md`` says how it was measured).
SHARE = 0.6

#: The most missing lines that a message names, and letters of each.
_NAMED, _LETTERS = 3, 60

#: So many telling lines in a row are a change wherever they stand in their scope; fewer need a
#: neighbour of the hunk's beside them.
_ALONE = 2

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


class Present(NamedTuple):
    """What a text has of a hunk.

    :ivar whole: whether nothing is missing, in the hunk's order, and nothing is left of what it
        removes.
    :ivar share: share of its telling lines that are there, from 0 to 1.
    :ivar added_count: how many lines of code it adds; :ivar missing: those that are not there.
    :ivar leftover: a line that it removes and that may still stand there; empty without one.
    :ivar astray: a line that stands at another place or another indentation, if nothing is missing.
    """

    whole: bool = False
    share: float = 0.0
    added_count: int = 0
    missing: tuple[str, ...] = ()
    leftover: str = ""
    astray: str = ""


class _Traces(NamedTuple):
    """A hunk's lines of code.

    :ivar code: those of its post-image, white space aside; :ivar texts: the same as written.
    :ivar lines: the same, with what is known of their places.
    :ivar written: all lines of the post-image but blank ones; :ivar at: where in them each line of
        code is.
    :ivar added: which lines of code it adds; :ivar telling: which of these tell.
    :ivar removed: the lines of code that it removes.
    :ivar tells: the telling lines themselves.
    """

    code: tuple[str, ...]
    texts: tuple[str, ...]
    lines: tuple[HunkLine, ...]
    written: tuple[str, ...]
    at: tuple[int, ...]
    added: tuple[int, ...]
    telling: frozenset[int]
    removed: tuple[Removal, ...]
    tells: frozenset[str]


class Place:
    """The lines of a scope, as evidence; each part of it is worked out when it is asked for."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    @cached_property
    def there(self) -> frozenset[str]:
        """Which lines are there, white space aside."""
        return frozenset(map(key_of, self._lines))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """All lines that could be code, in order, white space aside."""
        return tuple(filter(None, map(key_of, self._lines)))

    @cached_property
    def rows(self) -> tuple[Rows, Rows]:
        """Where each line stands, docstrings among them and without them."""
        return rows_of(self.keys), rows_of(self.code)

    @cached_property
    def margins(self) -> tuple[list[int], list[int]]:
        """How far in each of ``keys`` stands, and each of ``code``."""
        lines = self._lines
        return (
            [margin_of(line) for line in lines if key_of(line)],
            [margin_of(lines[at]) for at, _ in self._code_lines],
        )

    @cached_property
    def counts(self) -> Counter[str]:
        """How often each line is there."""
        return Counter(self.keys)

    @cached_property
    def code(self) -> tuple[str, ...]:
        """The lines without docstrings."""
        return tuple(key for _, key in self._code_lines)

    @cached_property
    def _code_lines(self) -> list[tuple[int, str]]:
        return list(code_lines(self._lines))

    @cached_property
    def written(self) -> tuple[str, ...]:
        """All lines but blank ones, comments and punctuation too."""
        return tuple(filter(None, map(written_of, self._lines)))


@lru_cache(maxsize=2048)
def place_of(lines: tuple[str, ...]) -> Place:
    """The lines of a scope, as evidence; worked out once for all texts that have them."""
    return Place(lines)


def _tells(key: str, text: str) -> bool:
    """Whether a line says more than the words of Python do."""
    return len(key) >= MIN_DISTINCTIVE and any(word not in _COMMON for word in _WORD.findall(text))


def says_much(text: str) -> bool:
    """Whether a line by itself says more than brackets, short words and the words of Python do."""
    return _tells(key_of(text), text)


def new_lines(hunk: Hunk, dull_lines: Iterable[str] = ()) -> tuple[str, ...]:
    """The lines of code, without indentation, that tell whether a text has a hunk.

    They are those that it adds, but short ones, those of its own pre-image, and ``base_has``.

    :param dull_lines: further lines that tell nothing, such as those of its scope in its base.
    """
    traces = _traces(hunk)
    dull = {key_of(line) for line in dull_lines}
    texts = {
        traces.code[at]: traces.texts[at]
        for at in reversed(traces.added)
        if at in traces.telling and traces.code[at] not in dull
    }
    return tuple(reversed(texts.values()))


def share_of(expected: Sequence[str], lines: Iterable[str]) -> float:
    """Share of ``expected`` that is among ``lines``, white space aside: 0 to 1; 0 of nothing."""
    there = {key_of(line) for line in lines}
    keys = [key_of(line) for line in expected]
    return sum(key in there for key in keys) / len(keys) if keys else 0.0


def missing_of(expected: Sequence[str], lines: Iterable[str]) -> list[str]:
    """The code of ``expected`` that is not among ``lines``, each as often as it is missing."""
    there = place_of(tuple(lines)).counts
    demand: Counter[str] = Counter()
    missing = []
    for line in expected:
        key = key_of(line)
        demand[key] += 1
        if key and demand[key] > there[key]:
            missing.append(line.strip())
    return missing


@lru_cache(maxsize=4096)
def _traces(hunk: Hunk) -> _Traces:
    post = [(op, text) for op, text in hunk.lines if op != "-"]
    post_code = list(code_lines([text for _, text in post]))
    dull = {key_of(line) for line in (*hunk.pre, *(hunk.base_has or ()))}
    code = tuple(key for _, key in post_code)
    texts = tuple(post[at][1].strip() for at, _ in post_code)
    added = tuple(number for number, (at, _) in enumerate(post_code) if post[at][0] == "+")
    telling = frozenset(at for at in added if code[at] not in dull and _tells(code[at], texts[at]))
    written = [(at, key) for at, (_, text) in enumerate(post) if (key := written_of(text))]
    where = {at: number for number, (at, _) in enumerate(written)}
    often = Counter(code[at] for at in telling)
    return _Traces(
        code,
        texts,
        placed(hunk, post_code, {at for at in telling if often[code[at]] == 1}),
        tuple(key for _, key in written),
        tuple(where[at] for at, _ in post_code),
        added,
        telling,
        tuple(_removals(hunk, code, {at: number for number, (at, _) in enumerate(post_code)})),
        frozenset(code[at] for at in telling),
    )


def _removals(hunk: Hunk, code: Sequence[str], rows: Mapping[int, int]) -> Iterator[Removal]:
    """The lines of code that a hunk removes, each between the lines that stay around it.

    :param code: the lines of code of the post-image; :param rows: which line of it each of them is.
    """
    in_pre = dict(code_lines(hunk.pre))
    block: list[tuple[str, str]] = []
    old = new = 0
    before, size = -1, len(hunk.post)
    for op, text in (*hunk.lines, (" ", "")):
        last = new == size
        if op == " " and (last or new in rows):
            after = len(code) if last else rows[new]
            for key, line in block:  # an equal line next to it does not end the place
                first, stop = before, after
                while first >= 0 and code[first] == key:
                    first -= 1
                while stop < len(code) and code[stop] == key:
                    stop += 1
                between = code[first + 1 : stop]
                sides = (
                    code[first] if first >= 0 else None,
                    code[stop] if stop < len(code) else None,
                )
                most = len(between) + len(block)
                yield Removal(key, line, *sides, between.count(key), most)
            block, before = [], after
        elif op == "-" and old in in_pre:
            block.append((in_pre[old], text.strip()))
        old, new = old + (op != "+"), new + (op != "-")


def present(hunk: Hunk, places: Iterable[Place], patch_hunks: Sequence[Hunk] = ()) -> Present:
    """What a text has of a hunk, where it has most of it.

    Nothing is known of a hunk whose base is not known: its lines may have been there before.

    :param places: the places of the hunk's scope; :param patch_hunks: the hunks of its patch, whose
        equal lines in the same scope are wanted beside its own.
    """
    if hunk.base_has is None:
        return Present()
    traces = _traces(hunk)
    if not traces.added:
        leftovers = [_leftover(traces, place.rows) for place in places]
        unseen = next((line.text for line in traces.removed), "") if not leftovers else ""
        return Present(leftover=next(filter(None, leftovers), unseen))
    numbers = _required_counts(hunk, patch_hunks)
    answers = [_in_place(traces, place, numbers) for place in places]
    none = Present(
        added_count=len(traces.added), missing=tuple(traces.texts[at] for at in traces.added)
    )
    return max(answers, key=lambda each: (each.whole, each.share, -len(each.missing)), default=none)


def stands_together(
    hunk: Hunk, places: Iterable[Sequence[str]], patch_hunks: Iterable[Hunk] = ()
) -> bool:
    """Whether two or more lines of code that a hunk adds stand in a text as it puts them.

    That is what is left to tell where none of its lines tells by itself.

    :param patch_hunks: the hunks of its patch: what they remove was there before, and moves.
    """
    traces = _traces(hunk)
    before = {key_of(text) for each in patch_hunks for op, text in each.lines if op == "-"}
    before.update(map(key_of, hunk.pre))
    added = [at for at in traces.added if traces.code[at] not in before]
    runs = [tuple(traces.code[at] for at in run) for run in _runs(added)]
    longest = max(runs, key=len, default=())
    if len(longest) < _ALONE:
        return False
    for lines in places:
        keys = place_of(tuple(lines)).code
        if longest in zip(*(keys[at:] for at in range(len(longest))), strict=False):
            return True
    return False


def partly(hunk: Hunk, there: Present) -> Reason:
    """What a text has of a hunk, and what it lacks, in words."""
    number = there.added_count - len(there.missing)
    text = f"{number} of the {there.added_count} lines that it adds are in {hunk.scope} already"
    if there.missing:
        text += f"; missing: {quoted(there.missing)}"
    elif there.leftover:
        text += f", and so is a line that it removes: {quoted([there.leftover])}"
    elif there.astray:
        text += f", but not all at their place or indentation: {quoted([there.astray])}"
    else:
        text += ", but not in its order, or not beside its lines"
    return Reason(text, REVIEW)


def quoted(lines: Sequence[str]) -> str:
    """The first of some lines of code, in quotes and cut."""
    cut = [line if len(line) <= _LETTERS else f"{line[: _LETTERS - 3]}..." for line in lines]
    more = f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
    return ", ".join(map(repr, cut[:_NAMED])) + more


def _required_counts(hunk: Hunk, patch_hunks: Sequence[Hunk]) -> Counter[str]:
    """How often each telling line of a hunk has to stand in its scope."""
    beside = [other for other in patch_hunks if other.scope == hunk.scope] or [hunk]
    numbers: Counter[str] = Counter()
    for other in beside:
        traces = _traces(other)
        numbers.update(traces.code[at] for at in traces.telling)
    return numbers


def _in_place(traces: _Traces, place: Place, numbers: Counter[str]) -> Present:
    if traces.tells.isdisjoint(place.there):
        texts = tuple(traces.texts[at] for at in traces.added)
        return Present(added_count=len(texts), missing=texts)
    counts = place.counts
    lacking = {key: number - counts[key] for key, number in numbers.items()}
    missing: list[int] = []
    there = 0
    rows = place.rows
    for at in traces.added:
        key = traces.code[at]
        if at not in traces.telling:
            if counts[key] < traces.code.count(key) or not _between(traces, at, place, rows):
                missing.append(at)
        elif lacking.get(key, 0) > 0:
            lacking[key] -= 1
            missing.append(at)
        else:
            there += 1
    leftover = _leftover(traces, rows)
    stray = "" if missing or leftover else _astray(traces, place, rows)
    whole = (
        bool(traces.telling)
        and not missing
        and not leftover
        and not stray
        and all(_anchored(traces, run, rows) for run in _runs(traces.added))
    )
    texts = tuple(traces.texts[at] for at in missing)
    share = there / len(traces.telling)
    return Present(whole, share, len(traces.added), texts, leftover, stray)


def _between(traces: _Traces, at: int, place: Place, rows: Sequence[Rows]) -> bool:
    """Whether an added line that does not tell stands right between its neighbours, and as often.

    Where the hunk has no code on a side of it, the comment there or the end of the scope is asked.
    """
    removed = [line.key for line in traces.removed]
    if not any(
        flanked(traces.code, at, each) and as_often(traces.lines, removed, at, each, size)
        for each, size in zip(rows, (len(place.keys), len(place.code)), strict=True)
    ):
        return False
    if 0 < at < len(traces.code) - 1:
        return True
    return flanked(traces.written, traces.at[at], rows_of(place.written), len(place.written))


def _leftover(traces: _Traces, rows: Sequence[Rows]) -> str:
    """A line that a hunk removes and that a scope may still have; empty without one."""
    for removal in traces.removed:
        if not all(is_absent(removal, each) for each in rows):
            return removal.text
    return ""


def _astray(traces: _Traces, place: Place, rows: Sequence[Rows]) -> str:
    """The first line that stands neither with docstrings nor without where the hunk puts it."""
    at = None
    removed = [line.key for line in traces.removed]
    for each, margins in zip(rows, place.margins, strict=True):
        at = astray(traces.lines, removed, each, margins)
        if at is None:
            return ""
    return traces.texts[at or 0]


def _runs(added: Sequence[int]) -> list[list[int]]:
    """The added lines, those beside each other together."""
    runs: list[list[int]] = []
    for at in added:
        if runs and runs[-1][-1] == at - 1:
            runs[-1].append(at)
        else:
            runs.append([at])
    return runs


def _anchored(traces: _Traces, run: Sequence[int], rows: Sequence[Rows]) -> bool:
    """Whether lines beside each other are enough, or have a neighbour of the hunk's near them."""
    if sum(at in traces.telling for at in run) >= _ALONE or len(traces.code) == len(run):
        return True
    return any(near(traces.code, at, each) for at in run for each in rows)


def context_of(hunk: Hunk) -> tuple[int, int]:
    """How many lines of context a hunk has above its change and below it."""
    return _leading(hunk.lines), _leading(hunk.lines[::-1])


def narrowed(hunk: Hunk, above: int, below: int) -> Hunk:
    """A hunk with at most so much context; what speaks of the end of the file keeps it."""
    has_above, has_below = context_of(hunk)
    if hunk.pre_unfinished or hunk.post_unfinished:
        below = has_below
    start = max(has_above - above, 0)
    stop = len(hunk.lines) - max(has_below - below, 0)
    return hunk._replace(lines=hunk.lines[start:stop], source_line=hunk.source_line + start)


def anchored(hunk: Hunk) -> bool:
    """Whether the lines before a change say something, and lines that are replaced are its ends.

    What is put in, or taken out alone, needs a line beside it: a text in which upstream put
    something there too would take it in any order.
    """
    if not any(says_much(line) for line in hunk.pre):
        return False
    for lines in (hunk.lines, hunk.lines[::-1]):
        edge = list(takewhile(lambda line: line[0] != " ", lines))
        removed = [text for op, text in edge if op == "-"]
        if edge and not (any(map(says_much, removed)) and any(op == "+" for op, _ in edge)):
            return False
    return True


def _leading(lines: Sequence[tuple[str, str]]) -> int:
    return sum(1 for _ in takewhile(lambda line: line[0] == " ", lines))
