"""Compose hunks of the strict format from a text and what it becomes.

Each hunk is named after the innermost scope that holds its change before and after, keeps its
context inside that scope, and gets as many lines of context as it takes for its pre-image to occur
there once and for the result to show that it is applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from overlay._features.model import FILE_SCOPE, MODULE_SCOPE, Hunk, WholeFile
from overlay.authoring.merge import gaps, matches
from overlay.package import is_module
from overlay.planning.matching import (
    definitions_beside,
    holding_scopes,
    match,
    new_names,
    places_of,
)
from overlay.planning.scopes import Scopes, UnparsableError, find
from overlay.planning.telling import Place
from overlay.planning.text import Edit, SourceText, TextError
from overlay.results import HunkResult, State


@dataclass(frozen=True)
class ScopedText:
    """A source text and the places of its scopes, as 0-based half-open ranges of lines."""

    source: SourceText
    scopes: Scopes

    @classmethod
    def read(cls, data: bytes, *, is_data: bool = False) -> ScopedText:
        """The text of a file.

        :param is_data: whether it is a data file, whose one scope is the whole text.
        :raises TextError, UnparsableError: if it is not readable, or not Python.
        """
        source = SourceText.from_bytes(data)
        if is_data:
            return cls(source, {FILE_SCOPE: [range(len(source.lines))]})
        return cls(source, find(source.lines))

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines without their ends."""
        return self.source.lines

    @cached_property
    def _evidence(self) -> dict[str, Sequence[Place]]:
        return {}

    def evidence(self, scope: str) -> Sequence[Place]:
        """The lines of a scope, as evidence; worked out once for all hunks."""
        if scope not in self._evidence:
            self._evidence[scope] = places_of(scope, self.source.lines, self.scopes)
        return self._evidence[scope]

    def match(self, hunk: Hunk) -> HunkResult:
        """The state of a hunk in the text."""
        source, evidence = self.source, self.evidence(hunk.scope)
        return match(hunk, source.lines, self.scopes, source.final_newline, evidence)

    def twins(self, hunk: Hunk) -> list[str]:
        """The text's own lines that define a name which a hunk, placed in it, adds."""
        if not new_names(hunk):
            return []
        line, lines = self.match(hunk).line, self.source.lines
        if line is None or lines[line - 1 :][: len(hunk.pre)] != hunk.pre:
            return []
        places = self.scopes.get(hunk.scope, ())
        return [text.strip() for text, _ in definitions_beside(hunk, lines, line - 1, places)]

    def home(self, hunk: Hunk) -> range | None:
        """The place of a hunk's scope that holds the hunk; ``None`` where that cannot be told."""
        line, places = self.match(hunk).line, self.scopes.get(hunk.scope, ())
        holding = [place for place in places if line is None or line - 1 in place]
        return holding[0] if len(holding) == 1 else None


def with_base(hunk: Hunk, origin: ScopedText) -> Hunk:
    """A hunk whose base is known: what its scope in the base had of its lines tells nothing."""
    if hunk.base_has is not None:
        return hunk
    home = origin.home(hunk)
    there = () if home is None else origin.source.lines[home.start : home.stop]
    return hunk._replace(base_has=tuple(dict.fromkeys(line.strip() for line in there)))


#: Lines of context around a change, from the usual number to all there are.
CONTEXT = (3, 5, 8, 13, 21, 34, 1_000_000)


def contexts_from(context: int | None) -> tuple[int, ...]:
    """The numbers of lines of context to try, from the one that was asked for on.

    :param context: ``None`` for the usual number.
    """
    if context is None:
        return CONTEXT
    return context, *(number for number in CONTEXT if number > context)


class NotComposable(ValueError):
    """The change cannot be written as hunks of the strict format."""


