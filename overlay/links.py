"""Links that lead out of a target, and saying so of every file and not only of the first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import TargetError, TransactionError

if TYPE_CHECKING:  # a process that has nothing to patch does without the data classes
    from overlay.model import Feature


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


def paths_of(features: Iterable[Feature]) -> list[str]:
    """Every file that features are about."""
    found: list[str] = []
    for feature in features:
        found += [test.path for test in feature.upstream_tests]
        found += [added.path for added in feature.added]
        found += [v.patch.path for topic in feature.topics for v in topic.variants]
    return found


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
