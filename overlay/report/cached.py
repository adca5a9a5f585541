"""The report of ``cache``, for people and as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from overlay.report.base import Report
from overlay.report.codes import Code, Verdict
from overlay.report.lines import Line, Span
from overlay.report.words import count, megabytes


class CacheAction(str, Enum):
    """What ``overlay cache`` does."""

    DIR = "dir"
    SIZE = "size"
    CLEAN = "clean"


class CachePart(NamedTuple):
    """A part of the cache.

    :ivar name: its folder; :ivar contents: what it holds, in words.
    :ivar entries: how many files and folders; :ivar size: how many bytes in all.
    """

    name: str
    contents: str
    entries: int
    size: int


@dataclass(frozen=True)
class CacheReport(Report):
    """What the cache holds, or held before it was emptied.

    :ivar folder: where it lies.
    :ivar path_only: whether only its path was asked for.
    """

    _command: ClassVar[str] = "cache"
    folder: Path
    parts: tuple[CachePart, ...]
    path_only: bool = False

    @property
    def body(self) -> bytes | None:
        """The path, where only that was asked for."""
        return os.fsencode(self.folder) + b"\n" if self.path_only else None

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - the base's
        """The size of each part."""
        for part in () if self.path_only else self.parts:
            held = f"{count(part.entries, 'entry', 'entries')}, {megabytes(part.size)}"
            contents = Span(f"  {part.contents}", "muted")
            yield Line((Span(f"{part.name:<10}"),), (Span(held), contents))

    def own_data(self) -> dict[str, Any]:
        """Folder and parts, under ``cache``."""
        parts = [
            {"name": part.name, "entries": part.entries, "bytes": part.size} for part in self.parts
        ]
        return {"cache": {"folder": str(self.folder), "parts": parts}}


def cached(folder: Path, parts: Sequence[CachePart], *, cleaned: bool) -> Verdict:
    """The verdict of ``cache``."""
    held = f"{count(sum(part.entries for part in parts), 'entry', 'entries')}"
    held += f", {megabytes(sum(part.size for part in parts))}"
    if cleaned:
        return Verdict(Code.CACHE_CLEANED, f"Removed {held} from {folder}.")
    return Verdict(Code.CACHE, f"The cache in {folder} holds {held}.")
