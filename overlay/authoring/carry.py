"""Carry a file's change to another text of that file: hunk by hunk, in the safest way that holds.

For each hunk the first of these that holds decides: upstream has it already; it lands exactly; a
three-way merge inside its scope is clean and compiles; its scope moved or was renamed and the merge
is clean there; else it is a conflict.  A merge is a proposal: whoever calls has it reviewed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum

from overlay.authoring.merge import Merge, merge
from overlay.features.model import MODULE_SCOPE, Hunk
from overlay.planning.matching import edits, final_newline_after, match
from overlay.planning.scopes import Scopes, Syntax, UnparsableError, find
from overlay.planning.text import Edit, SourceText, TextError
from overlay.results import State

#: Upstream has a hunk where at least this share of its new lines stands in its scope
#: (measured on 300 merged changes: 98 % are recognised in the first release that has them, and
#: 0.3 % are before they were merged).
SHARE = 0.6

#: A scope that shares at least this much of its text with the base's is the same one, moved.
MOVED = 0.8

#: Characters without blanks that make a line telling.
TELLING = 6


class Outcome(Enum):
    """How a hunk was carried; ordered from nothing to do to nothing possible."""

    UPSTREAM = "upstream"
    EXACT = "exact"
    MERGED = "merged"
    MOVED = "moved"
    CONFLICT = "conflict"
    MISSING = "missing"

    @property
    def wants_review(self) -> bool:
        """Whether a person has to look at the result before it is used."""
        return self in (Outcome.MERGED, Outcome.MOVED)


@dataclass(frozen=True)
class CarriedHunk:
    """How one hunk was carried.

    :ivar scope: the scope that it was carried to.
    :ivar line: 1-based first line of that scope, or of the hunk where it landed exactly.
    :ivar merge: the three-way merge of the scope, where one was made.
    """

    hunk: Hunk
    outcome: Outcome
    scope: str
    line: int | None = None
    merge: Merge | None = None


@dataclass(frozen=True)
class Carried:
    """How a file's change was carried.

    :ivar after: the text with every hunk that could be carried; ``None`` where there is no file.
    :ivar problem: why the result cannot be used although each hunk was carried.
    """

    hunks: tuple[CarriedHunk, ...]
    after: bytes | None
    problem: str | None = None

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of a hunk; a file whose every hunk upstream has is upstream."""
        order = list(Outcome)
        if self.problem is not None:
            return Outcome.CONFLICT
        return max((one.outcome for one in self.hunks), key=order.index, default=Outcome.UPSTREAM)


def new_lines(hunk: Hunk, scope_lines: Sequence[str]) -> tuple[str, ...]:
    """The lines that tell whether a text has a hunk: added, telling, and not in its base's scope.

    :param scope_lines: the lines of the hunk's scope in the text that it was made on.
    """
    known = {line.strip() for line in scope_lines}
    added = (text.strip() for op, text in hunk.lines if op == "+")
    return tuple(
        dict.fromkeys(
            line
            for line in added
            if line not in known and len("".join(line.split())) >= TELLING and line != "return"
        )
    )


def share_of(lines: Sequence[str], scope_lines: Sequence[str]) -> float:
    """How much of ``lines`` stands in a scope, from 0 to 1; 0 where there are no lines."""
    there = {line.strip() for line in scope_lines}
    return sum(line in there for line in lines) / len(lines) if lines else 0.0


def carry(base: bytes, hunks: Sequence[Hunk], target: bytes | None) -> Carried:
    """Carry the hunks that were made on ``base`` to ``target``.

    :raises TextError, UnparsableError: if ``base`` is not readable or not Python.
    """
    if target is None:
        return Carried(tuple(CarriedHunk(h, Outcome.MISSING, h.scope) for h in hunks), None)
    origin = SourceText.from_bytes(base)
    scopes = find(origin.lines)
    try:
        text = SourceText.from_bytes(target)
        now = find(text.lines)
    except (TextError, UnparsableError) as error:
        conflicts = tuple(CarriedHunk(h, Outcome.CONFLICT, h.scope) for h in hunks)
        return Carried(conflicts, target, f"the file cannot be read: {error}")
    results: list[CarriedHunk] = []
    for hunk in hunks:
        result, changed = _carry_hunk(hunk, origin, scopes, text, now)
        results.append(result)
        if changed is not None:
            try:
                now = find(changed.lines)
                text = changed
            except UnparsableError:
                results[-1] = CarriedHunk(
                    hunk, Outcome.CONFLICT, result.scope, result.line, result.merge
                )
    after = text.to_bytes()
    return Carried(tuple(results), after, Syntax().compile_error(after, "<carried>"))


