"""Make a change of files as they were and as they are now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from overlay.authoring.building import Change, EditedFile
from overlay.authoring.composing import NotComposable, compose_file
from overlay.authoring.locating import Base
from overlay.authoring.triage import FileFate, added_problem, uncompilable
from overlay.planning.scopes import Syntax
from overlay.results import Fate


class TwoTexts(NamedTuple):
    """A file before and after an edit.

    :ivar before: ``None`` where there was no such file; :ivar now: ``None`` where it was removed.
    """

    path: str
    before: bytes | None
    now: bytes | None


def change_of(files: Iterable[TwoTexts], release: str, syntax: Syntax) -> Change:
    """The change that edits make; the fate of a file that cannot be carried says why.

    :param release: the release on whose text, perhaps with features below, the edits were made.
    :param syntax: answers about texts.
    """
    topics: list[EditedFile] = []
    fates: list[FileFate] = []
    added: dict[str, bytes] = {}
    for path, before, now in files:
        if before is None and now is not None:
            added[path] = now
            fates.append(FileFate(path, Fate.ADDED, problem=added_problem(path, now, syntax)))
        elif before is not None and now is not None:
            fate, topic = _edited(path, before, now, release, syntax)
            fates.append(fate)
            topics += [] if topic is None else [topic]
        elif before is not None:
            problem = f"{path} was removed; a feature never removes a file of a release"
            fates.append(FileFate(path, Fate.EDITED, release, problem=problem))
    return Change(tuple(topics), added, tuple(fates))


def _edited(
    path: str, before: bytes, now: bytes, release: str, syntax: Syntax
) -> tuple[FileFate, EditedFile | None]:
    """An edited file in hunks, or why it cannot be said in them."""
    try:
        hunks = compose_file(path, before, now)
    except NotComposable as error:
        return FileFate(path, Fate.EDITED, release, problem=str(error)), None
    broken = uncompilable(path, now, syntax)
    fate = FileFate(path, Fate.EDITED, release, True, len(hunks), broken)
    return fate, EditedFile(Base(path, release, before, now, by_id=True), hunks)
