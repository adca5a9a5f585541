"""The patches folders that a project names once: ``overlay.toml``, or a table in pyproject.toml.

The nearest folder at or above the working folder that has either counts, and no other::

    # overlay.toml                          # pyproject.toml
    patches = ["./our-patches"]             [tool.vllm-overlay]
                                            patches = ["./our-patches"]

Folders are relative to the file.  The command line reads it; the plugin does not, because the
processes of vLLM run wherever they are started: it is told by ``OVERLAY_PATCHES``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from overlay.errors import PatchFormatError, UsageError, described
from overlay.untrusted import read_regular, require_private

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Far above any file that a person writes.
_MAX_BYTES = 1024 * 1024

_TABLE = re.compile(rb"^\s*\[\s*tool\s*\.\s*[\"']?vllm-overlay[\"']?\s*\]", re.MULTILINE)


class Project(NamedTuple):
    """What a project names.

    :ivar file: the file that names it; ``None`` if the file does not exist.
    :ivar patches: absolute paths of patches folders, in order.
    """

    file: Path | None = None
    patches: tuple[Path, ...] = ()


def find_project(folder: Path | None = None) -> Project:
    """The project of a folder.

    :param folder: where to look first; default: the working folder.
    :raises PatchFormatError: with file and line, where the file is malformed.
    :raises UsageError: if it cannot be read.
    :raises NotPrivate: if somebody else could have written it, since it names code to be run.
    """
    try:
        start = (Path.cwd() if folder is None else folder).absolute()
    except FileNotFoundError:  # the working folder was removed
        return Project()
    for place in (start, *start.parents):
        for file, is_table in ((place / "overlay.toml", False), (place / "pyproject.toml", True)):
            data = _read(file)
            if data is None or (is_table and not _TABLE.search(data)):
                continue
            require_private(file.resolve(), allow_group=True)
            return Project(file, _patches(file, data, is_table=is_table))
    return Project()


def _read(file: Path) -> bytes | None:
    try:
        return read_regular(file, _MAX_BYTES)
    except OSError as error:
        if file.name == "pyproject.toml":
            return None  # it may have nothing to do with the overlay
        raise UsageError(
            f"cannot read the project's patches folders: {described(error)}"
        ) from error


def _patches(file: Path, data: bytes, *, is_table: bool) -> tuple[Path, ...]:
    try:
        document: dict[str, Any] = tomllib.loads(data.decode("utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        told = re.search(r"at line (\d+)", str(error))
        line = int(told[1]) if told else data.count(b"\n") + 1  # it is told but for the end
        raise PatchFormatError(str(file), line, f"expected TOML: {error}") from error
    table = document.get("tool", {}).get("vllm-overlay", {}) if is_table else document
    if not isinstance(table, dict):
        raise _malformed(file, data, "vllm-overlay", f"expected a table, found {table!r}")
    for key in table:
        if key != "patches":
            raise _malformed(file, data, key, f"expected the key patches, found {key}")
    folders = table.get("patches", [])
    if not isinstance(folders, list) or not all(isinstance(one, str) and one for one in folders):
        raise _malformed(
            file, data, "patches", f'expected a list such as ["./our-patches"], found {folders!r}'
        )
    found = []
    for folder in folders:
        place = file.parent / Path(folder).expanduser()
        if not place.is_dir():
            raise _malformed(
                file, data, "patches", f"expected a folder of features at {place}, found none"
            )
        found.append(place)
    return tuple(found)


def _malformed(file: Path, data: bytes, key: str, problem: str) -> PatchFormatError:
    """The error of a key, with the line that sets it."""
    pattern = re.compile(rf"^\s*\[?[\"']?([\w.]*\.)?{re.escape(key)}[\"']?\s*[=\].]", re.MULTILINE)
    text = data.decode("utf-8-sig", "replace")
    match = pattern.search(text)
    line = text.count("\n", 0, match.end()) + 1 if match else None
    return PatchFormatError(str(file), line, problem)
