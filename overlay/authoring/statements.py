"""Three-way merge by statements, for what a merge by lines calls a conflict.

A statement is told by its tokens: one that a formatter only broke into other lines is the same one.
Where both sides changed one statement, and did so in different places of it, both changes are put
into it.  Whatever goes beyond that stays a conflict: lines that touch were merged as people merged
them in 20 of 35 cases only, and tokens of whole regions in 20 of 30.
"""

from __future__ import annotations

import keyword
import tokenize
from collections.abc import Iterator, Sequence
from functools import lru_cache
from tokenize import TokenInfo
from typing import NamedTuple

from overlay.authoring.merge import Lines, Side, merge
from overlay.planning.code_lines import margin_of

_OPEN, _CLOSE = "([{", ")]}"
#: Tokens that say where lines end, and nothing else.
_LAYOUT = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
#: Characters that tokenizers take for ends of lines, or for no indentation.
_ODD = ("\r", "\f")
#: The most statements that are kept of those that begin with one line.
_MOST_ALIKE = 16


class Word(NamedTuple):
    """A token in its place.

    :ivar gap: what is written between the token before it and this one, with a comma that says
        nothing; :ivar text: the token, the first one of a statement with its indentation.
    """

    gap: str
    text: str


class Statement(NamedTuple):
    """A statement; a line with only a comment, which is a statement too; or an empty line.

    :ivar lines: how it is written; :ivar words: its tokens, none of an empty line.
    """

    lines: Lines
    words: tuple[Word, ...]

    @property
    def tokens_key(self) -> str:
        """What is equal in two statements that differ in their layout alone."""
        return "\0".join(word.text for word in self.words)

    @property
    def comment(self) -> bool:
        """Whether it is nothing but a comment."""
        return self.tokens_key.lstrip().startswith("#")


