"""Receipts: what a process of vLLM decided, in one file, with the files on which that rests.

A process that has nothing to plan reads its receipt, compares hashes, and is done: everything
behind it is code that such a process never imports, so this module imports as little as it can.
Receipts lie in the user's private cache.  The plugin writes one after it has decided, and ``overlay
apply`` writes the one that the next process will look for.  What is missing, damaged, foreign or
out of date is not used: the process decides again.

A receipt is a line with the sha256 of what follows, and JSON::

    {"schema": 3, "decision": {...}, "files": {"/path": "sha256" or null},
     "folders": {"/path": "fingerprint owners"}}
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import overlay
from overlay.cache import PrivateFolder
from overlay.errors import OverlayError
from overlay.features.sources import fingerprint
from overlay.untrusted import parse_json, read_regular, sha256

_SCHEMA = 3

#: Receipts that a cache keeps; the oldest go first.
_MOST = 64

#: Nanoseconds by which a file of a folder must be older than the decision that rests on it: the
#: clock of a file system ticks more slowly than that of the process.
_SETTLED = 50_000_000

#: The most bytes of a receipt; one for a hundred files has a tenth of it.
_MAX_BYTES = 1 << 20


def name_of(roots: Sequence[str], variables: Mapping[str, str], folders: Sequence[str]) -> str:
    """The name of a receipt: a sha256 over all that decides, but for the contents of files.

    :param roots: the folder that holds ``vllm/``, then the other packages with theirs.
    :param variables: those of the plugin itself; switches of features are checked one by one.
    :param folders: absolute paths of the patches folders, in order.
    """
    facts = {
        "schema": _SCHEMA,
        "overlay": [overlay.__version__, *build(os.path.dirname(overlay.__file__))],
        "python": [sys.hexversion, sys.implementation.name, sys.flags.optimize],
        "roots": list(roots),
        "variables": dict(variables),
        "folders": list(folders),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def build(folder: str) -> tuple[str, str]:
    """The folder of the overlay's modules, and which they are: two builds may have one version.

    An installation's RECORD has the hash of each; in a checkout, sizes and times tell, as for
    Python's bytecode.
    """
    information = f"vllm_overlay-{overlay.__version__}.dist-info"
    try:
        record = read_regular(os.path.join(os.path.dirname(folder), information, "RECORD"))
    except (OSError, OverlayError):
        record = None
    if record is None:
        stamps = [
            (os.path.relpath(place, folder), name, state.st_size, state.st_mtime_ns)
            for place, _, names in sorted(os.walk(folder))
            for name in sorted(names)
            if name.endswith(".py")
            for state in (os.stat(os.path.join(place, name)),)
        ]
        record = repr(stamps).encode()
    return os.path.realpath(folder), sha256(record)


def read(cache: Path, name: str) -> dict[str, Any] | None:
    """The decision of a receipt, if all that it rests on is unchanged; else ``None``."""
    try:
        data = PrivateFolder(cache).read(f"{name}.json", _MAX_BYTES)
        if data is None:
            return None
        digest, _, body = data.partition(b"\n")
        if sha256(body).encode() != digest:
            return None
        receipt = parse_json(body)
        decision: dict[str, Any] = receipt["decision"]
        files, folders = receipt["files"], receipt["folders"]
        unchanged = (
            receipt["schema"] == _SCHEMA
            and files == hashes(files)
            and folders == {path: _contents(path) for path in folders}
        )
    except (OSError, OverlayError, ValueError, TypeError, KeyError, AttributeError):
        return None  # damaged, foreign, or of a file that cannot be read: decide again
    return decision if unchanged and isinstance(decision, dict) else None


class Evidence:
    """What a decision rests on without saying which bytes it read; made before it is taken.

    Files are compared by their hashes.  Folders, which have many files, are read once, afterwards;
    none of their files may have been written since the decision began.

    :param files: absolute paths.
    :param folders: absolute paths of patches folders.
    :raises OSError: if a file cannot be read.
    """

    def __init__(self, files: Iterable[str], folders: Iterable[str]) -> None:
        self._began = time.time_ns()
        self._folders = tuple(folders)
        self.files = hashes(files)
        self._changed = {path: _changed(path) for path in self.files}

    def folders(self) -> dict[str, str] | None:
        """The contents of each folder; ``None`` if a file or a folder has changed meanwhile.

        A file may have been changed and put back: the time of its last change tells.
        """
        contents = {path: _contents(path) for path in self._folders}
        written = max(
            (_changed(path) for folder in self._folders for path in _below(folder)), default=0
        )
        same = (
            self.files == hashes(self.files)
            and self._changed == {path: _changed(path) for path in self.files}
            and written < self._began - _SETTLED
        )
        return contents if same else None


def write(
    cache: Path,
    name: str,
    decision: Mapping[str, object],
    inputs: Mapping[str, str | None],
    evidence: Evidence,
) -> bool:
    """Keep a decision, unless one of its files has changed while it was taken.

    :param inputs: absolute path -> sha256 of what the decision read, ``None`` where nothing was.
    :returns: whether it was kept.
    :raises OSError, OverlayError: if the cache cannot be written.
    """
    folders = evidence.folders()
    if folders is None or inputs != hashes(inputs):
        return False
    receipt = {
        "schema": _SCHEMA,
        "decision": decision,
        "files": {**evidence.files, **inputs},
        "folders": folders,
    }
    body = json.dumps(receipt).encode()
    place = PrivateFolder(cache)
    place.write(f"{name}.json", sha256(body).encode() + b"\n" + body)
    place.make_room(_MOST, keep=f"{name}.json")
    return True


def hashes(paths: Iterable[str]) -> dict[str, str | None]:
    """The sha256 of each file, ``None`` where there is none.

    :raises OSError: if one cannot be read.
    """
    result: dict[str, str | None] = {}
    for path in paths:
        data = read_regular(path)
        result[path] = None if data is None else sha256(data)
    return result


def _contents(folder: str) -> str:
    """What a patches folder holds, and to whom it and its features belong."""
    states = [os.lstat(folder)]
    with os.scandir(folder) as entries:
        states += [
            entry.stat(follow_symlinks=False)
            for entry in sorted(entries, key=lambda entry: entry.name)
        ]
    owners = repr([(state.st_uid, state.st_mode) for state in states])
    return f"{fingerprint([folder])} {sha256(owners.encode())}"


def _below(folder: str) -> Iterable[str]:
    for place, _, names in os.walk(folder):
        yield place
        yield from (os.path.join(place, name) for name in sorted(names))


def _changed(path: str) -> int:
    """The time at which a file was last changed, in nanoseconds; of one that is not there, 0."""
    try:
        return os.lstat(path).st_ctime_ns
    except (FileNotFoundError, NotADirectoryError):
        return 0
