"""Which lines of a text are code: no comment, docstring, blank line or bare punctuation."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache
from keyword import iskeyword

#: Brackets, commas and the ends of a text: where they stand says nothing of what is between them.
_BARE = re.compile(r"[()\[\]{},:;\\]*(?:\"\"\"|''')?[()\[\]{},:;\\]*")
_TEXT = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_QUOTES = re.compile(r"[rRuU]?(\"\"\"|''')")
#: How a line begins that goes on with a statement whose first line is above, as far to the left.
_GOES_ON = re.compile(r"[)\]}]|(?:else|elif|except|finally|case)\b")
#: How a line begins that defines a function or class, or gives a name a value or a type.
_DEFINITION = re.compile(r"(?:(?:async\s+)?def|class)\s+(\w+)")
_BINDING = re.compile(r"(\w+)\s*(?::\s*[^\s=]|=(?!=))")
_HEADER = re.compile(r"(?:(?:async\s+)?def|class)\b.*:$|\)\s*(?:->.*)?:$")


def code_lines(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Index and key of each line of code: no comment, docstring, blank line or bare punctuation.

    A docstring is left out where all of it is in the lines: an opening without an end may be the
    end of a text that begins before them.
    """
    before, at, inside = "", 0, ""
    while at < len(lines):
        text = lines[at].strip()
        is_quoted = '"""' in text or "'''" in text  # to ask more of every line takes long
        if (
            is_quoted
            and not inside
            and (end := _docstring_end(lines, at, text, before)) is not None
        ):
            before, at = '"""', end
            continue
        key = key_of(text)
        if key:
            before = text
            yield at, key
        for quotes in ('"""', "'''") if is_quoted else ():
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
    width = indentation(lines[row])
    for line in reversed(lines[:row]):
        text = line.strip()
        if text and text[0] != "#" and indentation(line) < width:
            chain.append(key_of(line))
            width = indentation(line) + bool(_GOES_ON.match(text))
    return tuple(chain)


def names_in(lines: Iterable[str]) -> set[str]:
    """What lines define or bind, wherever they stand."""
    names = (_name_of(line.strip()) for line in lines)
    return {name for name in names if name}


def places_in(lines: Iterable[str]) -> set[tuple[int, str]]:
    """The same, with how far in it is defined or bound."""
    return {(indentation(line), name) for line in lines if (name := _name_of(line.strip()))}


def is_definition(line: str) -> bool:
    """Whether a line begins a function or class."""
    return _DEFINITION.match(line.strip()) is not None


def twins(lines: Sequence[str], added: Container[int]) -> Iterator[tuple[int, int]]:
    """Lines (0-based) that define a name which another line of their block defines as well.

    That is a function or class, or a name that the body of a module or class binds.  The branches
    of a condition, overloads, and the functions of one property are made to stand side by side.

    :param added: the lines that are asked about; :returns: each with its twin that is none of them.
    """
    rows = [at for at, _ in code_lines(lines)]
    for number, row in enumerate(rows):
        if row in added and (own := _defined(lines, rows, number)):
            for other in _beside(lines, rows, number):
                if rows[other] not in added and _defined(lines, rows, other) == own:
                    yield row, rows[other]


def _name_of(text: str) -> str:
    """What a line defines or binds; empty of any other line."""
    match = _DEFINITION.match(text) or _BINDING.match(text)
    return "" if match is None or match[1] == "_" or iskeyword(match[1]) else match[1]


def _beside(lines: Sequence[str], rows: Sequence[int], number: int) -> Iterator[int]:
    """The numbers of the other rows of a block that stand as far in as one of them."""
    width = indentation(lines[rows[number]])
    for numbers in (range(number - 1, -1, -1), range(number + 1, len(rows))):
        for other in numbers:
            inward = indentation(lines[rows[other]])
            if inward < width:
                break
            if inward == width:
                yield other


def _defined(lines: Sequence[str], rows: Sequence[int], number: int) -> tuple[str, ...]:
    """The name that a row defines, with the decorators that let it stand twice; else nothing."""
    text = lines[rows[number]].strip()
    name = _name_of(text)
    if not name or not is_definition(text):
        return (name, "=") if name and _is_in_body(lines, rows, number) else ()
    marks = set()
    for at in reversed(rows[:number]):
        mark = key_of(lines[at])
        if mark[:1] != "@":
            break
        if "overload" in mark:
            return ()
        if mark.startswith(f"@{name}."):
            marks.add(mark)
    return name, *sorted(marks)


def _is_in_body(lines: Sequence[str], rows: Sequence[int], number: int) -> bool:
    """Whether a row is a statement of a module or of a class, and of no block in it."""
    width = indentation(lines[rows[number]])
    for at in reversed(rows[:number]):
        if indentation(lines[at]) < width:
            width = indentation(lines[at]) + bool(_GOES_ON.match(lines[at].strip()))
            if width == indentation(lines[at]):
                return lines[at].lstrip().startswith("class ")
    return not width


def indentation(line: str) -> int:
    """How many characters of white space a line begins with."""
    return len(line) - len(line.lstrip())


@lru_cache(maxsize=1 << 16)
def written_of(line: str) -> str:
    """A line of code, of a comment or of punctuation without white space."""
    return key_of(line) or "".join(line.split())


def margin_of(line: str) -> int:
    """How far in a line stands, in columns."""
    line = line.expandtabs()
    return len(line) - len(line.lstrip())
