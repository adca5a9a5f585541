"""``overlay edit``: a feature is edited as files of a release, in a session's folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from overlay.authoring import disk
from overlay.authoring.editing import Commit, Edited
from overlay.authoring.editing import commit as compose_commit
from overlay.authoring.layout import lay_out
from overlay.authoring.session import BASE, DOCUMENT, Kind, Session, end, read, revise
from overlay.authoring.session import begin as begin_session
from overlay.commands.new import by_scope
from overlay.errors import PackageIndexError, UsageError
from overlay.features.sources import entries, shipped_folder, stray
from overlay.package import KNOWN_RELEASES, parse_release, path_problem
from overlay.planning.planner import plan
from overlay.planning.scope_cache import Memo
from overlay.report.authored import AuthoredFile, EditAction, EditReport, edited
from overlay.untrusted import sha256

if TYPE_CHECKING:
    from overlay.commands.request import Request
    from overlay.features.model import Feature
    from overlay.package import Tree
    from overlay.targets.target import Progress

#: The note of a session that names the folders of patches it was begun with.
_FOLDERS = "folders"


def begin(
    request: Request,
    id_: str,
    release: str | None = None,
    more: Sequence[str] = (),
    progress: Progress | None = None,
) -> EditReport:
    """Begin a session in ``./ID@RELEASE``, or lay further files into the one that is there.

    :param release: the release whose files are edited; default: the newest that the feature serves.
    :param more: further files of that release (``vllm/...``) to edit.
    :raises UsageError: if there is no such feature, it cannot be written or does not land on the
        release, or something other than its session lies in that folder.
    :raises OverlayError: if the features or the release cannot be read.
    """
    features = request.load()
    feature = _named(features, id_)
    patches = _writable(feature)
    wanted = _release(feature, release)
    for path in more:
        if (problem := path_problem(path)) is not None:
            raise UsageError(f"--file: {problem}")
    folder = Path(f"{id_}@{wanted}")
    there = read(folder, Kind.EDIT) if (folder / DOCUMENT).exists() and more else None
    earlier = features[: features.index(feature)]
    layout = lay_out(feature, earlier, _tree(wanted, progress), Version(wanted), more, Memo())
    below = {each.id: each.source or "" for each in layout.below}
    if there is not None:
        _expect_same(there, features)
        new = {path: data for path, data in layout.laid.items() if path not in there.files}
        grown = replace(there, below={**there.below, **below})
        session = revise(
            grown, new, {path: layout.base[path] for path in new if path in layout.base}
        )
        action = EditAction.GROWN
    else:
        session = begin_session(
            Session(
                folder,
                Kind.EDIT,
                {id_: feature.source or ""},
                wanted,
                patches,
                {},
                below,
                {_FOLDERS: os.pathsep.join(os.path.abspath(each) for each in request.patches)},
            ),
            layout.laid,
            layout.base,
        )
        action = EditAction.BEGUN
    files = tuple(AuthoredFile(path, "to edit") for path in sorted(session.files))
    verdict = edited(action, id_, folder)
    return EditReport(verdict, id_, action, wanted, folder, files, without=layout.without)


def _named(features: Sequence[Feature], id_: str) -> Feature:
    """The feature with an id.

    :raises UsageError: if there is none.
    """
    found = next((feature for feature in features if feature.id == id_), None)
    if found is None:
        known = ", ".join(feature.id for feature in features) or "none"
        raise UsageError(
            f"{id_}: expected one of {known}; name the folder of a further feature with "
            "--patches DIR"
        )
    return found


def _writable(feature: Feature) -> Path:
    """The folder of patches that a feature is in.

    :raises UsageError: if the feature came with an installed overlay.
    """
    if not feature.shipped:
        return Path(feature.origin)
    folder = shipped_folder()
    if (folder.parent / "__init__.py").is_file():
        raise UsageError(
            f"{feature.id} comes with the overlay, and the next upgrade would undo the edit: copy "
            f"{folder / feature.id} to a folder of your own under another id, and edit that; or "
            "make the change in a checkout of vllm-overlay"
        )
    return folder


def _release(feature: Feature, wanted: str | None) -> str:
    """The release to edit on.

    :raises UsageError: if it is not a release.
    """
    if wanted is None:
        known = [name for name in KNOWN_RELEASES if Version(name) in feature.releases]
        return known[-1] if known else str(feature.releases.last)
    try:
        return str(parse_release(wanted))
    except ValueError as error:
        raise UsageError(f"--release: {error}") from error


def _tree(release: str, progress: Progress | None) -> Tree:
    from overlay.targets.resolution import resolve

    return resolve(release, progress=progress)


def abort(folder: Path) -> EditReport:
    """Remove a session with all that is in it.

    :raises UsageError: if there is none; :raises OSError: if it cannot be removed.
    """
    session = read(folder, Kind.EDIT)
    end(session)
    id_ = next(iter(session.features))
    verdict = edited(EditAction.ABORTED, id_, folder)
    return EditReport(verdict, id_, EditAction.ABORTED, session.release, folder)


def commit(request: Request, folder: Path, progress: Progress | None = None) -> EditReport:
    """Make the feature of a session's files, and end the session.

    :raises UsageError: if there is no session, its base was edited, the feature or one below it
        is another one by now, or a file holds what a feature cannot carry; the session stays.
    :raises OverlayError: if the features cannot be read or written; the session stays.
    """
    session = read(folder, Kind.EDIT)
    id_ = next(iter(session.features))
    named = [each for each in session.notes.get(_FOLDERS, "").split(os.pathsep) if each]
    request = request._replace(patches=(*request.patches, *named))
    features = request.load()
    feature = _named(features, id_)
    release = Version(session.release)
    if session.untouched():
        _expect_same(session, features)
        verdict = edited(EditAction.UNCHANGED, id_, folder)
        return EditReport(verdict, id_, EditAction.UNCHANGED, session.release, folder)
    below = tuple(each for each in features if each.id in session.below)
    present = _present(session, below, progress)
    if feature.source != session.features[id_] and _gives(feature, present):
        # A commit was killed between the feature and the end of its session.
        emptied = _remove(session)
        verdict = edited(EditAction.COMMITTED, id_, folder, str(feature.releases), emptied=emptied)
        return EditReport(verdict, id_, EditAction.COMMITTED, session.release, folder)
    _expect_same(session, features)
    trees = _Trees(session, progress)
    place = entries(session.patches)[id_]
    files = disk.contents(place)
    made = compose_commit(
        feature,
        files,
        present,
        _fits(trees, below, present.changed),
        KNOWN_RELEASES,
        datetime.now().astimezone().date().isoformat(),
    )
    disk.replace_features(session.patches, [disk.NewFolder(id_, made.files, whole=False)])
    emptied = _remove(session)
    verdict = edited(
        EditAction.COMMITTED, id_, folder, str(made.releases), made.left, emptied=emptied
    )
    return EditReport(
        verdict,
        feature=id_,
        action=EditAction.COMMITTED,
        release=str(release),
        session=folder,
        files=_files(made),
        releases=str(made.releases),
        left=made.left,
        unread=tuple(trees.unread.items()),
        folder=session.patches / id_,
    )


def _expect_same(session: Session, features: Sequence[Feature]) -> None:
    """Refuse a session whose features are others than when it began.

    :raises UsageError: naming them.
    """
    sources = {feature.id: feature.source for feature in features}
    wanted = {**session.below, **session.features}
    changed = [name for name, source in wanted.items() if sources.get(name) != source]
    if changed:
        raise UsageError(
            f"{session.folder}: {', '.join(changed)} changed since the session began, and its "
            "files are made on what was there then. Nothing was written and the session is as it "
            "was; put the patches back, or begin another session elsewhere and copy your edits"
        )


def _present(session: Session, below: tuple[Feature, ...], progress: Progress | None) -> Edited:
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
            tree = _tree(session.release, progress)
        except PackageIndexError as error:
            raise UsageError(
                f"{', '.join(new)}: whether vLLM {session.release} has such a file cannot be told, "
                f"since the release cannot be read: {error}. The session is as it was"
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


def _gives(feature: Feature, present: Edited) -> bool:
    """Whether applying a feature gives the files of a session already."""
    planned = plan([feature], present, present.release)
    made = {change.path: change.after for change in planned.changes}
    return all(made.get(path, present.base.get(path)) == now for path, now in present.now.items())


class _Trees:
    """The releases that an edit is tried on; those that cannot be read are noted."""

    def __init__(self, session: Session, progress: Progress | None) -> None:
        self.session, self.progress = session, progress
        self.unread: dict[str, str] = {}
        self._known: dict[str, Tree] = {}

    def get(self, release: str) -> Tree | None:
        """A release, ``None`` where it cannot be read."""
        if release not in self._known and release not in self.unread:
            try:
                self._known[release] = _tree(release, self.progress)
            except PackageIndexError as error:
                self.unread[release] = str(error)
        return self._known.get(release)


def _fits(
    trees: _Trees, below: Sequence[Feature], paths: Sequence[str]
) -> Callable[[Feature, str], bool]:
    """Whether a form of the feature lands on a release, in the files that were edited."""
    memo = Memo()

    def fits(feature: Feature, release: str) -> bool:
        tree = trees.get(release)
        if tree is None:
            return False
        planned = plan([*below, feature], tree, Version(release), syntax=memo)
        own = planned.features[-1]
        return not any(file.state.needs_attention for file in own.files if file.path in paths)

    return fits


def _remove(session: Session) -> bool:
    """Take a session away that was committed; files that are not its own stay.

    :returns: whether the folder is gone.
    """
    own = {DOCUMENT, *(f"{BASE}/{path}" for path in session.files), *session.present()}
    others = [
        name
        for name in disk.files_below(session.folder)
        if name not in own and not stray(name.rpartition("/")[2])
    ]
    if not others:
        end(session)
        return True
    # The document first: without it, what is left is no session any more.
    for name in (DOCUMENT, *sorted(own - {DOCUMENT})):
        os.unlink(session.folder / name)
        above = (session.folder / name).parent
        with suppress(OSError):  # other files are in it
            while above != session.folder:
                above.rmdir()
                above = above.parent
    return False


def _files(made: Commit) -> tuple[AuthoredFile, ...]:
    files = [AuthoredFile(path, "edited", by_scope(hunks)) for path, hunks in made.hunks.items()]
    files += [AuthoredFile(path, "added") for path in made.added]
    files += [AuthoredFile(path, "removed") for path in made.removed]
    return tuple(sorted(files))
