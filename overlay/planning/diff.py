"""Render changes as one unified diff that ``git apply`` takes unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import TypeVar

from overlay._features.binary_patch import literal
from overlay._features.model import FILE_SCOPE, blob_id
from overlay.package import is_module
from overlay.planning.matching import holding_scopes
from overlay.planning.scopes import Scopes, UnparsableError, find
from overlay.planning.text import SourceText, TextError
from overlay.results import Change

#: Lines of context around a change.
CONTEXT = 3

_NO_BLOB = "0" * 40

_Opcode = tuple[str, int, int, int, int]
Line = TypeVar("Line", str, bytes)


def render(changes: Iterable[Change]) -> bytes:
    """The changes as a unified diff, in bytes, because the files are in encodings of their own.

    The section heading of each hunk is the innermost scope that holds it before and after the
    change, where both files are Python; so each hunk can be part of a patch of the same form.
    """
    return b"".join(piece for change in changes for piece in _file_diff(change))


def _file_diff(change: Change) -> Iterator[bytes]:
    if change.before == change.after:
        return
    path = change.path.encode()
    yield b"diff --git a/%s b/%s\n" % (path, path)
    if change.before is None:
        yield b"new file mode 100644\n"
    elif change.after is None:
        yield b"deleted file mode 100644\n"
    if is_binary(change):
        yield from _whole(change)
        return
    before, after = _split(change.before or b""), _split(change.after or b"")
    if before == after:  # an empty file comes or goes
        return
    yield b"--- a/%s\n" % path if change.before is not None else b"--- /dev/null\n"
    yield b"+++ b/%s\n" % path if change.after is not None else b"+++ /dev/null\n"
    old, new = _scopes(change.path, change.before), _scopes(change.path, change.after)
    for group in _groups(before, after):
        yield from _hunk(group, before, after, (old, new))


def _split(data: bytes) -> list[bytes]:
    """The lines with their ends; only a line feed ends one."""
    pieces = data.split(b"\n")
    last = pieces.pop()
    return [piece + b"\n" for piece in pieces] + ([last] if last else [])


def is_binary(change: Change) -> bool:
    """Whether a change is not one of lines of text, as git sees it."""
    return any(b"\0" in data for data in (change.before, change.after) if data is not None)


def _whole(change: Change) -> Iterator[bytes]:
    """A binary file in git's own form, by which `git apply` knows what it replaces."""
    old, new = (
        _NO_BLOB if data is None else blob_id(data) for data in (change.before, change.after)
    )
    yield f"index {old}..{new}\n".encode()
    yield "\n".join([*literal(change.after or b""), ""]).encode()


def _scopes(path: str, data: bytes | None) -> Scopes:
    if data is None:
        return {}
    if not is_module(path):
        return {FILE_SCOPE: [range(data.count(b"\n") + 1)]}
    try:
        return find(SourceText.from_bytes(data).lines)
    except (TextError, UnparsableError):
        return {}


def _groups(before: list[bytes], after: list[bytes]) -> Iterator[list[_Opcode]]:
    """The opcodes hunk by hunk, with at most ``CONTEXT`` unchanged lines around each change."""
    group: list[_Opcode] = []
    opcodes = _opcodes(before, after)
    for number, (tag, i1, i2, j1, j2) in enumerate(opcodes):
        if tag != "equal":
            group.append((tag, i1, i2, j1, j2))
            continue
        size = i2 - i1
        first, last = number == 0, number == len(opcodes) - 1
        if not (first or last) and size <= 2 * CONTEXT:
            group.append((tag, i1, i2, j1, j2))
            continue
        margin = min(size, CONTEXT)
        if not first:
            yield [*group, (tag, i1, i1 + margin, j1, j1 + margin)]
        group = [(tag, i2 - margin, i2, j2 - margin, j2)]
    if any(tag != "equal" for tag, *_ in group):
        yield group


def common_ends(first: Sequence[Line], other: Sequence[Line]) -> tuple[int, int]:
    """How many lines two texts begin with, and end with, in common; no line counts for both."""
    shorter = min(len(first), len(other))
    head = 0
    while head < shorter and first[head] == other[head]:
        head += 1
    tail = 0
    while tail < shorter - head and first[-1 - tail] == other[-1 - tail]:
        tail += 1
    return head, tail


def _opcodes(before: list[bytes], after: list[bytes]) -> list[_Opcode]:
    """How one becomes the other; the search leaves out their common beginning and end."""
    head, tail = common_ends(before, after)
    end_before, end_after = len(before) - tail, len(after) - tail
    matcher = SequenceMatcher(None, before[head:end_before], after[head:end_after], autojunk=False)
    return [
        *([("equal", 0, head, 0, head)] if head else []),
        *(
            (tag, i1 + head, i2 + head, j1 + head, j2 + head)
            for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        ),
        *([("equal", end_before, len(before), end_after, len(after))] if tail else []),
    ]


def _hunk(
    group: Sequence[_Opcode],
    before: list[bytes],
    after: list[bytes],
    scopes: tuple[Scopes, Scopes],
) -> Iterator[bytes]:
    first, last = group[0], group[-1]
    old, new = range(first[1], last[2]), range(first[3], last[4])
    heading = _heading(old, new, scopes)
    yield b"@@ -%s +%s @@%s\n" % (_span(old), _span(new), heading)
    for tag, i1, i2, j1, j2 in group:
        if tag == "equal":
            yield from _lines(b" ", before[i1:i2])
        else:
            yield from _lines(b"-", before[i1:i2])
            yield from _lines(b"+", after[j1:j2])


def _heading(old: range, new: range, scopes: tuple[Scopes, Scopes]) -> bytes:
    """The innermost scope that holds the lines before the change, and those after it as well."""
    afterwards = set(holding_scopes(new.start, len(new), scopes[1]))
    names = (name for name in holding_scopes(old.start, len(old), scopes[0]) if name in afterwards)
    name = next(names, None)
    return b"" if name is None else b" " + name.encode()


def _span(lines: range) -> bytes:
    """A hunk's line and count; an empty span names the line before it."""
    start = lines.start + 1 if lines else lines.start
    return b"%d,%d" % (start, len(lines))


def _lines(sign: bytes, lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield sign + line
        if not line.endswith(b"\n"):
            yield b"\n\\ No newline at end of file\n"
