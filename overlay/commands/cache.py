"""``overlay cache dir|size|clean``: where the cache lies, how large it is, and emptying it.

All of it is made again where it is needed.  Only entries with the names that the overlay gives are
counted and removed: ``OVERLAY_CACHE`` may name a folder that holds something of the user's.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from overlay.cache import PrivateFolder, cache_folder, remove, size_of
from overlay.errors import OverlayError
from overlay.report import Report, by_fields
from overlay.report.codes import Code, Verdict
from overlay.report.lines import Line, Span, count, megabytes
from overlay.untrusted import kind, require_private

#: Folder of the cache -> what it holds, and the names of its entries; receipts are
#: what former overlays left.
PARTS = {
    "releases": ("releases that were fetched", re.compile(r"[A-Za-z_]\w*-[^/]*\.zip(\.lock)?")),
    "modules": ("modules patched in memory", re.compile(r"[0-9a-f]{16,64}(\.\w+)?")),
    "syntax": ("scopes of texts", re.compile(r"\d+-[^/]+-(cpython|pypy)[^/]*")),
    "receipts": ("decisions of the plugin", re.compile(r"[0-9a-f]{16,64}(\.\w+)?")),
}


class CacheAction(str, Enum):
    """What ``overlay cache`` does."""

    DIR = "dir"
    SIZE = "size"
    CLEAN = "clean"


class CachePart(NamedTuple):
    """A part of the cache.

    :ivar name: its folder; :ivar entries: how many files and folders it holds.
    :ivar bytes: of all of them.
    """

    name: str
    entries: int
    bytes: int


@dataclass(frozen=True)
class CacheReport(Report):
    """What the cache holds, or held before it was emptied.

    :ivar folder: where it lies.
    :ivar path_only: whether only its path was asked for.
    """

    _command: ClassVar[str] = "cache"
    _key: ClassVar[str] = "cache"
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
            amount = f"{count(part.entries, 'entry', 'entries')}, {megabytes(part.bytes)}"
            contents = Span(f"  {PARTS[part.name][0]}", "muted")
            yield Line((Span(f"{part.name:<10}"),), (Span(amount), contents))

    def plain(self) -> dict[str, Any]:
        """Folder and parts."""
        return by_fields(self, "conclusion", "path_only")


def cached(folder: Path, parts: Sequence[CachePart], *, cleaned: bool) -> Verdict:
    """The verdict of ``cache``."""
    contents = f"{count(sum(part.entries for part in parts), 'entry', 'entries')}"
    contents += f", {megabytes(sum(part.bytes for part in parts))}"
    if cleaned:
        return Verdict(Code.CACHE_CLEANED, f"Removed {contents} from {folder}.")
    return Verdict(Code.CACHE, f"The cache in {folder} holds {contents}.")


def cache(what: str) -> CacheReport:
    """Describe the cache, or empty it.

    :param what: the value of a ``CacheAction``.
    :raises OverlayError: if something other than a folder is in the place of it or of a part.
    :raises NotPrivate: if somebody else could have written a part that is to be emptied.
    :raises OSError: if a part cannot be read or removed.
    """
    action, folder = CacheAction(what), cache_folder()
    if action is not CacheAction.DIR:
        _require_folders(folder)
    parts = tuple(_part(folder, name) for name in PARTS)
    clean = action is CacheAction.CLEAN
    if clean:
        for name in PARTS:
            _empty(folder / name, name)
    verdict = cached(folder, parts, cleaned=clean)
    return CacheReport(verdict, folder, parts, path_only=action is CacheAction.DIR)


def _require_folders(folder: Path) -> None:
    """Refuse a cache that cannot be one, such as /dev/null: it would be called empty, or clean.

    A link in the place of a part is left alone, and is not followed.
    """
    for place in (folder, *(folder / name for name in PARTS)):
        try:
            mode = os.stat(place).st_mode if place == folder else os.lstat(place).st_mode
        except FileNotFoundError:
            continue  # nothing was kept yet
        except NotADirectoryError:
            mode = stat.S_IFREG
        if not (stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and place != folder)):
            raise OverlayError(
                f"{place}: expected a folder of the cache, found {kind(mode)}; set OVERLAY_CACHE "
                "to a folder of your own"
            )


def _part(folder: Path, name: str) -> CachePart:
    entries = _entries(folder / name, name)
    return CachePart(name, len(entries), sum(map(size_of, entries)))


def _entries(folder: Path, name: str) -> list[Path]:
    """The entries of a part that the overlay made, by their names."""
    pattern = PARTS[name][1]
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [folder / entry for entry in PrivateFolder(folder).entries() if pattern.fullmatch(entry)]


def _empty(folder: Path, name: str) -> None:
    entries = _entries(folder, name)
    if entries:
        require_private(folder, allow_group=True)
    for entry in entries:
        remove(entry)
        if os.path.lexists(entry):
            raise PermissionError(13, "it could not be removed", str(entry))
