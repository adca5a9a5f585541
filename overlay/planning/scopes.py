"""Qualified names of classes and functions, and the lines that they take up.

vLLM's model runner has seven thousand lines, a hunk changes ten of them and a release a few
hundred.  So a module is read in chunks, each of them once a process: one begins with a definition
at the margin, or with a method of a class there.  Where every chunk parses alone, the tokenizer is
between two statements at each seam, in no text, no bracket and no line that goes on, and the only
indentation that a line is compared with is its own chunk's: all of them together parse as each
does.  Where any of that is uncertain, the whole text is asked about."""

from __future__ import annotations
import __future__

import re
from codecs import BOM_UTF8
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from overlay._features.model import MODULE_SCOPE
from overlay.planning import parsing
from overlay.planning.parsing import Definition, UnparsableError

__all__ = ("Scopes", "Syntax", "UnparsableError", "compiles_in_chunks", "find")

#: Qualified name to the places of that name, each a range of 0-based line numbers.
Scopes = Mapping[str, Sequence[range]]

#: So many chunks are remembered: those of some hundred files.
_MOST = 1 << 14
#: So many texts are remembered in chunks: a patched file is asked about twice.
_MOST_TEXTS = 64

# Both begin with what can be looked for as it is, which is ten times as fast.
_AT_MARGIN = re.compile(r"\n(?:@|def |class |async def )")
_IN_CLASS = re.compile(r"\n    (?:@|def |class |async def )")
_CLASS = re.compile(r"(?:@[^\n'\"\\]*\n)*class ")
#: A line that goes on behind a chunk.
_GOING_ON = re.compile(r"\\\n(?:\Z|(?:    )?(?:@|def |class |async def ))")
#: What says something of all of a scope, wherever it stands in it.
_DECLARED = tuple(word + end for word in ("global", "nonlocal") for end in " \t\\")
#: What ends before a statement, with nothing but so many blanks between: else it is in a comment.
_BEFORE = ("", "\n", ";", ":")
_BLANKS = 200
_FUTURE = "from __future__ import annotations\n"


def find(lines: Sequence[str]) -> dict[str, list[range]]:
    """Find the places of every class and function of a module.

    A nested one is named with plain dots (``Outer.method.inner``).  A scope begins with its first
    decorator and ends before the next line of code that is not its own: blank lines, and comments
    indented deeper than its header, still belong to it.  A name that is defined several times has
    several places.  ``<module>`` is the whole file.

    :param lines: the lines without their ends.
    :raises UnparsableError: if the text is not Python.
    """
    places: dict[str, list[range]] = {MODULE_SCOPE: [range(len(lines))]}
    for name, start, stop in _in_chunks("\n".join(lines) + "\n") or parsing.definitions(lines):
        places.setdefault(name, []).append(range(start, stop))
    return places


class Syntax:
    """Python's answers about texts, each worked out once.

    Planning asks through this class, so that a subclass can keep the answers for longer.
    """

    def __init__(self) -> None:
        self._scopes: dict[bytes, Scopes | UnparsableError] = {}
        self._errors: dict[tuple[bytes, str], str | None] = {}

    def scopes(self, data: bytes, lines: Sequence[str]) -> Scopes:
        """The scopes of a file.

        :param data: its bytes; :param lines: its lines, as ``SourceText`` reads them.
        :raises UnparsableError: if it is not Python.
        """
        answer = self._scopes.get(data)
        if answer is None:
            try:
                answer = find(lines)
            except UnparsableError as error:
                answer = error
            self._scopes[data] = answer
        if isinstance(answer, UnparsableError):
            raise answer
        return answer

    def compile_error(self, data: bytes, path: str, before: bytes = b"") -> str | None:
        """Why the bytes do not compile, or ``None``; nothing of them is run.

        :param before: the package's own file, whose functions are not compiled again.
        """
        key = (data, path)
        if key not in self._errors:
            certain = compiles_in_chunks(data, before)
            self._errors[key] = None if certain else parsing.compile_error(data, path)
        return self._errors[key]


def compiles_in_chunks(data: bytes, before: bytes = b"") -> bool:
    """Whether it is certain, by the chunks of a module, that it compiles.

    :param before: a module that is known to; what both have is not compiled.
    """
    first_lines = data.split(b"\n", 2)[:2]
    if data.startswith(BOM_UTF8) or any(b"coding" in line for line in first_lines):
        return False
    try:
        text = data.decode()
        chunks = _chunks(text if text.endswith("\n") else f"{text}\n")
        flags = _flags(chunks)
        if text.count("__future__") > bool(flags):
            return False
        known = _chunks(before.decode()) if before else []
        common = set(chunks).intersection(known if _flags(known or [""]) == flags else ())
        parts = {part for each in known if common and each not in common for part in _parts(each)}
        return all(each in common or _compiles(each, flags, parts) for each in chunks)
    except (UnicodeDecodeError, UnparsableError, IndexError):
        return False


