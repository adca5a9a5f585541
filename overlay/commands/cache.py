"""``overlay cache dir|size|clean``: where the cache lies, how large it is, and emptying it.

All of it is made again where it is needed.  Only entries with the names that the overlay gives are
counted and removed: ``OVERLAY_CACHE`` may name a folder that holds something of the user's.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from overlay.cache import PrivateFolder, cache_folder, remove, size_of
from overlay.errors import OverlayError
from overlay.report.cached import CacheAction, CachePart, CacheReport, cached
from overlay.untrusted import kind, require_private

#: Folder of the cache -> what it holds, and the names of its entries; receipts are
#: what former overlays left.
PARTS = {
    "releases": ("releases that were fetched", re.compile(r"[A-Za-z_]\w*-[^/]*\.zip(\.lock)?")),
    "modules": ("modules patched in memory", re.compile(r"[0-9a-f]{16,64}(\.\w+)?")),
    "syntax": ("scopes of texts", re.compile(r"\d+-[^/]+-(cpython|pypy)[^/]*")),
    "receipts": ("decisions of the plugin", re.compile(r"[0-9a-f]{16,64}(\.\w+)?")),
}


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
    contents, _ = PARTS[name]
    entries = _entries(folder / name, name)
    return CachePart(name, contents, len(entries), sum(map(size_of, entries)))


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
