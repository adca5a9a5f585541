"""One file that says what a process of vLLM decided, and on which files that rests.

A process that has nothing to plan reads its receipt, compares the hashes, and is done: everything
behind it is ordinary code that such a process never imports.  A receipt lies in the user's private
cache; one that others could have written, or that does not fit, is as good as none."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from overlay.cache import PrivateFolder
from overlay.errors import OverlayError
from overlay.features.sources import fingerprint
from overlay.untrusted import parse_json, read_regular, sha256

_SCHEMA = 1

#: Receipts that a cache keeps; the oldest go first.
_MOST = 64

#: Seconds by which a file must be older than the decision that rests on it: the clock of a file
#: system ticks more slowly than that of the process.
_SETTLED = 0.05


def name_of(facts: Mapping[str, object]) -> str:
    """The name of the receipt for everything that decides, but the contents of files."""
    return hashlib.sha256(json.dumps([_SCHEMA, facts], sort_keys=True).encode()).hexdigest()


def read(cache: Path, name: str) -> dict[str, Any] | None:
    """The decision of a receipt whose files are what they were; ``None`` where there is none."""
    try:
        data = PrivateFolder(cache).read(f"{name}.json")
        found = None if data is None else parse_json(data)
        if found is None or found["schema"] != _SCHEMA:
            return None
        decision: dict[str, Any] = found["decision"]
        files, folders = found["files"], found["folders"]
        same = files == hashes(files) and folders == _folders(folders)
    except (OSError, OverlayError, ValueError, TypeError, KeyError, AttributeError):
        return None  # damaged, foreign, or of a file that cannot be read: decide again
    return decision if same else None


def write(
    cache: Path,
    name: str,
    decision: Mapping[str, object],
    files: Mapping[str, str | None],
    folders: Iterable[str],
    began: float,
) -> bool:
    """Keep a decision, unless one of its files has changed while it was taken.

    :param files: absolute path -> sha256 of what the decision read, ``None`` where there was none.
    :param folders: the patches folders that it rests on.
    :param began: when the decision began, in seconds since the epoch.
    :returns: whether it was kept.
    :raises OSError, OverlayError: if the cache cannot be written.
    """
    shown = _folders(folders)
    paths = [*files, *(path for folder in shown for path in _below(folder))]
    if files != hashes(files) or any(_changed(path) > began - _SETTLED for path in paths):
        return False
    receipt = {"schema": _SCHEMA, "decision": decision, "files": files, "folders": shown}
    place = PrivateFolder(cache)
    place.write(f"{name}.json", json.dumps(receipt).encode())
    _drop_oldest(cache, place.entries())
    return True


def hashes(paths: Iterable[str]) -> dict[str, str | None]:
    """The sha256 of each file, ``None`` where there is none.

    :raises OSError: if one cannot be read.
    """
    found: dict[str, str | None] = {}
    for path in paths:
        try:
            data = read_regular(path)
        except NotADirectoryError:
            data = None
        found[path] = None if data is None else sha256(data)
    return found


def _folders(paths: Iterable[str]) -> dict[str, str]:
    """Each patches folder -> its contents, and whose it is and its features are."""
    return {path: f"{fingerprint([path])} {_owners(path)}" for path in paths}


def _owners(folder: str) -> str:
    found = [os.lstat(folder)]
    with os.scandir(folder) as entries:
        found += [
            entry.stat(follow_symlinks=False)
            for entry in sorted(entries, key=lambda entry: entry.name)
        ]
    return sha256(repr([(status.st_uid, status.st_mode) for status in found]).encode())


def _below(folder: str) -> Iterable[str]:
    for place, _, names in os.walk(folder):
        yield place
        yield from (os.path.join(place, name) for name in names)


def _changed(path: str) -> float:
    """When a file was last changed; of one that is not there, 0."""
    try:
        return os.lstat(path).st_ctime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0


def _drop_oldest(cache: Path, names: list[str]) -> None:
    if len(names) > _MOST:
        by_age = sorted(names, key=lambda name: _changed(str(cache / name)))
        for name in by_age[: len(names) - _MOST]:
            (cache / name).unlink(missing_ok=True)
