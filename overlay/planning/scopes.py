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
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from overlay._features.model import MODULE_SCOPE
from overlay.package import is_module
from overlay.planning import parsing
from overlay.planning.parsing import Definition, UnparsableError

__all__ = ("Scopes", "Syntax", "UnparsableError", "compiles_in_chunks", "find")

#: Qualified name to the places of that name, each a range of 0-based line numbers.
Scopes = Mapping[str, Sequence[range]]

#: So many chunks are remembered: those of some hundred files.
_MOST = 1 << 14

_BEGINNINGS = ("@", "def ", "class ", "async def ")
_IN_CLASS = tuple(f"    {word}" for word in _BEGINNINGS)
#: What makes line ends or indentation ambiguous.
_ODD = "\r\f\0"
#: A decorator that ends on its line.
_DECORATOR = re.compile(r"@[^'\"\\]*")
#: The header of a class whose methods are read one by one, and that of a function.
_HEADER = re.compile(r"class (\w+):")
_FUNCTION = re.compile(r"(?:async def|def) (\w+)")
#: What says something of all of a scope, wherever it stands in it.
_DECLARED = tuple(word + end for word in ("global", "nonlocal") for end in " \t\\")
#: What ends before a statement, with nothing but so many blanks between: else it is in a comment.
_BEFORE = ("", "\n", ";", ":")
_BLANKS = 200
_FUTURE = "from __future__ import annotations"

#: The lines of a part of a module, without their ends.
_Lines = tuple[str, ...]


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
    for name, start, stop in _in_chunks(lines) or parsing.definitions(lines):
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

    def compile_error(self, data: bytes, path: str) -> str | None:
        """Why the bytes do not compile, or ``None``; nothing of them is run."""
        key = (data, path)
        if key not in self._errors:
            certain = compiles_in_chunks(data)
            self._errors[key] = None if certain else parsing.compile_error(data, path)
        return self._errors[key]

    def module_error(self, data: bytes, path: str) -> str | None:
        """Why a module does not compile, or ``None``; a data file does not have to."""
        return self.compile_error(data, path) if is_module(path) else None


def compiles_in_chunks(data: bytes) -> bool:
    """Whether it is certain, by the chunks of a module, that it compiles."""
    first_lines = data.split(b"\n", 2)[:2]
    if data.startswith(BOM_UTF8) or any(b"coding" in line for line in first_lines):
        return False
    if any(each.encode() in data for each in _ODD):
        return False
    try:
        lines = data.decode().split("\n")
        chunks = _chunks(tuple(lines if lines[-1] else lines[:-1]))
        flags = __future__.annotations.compiler_flag if _FUTURE in chunks[0] else 0
        if data.count(b"__future__") > bool(flags):
            return False
        return all(_compiles(chunk, flags) for chunk in chunks)
    except (UnicodeDecodeError, UnparsableError, IndexError):
        return False


def _in_chunks(lines: Sequence[str]) -> list[Definition]:
    """Every definition of a module; none where that is uncertain."""
    placed: list[Definition] = []
    at = 0
    try:
        for chunk in _chunks(tuple(lines)):
            placed += [(name, at + start, at + stop) for name, start, stop in _of_chunk(chunk)]
            at += len(chunk)
    except UnparsableError:
        return []  # the whole text gives the better error
    return placed


def _chunks(lines: _Lines) -> list[_Lines]:
    """The lines cut before each definition at the margin; none where that is of no use."""
    starts = _starts(_BEGINNINGS, lines)
    return [] if len(starts) < 2 or lines[-1].endswith("\\") else _cut(lines, starts)


def _starts(words: tuple[str, ...], lines: _Lines) -> list[int]:
    """Where definitions begin, each with its decorators; none where a line may go on there."""
    starts: list[int] = []
    decorated = False
    width = len(words[0]) - 1
    # A line that is further in sorts before this, so that nearly all cost one comparison.
    further = f"{words[0][:width]}!"
    likely = [at for at, line in enumerate(lines) if line > further]
    for at in [at for at in likely if lines[at].startswith(words)]:
        if at and lines[at - 1].endswith("\\"):
            return []
        if not decorated:
            starts.append(at)
        decorated = lines[at][width] == "@"
    return starts


def _cut(lines: _Lines, starts: Sequence[int]) -> list[_Lines]:
    return [lines[start:stop] for start, stop in pairwise([0, *starts, len(lines)]) if start < stop]


