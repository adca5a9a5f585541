"""Begin an edit session, compare its files with their base, and end it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import Version

from overlay.authoring import disk
from overlay.authoring import releases as package_releases
from overlay.authoring.editing import Edited
from overlay.authoring.layout import Layout
from overlay.authoring.reports.authored import AuthoredFile, EditAction, EditReport, edited
from overlay.authoring.session import BASE, Session, begin, read, revise
from overlay.authoring.session_document import DOCUMENT, Kind
from overlay.errors import PackageIndexError, UsageError
from overlay.features.sources import stray
from overlay.package import VLLM, Package, path_problem
from overlay.planning.planner import plan
from overlay.planning.scope_cache import Memo
from overlay.results import Fate
from overlay.untrusted import sha256

if TYPE_CHECKING:
    from overlay.features.model import Feature
    from overlay.targets.target import Progress

#: The note of a session that names the folders of patches it was begun with.
FOLDERS = "folders"


def absolute(folders: Sequence[str]) -> str:
    """The note that names the folders of patches."""
    return os.pathsep.join(os.path.abspath(each) for each in folders)


def named_folders(session: Session) -> tuple[str, ...]:
    """The folders of patches that a session was begun with."""
    return tuple(each for each in session.notes.get(FOLDERS, "").split(os.pathsep) if each)


def expect_paths(paths: Sequence[str], package: Package = VLLM) -> None:
    """Refuse files that no feature can change.

    :raises UsageError: naming the first.
    """
    for path in paths:
        if (problem := path_problem(path, package)) is not None:
            raise UsageError(f"--file: {problem}")


def release_to_edit(
    wanted: str | None, package: Package = VLLM, feature: Feature | None = None
) -> str:
    """The release to edit on; by default the newest known one that a feature serves.

    :param wanted: as a bare version or with the name of the package (``vllm-ascend==0.23.0``).
    :param feature: ``None`` for a new one, which may serve any.
    :raises UsageError: if what is wanted is not a release of the package, or none is known.
    """
    if wanted is None:
        known = package_releases.known(package)
        if feature is not None:
            known = tuple(name for name in known if Version(name) in feature.releases)
            return known[-1] if known else str(feature.releases.last)
        if not known:
            raise UsageError(
                f"expected --release: the overlay knows no release of {package.title}; name one, "
                f"such as {package.distribution}==1.0"
            )
        return known[-1]
    try:
        return package_releases.version_of(wanted, package).public
    except UsageError as error:
        raise UsageError(f"--release: {error}") from error


def opened(
    fresh: Session, layout: Layout, features: Sequence[Feature], *, grows: bool
) -> EditReport:
    """Begin a session, or lay further files into the one that is in its folder.

    :param fresh: the session, without files; :param features: those at hand.
    :param grows: whether further files are wanted where there is one.
    :raises UsageError: if something other than its session lies in that folder, or the features
        are others than when it began.
    :raises OSError: if it cannot be written.
    """
    folder, (id_,) = fresh.folder, fresh.features
    if grows and (folder / DOCUMENT).exists():
        there = read(folder, Kind.EDIT)
        expect_same(there, features)
        new = {path: data for path, data in layout.laid.items() if path not in there.files}
        session = revise(
            replace(there, below={**there.below, **fresh.below}),
            new,
            {path: layout.base[path] for path in new if path in layout.base},
        )
        action = EditAction.GROWN
    else:
        session = begin(fresh, layout.laid, layout.base)
        action = EditAction.BEGUN
    files = tuple(AuthoredFile(path, Fate.TO_EDIT) for path in sorted(session.files))
    verdict = edited(action, id_, folder)
    return EditReport(verdict, id_, action, fresh.release, folder, files, without=layout.without)


def expect_same(session: Session, features: Sequence[Feature]) -> None:
    """Refuse a session whose features are others than when it began.

    :raises UsageError: naming them.
    """
    sources = {feature.id: feature.source or "" for feature in features}
    wanted = {**session.below, **session.features}
    changed = [name for name, source in wanted.items() if sources.get(name, "") != source]
    if changed:
        raise UsageError(
            f"{session.folder}: {', '.join(changed)} changed since the session began, and its "
            "files are made on what was there then. Nothing was written and the session is as it "
            "was; put the patches back, or begin another session elsewhere and copy your edits"
        )


def present(session: Session, below: tuple[Feature, ...], progress: Progress | None) -> Edited:
    """What the session's files hold, and what they are compared with.

    :raises UsageError: if a base was edited, or a file is new and the release, which may have it,
        cannot be read.
    """
    paths = [path for path in session.present() if not stray(path.rpartition("/")[2])]
    new = [path for path in paths if path not in session.files]
    base = {path: session.base(path) for path in session.files}
    now = {path: session.now(path) for path in {*session.files, *paths}}
    if new:
        try:
            tree = package_releases.tree_of(session.release, session.package, progress)
        except PackageIndexError as error:
            raise UsageError(
                f"{', '.join(new)}: whether {session.package.title} {session.release} has such a "
                f"file cannot be told, since the release cannot be read: {error}. The session is "
                "as it was"
            ) from error
        planned = plan(below, tree, Version(session.release), syntax=Memo())
        under = {change.path: change.after for change in planned.changes}
        base |= {path: under.get(path, tree.read(path)) for path in new}
    changed = [path for path in new if now[path] != base[path]]
    for path, file in session.files.items():
        data = now[path]
        if data is None or sha256(data) != file.laid:
            changed.append(path)
    return Edited(Version(session.release), base, now, tuple(sorted(changed)))


def gives(feature: Feature, edited: Edited) -> bool:
    """Whether applying a feature gives the files of a session already."""
    planned = plan([feature], edited, edited.release)
    made = {change.path: change.after for change in planned.changes}
    return all(made.get(path, edited.base.get(path)) == now for path, now in edited.now.items())


def remove(session: Session) -> bool:
    """Take a session away that was committed; files that are not its own stay.

    :returns: whether the folder is gone.
    """
    own = [*(f"{BASE}/{path}" for path in session.files), *session.present()]
    return disk.withdraw(session.folder, DOCUMENT, own)