def _flags(chunks: Sequence[str]) -> int:
    """The compiler's flags for a module."""
    return __future__.annotations.compiler_flag if _FUTURE in chunks[0] else 0


def _in_chunks(text: str) -> list[Definition]:
    """Every definition of a text that ends with a line feed; none where that is uncertain."""
    placed: list[Definition] = []
    at = 0
    try:
        for chunk in _chunks(text):
            placed += [(name, at + start, at + stop) for name, start, stop in _of_chunk(chunk)]
            at += chunk.count("\n")
    except UnparsableError:
        return []  # the whole text gives the better error
    return placed


@lru_cache(_MOST_TEXTS)
def _chunks(text: str) -> list[str]:
    """The text cut before each definition at the margin; none where that is of no use."""
    # A carriage return or form feed makes line ends or indentation ambiguous.
    odd = any(each in text for each in "\r\f\0") or ("\\\n" in text and _GOING_ON.search(text))
    starts = [] if odd else _beginnings(_AT_MARGIN, text)
    return [] if len(starts) < 2 else _cut(text, starts)


def _beginnings(pattern: re.Pattern[str], text: str) -> list[int]:
    """Where definitions begin, each with its decorators."""
    starts: list[int] = []
    decorated = False
    for match in pattern.finditer(f"\n{text}"):
        if not decorated:
            starts.append(match.start())
        decorated = match[0].endswith("@")
    return starts


def _cut(text: str, starts: Sequence[int]) -> list[str]:
    return [text[start:stop] for start, stop in pairwise([0, *starts, len(text)]) if start < stop]


@lru_cache(_MOST)
def _of_chunk(chunk: str) -> tuple[Definition, ...]:
    """The definitions of a chunk.

    :raises UnparsableError: if it is not Python.
    """
    parts = _parts(chunk)
    return _outline(chunk) if len(parts) == 1 else _put_together(parts)


@lru_cache(_MOST)
def _outline(text: str) -> tuple[Definition, ...]:
    return tuple(parsing.definitions(text.split("\n")[:-1]))


@lru_cache(_MOST)
def _parts(chunk: str) -> tuple[str, ...]:
    """A class cut before its methods, each part a class of its own; another chunk as it is."""
    starts = _beginnings(_IN_CLASS, chunk) if _CLASS.match(chunk) else []
    if len(starts) < 2:
        return (chunk,)
    head, *methods = _cut(chunk, starts)
    head += "    pass\n"  # so it has a body, indented as the methods are
    try:
        header = f"class {_outline(head)[0][0]}:\n"
        parts = (head, *(header + method for method in methods))
        alone = all(map(_is_alone, parts[:-1]))
        return parts if alone and _outline(parts[-1]) else (chunk,)
    except UnparsableError:
        return (chunk,)


@lru_cache(_MOST)
def _is_alone(part: str) -> bool:
    """Whether a part of a class is that and nothing else."""
    return _outline(part)[0][1:] == (0, part.count("\n"))


def _put_together(parts: Sequence[str]) -> tuple[Definition, ...]:
    """The definitions of a class that is cut into parts, and of what stands behind it."""
    (name, first, stop), *inside = _outline(parts[0])
    at = parts[0].count("\n") - 2  # the last line of the first part and the header are not its own
    for part in parts[1:]:
        (_, _, end), *members = _outline(part)
        inside += [(each, at + start, at + stop) for each, start, stop in members]
        stop = at + end
        at += part.count("\n") - 1
    return (name, first, stop), *inside


def _compiles(chunk: str, flags: int, known: Container[str]) -> bool:
    """Whether a chunk compiles, and declares nothing of the module around it.

    :param known: parts that are known to.
    """
    likely = "global" in chunk or "nonlocal" in chunk  # which takes a tenth of the time
    declared = max(_last(word, chunk) for word in _DECLARED) if likely else -1
    if declared < 0:
        return all(part in known or _part_compiles(part, flags) for part in _parts(chunk))
    _, start, stop = next(iter(_of_chunk(chunk)), ("", 0, 0))
    inside = start == 0 and chunk.count("\n", 0, declared) < stop
    return inside and _part_compiles(chunk, flags)


def _last(word: str, chunk: str) -> int:
    """Where the last statement that begins with a word may be; less than 0 where none is."""
    at = chunk.rfind(word)
    while at > 0 and chunk[max(0, at - _BLANKS) : at].rstrip(" \t")[-1:] not in _BEFORE:
        at = chunk.rfind(word, 0, at)
    return at


@lru_cache(_MOST)
def _part_compiles(part: str, flags: int) -> bool:
    return parsing.compile_error(part, "<part>", flags) is None
