"""Read and write the document of a session, ``session.toml``, of every kind in the same way.

A session says where features are written and what they are made of, so what is read of it has to
belong to this user or to root, as a project's file and the cache have to.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from overlay.authoring.writing import toml_string
from overlay.errors import UsageError
from overlay.features.documents import parse_toml
from overlay.package import VLLM, Package, package_named, parse_release, require_text
from overlay.untrusted import read_below, require_own_name, require_private

DOCUMENT = "session.toml"

SCHEMA = 1

#: The most characters of what is wrong with a document, which may quote it.
_MAX_WHY = 400

S = TypeVar("S")


class Kind(Enum):
    """The command that began a session, and that ends it."""

    EDIT = "edit"
    PORT = "port"


def head(kind: Kind, release: str, package: Package = VLLM) -> list[str]:
    """The first lines of a document.

    :param package: whose release it is; named where it is another one than vLLM.
    """
    named = [] if package == VLLM else [f"package = {toml_string(package.name)}"]
    about = f"# A session of `overlay {kind.value}`."
    return [
        f"{about} Edit the files below {package.name}/, not this one.",
        f"schema = {SCHEMA}",
        f"kind = {toml_string(kind.value)}",
        f"release = {toml_string(release)}",
        *named,
    ]


def package_of(table: dict[str, Any]) -> Package:
    """The package of a document's release.

    :raises ValueError, TypeError: if it names none.
    """
    return package_named(require_text(table.get("package", VLLM.name)))


def text_of(value: object) -> str:
    """A text of a document that may name a file.

    :raises TypeError: if it is not a text; :raises ValueError: if it has a NUL, as no name has.
    """
    text = require_text(value)
    if "\0" in text:
        raise ValueError(f"{text[:40]!r} has a NUL byte in it")
    return text


def release_of(table: dict[str, Any]) -> str:
    """The release of a document.

    :raises ValueError, TypeError: if it names none.
    """
    text = require_text(table["release"])
    parse_release(text)
    return text


def from_anywhere(folder: Path) -> Path:
    """A session's folder as it was named, or by a path that still means it when it has gone.

    Whoever stands in it names it ``.`` or ``..``, and the working folder goes with it.
    """
    if folder.is_absolute():
        return folder
    real, here = os.path.realpath(folder), os.path.realpath(os.curdir)
    return Path(real) if os.path.commonpath((here, real)) == real else folder


def require_own(folder: Path) -> None:
    """Refuse a folder, by whatever path, that somebody else could have written.

    Of one that is not there nothing is asked: that it is missing is said where it is read.

    :raises NotPrivate: naming the folder and its owner.
    """
    real = os.path.realpath(folder)
    if os.path.lexists(real):
        require_own_name(folder)
        require_private(real, allow_group=True)


def read_document(folder: Path, kind: Kind, session: Callable[[dict[str, Any]], S]) -> S:
    """The session in a folder.

    :param session: makes it of the document's table; what it raises on a damaged one is said.
    :raises UsageError: if there is none, it is damaged, or another command's.
    :raises NotPrivate: if somebody else could have written it.
    """
    expected = f"expected a session of `overlay {kind.value}`"
    require_own(folder)
    data = read_file(folder, DOCUMENT) if folder.is_dir() else None
    if data is None:
        raise UsageError(f"{folder}: {expected}, found no {DOCUMENT} there")
    try:
        table = parse_toml(data.decode("utf-8"))
        if table["schema"] != SCHEMA or isinstance(table["schema"], bool):
            raise ValueError(f"schema is {table['schema']!r}, expected {SCHEMA}")
        other = Kind(table["kind"])
        read = session(table) if other is kind else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"[:_MAX_WHY]
        raise UsageError(
            f"{folder / DOCUMENT}: {expected}, found a damaged one ({why}). Nothing was "
            "changed; your edits are in the files there"
        ) from error
    if read is None:
        raise UsageError(f"{folder}: {expected}, found one of `overlay {other.value}`")
    return read


def read_file(folder: Path, name: str) -> bytes | None:
    """The bytes of a session's file; ``None`` where there is none.

    :raises UsageError: if something other than a plain file is there.
    :raises NotPrivate: if somebody else could have written it.
    """
    try:
        data = read_below(folder, name)
    except OSError as error:
        raise UsageError(f"{folder / name}: {error.strerror}") from error
    if data is not None:
        require_private(folder / name, allow_group=True)
    return data
