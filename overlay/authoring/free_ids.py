"""Whether a feature can be written under an id: nothing of somebody's is replaced by it."""

from __future__ import annotations

import os
from pathlib import Path

from overlay._features import sources
from overlay._features.sources import SHARED, entries, left_behind, shared_by, stray
from overlay.errors import UsageError
from overlay.package import id_problem

#: What a feature's folder holds beside the folders of its topics, and commands write again.
_OWN = frozenset({"feature.toml", "files", "origin"})


def expect_id(id_: str, option: str = "") -> None:
    """Refuse an id that cannot be one.

    :param option: the option that gives it, where one does.
    """
    what = f"{option} " if option else ""
    if (problem := id_problem(id_)) is not None:
        raise UsageError(f"{what}{problem}, as ids of features are")
    if id_ == SHARED:
        raise UsageError(
            f"{what}{id_!r} cannot be the id of a feature: in a folder of patches {SHARED}/ holds "
            "the modules that several features name; choose another"
        )


def require_free(
    patches: Path,
    id_: str,
    *,
    update: bool,
    instead: str = "pass --update to replace it",
    option: str = "",
) -> None:
    """Refuse an id that cannot be one, or that is taken, before anything is fetched.

    :param update: whether a feature of that id is to be replaced.
    :param instead: what to do where that feature is meant.
    :param option: the option that gives the id, where one does.
    """
    expect_id(id_, option)
    other = f"choose another {option or 'id'}"
    shipped = sources.shipped_folder()
    if os.path.realpath(patches) != os.path.realpath(shipped) and id_ in entries(shipped):
        raise UsageError(
            f"{id_}: expected no feature of that id, found one that comes with the overlay, and "
            f"an id is one feature's: {other}"
        )
    place = entries(patches).get(id_) if patches.is_dir() else None
    if place is None:
        return
    if not os.path.lexists(place / "feature.toml"):
        what = "a folder without feature.toml" if place.is_dir() else "a file"
        raise UsageError(f"{place}: expected no feature of that id, found {what}: {other}")
    if not update:
        raise UsageError(
            f"{place}: expected no feature of that id, found one; {other}, or {instead}"
        )
    if lost := _foreign_names(place):
        raise UsageError(
            f"{place}: --update would replace all of it, and {', '.join(lost[:3])} is not of its "
            "patches: move that away first"
        )


def _foreign_names(feature: Path) -> list[str]:
    """What somebody else put into a feature's folder, but for what tools leave."""
    shared = ["`shared` in its feature.toml"] if shared_by(feature) else []
    return shared + [
        name
        for name in sorted(os.listdir(feature))
        if name not in _OWN
        and not (left_behind(name) or stray(name))
        and not ((feature / name).is_dir() and name[:2].isdigit())
    ]
