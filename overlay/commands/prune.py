"""``overlay prune``: propose what a folder of patches no longer needs, and carry it out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from overlay.commands.request import Request
from overlay.errors import OverlayError, UsageError
from overlay.features.sources import entries, left_behind, stray
from overlay.package import KNOWN_RELEASES, parse_release
from overlay.report.pruned import PruneEntry, PruneReport, concluded
from overlay.untrusted import read_regular

if TYPE_CHECKING:
    from overlay.authoring.pruning import Proposal, Served
    from overlay.features.model import Feature
    from overlay.targets.target import Progress

#: The largest file of a feature's folder, in bytes; ``origin/`` may hold whole changes.
_LIMIT = 64 * 1024 * 1024


def prune(
    request: Request,
    *,
    oldest: str | None = None,
    write: bool = False,
    progress: Progress | None = None,
) -> PruneReport:
    """Propose what the last folder of patches no longer needs, and carry it out where asked.

    :param oldest: the oldest release that is still served; default: the oldest known one.
    :param write: carry out what is proposed, all of it or nothing.
    :raises UsageError: if no folder is named, or ``oldest`` is not a release that is known.
    :raises OverlayError: if the features or a release cannot be read, the folder not be written, or
        it was changed while the proposals were made.
    """
    from overlay.authoring.disk import settle
    from overlay.authoring.locating import ReleaseTexts
    from overlay.authoring.pruning import Pruner
    from overlay.planning.scope_cache import Memo
    from overlay.targets.resolution import resolve

    if not request.patches:
        raise UsageError(
            "expected a folder of patches to prune, found none: name one with --patches DIR, or in "
            "overlay.toml"
        )
    folder = request.folders[-1]
    if write:
        settle(folder)
    names = _served(oldest)
    features = request.authored()
    served = [_with_files(feature, folder) for feature in features]
    texts = ReleaseTexts(KNOWN_RELEASES, lambda release: resolve(release, progress=progress))
    proposals = Pruner(texts, names, Memo()).propose(served)
    if write and proposals:
        if [feature.source for feature in request.authored()] != [each.source for each in features]:
            raise OverlayError(f"{folder}: it was changed meanwhile; run the command again")
        _carry_out(folder, proposals)
    shown = tuple(
        PruneEntry(each.feature, each.kind.value, each.text, each.evidence) for each in proposals
    )
    return PruneReport(
        concluded(shown, folder, written=write),
        folder=folder,
        releases=f"{names[0]}..{names[-1]}",
        entries=shown,
        written=write and bool(shown),
    )


def _served(oldest: str | None) -> tuple[str, ...]:
    """The known releases that are still served, oldest first."""
    if oldest is None:
        return KNOWN_RELEASES
    try:
        first = parse_release(oldest)
    except ValueError as error:
        raise UsageError(f"--oldest: {error}") from error
    names = tuple(name for name in KNOWN_RELEASES if Version(name) >= first)
    if not names:
        raise UsageError(
            f"--oldest {oldest}: expected a release up to {KNOWN_RELEASES[-1]}, the newest that "
            "this overlay knows"
        )
    return names


def _with_files(feature: Feature, folder: Path) -> Served:
    """A feature with the files of its folder, if that is the one to be pruned."""
    from overlay.authoring.pruning import Served

    if feature.shipped or Path(feature.origin).resolve() != folder.resolve():
        return Served(feature)
    place = entries(folder)[feature.id]
    files: dict[str, bytes] = {}
    for parent, folders, names in os.walk(place):
        folders[:] = [name for name in folders if not (left_behind(name) or stray(name))]
        for name in names:
            file = Path(parent, name)
            if not stray(name) and (data := read_regular(file, _LIMIT)) is not None:
                files[file.relative_to(place).as_posix()] = data
    return Served(feature, files)


def _carry_out(folder: Path, proposals: tuple[Proposal, ...]) -> None:
    """Carry out proposals by one switch of the folder."""
    from overlay.authoring.disk import NewFolder, replace_features

    changed: dict[str, dict[str, bytes | None]] = {}
    gone: list[str] = []
    for proposal in proposals:
        if proposal.files is None:
            gone.append(proposal.feature)
            changed.pop(proposal.feature, None)
        else:
            changed.setdefault(proposal.feature, {}).update(proposal.files)
    new = [NewFolder(id_, files, whole=False) for id_, files in changed.items()]
    replace_features(folder, new, gone)
