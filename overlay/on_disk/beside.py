"""Find what somebody changed in a package beside its Python modules.

RECORD tells: a data file counts as edited where its bytes are not those that RECORD lists.  Modes
are in no RECORD, so nothing is known of them, and bytecode is Python's own.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from overlay.errors import TargetError
from overlay.package import Package, path_problem
from overlay.results import State
from overlay.untrusted import kind, open_regular

_PIECE = 1 << 20

#: What was done to a data file.
EDITED, ADDED, REMOVED = "edited", "added", "removed"

#: What became of a file of which nobody said that it is to go.
MISSING = State.MISSING.value


class Beside(NamedTuple):
    """One change that is not one of a module.

    :ivar what: what was done, in a word or two: edited, added, removed, or what lies there.
    """

    path: str
    what: str


def beside(root: Path, record: Mapping[str, str], package: Package) -> tuple[Beside, ...]:
    """What was changed below the folder of a package and is no module, by path.

    :param record: sha256 (hex) of the release's own files by path.
    :raises TargetError: if a file cannot be read.
    """
    visited: set[str] = set()
    changed: list[Beside] = []
    for path, mode in _entries(root, package.name):
        visited.add(path)
        if (what := _changed(root, path, mode, record.get(path), package)) is not None:
            changed.append(Beside(path, what))
    changed += [
        Beside(path, REMOVED)
        for path in record
        if path not in visited and not _is_module(path, package)
    ]
    return tuple(sorted(changed))


def by_folder(changed: Iterable[Beside], record: Iterable[str]) -> tuple[Beside, ...]:
    """The same, where a folder of which RECORD lists nothing is named as one."""
    return tuple(sorted(_by_folder(changed, folders_of(record))))


def folders_of(paths: Iterable[str]) -> set[str]:
    """Every folder that holds one of some paths, at any depth."""
    return {
        "/".join(parts[:depth])
        for path in paths
        for parts in [path.split("/")]
        for depth in range(1, len(parts))
    }


def _entries(root: Path, name: str) -> Iterator[tuple[str, int]]:
    """The path and mode of every file and link below a folder, but for bytecode."""
    for place, folders, names in os.walk(root / name):
        folders[:] = [folder for folder in folders if folder != "__pycache__"]
        below = os.path.relpath(place, root).replace(os.sep, "/")
        for each in (*folders, *names):
            mode = os.lstat(os.path.join(place, each)).st_mode
            if not stat.S_ISDIR(mode) and not each.endswith(".pyc"):
                yield f"{below}/{each}", mode


def _changed(
    root: Path, path: str, mode: int, expected: str | None, package: Package
) -> str | None:
    """What was done to a file; ``None`` where it is the release's own, or a module."""
    if _is_module(path, package) and (stat.S_ISREG(mode) or expected is not None):
        return None
    if not stat.S_ISREG(mode):
        return kind(mode)
    if expected is None:
        return ADDED
    return None if _digest(root / path) == expected else EDITED


def _is_module(path: str, package: Package) -> bool:
    return path_problem(path, package) is None


def _digest(file: Path) -> str:
    """The sha256 (hex) of a file of any size."""
    total = hashlib.sha256()
    try:
        with open_regular(file) as opened:
            while piece := opened.read(_PIECE):
                total.update(piece)
    except OSError as error:
        raise TargetError(f"{file}: it cannot be read: {error.strerror or error}") from error
    return total.hexdigest()


def _by_folder(changed: Iterable[Beside], own: set[str]) -> Iterator[Beside]:
    """The changes, with those in a folder that is not the release's as one."""
    folders: dict[tuple[str, str], int] = {}
    for each in changed:
        parts = each.path.split("/")
        ways = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        foreign = next((way for way in ways if way not in own), None)
        if foreign is None:
            yield each
        else:
            what = MISSING if each.what == MISSING else ADDED
            folders[foreign, what] = folders.get((foreign, what), 0) + 1
    for (folder, what), files in folders.items():
        yield Beside(f"{folder}/", f"{what}, {files} file{'s' if files > 1 else ''}")