def merge_statements(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> Lines | None:
    """Merge two descendants of a definition, or of a module, statement by statement.

    Where neither side changed what a statement says, or both changed it alike, it is written as in
    ``theirs``; so a merge that has nothing to add to ``theirs`` is equal to it.

    >>> merge_statements(["f(a, b)"], ["f(a, b, c=1)"], ["f(", "    x,", "    b,", ")"])
    ('f(', '    x,', '    b, c=1,', ')')

    :returns: the merged lines; ``None`` where there is a conflict, or a text is not Python.
    """
    sides: list[tuple[Statement, ...]] = []
    for lines in (base, ours, theirs):
        side = _side(tuple(lines))
        if side is None:
            return None
        sides.append(side)
    merged_lines: list[str] = []
    at = [0, 0, 0]
    for region in merge(*([unit.tokens_key for unit in side] for side in sides)).regions:
        parts: list[tuple[Statement, ...]] = []
        for number, lines in enumerate((region.base, region.ours, region.theirs)):
            parts.append(sides[number][at[number] : at[number] + len(lines)])
            at[number] += len(lines)
        old, mine, other = parts
        if region.side is Side.CONFLICT:
            joined = _joined(old, mine, other)
            if joined is None:
                return None
            merged_lines += joined
        else:
            units = mine if region.side is Side.OURS else other
            merged_lines += [line for unit in units for line in unit.lines]
    return tuple(merged_lines)


@lru_cache(maxsize=64)
def _side(lines: Lines) -> tuple[Statement, ...] | None:
    """The statements of a text; ``None`` where it is not Python.

    Kept, since finding them costs most of a merge, and a port of many features asks for the same
    scopes again and again: of the base for each of its hunks, of a release for each variant.
    """
    try:
        return tuple(statements(lines))
    except (tokenize.TokenError, SyntaxError):
        return None


def statements(lines: Sequence[str]) -> Iterator[Statement]:
    """Split a text into its statements; their lines together are the text's.

    :raises tokenize.TokenError, SyntaxError: where Python finds no tokens, or no end.
    """
    if any(odd in line for line in lines for odd in _ODD):
        raise SyntaxError  # a line holds a character that may end it
    at, margins = 0, [0]
    while at < len(lines):
        unit = _statement_at(lines, at)
        if unit.words and not unit.comment:
            _expect_margin(unit.lines[0], margins)
        yield unit
        at += len(unit.lines)


def _statement_at(lines: Sequence[str], at: int) -> Statement:
    """The statement that begins at a line; most of them stand in many texts.

    Between two statements a tokenizer knows nothing of the lines before but how far they were in.

    :raises tokenize.TokenError, SyntaxError: where Python finds no tokens, or no end.
    """
    statements_there = _begun_by(lines[at])
    for unit in statements_there:
        if unit.lines == tuple(lines[at : at + len(unit.lines)]):
            return unit
    unit = next(_units(lines[at:]))
    if len(statements_there) < _MOST_ALIKE:
        statements_there.append(unit)
    return unit


@lru_cache(maxsize=1 << 15)
def _begun_by(line: str) -> list[Statement]:  # noqa: ARG001 - the cache's key
    """The statements that were read and begin with a line; who reads another one adds it."""
    return []


def _expect_margin(line: str, margins: list[int]) -> None:
    """Enter or leave blocks, as far in as a statement begins.

    :raises SyntaxError: if a block ends that far in that none began there.
    """
    margin = margin_of(line)
    if margin > margins[-1]:
        margins.append(margin)
    while margin < margins[-1]:
        margins.pop()
    if margin != margins[-1]:
        raise SyntaxError


def _units(lines: Sequence[str]) -> Iterator[Statement]:
    """The statements of a text that begins between two of them.

    :raises tokenize.TokenError, SyntaxError: where Python finds no tokens, or no end.
    """
    next_line = depth = 0
    tokens: list[TokenInfo] = []
    for token in _tokens(lines):
        if token.type == tokenize.OP:
            depth += (token.string in _OPEN) - (token.string in _CLOSE)
        if depth < 0:
            raise SyntaxError  # a bracket ends that did not begin
        alone = token.type == tokenize.NL and all(each.type == tokenize.COMMENT for each in tokens)
        if token.type == tokenize.NEWLINE or alone:
            own = tuple(lines[next_line : token.end[0]])
            yield Statement(own, tuple(_words(tokens, lines)))
            next_line, tokens = token.end[0], []
        elif token.type not in _LAYOUT:
            tokens.append(token)
    if next_line < len(lines):
        raise SyntaxError  # the text ends inside a statement


def _joined(
    base: Sequence[Statement], ours: Sequence[Statement], theirs: Sequence[Statement]
) -> list[str] | None:
    """A region that both sides changed, statement by statement; ``None`` where one conflicts.

    Each statement of one side belongs to one of the others; empty lines are as in ``theirs``.
    """
    old, mine, other = ([unit for unit in side if unit.words] for side in (base, ours, theirs))
    if not len(old) == len(mine) == len(other):
        return None
    rows = iter(zip(old, mine, other, strict=True))
    joined_lines: list[str] = []
    for unit in theirs:
        lines = _joined_statement(*next(rows)) if unit.words else unit.lines
        if lines is None:
            return None
        joined_lines += lines
    return joined_lines


def _joined_statement(base: Statement, ours: Statement, theirs: Statement) -> Lines | None:
    if ours.tokens_key in (base.tokens_key, theirs.tokens_key):
        return theirs.lines
    if theirs.tokens_key == base.tokens_key:
        return ours.lines
    sides = base.words, ours.words, theirs.words
    merged = merge(*([word.text for word in side] for side in sides))
    if merged.conflicts:
        return None
    text = ""
    mine = other = 0
    for region in merged.regions:
        if region.side is Side.OURS:
            words = ours.words[mine : mine + len(region.ours)]
        else:
            words = theirs.words[other : other + len(region.theirs)]
        text += "".join(word.gap + word.text for word in words)
        mine, other = mine + len(region.ours), other + len(region.theirs)
    lines = tuple(text.split("\n"))
    try:
        again = [unit.tokens_key for unit in statements(lines)]
    except (tokenize.TokenError, SyntaxError):
        return None
    # What was behind a comment's line, say, may have come to be in the comment.
    return lines if again == ["\0".join(merged.lines)] else None


def _tokens(lines: Sequence[str]) -> Iterator[TokenInfo]:
    """The tokens of a text; a formatted string is one of them with every version of Python."""
    ended = (f"{line}\n" for line in lines)
    inside: list[TokenInfo] = []  # the beginnings of formatted strings that are open
    for token in tokenize.generate_tokens(ended.__next__):
        name = tokenize.tok_name[token.type]
        if name.endswith("STRING_START"):
            inside.append(token)
        elif name.endswith("STRING_END") and inside:
            beginning = inside.pop()
            if not inside:
                whole = _written(lines, beginning.start, token.end)
                yield token._replace(type=tokenize.STRING, string=whole, start=beginning.start)
        elif not inside:
            yield token


def _words(tokens: Sequence[TokenInfo], lines: Sequence[str]) -> Iterator[Word]:
    """The tokens in their places, without the commas that say nothing.

    A formatter puts a comma before a bracket that closes, or takes it away; but that of ``(x,)``
    makes a tuple, and so does that of ``x[0,]``.
    """
    brackets: list[bool] = []  # of each that is open: whether its last comma says nothing
    if not tokens:
        return
    last = (tokens[0].start[0], 0)
    for at, token in enumerate(tokens):
        if token.type == tokenize.OP and token.string in _OPEN:
            brackets.append(token.string == "(" and at > 0 and _calls(tokens[at - 1]))
        elif token.type == tokenize.OP and token.string in _CLOSE and brackets:
            brackets.pop()
        elif token.type == tokenize.OP and token.string == "," and brackets:
            if tokens[at + 1].string in _CLOSE and brackets[-1]:
                continue
            brackets[-1] = True
        gap, text = _written(lines, last, token.start), _written(lines, token.start, token.end)
        yield Word(gap, text) if at else Word("", gap + text)
        last = token.end


def _calls(before: TokenInfo) -> bool:
    """Whether a parenthesis behind a token holds the arguments of a call, or parameters."""
    if before.type == tokenize.NAME:
        return not keyword.iskeyword(before.string)
    return before.string in (")", "]")


def _written(lines: Sequence[str], start: tuple[int, int], stop: tuple[int, int]) -> str:
    (first, begin), (last, end) = start, stop
    if first == last:
        return lines[first - 1][begin:end]
    return "\n".join((lines[first - 1][begin:], *lines[first : last - 1], lines[last - 1][:end]))
