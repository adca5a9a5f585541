"""Read and hash files that a stranger may have made."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import TargetError, TransactionError

if TYPE_CHECKING:
    pass


def sha256(data: bytes) -> str:
    """The hexadecimal sha256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def way_out(root: Path, path: str, real: str | None = None) -> tuple[Path, str] | None:
    """The first part of ``path`` that leads out of ``root``, and where to; ``None`` if none does.

    :param root: a real path; :param path: relative to it.
    :param real: the real path of the whole of it, where the caller has asked for that already.
    """
    inside = str(root).rstrip(os.sep) + os.sep
    if (real or os.path.realpath(root / path)).startswith(inside):
        return None
    place = root
    for part in path.split("/"):
        place /= part
        real = os.path.realpath(place)
        if not real.startswith(inside):
            return place, real
    raise AssertionError(f"{path}: the whole of it leads out, but no part does")


@contextmanager
def all_unreadable(paths: Iterable[str], read: Callable[[str], object]) -> Iterator[None]:
    """Where the block ends because of a file that cannot be read, name each of ``paths`` like it.

    :param read: raises ``TargetError`` or ``TransactionError`` where a file cannot be read.
    :raises TargetError, TransactionError: with one line for each problem, where there are several.
    """
    try:
        yield
    except (TargetError, TransactionError) as first:
        said = list(dict.fromkeys(one for path in sorted(paths) if (one := _problem(path, read))))
        if len(said) < 2 or str(first) not in said:
            raise
        raise type(first)("\n".join(said)) from first


def _problem(path: str, read: Callable[[str], object]) -> str | None:
    try:
        read(path)
    except (TargetError, TransactionError) as error:
        return str(error)
    return None


def read(path: Path) -> bytes | None:
    """The bytes of a file, or ``None`` where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def digest(path: Path) -> str | None:
    """The sha256 of a file, or ``None`` where there is none."""
    data = read(path)
    return None if data is None else sha256(data)