def compose_file(
    path: str, before: bytes, after: bytes, contexts: Sequence[int] = CONTEXT
) -> tuple[Hunk, ...]:
    """The hunks that make ``after`` of ``before``, as ``compose``.

    :raises NotComposable: whatever is wrong, with the path in a sentence.
    """
    try:
        if is_module(path):
            return compose(before, after, contexts)
        return _of_data(before, after, contexts)
    except NotComposable as error:
        raise NotComposable(f"{path} cannot be said in hunks: {error}") from error
    except (TextError, UnparsableError) as error:
        raise NotComposable(f"{path} is not Python that can be read: {error}") from error


def whole_file(before: bytes, after: bytes | None) -> Hunk:
    """The change of a whole file as a hunk; ``None``: it is removed."""
    return Hunk(FILE_SCOPE, (), 1, 1, whole=WholeFile.of(before, after))


def _of_data(before: bytes, after: bytes, contexts: Sequence[int]) -> tuple[Hunk, ...]:
    """The hunks of a data file, or its new bytes where it is no text or no hunk says the change."""
    if b"\0" not in before + after:
        try:
            return compose(before, after, contexts, is_data=True)
        except (NotComposable, TextError):
            pass
    return () if before == after else (whole_file(before, after),)


@dataclass(frozen=True)
class Block:
    """A changed run of lines: 0-based, half open, in the text before and in the one after."""

    old: range
    new: range


def compose(
    before: bytes, after: bytes, contexts: Sequence[int] = CONTEXT, *, is_data: bool = False
) -> tuple[Hunk, ...]:
    """The hunks that make ``after`` of ``before``, in the order of the file.

    :param contexts: numbers of lines of context to try, in this order.
    :param is_data: the file is no module.
    :raises TextError, UnparsableError: if one of the texts is not readable, or not Python.
    :raises NotComposable: if no amount of context makes a hunk unambiguous, or the change is one of
        line ends, encoding or a byte-order mark alone.
    """
    old, new = (ScopedText.read(data, is_data=is_data) for data in (before, after))
    if old.source.encoding != new.source.encoding or old.source.bom != new.source.bom:
        raise NotComposable("it changes the encoding of the file or its byte-order mark")
    blocks = list(blocks_of(old, new))
    groups = close_together(blocks, old, new)
    if not groups and before != after:
        raise NotComposable("it changes line ends alone, which a hunk does not speak of")
    _refuse_line_ends(blocks, old.source, new.source)
    hunks: list[Hunk] = []
    at = 0
    while at < len(groups):
        # Context ends where a neighbour's change begins, for hunks must not share lines.
        room = range(
            groups[at - 1][-1].old.stop if at else 0,
            groups[at + 1][0].old.start if at + 1 < len(groups) else len(old.lines),
        )
        hunk = _hunk(groups[at], room, old, new, contexts)
        if hunk is not None and (
            not hunks or hunks[-1].source_line + len(hunks[-1].pre) <= hunk.source_line
        ):
            hunks.append(hunk)
            at += 1
        elif hunks:
            groups[at - 1 : at + 1] = [groups[at - 1] + groups[at]]
            hunks.pop()
            at -= 1
        elif at + 1 < len(groups):
            groups[at : at + 2] = [groups[at] + groups[at + 1]]
        else:
            line = groups[at][0].old.start + 1
            raise NotComposable(
                f"the change at line {line}: no amount of context makes its lines occur once "
                "before it and shows afterwards that it is applied; put it into a new module"
            )
    if any(text.endswith("\r") for hunk in hunks for _, text in hunk.lines):
        raise NotComposable(
            "a line ends with a carriage return too many, which no patch file keeps"
        )
    return tuple(hunks)


def _refuse_line_ends(blocks: Sequence[Block], old: SourceText, new: SourceText) -> None:
    """Refuse a change that gives lines other ends than those around them have.

    :raises NotComposable: naming the first such line.
    """
    edits = [Edit(b.old.start, b.old.stop, new.lines[b.new.start : b.new.stop]) for b in blocks]
    ends = old.splice(edits, new.final_newline).ends
    for at, end in enumerate(new.ends):
        if end != ends[at]:
            raise NotComposable(
                f"it changes line ends, which a hunk does not speak of: line {at + 1} ends with "
                f"{end!r}, and was expected to end with {ends[at]!r}"
            )