def _carry_hunk(
    hunk: Hunk, origin: SourceText, scopes: Scopes, text: SourceText, now: Scopes
) -> tuple[CarriedHunk, SourceText | None]:
    """How one hunk is carried, and the text that it leaves; ``None`` for no change."""
    at_base = match(hunk, origin.lines, scopes, origin.final_newline)
    home = _home(hunk, at_base.line, scopes)
    known = () if home is None else origin.lines[home.start : home.stop]
    telling = new_lines(hunk, known)
    for place in now.get(hunk.scope, ()):
        if telling and share_of(telling, text.lines[place.start : place.stop]) >= SHARE:
            return CarriedHunk(hunk, Outcome.UPSTREAM, hunk.scope, place.start + 1), None
    found = match(hunk, text.lines, now, text.final_newline)
    if found.state is State.UPSTREAMED:
        return CarriedHunk(hunk, Outcome.UPSTREAM, hunk.scope, found.line), None
    if found.state is State.PRISTINE and found.line is not None:
        changed = text.splice(edits(hunk, found.line - 1), final_newline_after(hunk))
        return CarriedHunk(hunk, Outcome.EXACT, hunk.scope, found.line), changed
    if at_base.line is None or at_base.state is not State.PRISTINE or home is None:
        return CarriedHunk(hunk, Outcome.CONFLICT, hunk.scope), None
    return _merge_hunk(hunk, at_base.line - 1, home, origin, text, now)


def _merge_hunk(
    hunk: Hunk, at: int, home: range, origin: SourceText, text: SourceText, now: Scopes
) -> tuple[CarriedHunk, SourceText | None]:
    """Merge a hunk into its scope in another text, wherever that scope stands now."""
    ours = origin.splice(edits(hunk, at), final_newline_after(hunk)).lines
    grown = len(hunk.post) - len(hunk.pre)
    base_lines = origin.lines[home.start : home.stop]
    our_lines = ours[home.start : home.stop + grown]
    places = list(now.get(hunk.scope, ()))
    outcome, scope = Outcome.MERGED, hunk.scope
    if len(places) != 1:
        scope, place = _moved(base_lines, hunk.scope, text, now)
        if place is None:
            kind = Outcome.CONFLICT if places else Outcome.MISSING
            return CarriedHunk(hunk, kind, hunk.scope), None
        outcome, places = Outcome.MOVED, [place]
    (place,) = places
    merged = merge(base_lines, our_lines, text.lines[place.start : place.stop])
    if merged.conflicts:
        return CarriedHunk(hunk, Outcome.CONFLICT, scope, place.start + 1, merged), None
    if merged.lines == text.lines[place.start : place.stop]:
        return CarriedHunk(hunk, Outcome.UPSTREAM, scope, place.start + 1, merged), None
    edit = Edit(place.start, place.stop, merged.lines)
    try:
        changed = text.splice([edit], final_newline_after(hunk))
    except TextError:
        return CarriedHunk(hunk, Outcome.CONFLICT, scope, place.start + 1, merged), None
    return CarriedHunk(hunk, outcome, scope, place.start + 1, merged), changed


def _home(hunk: Hunk, line: int | None, scopes: Scopes) -> range | None:
    """The place of the hunk's scope in its base that holds the hunk."""
    places = scopes.get(hunk.scope, ())
    if line is None:
        return places[0] if len(places) == 1 else None
    start, stop = line - 1, line - 1 + len(hunk.pre)
    return next((p for p in places if p.start <= start and stop <= p.stop), None)


def _moved(
    base_lines: Sequence[str], scope: str, text: SourceText, now: Scopes
) -> tuple[str, range | None]:
    """The one scope of a text that is most like the base's, if it is like enough."""
    if scope == MODULE_SCOPE:
        return scope, None
    ranked: list[tuple[float, str, range]] = []
    for name, places in now.items():
        if name == MODULE_SCOPE:
            continue
        for place in places:
            lines = text.lines[place.start : place.stop]
            matcher = SequenceMatcher(None, base_lines, lines, autojunk=False)
            if matcher.quick_ratio() >= MOVED and (ratio := matcher.ratio()) >= MOVED:
                ranked.append((ratio, name, place))
    ranked.sort(key=lambda entry: entry[0], reverse=True)
    if not ranked or (len(ranked) > 1 and ranked[0][0] == ranked[1][0]):
        return scope, None
    return ranked[0][1], ranked[0][2]
