"""Carry a file's change to another text of that file: hunk by hunk, in the safest way that holds.

For each hunk the first of these that holds decides: upstream has it already; it lands exactly; a
three-way merge inside its scope is clean and compiles, by lines or else by statements; its scope
moved or was renamed and the merge is clean there; where a port asks for it, it lands with less
context, or goes into the lines that touch it; else it is a conflict.  A merge is a proposal:
whoever calls has it reviewed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

from overlay._features.model import FILE_SCOPE, MODULE_SCOPE, Hunk, WholeFile
from overlay.authoring.composing import ScopedText, with_base
from overlay.authoring.context import Forms
from overlay.authoring.merge import Lines, Merge, Region, Side, gaps, matches, merge
from overlay.authoring.statements import merge_statements
from overlay.planning.code_lines import key_of
from overlay.planning.matching import edits, final_newline_after, match_whole
from overlay.planning.scopes import Scopes, Syntax, UnparsableError
from overlay.planning.telling import quoted, says_much
from overlay.planning.text import Edit, SourceText, TextError
from overlay.planning.upstream import hunk_is_upstream
from overlay.results import Outcome, State, whole_outcome

#: A scope that shares at least this much of its text with the base's scope is that scope, moved.
MOVED = 0.8


@dataclass(frozen=True)
class CarriedHunk:
    """How one hunk was carried.

    :ivar scope: the scope that it was carried to.
    :ivar line: 1-based first line of that scope, or of the hunk where it landed exactly.
    :ivar merge: the three-way merge of the scope, where one was made.
    :ivar by_statement: whether the lines of that conflict, and its statements do not.
    :ivar beside: whether they conflict, and the hunk lands with less context, which upstream
        changed beside it, or its lines go into upstream's that touch them.
    :ivar differences: upstream's lines whose place it takes though it was made on others.
    """

    hunk: Hunk
    outcome: Outcome
    scope: str
    line: int | None = None
    merge: Merge | None = None
    by_statement: bool = False
    beside: bool = False
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Carried:
    """How a file's change was carried.

    :ivar after: the text with every hunk that could be carried; ``None`` where there is no file.
    :ivar problem: why the result cannot be used although each hunk was carried.
    :ivar moved_to: the file that has what is missing in this one, or the files, each with the scope
        that it has.
    """

    hunks: tuple[CarriedHunk, ...]
    after: bytes | None
    problem: str | None = None
    moved_to: str | None = None

    @property
    def outcome(self) -> Outcome:
        """The outcome of the whole file."""
        if self.problem is not None:
            return Outcome.CONFLICT
        return whole_outcome(hunk.outcome for hunk in self.hunks)


def all_as(outcome: Outcome, hunks: Sequence[Hunk]) -> tuple[CarriedHunk, ...]:
    """Hunks of which all have one outcome, in their own scopes."""
    return tuple(CarriedHunk(hunk, outcome, hunk.scope) for hunk in hunks)


def carry(
    base: bytes,
    hunks: Sequence[Hunk],
    target: bytes | None,
    syntax: Syntax | None = None,
    *,
    less: bool = False,
) -> Carried:
    """Carry the hunks that were made on ``base`` to ``target``.

    :param less: let a hunk that conflicts land with less context than it has, for review, at the
        place that a diff of both scopes gives it; the result then has it in that form.
    :raises TextError, UnparsableError: if ``base`` is not readable or not Python.
    """
    if hunks and hunks[0].whole is not None:
        return _carry_whole(hunks[0], hunks[0].whole, target)
    if target is None:
        return Carried(all_as(Outcome.MISSING, hunks), None)
    syntax = _OfData() if hunks and hunks[0].scope == FILE_SCOPE else syntax or Syntax()
    origin = SourceText.from_bytes(base)
    scopes = syntax.scopes(base, origin.lines)
    try:
        text = SourceText.from_bytes(target)
        now = syntax.scopes(target, text.lines)
    except (TextError, UnparsableError) as error:
        problem = f"the file cannot be read: {error}"
        return Carried(all_as(Outcome.CONFLICT, hunks), target, problem)
    origin_text = ScopedText(origin, scopes)
    all_hunks = [with_base(hunk, origin_text) for hunk in hunks]
    here = ScopedText(text, now)
    exact = [
        _settled(hunk, based, here, all_hunks) for hunk, based in zip(hunks, all_hunks, strict=True)
    ]
    landed = [edit for answer in exact if answer is not None for edit in answer.edits]
    try:
        if landed:
            endings = (final_newline_after(h) for h, each in zip(hunks, exact, strict=True) if each)
            spliced = text.splice(landed, next((end for end in endings if end is not None), None))
            now, text = syntax.scopes(spliced.to_bytes(), spliced.lines), spliced
    except (TextError, UnparsableError):  # they exclude each other: none of them lands
        exact = [answer if answer is not None and not answer.edits else None for answer in exact]
    forms = Forms(base, hunks, syntax) if less and None in exact else None
    results: list[CarriedHunk] = []
    for hunk, answer in zip(hunks, exact, strict=True):
        if answer is not None:
            results.append(answer.result)
            continue
        if here.source is not text:
            here = ScopedText(text, now)
        result, changed = _merged(hunk, origin_text, here)
        if forms is not None and result.outcome is Outcome.CONFLICT:
            less_here = _with_less(hunk, forms, here, result) or _touching(hunk, here, result)
            result, changed = less_here or (result, changed)
        if changed is not None:
            try:
                now, text = syntax.scopes(changed.to_bytes(), changed.lines), changed
            except UnparsableError:
                result = replace(result, outcome=Outcome.CONFLICT)
        results.append(result)
    after = text.to_bytes()
    return Carried(tuple(results), after, syntax.compile_error(after, "<carried>"))


class _OfData(Syntax):
    """The answers about data files: all of one is its scope, and it need not compile."""

    def scopes(
        self,
        data: bytes,  # noqa: ARG002 - as the base
        lines: Sequence[str],
    ) -> Scopes:
        """The one scope of a file."""
        return {FILE_SCOPE: [range(len(lines))]}

    def compile_error(self, data: bytes, path: str) -> str | None:  # noqa: ARG002 - as the base
        """Nothing: it is not compiled."""
        return None


def _carry_whole(hunk: Hunk, whole: WholeFile, target: bytes | None) -> Carried:
    """Carry the change of a whole file, which is for one text alone."""
    outcomes = {
        State.UPSTREAMED: Outcome.UPSTREAM,
        State.PRISTINE: Outcome.EXACT,
        State.MISSING: Outcome.MISSING,
    }
    outcome = outcomes.get(match_whole(whole, target).state, Outcome.CONFLICT)
    after = whole.after if outcome is Outcome.EXACT else target
    return Carried((CarriedHunk(hunk, outcome, hunk.scope),), after)


@dataclass(frozen=True)
class _Settled:
    """A hunk that needs no merge, and the edits by which it lands, if it does."""

    result: CarriedHunk
    edits: tuple[Edit, ...] = ()


def _settled(hunk: Hunk, based: Hunk, target: ScopedText, hunks: Sequence[Hunk]) -> _Settled | None:
    """A hunk that upstream has or that lands exactly; ``None`` for any other.

    :param based: the same, with what its base has.
    """
    places = target.scopes.get(hunk.scope, ())
    for place, lines in zip(places, target.evidence(hunk.scope), strict=True):
        if hunk_is_upstream(based, [lines], hunks).merged:
            return _Settled(CarriedHunk(hunk, Outcome.UPSTREAM, hunk.scope, place.start + 1))
    placed = target.match(based)
    if placed.state is State.UPSTREAMED:
        return _Settled(CarriedHunk(hunk, Outcome.UPSTREAM, hunk.scope, placed.line))
    if placed.state is State.PRISTINE and placed.line is not None:
        result = CarriedHunk(hunk, Outcome.EXACT, hunk.scope, placed.line)
        return _Settled(result, edits(hunk, placed.line - 1))
    return None


def _merged(
    hunk: Hunk, origin: ScopedText, target: ScopedText
) -> tuple[CarriedHunk, SourceText | None]:
    """Merge a hunk into its scope in another text, wherever that is now, and the text it leaves."""
    at_base, home = origin.match(hunk), origin.home(hunk)
    if at_base.state is not State.PRISTINE or at_base.line is None or home is None:
        return CarriedHunk(hunk, Outcome.CONFLICT, hunk.scope), None
    splices = edits(hunk, at_base.line - 1)
    ours = origin.source.splice(splices).lines
    grown = len(hunk.post) - len(hunk.pre)
    base_lines = origin.source.lines[home.start : home.stop]
    places = list(target.scopes.get(hunk.scope, ()))
    outcome, scope = Outcome.MERGED, hunk.scope
    if len(places) != 1:
        scope, place = _moved(base_lines, hunk.scope, target)
        if place is None:
            kind = Outcome.CONFLICT if places else Outcome.MISSING
            return CarriedHunk(hunk, kind, hunk.scope), None
        outcome, places = Outcome.MOVED, [place]
    (place,) = places
    theirs = target.source.lines[place.start : place.stop]
    mine = ours[home.start : home.stop + grown]
    merged = merge(base_lines, mine, theirs)
    result = CarriedHunk(hunk, outcome, scope, place.start + 1, merged, bool(merged.conflicts))
    lines: tuple[str, ...] | None = merged.lines
    if merged.conflicts:  # the statements of a data file are not Python's
        by_statement = hunk.scope != FILE_SCOPE
        lines = merge_statements(base_lines, mine, theirs) if by_statement else None
    if lines is None:
        return replace(result, outcome=Outcome.CONFLICT, by_statement=False), None
    if lines == theirs:
        return replace(result, outcome=Outcome.UPSTREAM), None
    try:
        edit = Edit(place.start, place.stop, lines)
        return result, target.source.splice([edit], final_newline_after(hunk))
    except TextError:
        return replace(result, outcome=Outcome.CONFLICT), None


def _with_less(
    hunk: Hunk, forms: Forms, target: ScopedText, merged: CarriedHunk
) -> tuple[CarriedHunk, SourceText] | None:
    """A hunk that conflicts and lands with less context, for review; the text that it leaves."""
    placed = forms.less(hunk, target.source.to_bytes())
    if placed is None:
        return None
    form, line = placed
    try:
        changed = target.source.splice(edits(form, line - 1), final_newline_after(form))
    except TextError:
        return None
    return replace(merged, hunk=form, outcome=Outcome.MERGED, beside=True), changed


def _touching(
    hunk: Hunk, target: ScopedText, merged: CarriedHunk
) -> tuple[CarriedHunk, SourceText] | None:
    """A hunk that conflicts, in upstream's lines that touch its own; the text that it leaves."""
    placed = None if merged.merge is None else place_touching(merged.merge)
    if placed is None:
        return None
    place = next(p for p in target.scopes[merged.scope] if p.start + 1 == merged.line)
    try:
        edit = Edit(place.start, place.stop, placed.lines)
        changed = target.source.splice([edit], final_newline_after(hunk))
    except TextError:
        return None
    outcome = Outcome.MERGED if merged.scope == hunk.scope else Outcome.MOVED
    result = replace(merged, outcome=outcome, beside=True, differences=placed.differences)
    return result, changed


