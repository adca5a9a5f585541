"""``overlay edit``: a feature is edited as files of a release, in a session's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from overlay.authoring import disk
from overlay.authoring import releases as package_releases
from overlay.authoring.commands.edit_files import (
    FOLDERS,
    absolute,
    expect_paths,
    expect_same,
    gives,
    named_folders,
    opened,
    present,
    release_to_edit,
    remove,
)
from overlay.authoring.commands.edit_new import commit_new
from overlay.authoring.commands.new import by_scope
from overlay.authoring.editing import Commit
from overlay.authoring.editing import commit as compose_commit
from overlay.authoring.layout import lay_out
from overlay.authoring.reports.authored import AuthoredFile, EditAction, EditReport, edited
from overlay.authoring.session import Session, end, read
from overlay.authoring.session_document import Kind, from_anywhere
from overlay.errors import PackageIndexError, UsageError
from overlay.features.model import of_package
from overlay.features.sources import SHARED, entries, shipped_folder
from overlay.planning.planner import plan
from overlay.planning.scope_cache import Memo
from overlay.planning.upstream import remembers
from overlay.results import Fate
from overlay.results.invocation import command

if TYPE_CHECKING:
    from overlay.authoring.editing import Edited
    from overlay.commands.request import Request
    from overlay.features.model import Feature
    from overlay.package import Tree
    from overlay.targets.target import Progress


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
    features = request._replace(features=(id_,)).load()
    feature = _named(features, id_)
    patches, package = _writable(feature), feature.package
    features = of_package(features, package)
    wanted = release_to_edit(release, package, feature)
    expect_paths(more, package)
    earlier = features[: features.index(feature)]
    tree = package_releases.tree_of(wanted, package, progress)
    layout = lay_out(feature, earlier, tree, Version(wanted), more, Memo(), package)
    fresh = Session(
        Path(f"{id_}@{wanted}"),
        Kind.EDIT,
        {id_: feature.source or ""},
        wanted,
        patches,
        {},
        {each.id: each.source or "" for each in layout.below},
        {FOLDERS: absolute(request.patches)},
        package,
    )
    return opened(fresh, layout, features, grows=bool(more))


def _named(features: Sequence[Feature], id_: str) -> Feature:
    """The feature with an id.

    :raises UsageError: if there is none.
    """
    found = next((feature for feature in features if feature.id == id_), None)
    if found is None:
        known = ", ".join(feature.id for feature in features) or "none"
        raise UsageError(
            f"{id_}: expected one of {known}; name the folder of a further feature with "
            f"--patches DIR, or begin a new one with {command('new', id_, '--file', 'vllm/...')}"
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
        shared = f" and {folder / SHARED} beside it" if feature.shared else ""
        raise UsageError(
            f"{feature.id} comes with the overlay, and the next upgrade would undo the edit: copy "
            f"{folder / feature.id} to a folder of your own under another id{shared}, and edit "
            "that; or make the change in a checkout of vllm-overlay"
        )
    return folder


def abort(folder: Path) -> EditReport:
    """Remove a session with all that is in it.

    :raises UsageError: if there is none; :raises OSError: if it cannot be removed.
    """
    folder = from_anywhere(folder)
    session = read(folder, Kind.EDIT)
    end(session)
    (id_,) = session.features
    verdict = edited(EditAction.ABORTED, id_, folder)
    return EditReport(verdict, id_, EditAction.ABORTED, session.release, folder)


def commit(request: Request, folder: Path, progress: Progress | None = None) -> EditReport:
    """Make the feature of a session's files, and end the session.

    :raises UsageError: if there is no session, its base was edited, the feature or one below it
        is another one by now, or a file holds what a feature cannot carry; the session stays.
    :raises OverlayError: if the features cannot be read or written; the session stays.
    """
    folder = from_anywhere(folder)
    session = read(folder, Kind.EDIT)
    (id_,) = session.features
    request = request._replace(patches=(*request.patches, *named_folders(session)))
    if not session.features[id_]:
        return commit_new(request, session, id_, progress)
    features = request.authored(session.package)
    feature = _named(features, id_)
    if session.untouched():
        expect_same(session, features)
        verdict = edited(EditAction.UNCHANGED, id_, folder)
        return EditReport(verdict, id_, EditAction.UNCHANGED, session.release, folder)
    below = tuple(each for each in features if each.id in session.below)
    now = present(session, below, progress)
    if feature.source != session.features[id_] and gives(feature, now):
        # A commit was killed between the feature and the end of its session.
        emptied = remove(session)
        verdict = edited(EditAction.COMMITTED, id_, folder, str(feature.releases), emptied=emptied)
        return EditReport(verdict, id_, EditAction.COMMITTED, session.release, folder)
    expect_same(session, features)
    return _committed(session, folder, feature, below, now, progress)


def _committed(
    session: Session,
    folder: Path,
    feature: Feature,
    below: tuple[Feature, ...],
    now: Edited,
    progress: Progress | None,
) -> EditReport:
    """Write the feature as its session has it now, and end the session.

    :param below: the features that its text is made on; :param now: the session's files.
    """
    id_ = feature.id
    trees = _Trees(session, progress)
    # Nothing of the feature, old or new, is applied to those that have it by memory.
    known = package_releases.known(session.package)
    served = [name for name in known if not remembers(feature, Version(name))]
    made = compose_commit(
        feature,
        disk.contents(entries(session.patches)[id_]),
        now,
        _fits(trees, below, now.changed),
        served,
        datetime.now().astimezone().date().isoformat(),
    )
    disk.replace_features(session.patches, [disk.NewFolder(id_, made.files, whole=False)])
    emptied = remove(session)
    verdict = edited(
        EditAction.COMMITTED, id_, folder, str(made.releases), made.left, emptied=emptied
    )
    return EditReport(
        verdict,
        feature=id_,
        action=EditAction.COMMITTED,
        release=session.release,
        session=folder,
        files=_files(made),
        releases=str(made.releases),
        left=made.left,
        unread=tuple(trees.unread.items()),
        folder=session.patches / id_,
        merged=None if feature.merged is None else str(feature.merged),
    )


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
                self._known[release] = package_releases.tree_of(
                    release, self.session.package, self.progress
                )
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


def _files(made: Commit) -> tuple[AuthoredFile, ...]:
    files = [AuthoredFile(path, Fate.EDITED, by_scope(hunks)) for path, hunks in made.hunks.items()]
    files += [AuthoredFile(path, Fate.ADDED) for path in made.added]
    files += [AuthoredFile(path, Fate.REMOVED) for path in made.removed]
    return tuple(sorted(files, key=lambda file: file.path))
