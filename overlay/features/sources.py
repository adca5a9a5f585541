"""Locate folders of features and fingerprint their bytes, without parsing them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import overlay
from overlay.errors import OverlayError


def shipped_folder() -> Path:
    """The folder of the features that come with the overlay.

    :raises OverlayError: if this installation lacks it.
    """
    here = Path(overlay.__file__).resolve().parent
    packaged = here / "patches"
    if packaged.is_dir():
        return packaged
    checkout = here.parent / "patches"
    if checkout.is_dir() and (here.parent / "setup.py").is_file():
        return checkout
    raise OverlayError(
        f"expected the shipped patches at {packaged}, found none; reinstall vllm-overlay"
    )


_LEFT_BEHIND = re.compile(r"__pycache__|\.[a-z]+_cache")


def left_behind(name: str) -> bool:
    """Whether Python and the usual tools leave such a folder behind; it says nothing."""
    return _LEFT_BEHIND.fullmatch(name) is not None


def fingerprint(folders: Iterable[str], seen: Callable[[str, bytes], object] | None = None) -> str:
    """A sha256 (hex) over the path and the bytes of every file in the folders, in their order.

    A folder that is not there has no files.

    :param seen: called with the path below its folder and the bytes of each file.
    :raises OSError: if a file cannot be read.
    """
    total = hashlib.sha256()
    for folder in folders:
        for name, path in _files(folder, ""):
            with open(path, "rb") as stream:
                data = stream.read()
            total.update(f"{name}\0{len(data)}\0".encode(errors="surrogateescape") + data)
            if seen is not None:
                seen(name, data)
        total.update(b"\0folder\0")
    return total.hexdigest()


def _files(folder: str, prefix: str) -> Iterable[tuple[str, str]]:
    # os.scandir, since pathlib's walk alone would take a tenth of the time a process may lose.
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return  # a folder that is not there: the plan says so, as an error
    for entry in entries:
        if entry.is_dir():
            if not left_behind(entry.name):
                yield from _files(entry.path, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.path