def _moved(base_lines: Sequence[str], scope: str, target: ScopedText) -> tuple[str, range | None]:
    """The one scope of a text that is most like the base's, if it is like enough."""
    if scope == MODULE_SCOPE:
        return scope, None
    ranked: list[tuple[float, str, range]] = []
    for name, places in target.scopes.items():
        if name == MODULE_SCOPE:
            continue
        for place in places:
            lines = target.source.lines[place.start : place.stop]
            matcher = SequenceMatcher(None, base_lines, lines, autojunk=False)
            if matcher.quick_ratio() >= MOVED and (ratio := matcher.ratio()) >= MOVED:
                ranked.append((ratio, name, place))
    ranked.sort(key=lambda entry: entry[0], reverse=True)
    if not ranked or (len(ranked) > 1 and ranked[0][0] == ranked[1][0]):
        return scope, None
    return ranked[0][1], ranked[0][2]


# Beside what upstream changed, where a merge calls the lines that touch a conflict.  A proposal,
# which a person reviews with what differs: of lines that touch and were placed so, people kept 20
# of 35 as they were.  So nothing is placed that upstream may have already, whose place is not one
# alone, or that takes the place of lines less alike than ``ALIKE``.

#: The least share that each line which the change replaces has in common with upstream's, as
#: ``difflib`` counts it; and by how much the next likely place has to be less alike.
ALIKE, APART = 0.9, 0.2


