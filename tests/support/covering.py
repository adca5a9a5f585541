"""Of the known releases those that the whole run takes; ``--thorough`` takes each.

A law about each release is tried on the oldest, the newest and every fifth between them, and on the
first one to which a feature brings other patches than to the one before it.  What is between two of
them differs by the release alone, whose text does not change any more; a new release is the newest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overlay.package import KNOWN_RELEASES

PATCHES = Path(__file__).resolve().parents[2] / "patches"
NAMES = tuple(map(str, KNOWN_RELEASES))
STRIDE = 5


def chosen(feature: str = "") -> frozenset[str]:
    """The releases that the whole run takes.

    :param feature: of which each patch is to be tried, by its id; none: of no feature.
    """
    names, seen = {*NAMES[::STRIDE], NAMES[-1]}, set[frozenset[Path]]()
    for number, name in enumerate(NAMES):
        patches = frozenset(
            path
            for path in (PATCHES / feature).glob("*/*.patch")
            if feature and _numbers(path)[0] <= number <= _numbers(path)[1]
        )
        if patches not in seen:
            names.add(name)
        seen.add(patches)
    return frozenset(names)


def each_release(feature: str = "") -> list[Any]:
    """All known releases as parameters of a test, those that are not chosen for ``--thorough``."""
    names = chosen(feature)
    return [
        pytest.param(name, id=name, marks=() if name in names else pytest.mark.thorough)
        for name in NAMES
    ]


def _numbers(patch: Path) -> tuple[int, int]:
    """Where the first and the last release of a patch are among the known ones."""
    first, last = patch.stem.split("..")
    return NAMES.index(first), NAMES.index(last)
