"""The patches folders that a project names once: ``overlay.toml``, or a table in pyproject.toml.

The nearest folder at or above the working folder that has either counts, and no other.  The file,
its folder and the folders that it names have to belong to the user or to root; what somebody else
left in a folder like /tmp is passed over::

    # overlay.toml                          # pyproject.toml
    patches = ["./our-patches"]             [tool.vllm-overlay]
                                            patches = ["./our-patches"]

Folders are relative to the file.  The command line reads it; the plugin does not, because the
processes of vLLM run wherever they are started: it is told by ``OVERLAY_PATCHES``.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from overlay.errors import PatchFormatError, UsageError, described
from overlay.settings import in_home
from overlay.untrusted import (
    MalformedToml,
    parse_toml,
    read_regular,
    require_own_name,
    require_private,
)

#: Far above any file that a person writes.
_MAX_BYTES = 1024 * 1024

_TABLE = re.compile(rb"^\s*\[\s*tool\s*\.\s*[\"']?vllm-overlay[\"']?\s*\]", re.MULTILINE)


class Project(NamedTuple):
    """What a project names.

    :ivar file: the file that names it; ``None`` if the file does not exist.
    :ivar patches: absolute paths of patches folders, in order.
    :ivar ignored: files that somebody else left where everybody may make files.
    """

    file: Path | None = None
    patches: tuple[Path, ...] = ()
    ignored: tuple[Path, ...] = ()


def find_project() -> Project:
    """The project of the working folder.

    :raises PatchFormatError: with file and line, where the file is malformed.
    :raises UsageError: if it cannot be read.
    :raises NotPrivate: if somebody else could have written it, since it names code to be run.
    """
    try:
        start = Path.cwd()
    except FileNotFoundError:  # the working folder was removed
        return Project()
    ignored: list[Path] = []
    for place in (start, *start.parents):
        for file, is_table in ((place / "overlay.toml", False), (place / "pyproject.toml", True)):
            if _is_strangers(file):
                ignored.append(file)
                continue
            data = _document(file, is_table=is_table)
            if data is not None:
                return Project(file, _patches(file, data, is_table=is_table), tuple(ignored))
    return Project(ignored=tuple(ignored))


def _document(file: Path, *, is_table: bool) -> bytes | None:
    """The bytes of a project's file; ``None`` where there is none, or it is about other things.

    :raises NotPrivate: if somebody else could have written it, or made the link to it.
    :raises UsageError: if it cannot be read.
    """
    try:
        data = read_regular(file, _MAX_BYTES)
    except OSError as error:
        if is_table:
            return None  # it may have nothing to do with the overlay
        raise UsageError(
            f"cannot read the project's patches folders: {described(error)}"
        ) from error
    if data is None or (is_table and not _TABLE.search(data)):
        return None
    require_own_name(file)
    for place in (file.resolve(), file.resolve().parent):
        _require_own(place)
    return data


def _is_strangers(file: Path) -> bool:
    """Whether a file was left by somebody else where everybody may make files, such as /tmp.

    It says nothing of anybody's project, and would stop each command that runs below.
    """
    try:
        status, folder = os.lstat(file), os.stat(file.parent)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return bool(folder.st_mode & stat.S_IWOTH) and status.st_uid not in (os.geteuid(), 0)


def _require_own(place: Path) -> None:
    """Refuse what somebody else could have put there.

    :raises NotPrivate: unless it is the user's or root's; others may write into a folder only where
        each may rename no more than their own files (the sticky bit).
    """
    status = os.stat(place)
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if not (sticky and status.st_uid in (os.geteuid(), 0)):
        require_private(place, allow_group=True)


def _patches(file: Path, data: bytes, *, is_table: bool) -> tuple[Path, ...]:
    try:
        document = parse_toml(data)
    except MalformedToml as error:
        line = error.line or data.count(b"\n") + 1  # it is told but for the end
        raise PatchFormatError(str(file), line, f"expected TOML: {error}") from error
    table = document.get("tool", {}).get("vllm-overlay", {}) if is_table else document
    if not isinstance(table, dict):
        raise _malformed(file, data, "vllm-overlay", f"expected a table, found {table!r}")
    for key in table:
        if key != "patches":
            raise _malformed(file, data, key, f"expected the key patches, found {key}")
    folders = table.get("patches", [])
    if not isinstance(folders, list) or not all(isinstance(name, str) and name for name in folders):
        raise _malformed(
            file, data, "patches", f'expected a list such as ["./our-patches"], found {folders!r}'
        )
    return tuple(_folder(file, data, folder) for folder in folders)


def _folder(file: Path, data: bytes, folder: str) -> Path:
    """A patches folder that a project's file names: beside the file itself, not beside a link.

    :raises PatchFormatError: if there is none.
    :raises NotPrivate: if somebody else could have written it.
    """
    place = file.resolve().parent / in_home(folder)
    try:
        is_folder = place.is_dir()
    except ValueError:  # a NUL in it
        is_folder = False
    if not is_folder:
        raise _malformed(
            file, data, "patches", f"expected a folder of features at {place}, found none"
        )
    require_own_name(place)
    _require_own(place.resolve())
    return place


def _malformed(file: Path, data: bytes, key: str, problem: str) -> PatchFormatError:
    """The error of a key, with the line that sets it."""
    pattern = re.compile(rf"^\s*\[?[\"']?([\w.]*\.)?{re.escape(key)}[\"']?\s*[=\].]", re.MULTILINE)
    text = data.decode("utf-8-sig", "replace")
    match = pattern.search(text)
    line = text.count("\n", 0, match.end()) + 1 if match else None
    return PatchFormatError(str(file), line, problem)