def close_together(every: Sequence[Block], old: ScopedText, new: ScopedText) -> list[list[Block]]:
    """The blocks in groups: those in one scope between which few lines stay are one hunk."""
    groups: list[list[Block]] = []
    scope = None
    for block in every:
        innermost = next(_scopes_around([block], old, new))
        near = groups and block.old.start - groups[-1][-1].old.stop <= 2 * CONTEXT[0]
        if near and innermost == scope:
            groups[-1].append(block)
        else:
            groups.append([block])
        scope = innermost
    return groups


def blocks_of(old: ScopedText, new: ScopedText) -> Iterator[Block]:
    """What differs; a final newline that comes or goes belongs to the last line of each text.

    So neither last line is context: as such it would have to end alike before and after.
    """
    pairs = matches(old.lines, new.lines)
    if old.source.final_newline is not new.source.final_newline:
        last_old, last_new = len(old.lines) - 1, len(new.lines) - 1
        pairs = {a: b for a, b in pairs.items() if a != last_old and b != last_new}
    for before, after in gaps(pairs, len(old.lines), len(new.lines)):
        yield Block(before, after)


def _hunk(
    group: Sequence[Block], room: range, old: ScopedText, new: ScopedText, contexts: Sequence[int]
) -> Hunk | None:
    """The narrowest hunk that holds the blocks; ``None`` where there is none in ``room``."""
    changed = range(group[0].old.start, group[-1].old.stop)
    for scope, inside in _scopes_around(group, old, new):
        first, last = max(inside.start, room.start), min(inside.stop, room.stop)
        for context in contexts:
            start, stop = max(first, changed.start - context), min(last, changed.stop + context)
            hunk = _cut(group, range(start, stop), scope, old, new)
            if _fits(hunk, old, new):
                return hunk
            if (start, stop) == (first, last):
                break
    return None


def _scopes_around(
    group: Sequence[Block], old: ScopedText, new: ScopedText
) -> Iterator[tuple[str, range]]:
    """The scopes that hold the blocks before and after, innermost first, with their old place."""
    before = range(group[0].old.start, group[-1].old.stop)
    after = range(group[0].new.start, group[-1].new.stop)
    afterwards = set(holding_scopes(after.start, len(after), new.scopes))
    names = holding_scopes(before.start, len(before), old.scopes)
    # A function that is the whole file is named before the file.
    for name in sorted(names, key=lambda name: name == MODULE_SCOPE):
        if name not in afterwards:
            continue
        for place in old.scopes[name]:
            if place.start <= before.start and before.stop <= place.stop:
                yield name, place


def _cut(
    group: Sequence[Block], place: range, scope: str, old: ScopedText, new: ScopedText
) -> Hunk:
    lines: list[tuple[str, str]] = []
    at = place.start
    for block in group:
        lines += [(" ", text) for text in old.lines[at : block.old.start]]
        lines += [("-", text) for text in old.lines[block.old.start : block.old.stop]]
        lines += [("+", text) for text in new.lines[block.new.start : block.new.stop]]
        at = block.old.stop
    lines += [(" ", text) for text in old.lines[at : place.stop]]
    shift = group[-1].new.stop - group[-1].old.stop
    ends_old, ends_new = place.stop == len(old.lines), place.stop + shift == len(new.lines)
    differs = old.source.final_newline is not new.source.final_newline
    return Hunk(
        scope,
        tuple(lines),
        place.start + 1,
        1,
        pre_unfinished=differs and ends_old and not old.source.final_newline,
        post_unfinished=differs and ends_new and not new.source.final_newline,
    )


def _fits(hunk: Hunk, old: ScopedText, new: ScopedText) -> bool:
    """Whether a hunk, cut from a place of its scope, lands there alone and shows it afterwards."""
    if not hunk.pre or not hunk.post or hunk.shows_nothing:
        return False
    return old.match(hunk).state is State.PRISTINE and new.match(hunk).state is State.UPSTREAMED