@lru_cache(_MOST)
def _of_chunk(chunk: _Lines) -> tuple[Definition, ...]:
    """The definitions of a chunk.

    :raises UnparsableError: if it is not Python, or what it is cannot be told of it alone.
    """
    text = "".join(chunk)
    if any(map(text.count, _ODD)):
        raise UnparsableError
    parts = _parts(chunk)
    return _outline(chunk) if len(parts) == 1 else _put_together(parts)


@lru_cache(_MOST)
def _outline(lines: _Lines) -> tuple[Definition, ...]:
    return _of_function(lines) or tuple(parsing.definitions(lines))


def _of_function(lines: _Lines) -> tuple[Definition, ...]:
    """The definition of one function, or of a class's header and one method; else nothing.

    Its lines tell: what stands as far out as its header is that, a decorator or a bracket's end.
    That they compile is enough then, which takes half the time of a syntax tree.
    """
    outer = _HEADER.fullmatch(lines[0])
    margin, name, end = (4 if outer else 0), "", 0
    for at in range(outer is not None, len(lines)):
        text = lines[at].lstrip(" ")
        if not text.strip() or text[0] == "#":
            continue
        width, header = len(lines[at]) - len(text), _FUNCTION.match(text)
        if width > margin:
            is_it = not (text[0].isspace() or text.startswith(_BEGINNINGS[1:]))
        else:
            is_it = text[0] == ")" or (not name and (text[0] == "@" or header is not None))
        if width < margin or not is_it:
            return ()
        name, end = header[1] if header else name, at
    behind = "".join(lines[end + 1 :])  # the end of a text may look like a comment
    if not name or '"' in behind or "'" in behind or not _part_compiles(lines, 0):
        return ()
    stop = parsing.reach(lines, end + 1, 0)
    if outer is None:
        return ((name, 0, stop),)
    method = (f"{outer[1]}.{name}", 1, parsing.reach(lines, end + 1, margin))
    return (outer[1], 0, stop), method


@lru_cache(_MOST)
def _parts(chunk: _Lines) -> tuple[_Lines, ...]:
    """A class cut before its methods, each part a class of its own; another chunk as it is."""
    header = next((line for line in chunk if not _DECORATOR.fullmatch(line)), "")
    starts = _starts(_IN_CLASS, chunk) if header.startswith("class ") else []
    if len(starts) < 2:
        return (chunk,)
    head, *methods = _cut(chunk, starts)
    head = (*head, "    pass")  # so it has a body, indented as the methods are
    try:
        header = f"class {_outline(head)[0][0]}:"
        parts = (head, *((header, *method) for method in methods))
        alone = all(map(_is_alone, parts[:-1]))
        return parts if alone and _outline(parts[-1]) else (chunk,)
    except UnparsableError:
        return (chunk,)


@lru_cache(_MOST)
def _is_alone(part: _Lines) -> bool:
    """Whether a part of a class is that and nothing else."""
    return _outline(part)[0][1:] == (0, len(part))


def _put_together(parts: Sequence[_Lines]) -> tuple[Definition, ...]:
    """The definitions of a class that is cut into parts, and of what stands behind it."""
    (name, first, stop), *inside = _outline(parts[0])
    at = len(parts[0]) - 2  # the last line of the first part and the header are not its own
    for part in parts[1:]:
        (_, _, end), *members = _outline(part)
        inside += [(each, at + start, at + stop) for each, start, stop in members]
        stop = at + end
        at += len(part) - 1
    return (name, first, stop), *inside


@lru_cache(_MOST)
def _compiles(chunk: _Lines, flags: int) -> bool:
    """Whether a chunk compiles, and declares nothing of the module around it."""
    text = "\n".join(chunk)
    # To ask whether a word is there takes a tenth of the time.
    declared = max((_last(word, text) for word in _DECLARED if word in text), default=-1)
    if declared < 0:
        return all(_part_compiles(part, flags) for part in _parts(chunk))
    _, start, stop = next(iter(_of_chunk(chunk)), ("", 0, 0))
    inside = start == 0 and text.count("\n", 0, declared) < stop
    return inside and _part_compiles(chunk, flags)


def _last(word: str, chunk: str) -> int:
    """Where the last statement that begins with a word may be; less than 0 where none is."""
    at = chunk.rfind(word)
    while at > 0 and chunk[max(0, at - _BLANKS) : at].rstrip(" \t")[-1:] not in _BEFORE:
        at = chunk.rfind(word, 0, at)
    return at


@lru_cache(_MOST)
def _part_compiles(part: _Lines, flags: int) -> bool:
    return parsing.compile_error("\n".join((*part, "")), "<part>", flags) is None
