"""Which lines of a text are code: no comment, docstring, blank line or bare punctuation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

#: Brackets, commas and the ends of a text: where they stand says nothing of what is between them.
_BARE = re.compile(r"[()\[\]{},:;\\]*(?:\"\"\"|''')?[()\[\]{},:;\\]*")
_TEXT = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_QUOTES = re.compile(r"[rRuU]?(\"\"\"|''')")
#: How a line begins that goes on with a statement whose first line is above, as far to the left.
_GOES_ON = re.compile(r"[)\]}]|(?:else|elif|except|finally|case)\b")
_HEADER = re.compile(r"(?:(?:async\s+)?def|class)\b.*:$|\)\s*(?:->.*)?:$")


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
        key = key_of(text)
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
def key_of(line: str) -> str:
    """A line without white space, but that inside a text, and comment; empty without code.

    A star or a dot is code, such as the ``*`` of a signature; brackets and commas alone are not.
    """
    if '"' in line or "'" in line:
        parts = _TEXT.split(line)
        parts[::2] = ("".join(part.split()) for part in parts[::2])
        key = "".join(parts)
    else:
        key = "".join(line.partition("#")[0].split())
    return "" if key[:1] == "#" or _BARE.fullmatch(key) else key


def blocks_of(lines: Sequence[str], row: int) -> tuple[str, ...]:
    """The key of a line (0-based), and of those that begin the blocks and statements around it.

    Indentation alone tells them, from inside out; a branch has those before it as well.
    """
    chain = [key_of(lines[row])]
    width = _indentation(lines[row])
    for line in reversed(lines[:row]):
        text = line.strip()
        if text and text[0] != "#" and _indentation(line) < width:
            chain.append(key_of(line))
            width = _indentation(line) + bool(_GOES_ON.match(text))
    return tuple(chain)


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


@lru_cache(maxsize=1 << 16)
def written_of(line: str) -> str:
    """A line of code, of a comment or of punctuation without white space."""
    return key_of(line) or "".join(line.split())


def margin_of(line: str) -> int:
    """How far in a line stands, in columns."""
    line = line.expandtabs()
    return len(line) - len(line.lstrip())
