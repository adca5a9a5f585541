"""Choose the context that each hunk keeps: as much as its place needs, and no more.

The scope and uniqueness guard the place of a hunk; each further line of context is one that
upstream may change.  A hunk may keep less than it has where it cannot land elsewhere by that: on
every text that is asked it stands once in its scope, and all of its lines stand where a diff of
both scopes puts them.  Of those forms the one is taken that lands on most releases; of equal ones
that with a line on each side, which ``git apply`` and ``patch`` take too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from overlay._features.model import Hunk
from overlay.authoring.composing import ScopedText, with_base
from overlay.authoring.merge import matches, occurrences
from overlay.planning.attempt import Texts
from overlay.planning.matching import edits, final_newline_after
from overlay.planning.scopes import Scopes, Syntax, UnparsableError
from overlay.planning.telling import anchored, context_of, narrowed, new_lines, says_much
from overlay.planning.text import SourceText, TextError
from overlay.planning.upstream import hunk_is_upstream
from overlay.results import HunkResult, State

#: Lines of context above and below that are tried, the most wanted first.
_SIDES = ((1, 1), (2, 2), (3, 3))

#: What is tried beside them, where it lands on more: none at a side whose lines are replaced.
_BARE = ((0, 1), (1, 0), (0, 0))


class FittedHunks(NamedTuple):
    """The hunks of a file with the context that they keep.

    :ivar sides: the fewest and the most lines of context at a side of a hunk; ``None`` where
        nothing was chosen.
    :ivar more: the releases on which all hunks land now, and with their former context did not.
    """

    hunks: tuple[Hunk, ...]
    sides: tuple[int, int] | None = None
    more: tuple[str, ...] = ()


def needed(
    before: bytes, hunks: Sequence[Hunk], texts: Mapping[str, bytes | None], syntax: Syntax
) -> FittedHunks:
    """The hunks with the context by which they land, at the right place, on the most releases.

    :param before: the text that they were made on; each of them lands there.
    :param texts: release -> the file; ``None`` where it has none.
    """
    texts_beside = [
        data for data in dict.fromkeys(texts.values()) if data is not None and data != before
    ]
    forms = Forms(before, hunks, syntax)
    names = {data: [name for name in texts if texts[name] == data] for data in texts_beside}
    total = sum(map(len, names.values()))
    choices: list[Hunk] = []
    usual, now = set(texts_beside), set(texts_beside)
    for hunk in hunks:
        former = forms.reached(hunk, hunk, texts_beside) or Reached(set(), set())
        best, reached, most = hunk, former, -1
        for form in forms.of(hunk):
            served = forms.reached(form, hunk, texts_beside)
            number = sum(len(names[data]) for data in served.lands | served.has) if served else -1
            if served is not None and number > most:
                best, reached, most = form, served, number
            if most == total:
                break
        choices.append(best)
        usual &= former.lands
        now &= reached.lands
    more = [name for data in texts_beside if data in now - usual for name in names[data]]
    sides = [side for hunk in choices for side in context_of(hunk)] or [0]
    in_order = tuple(name for name in texts if name in more)
    return FittedHunks(tuple(choices), (min(sides), max(sides)), in_order)


def with_sides(before: bytes, hunks: Sequence[Hunk], number: int, syntax: Syntax) -> list[Hunk]:
    """The hunks of a text with a number of lines of context, where so many tell the place.

    A hunk that takes more to land once, or has no more lines of its own scope around it, gets what
    there is; one that ends at a neighbour's change keeps what it has.

    :raises TextError, UnparsableError: if it is not Python that can be read.
    """
    forms = Forms(before, hunks, syntax)
    result: list[Hunk] = []
    for hunk in hunks:
        wide = forms.widened(hunk, max(number, *context_of(hunk)))
        most = max(context_of(wide))
        tried = (narrowed(wide, n, n) for n in range(min(number, most), most + 1))
        result.append(next((form for form in tried if forms.fits(form, hunk)), hunk))
    return result


class Reached(NamedTuple):
    """The texts on which a hunk lands, and those that have its change."""

    lands: set[bytes]
    has: set[bytes]


class _ScopedLines(NamedTuple):
    lines: Sequence[str]
    scopes: Scopes
    there: frozenset[str]

    def has(self, image: Sequence[str]) -> bool:
        """Whether all lines of an image are somewhere in it."""
        return self.there.issuperset(image)


class Forms:
    """The forms of a file's hunks with less context, and where they land.

    :raises TextError, UnparsableError: if ``before`` is not Python that can be read.
    """

    def __init__(self, before: bytes, hunks: Sequence[Hunk], syntax: Syntax) -> None:
        self._syntax, self._hunks, self._texts = syntax, tuple(hunks), Texts(syntax)
        self._read: dict[bytes, _ScopedLines | None] = {}
        self._states: dict[tuple[Hunk, bytes], HunkResult] = {}
        self._bases: dict[Hunk, Hunk] = {}
        source = SourceText.from_bytes(before)
        self._origin = ScopedText(source, syntax.scopes(before, source.lines))
        self._after = self._with_hunks()
        self._all_based = [self._based(hunk) for hunk in self._hunks]
        self._aligned: dict[tuple[str, int, int, bytes], dict[int, int]] = {}

    def _with_hunks(self) -> ScopedText | None:
        """The text with all hunks; ``None`` where that is no Python."""
        lines = [self._origin.match(hunk).line for hunk in self._hunks]
        placed = [(hunk, at) for hunk, at in zip(self._hunks, lines, strict=True) if at]
        ends = (final_newline_after(hunk) for hunk in self._hunks)
        splices = [edit for hunk, at in placed for edit in edits(hunk, at - 1)]
        try:
            text = self._origin.source.splice(
                splices, next((e for e in ends if e is not None), None)
            )
            return ScopedText(text, self._syntax.scopes(text.to_bytes(), text.lines))
        except (TextError, UnparsableError):
            return None

    def of(self, hunk: Hunk) -> Iterator[Hunk]:
        """The forms of a hunk that tell one place in its text, the most wanted first."""
        for above, below in (*_SIDES, *_BARE):
            form = narrowed(hunk, above, below)
            if form == hunk or self.fits(form, hunk):
                yield form

    def fits(self, form: Hunk, hunk: Hunk) -> bool:
        """Whether a form lands where its hunk does, and shows afterwards that it did."""
        if not form.pre or not form.post or form.shows_nothing or not anchored(form):
            return False
        at = self._origin.match(hunk).line
        if at is None or self._after is None:
            return False
        if occurrences(self._origin.lines, form.post) or not self._ends_tell(form):
            return False
        placed, again = self._origin.match(form), self._after.match(form)
        first = at + form.source_line - hunk.source_line
        lands = placed.state is State.PRISTINE and placed.line == first
        return lands and again.state is State.UPSTREAMED

    def _ends_tell(self, form: Hunk) -> bool:
        """Whether a new line that ends a form, without context behind it, is nowhere in its scope.

        An equal one beside it could be taken for it, where a release has the rest of the change.
        """
        new = new_lines(self._based(form))
        for lines in (form.lines, form.lines[::-1]):
            edge = takewhile(lambda line: line[0] != " ", lines)
            end = next((text for op, text in edge if op == "+"), None)
            if end is not None and end.strip() not in new:
                return False
        return True

    def widened(self, hunk: Hunk, number: int) -> Hunk:
        """A hunk with so many lines of context, as far as its scope and its neighbours go."""
        at, home = self._origin.match(hunk).line, self._origin.home(hunk)
        if at is None or home is None:
            return hunk
        above, below = context_of(hunk)
        start, stop = at - 1, at - 1 + len(hunk.pre)
        texts_beside = [
            (line - 1, line - 1 + len(other.pre))
            for other in self._hunks
            if other != hunk and (line := self._origin.match(other).line) is not None
        ]
        first = max(
            [
                home.start,
                start - max(number - above, 0),
                *(e for _, e in texts_beside if e <= start),
            ]
        )
        last = min(
            [home.stop, stop + max(number - below, 0), *(b for b, _ in texts_beside if b >= stop)]
        )
        lines = self._origin.lines
        return hunk._replace(
            lines=(
                *((" ", text) for text in lines[first:start]),
                *hunk.lines,
                *((" ", text) for text in lines[stop:last]),
            ),
            source_line=hunk.source_line - (start - first),
        )

    def state(self, hunk: Hunk, data: bytes) -> HunkResult:
        """What a text has of a hunk: ``pristine`` where it lands, ``upstreamed`` where it is."""
        if (hunk, data) not in self._states:
            self._states[hunk, data] = self._state(hunk, data)
        return self._states[hunk, data]

    def _state(self, hunk: Hunk, data: bytes) -> HunkResult:
        text = self._text(data)
        if text is None or hunk.scope not in text.scopes:
            return HunkResult(hunk.scope, State.MISSING)
        based = self._based(hunk)
        for place in self._texts.places(data, hunk.scope):
            if hunk_is_upstream(based, [place], self._all_based).merged:
                return HunkResult(hunk.scope, State.UPSTREAMED)
        # To say where most of its lines are takes long, and nobody asks it here.
        if not (text.has(hunk.pre) or text.has(hunk.post)):
            return HunkResult(hunk.scope, State.DRIFTED)
        return self._texts.match(based, data)

    def less(self, hunk: Hunk, data: bytes) -> tuple[Hunk, int] | None:
        """The form with most context that lands in a text at the right place, and its line."""
        if self._after is None or self._text(data) is None:
            return None
        forms = sorted(self.of(hunk), key=lambda form: (min(context_of(form)), len(form.lines)))
        for form in reversed(forms):
            result = self.state(form, data)
            if result.state is State.PRISTINE and result.line is not None:
                return (form, result.line) if self.same_place(form, result, data) else None
        return None

    def reached(self, form: Hunk, hunk: Hunk, texts: Iterable[bytes]) -> Reached | None:
        """The texts that a form serves; ``None`` where it must not take the hunk's place.

        It must not where it would land elsewhere, or on a text that has the change, or where it
        would take a text for one that has it by lines that say too little, or though one of equal
        lines is put in or taken out too few.
        """
        lands: set[bytes] = set()
        has: set[bytes] = set()
        for data in texts:
            narrow, full = self.state(form, data), self.state(hunk, data)
            if narrow.state is State.UPSTREAMED:
                if full.state is not State.UPSTREAMED and (
                    not self._shows(form) or self._miscounts(hunk, data)
                ):
                    return None
                has.add(data)
            elif narrow.state is State.PRISTINE:
                if full.state is State.UPSTREAMED:
                    return None
                if full.state is not State.PRISTINE and not self.same_place(form, narrow, data):
                    return None
                lands.add(data)
        return Reached(lands, has)

    def _shows(self, form: Hunk) -> bool:
        """Whether a text that has the lines after the change has them by the change."""
        telling = sum(map(says_much, form.post))
        return bool(new_lines(self._based(form))) or telling > 1

    def _miscounts(self, hunk: Hunk, data: bytes) -> bool:
        """Whether a text lacks a line that a hunk adds, or has one too many of those it removes.

        Of equal lines in a scope only their number tells whether one was put in or taken out.
        """
        text = self._text(data)
        if text is None or self._after is None:
            return False
        lines = {op: {line.strip() for sign, line in hunk.lines if sign == op} for op in "+-"}

        def most(of: ScopedText | _ScopedLines) -> Counter[str]:
            counts: Counter[str] = Counter()
            for place in of.scopes.get(hunk.scope, ()):
                counts |= Counter(line.strip() for line in of.lines[place.start : place.stop])
            return counts

        after, there = most(self._after), most(text)
        return any(there[line] < after[line] for line in lines["+"] - {""}) or any(
            there[line] > after[line] for line in lines["-"] - {""}
        )

    def same_place(self, form: Hunk, result: HunkResult, data: bytes) -> bool:
        """Whether a hunk lands where a diff of its scope in both texts puts all of its lines."""
        text, at = self._text(data), self._origin.match(form).line
        home = self._origin.home(form)
        if text is None or at is None or home is None or result.line is None:
            return False
        places = [p for p in text.scopes.get(form.scope, ()) if result.line - 1 in p]
        if not places:
            return False
        place = min(places, key=len)
        key = form.scope, home.start, place.start, data
        if key not in self._aligned:
            own, theirs = self._origin.lines, text.lines
            self._aligned[key] = matches(
                own[home.start : home.stop], theirs[place.start : place.stop]
            )
        pairs = self._aligned[key]
        return all(
            pairs.get(at - 1 + row - home.start) == result.line - 1 + row - place.start
            for row, line in enumerate(form.pre)
            if line.strip()
        )

    def _text(self, data: bytes) -> _ScopedLines | None:
        """The text of some bytes; ``None`` where they are not Python that can be read."""
        if data not in self._read:
            try:
                lines = self._texts.source(data).lines
                self._read[data] = _ScopedLines(lines, self._texts.scopes(data), frozenset(lines))
            except (TextError, UnparsableError):
                self._read[data] = None
        return self._read[data]

    def _based(self, hunk: Hunk) -> Hunk:
        if hunk not in self._bases:
            self._bases[hunk] = with_base(hunk, self._origin)
        return self._bases[hunk]
