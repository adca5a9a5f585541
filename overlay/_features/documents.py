"""Parse TOML that a stranger may have written: a feature.toml, an overlay.toml, a session."""

from __future__ import annotations

import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The largest whole numbers that TOML promises; Python's own could not even be printed.
_LARGEST = 1 << 63

#: Dots in a line: the parser takes quadratic time for a key of thousands of parts.
_MAX_DOTS = 256

#: Characters of a document; the largest that the overlay ships has 2,432.
MAX_LENGTH = 1 << 21


class MalformedToml(ValueError):
    """A text is not TOML, or not of a form that anybody writes.

    :ivar line: 1-based, where it is known.
    """

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem)
        self.line = line


def parse_toml(data: bytes | str) -> dict[str, Any]:
    """Parse a document; a byte-order mark at its start is passed over.

    :raises MalformedToml: and nothing else, whatever ``data`` holds.
    """
    try:
        text = (data.decode("utf-8") if isinstance(data, bytes) else data).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise MalformedToml("it is not UTF-8", line) from error
    if len(text) > MAX_LENGTH:
        raise MalformedToml(f"expected at most {MAX_LENGTH} characters, found {len(text)}", None)
    for number, content in enumerate(text.split("\n"), 1):
        if content.count(".") > _MAX_DOTS:
            raise MalformedToml(f"expected at most {_MAX_DOTS} dots in a line", number)
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line (\d+)", str(error))
        raise MalformedToml(str(error), int(place[1]) if place else None) from error
    except RecursionError as error:
        raise MalformedToml("its brackets are nested too deeply", None) from error
    except (ValueError, OverflowError, MemoryError) as error:  # numbers of thousands of digits
        raise MalformedToml(str(error) or type(error).__name__, None) from error
    if _has_large_number(table):
        raise MalformedToml("it holds a whole number of more than 64 bits", None)
    return table


def is_required(data: bytes) -> bool:
    """Whether a feature.toml says that vLLM must not start without the feature.

    One that cannot be parsed says so by a line.
    """
    try:
        return parse_toml(data).get("required") is True
    except MalformedToml:
        line = rb"""(?m)^[ \t]*["']?required["']?[ \t]*=[ \t]*true\b"""
        return re.search(line, data) is not None


def _has_large_number(table: dict[str, Any]) -> bool:
    """Whether a number of a document is larger than TOML allows: such would not be printed."""
    pending: list[object] = [table]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            return True
    return False
