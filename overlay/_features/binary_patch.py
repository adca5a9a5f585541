"""Read and write the form in which git says whole files: ``GIT binary patch``.

A ``literal`` is the new bytes, deflated and in base 85; a ``delta`` says them by copies out of the
old ones, and comes from other people's diffs only.  Both are a stranger's: sizes are checked before
and while anything is unpacked.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from overlay.errors import bounded
from overlay.untrusted import MAX_BYTES

#: The line that opens it.
OPENING = "GIT binary patch"

#: Bytes in one line of base 85.
_LINE = 52

_LENGTHS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class BinaryPatchError(ValueError):
    """It is not what git writes, or larger than any file of a package.

    :ivar at: index of the line.
    """

    def __init__(self, at: int, problem: str) -> None:
        super().__init__(problem)
        self.at = at


class BinaryHunk(NamedTuple):
    """The new bytes of a file, or how they are made of the old ones.

    :ivar data: those bytes, or a delta; :ivar is_delta: which of the two.
    """

    data: bytes
    is_delta: bool

    def applied(self, before: bytes) -> bytes:
        """The new bytes.

        :param before: the old ones, which a literal does not need.
        :raises ValueError: if a delta is not for these bytes.
        """
        return _undeltaed(before, self.data) if self.is_delta else self.data


def literal(data: bytes) -> list[str]:
    """The lines that say the new bytes of a file, from the opening to the blank line at the end."""
    packed = zlib.compress(data, 9)
    lines = [OPENING, f"literal {len(data)}"]
    for start in range(0, len(packed), _LINE):
        part = packed[start : start + _LINE]
        padded = part + bytes(-len(part) % 4)
        lines.append(_LENGTHS[len(part) - 1] + base64.b85encode(padded).decode())
    return [*lines, ""]


def read_binary(lines: Sequence[str], at: int) -> tuple[BinaryHunk, int]:
    """The new bytes of a file from the lines behind the opening; the old ones are passed over.

    :param at: index of the line behind the opening.
    :returns: also the index behind the last line that belongs to it.
    :raises BinaryPatchError: if it is anything else, or larger than ``MAX_BYTES``.
    """
    forward, at = _read(lines, at)
    if at < len(lines) and lines[at].startswith(("literal ", "delta ")):
        _, at = _read(lines, at)
    return forward, at


def _read(lines: Sequence[str], at: int) -> tuple[BinaryHunk, int]:
    kind, _, number = (lines[at] if at < len(lines) else "").partition(" ")
    if kind not in ("literal", "delta") or not (number.isascii() and number.isdigit()):
        content = bounded(lines[at], 80) if at < len(lines) else "the end"
        raise BinaryPatchError(at, f"expected 'literal SIZE' or 'delta SIZE', found {content!r}")
    if len(number) > 9 or int(number) > MAX_BYTES:
        raise BinaryPatchError(at, f"expected a file of at most {MAX_BYTES} bytes, found more")
    size, begin = int(number), at
    packed = bytearray()
    at += 1
    while at < len(lines) and lines[at]:
        packed += _decoded(lines[at], at)
        at += 1
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(bytes(packed), size + 1)
    except zlib.error as error:
        raise BinaryPatchError(begin, f"its bytes cannot be unpacked: {error}") from error
    if len(data) != size or not unpacker.eof:
        raise BinaryPatchError(begin, f"expected {size} bytes, found another number of them")
    return BinaryHunk(data, kind == "delta"), at + 1


def _decoded(line: str, at: int) -> bytes:
    """The bytes of one line of base 85."""
    size = _LENGTHS.find(line[0]) + 1
    try:
        part = base64.b85decode(line[1:]) if size else b""
    except ValueError as error:
        raise BinaryPatchError(at, f"it is not base 85: {error}") from error
    if not size or len(part) != size + -size % 4:
        raise BinaryPatchError(at, "expected a line of base 85 with its length before it")
    return part[:size]


def _undeltaed(before: bytes, delta: bytes) -> bytes:
    """The bytes that git's delta makes of the old ones.

    :raises ValueError: if it is cut off, too large, or not for these bytes.
    """
    try:
        old_size, at = _number(delta, 0)
        new_size, at = _number(delta, at)
        if old_size != len(before) or new_size > MAX_BYTES:
            raise ValueError("it is a delta of other bytes")
        after = bytearray()
        while at < len(delta) and len(after) <= new_size:
            op, at = delta[at], at + 1
            if op & 0x80:
                offset, size = 0, 0
                for bit in range(7):
                    if op & 1 << bit:
                        value, at = delta[at], at + 1
                        if bit < 4:
                            offset |= value << 8 * bit
                        else:
                            size |= value << 8 * (bit - 4)
                size = size or 0x10000
                if offset + size > len(before):
                    raise ValueError("it copies what is not there")
                after += before[offset : offset + size]
            elif op and at + op <= len(delta):
                after += delta[at : at + op]
                at += op
            else:
                raise ValueError("it is damaged")
    except IndexError as error:
        raise ValueError("it is cut off") from error
    if len(after) != new_size:
        raise ValueError("it makes another number of bytes than it says")
    return bytes(after)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of git's deltas, seven bits a byte, and the index behind it."""
    number = shift = 0
    while True:
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, at
        if shift > 63:
            raise ValueError("it is damaged")