class Settlement(NamedTuple):
    """A merged text.

    :ivar differences: upstream's lines whose place the change takes though it was made on others.
    """

    lines: Lines
    differences: tuple[str, ...] = ()


class _Edit(NamedTuple):
    start: int
    stop: int
    lines: Lines
    difference: str = ""


def place_touching(merge: Merge) -> Settlement | None:
    """A merge with the changes of its conflicts in upstream's lines; ``None`` where one has none.

    >>> from overlay.authoring.merge import merge
    >>> before, ours = ["a = (", "begin", "size=1", ")"], ["a = (", "begin", "size=two", ")"]
    >>> place_touching(merge(before, ours, ["a = (", "start()", "size=1", ")"])).lines
    ('a = (', 'start()', 'size=two', ')')
    """
    there = {key_of(line) for region in merge.regions for line in region.theirs}
    lines: list[str] = []
    differences: list[str] = []
    for number, region in enumerate(merge.regions):
        if region.side is not Side.CONFLICT:
            lines += region.lines
            continue
        above = merge.regions[number - 1].theirs[-1:] if number else ()
        below = merge.regions[number + 1].theirs[:1] if number + 1 < len(merge.regions) else ()
        placed = _placed(region, above, below, there)
        if placed is None:
            return None
        lines += placed.lines
        differences += placed.differences
    return Settlement(tuple(lines), tuple(differences))


