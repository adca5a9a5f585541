"""Read the bytes of a Python source file as lines, and write them back exactly.

A line ends at a line feed; a carriage return before it belongs to the end, any other one to the
content, as do form feeds and the other characters that ``str.splitlines`` would break at."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple


class TextError(ValueError):
    """The source cannot be decoded and encoded again without loss, or an edit is invalid."""


class Edit(NamedTuple):
    """``lines`` take the place of the lines ``start`` to ``stop`` (0-based, half open)."""

    start: int
    stop: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class SourceText:
    """A source file as lines.

    :ivar lines: the content of each line, without its end.
    :ivar ends: the end of each line: ``"\\n"``, ``"\\r\\n"``, or ``""`` for an unfinished last one.
    :ivar encoding: the codec that the file declares (PEP 263), UTF-8 where it declares none.
    :ivar bom: whether the file starts with the byte-order mark of UTF-8.
    """

    lines: tuple[str, ...]
    ends: tuple[str, ...]
    encoding: str = "utf-8"
    bom: bool = False

    @classmethod
    def from_bytes(cls, data: bytes) -> SourceText:
        """Read the bytes of a source file.

        :raises TextError: if they are not in the encoding that they declare, or if that encoding
            would not give the same bytes back.
        """
        bom = data.startswith(codecs.BOM_UTF8)
        encoding = _declared_encoding(data)
        body = data[len(codecs.BOM_UTF8) :] if bom else data
        try:
            text = body.decode(encoding)
            exact = text.encode(encoding) == body
        except UnicodeDecodeError as error:
            line = body.count(b"\n", 0, error.start) + 1
            raise TextError(
                f"line {line} is not {encoding} text: {error.reason} (byte {error.start})"
            ) from error
        except UnicodeError:
            exact = False
        if not exact:
            raise TextError(f"its encoding, {encoding}, does not give the same bytes back")
        pieces = text.split("\n")
        last = pieces.pop()
        lines, ends = pieces, ["\n"] * len(pieces)
        if "\r" in text:
            ends = ["\r\n" if piece.endswith("\r") else "\n" for piece in pieces]
            lines = [piece.removesuffix("\r") for piece in pieces]
        if last:
            lines.append(last)
            ends.append("")
        source = cls(tuple(lines), tuple(ends), encoding, bom)
        source.__dict__["_bytes"] = data
        return source

    @cached_property
    def _bytes(self) -> bytes:
        if set(self.ends) == {"\n"}:  # nearly always, and ten times as fast
            body = "\n".join((*self.lines, ""))
        else:
            body = "".join(chain.from_iterable(zip(self.lines, self.ends, strict=True)))
        return (codecs.BOM_UTF8 if self.bom else b"") + body.encode(self.encoding)

    def to_bytes(self) -> bytes:
        """The bytes of the file."""
        return self._bytes

    @property
    def read_alike(self) -> bool:
        """Whether its bytes are certain to be read as this text, so that nobody has to read them.

        After ``splice`` only a carriage return, or another encoding, may make them another text.
        """
        return self.encoding == "utf-8" and b"\r" not in self._bytes

    @property
    def final_newline(self) -> bool:
        """Whether the last line has an end; true of a file without lines.

        It is a fact of its own, beside the lines, and an edit can lose it: a text whose last line
        is empty always has it.
        """
        return not self.ends or self.ends[-1] != ""

    def splice(self, edits: Iterable[Edit], final_newline: bool | None = None) -> SourceText:
        """The text with ``edits`` made, all of which count lines in this text.

        New lines take the line end of the lines that they replace, otherwise of the line before
        them, otherwise of the line after.

        The law of undoing: where ``after = before.splice(edits)`` and ``undo`` puts the old lines
        back, ``after.splice(undo, before.final_newline)`` is ``before``, as long as ``after`` has a
        line end left to copy.  Without that argument it is so, too, unless the last line of
        ``after`` is empty while that of ``before`` has no end: an empty line without an end would
        not be a line, so it gets one, and ``after`` does not remember that there was none.

        :param final_newline: whether the last line gets an end; ``None``: as it is now.  An empty
            last line always gets one.
        :raises TextError: if edits overlap or lie outside, if a new line cannot be encoded, or if
            the result would be read in another encoding.
        """
        ordered = sorted(edits, key=lambda edit: (edit.start, edit.stop))
        lines: list[str] = []
        ends: list[str] = []
        position = 0
        for edit in ordered:
            if not position <= edit.start <= edit.stop <= len(self.lines):
                raise TextError(
                    f"the edit of lines {edit.start + 1} to {edit.stop} overlaps another one or "
                    f"lies outside the file's {len(self.lines)} lines"
                )
            self._check_encodable(edit.lines)
            lines += self.lines[position : edit.start]
            ends += self.ends[position : edit.start]
            lines += edit.lines
            ends += self._ends_for(edit)
            position = edit.stop
        lines += self.lines[position:]
        ends += self.ends[position:]
        finished = self.final_newline if final_newline is None else final_newline
        if "" in ends[:-1]:
            ends[:-1] = [end or self._usual_end for end in ends[:-1]]
        if ends:
            # An empty line without an end would not be a line.
            ends[-1] = (ends[-1] or self._usual_end) if finished or not lines[-1] else ""
        spliced = SourceText(tuple(lines), tuple(ends), self.encoding, self.bom)
        self._check_same_reading(spliced, ordered)
        return spliced

    def _ends_for(self, edit: Edit) -> list[str]:
        """The ends of an edit's lines: one by one from those replaced, the rest from the last."""
        replaced = self.ends[edit.start : edit.stop]
        if replaced:
            usual = replaced[-1]
        elif edit.start:
            usual = self.ends[edit.start - 1]
        else:
            usual = self.ends[0] if self.ends else "\n"
        return [
            (replaced[index] if index < len(replaced) else usual) or self._usual_end
            for index in range(len(edit.lines))
        ]

    @cached_property
    def _usual_end(self) -> str:
        """The end to use next to an unfinished last line: that of the line before it."""
        return next((end for end in reversed(self.ends) if end), "\n")

    def _check_encodable(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            try:
                line.encode(self.encoding)
            except UnicodeEncodeError as error:
                raise TextError(
                    f"the new line {line!r} has {error.object[error.start]!r}, which the file's "
                    f"encoding, {self.encoding}, cannot write"
                ) from error

    def _check_same_reading(self, spliced: SourceText, edits: list[Edit]) -> None:
        """Refuse edits that change how the start of the file declares its encoding."""
        touches_start = any(edit.start < 2 for edit in edits)
        splittable = any("\n" in line for edit in edits for line in edit.lines)
        if not (touches_start or splittable):
            return
        read = SourceText.from_bytes(spliced.to_bytes())
        if (read.lines, read.ends, read.encoding, read.bom) != (
            spliced.lines,
            spliced.ends,
            self.encoding,
            self.bom,
        ):
            raise TextError(
                f"the edit would make the file be read differently ({read.encoding} instead of "
                f"{self.encoding}, or other lines)"
            )


def _declared_encoding(data: bytes) -> str:
    """The encoding that the first two lines declare, as Python reads them (PEP 263).

    :raises TextError: if the declared encoding is unknown or contradicts the byte-order mark.
    """
    head = data.split(b"\n", 2)[:2]
    if not any(b"coding" in line for line in head):
        return "utf-8"
    from tokenize import detect_encoding

    lines = iter([line + b"\n" for line in head])
    try:
        encoding, _ = detect_encoding(lambda: next(lines, b""))
        "".encode(encoding)  # raises LookupError for a codec that is not for text
    except (SyntaxError, LookupError) as error:
        raise TextError(f"its encoding cannot be told: {error}") from error
    return "utf-8" if encoding == "utf-8-sig" else encoding