def _placed(region: Region, above: Lines, below: Lines, there: set[str]) -> Settlement | None:
    """The lines of one conflict, of whose release ``there`` are all lines, white space aside."""
    base, theirs = (*above, *region.base, *below), (*above, *region.theirs, *below)
    edits: list[_Edit] = []
    ours, before = (*above, *region.ours, *below), set(map(key_of, base))
    for old, new in gaps(matches(base, ours), len(base), len(ours)):
        lines = ours[new.start : new.stop]
        if any(key_of(line) in there - before and says_much(line) for line in lines):
            return None  # upstream may have it
        own = base[old.start : old.stop]
        edit = _replacing(own, lines, theirs) if own else _between(base, old.start, lines, theirs)
        if edit is None:
            return None
        edits.append(edit)
    edits.sort(key=lambda edit: edit[:2])  # those of one place stay in their order
    if any(edit.stop > other.start for edit, other in pairwise(edits)):
        return None
    result = list(theirs)
    for edit in reversed(edits):
        result[edit.start : edit.stop] = edit.lines
    stop = len(result) - len(below)
    differences = tuple(edit.difference for edit in edits if edit.difference)
    return Settlement(tuple(result[len(above) : stop]), differences)


def _replacing(own: Lines, lines: Lines, theirs: Lines) -> _Edit | None:
    """The edit that replaces lines where they stand once, or else those most like them."""
    if not any(map(says_much, own)):
        return None
    size = len(own)
    starts = range(len(theirs) - size + 1)
    same = [at for at in starts if theirs[at : at + size] == own]
    if same:
        return _Edit(same[0], same[0] + size, lines) if len(same) == 1 else None
    ranked = sorted(((_alike(own, theirs[at : at + size]), at) for at in starts), reverse=True)
    if not lines or not ranked or ranked[0][0] < ALIKE:
        return None
    if len(ranked) > 1 and ranked[0][0] - ranked[1][0] < APART:
        return None
    share, at = ranked[0]
    other = theirs[at : at + size]
    differing = [pair for pair in zip(other, own, strict=True) if pair[0] != pair[1]]
    difference = (
        f"it takes the place of {quoted([line.strip() for line, _ in differing])}, {share:.0%} "
        f"like {quoted([line.strip() for _, line in differing])}, which it was made on"
    )
    return _Edit(at, at + size, lines, difference)


def _alike(own: Sequence[str], theirs: Sequence[str]) -> float:
    """How much the least alike pair of lines has in common: 0 to 1."""
    return min(
        SequenceMatcher(None, a.strip(), b.strip(), autojunk=False).ratio()
        for a, b in zip(own, theirs, strict=True)
    )


def _between(base: Lines, at: int, lines: Lines, theirs: Lines) -> _Edit | None:
    """The edit that puts lines in beside the one neighbour that still stands there once."""
    behind = [n + 1 for n, line in enumerate(theirs) if at and line == base[at - 1]]
    before = [n for n, line in enumerate(theirs) if at < len(base) and line == base[at]]
    places: set[int] = set()
    for neighbour, numbers in ((at - 1, behind), (at, before)):
        if len(numbers) == 1 and says_much(base[neighbour]):
            places.update(numbers)
    if len(places) != 1:
        return None
    (place,) = places
    return _Edit(place, place, lines)
