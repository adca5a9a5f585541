"""``overlay new ID --file PATH``: a feature that does not exist yet, as files to edit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from overlay.authoring import releases as package_releases
from overlay.authoring.commands.edit_files import (
    FOLDERS,
    absolute,
    expect_paths,
    expect_same,
    gives,
    opened,
    present,
    release_to_edit,
    remove,
)
from overlay.authoring.commands.edits import readable, words
from overlay.authoring.commands.new import by_scope
from overlay.authoring.free_ids import require_free
from overlay.authoring.from_texts import TwoTexts, change_of
from overlay.authoring.layout import lay_out
from overlay.authoring.reports.authored import AuthoredFile, EditAction, EditReport, edited
from overlay.authoring.session import Session
from overlay.authoring.session_document import Kind
from overlay.errors import UsageError
from overlay.features.model import of_package
from overlay.package import VLLM, Package, package_named, package_problem
from overlay.planning.scope_cache import Memo
from overlay.results import Fate
from overlay.results.invocation import command
from overlay.settings import in_home

if TYPE_CHECKING:
    from overlay.authoring.building import Prepared
    from overlay.authoring.editing import Edited
    from overlay.authoring.locating import ReleaseTexts
    from overlay.commands.request import Request
    from overlay.features.model import Feature
    from overlay.targets.target import Progress

#: The note of a session that holds the title of the feature to come.
_TITLE = "title"


def begin_new(
    request: Request,
    id_: str,
    files: Sequence[str],
    *,
    release: str | None = None,
    title: str = "",
    progress: Progress | None = None,
) -> EditReport:
    """Lay a release's files into ``./ID@RELEASE``, to be edited and committed as a new feature.

    :param request: the feature is for the last of its patches folders, which may not exist yet.
    :param files: paths of the release, whose first folder is its package (``vllm/...``);
        of a session that is there: further ones.
    :param release: default: the newest known one.
    :param title: what the change does, in a line; by default made of the id.
    :raises UsageError: if the id exists or cannot be one, the release has no such file, or
        something other than the session lies in that folder.
    :raises OverlayError: if the features or the release cannot be read.
    """
    patches = in_home(request.patches[-1])
    require_free(patches, id_, update=False, instead=f"{command('edit', id_)}, which edits that")
    package = _package(files)
    expect_paths(files, package)
    wanted = release_to_edit(release, package)
    features = of_package(every := _at_hand(request, patches), package)
    if any(feature.id == id_ for feature in every):
        raise UsageError(f"{id_}: expected no feature of that id, found one; choose another id")
    earlier = [each for each in features if not _behind(each, id_, patches)]
    tree = package_releases.tree_of(wanted, package, progress)
    layout = lay_out(None, earlier, tree, Version(wanted), files, Memo(), package)
    fresh = Session(
        Path(f"{id_}@{wanted}"),
        Kind.EDIT,
        {id_: ""},
        wanted,
        Path(os.path.abspath(patches)),
        {},
        {each.id: each.source or "" for each in layout.below},
        {FOLDERS: absolute(request.patches), **({_TITLE: title} if title else {})},
        package,
    )
    return opened(fresh, layout, features, grows=True)


def _package(files: Sequence[str]) -> Package:
    """The package whose files are to be edited: the folder that the first lies in."""
    name = files[0].partition("/")[0]
    return package_named(name) if package_problem(name) is None else VLLM


def _at_hand(request: Request, place: Path) -> tuple[Feature, ...]:
    """Every feature; the folder that is written to may not be there yet, by whatever path named."""
    folders = [in_home(each) for each in request.patches]
    there = [os.path.lexists(each) or not _same(each, place) for each in folders]
    kept = tuple(each for each, is_there in zip(request.patches, there, strict=True) if is_there)
    return request._replace(patches=kept).load()


def _same(folder: str | Path, other: str | Path) -> bool:
    """Whether two paths mean one place."""
    return os.path.realpath(folder) == os.path.realpath(other)


def _behind(feature: Feature, id_: str, patches: Path) -> bool:
    """Whether a feature is applied after the new one: by its id, in the same folder."""
    return not feature.shipped and _same(feature.origin, patches) and feature.id > id_


def commit_new(
    request: Request, session: Session, id_: str, progress: Progress | None = None
) -> EditReport:
    """Make the new feature of a session's files, and end the session.

    :raises UsageError: if its base was edited, a feature of that id or another form of one below
        came meanwhile, or a file holds what a feature cannot carry; the session stays.
    :raises OverlayError: if the features cannot be read or written; the session stays.
    """
    from overlay.authoring.editing import expect_bytes
    from overlay.authoring.writing import check_folder, write_folder

    features = of_package(_at_hand(request, session.patches), session.package)
    below = tuple(each for each in features if each.id in session.below)
    now = present(session, below, progress)
    made = next((feature for feature in features if feature.id == id_), None)
    if made is not None and now.changed and gives(made, now):
        # A commit was killed between the feature and the end of its session.
        return _committed(session, made.id, str(made.releases))
    expect_same(session, features)
    if not now.changed:
        verdict = edited(EditAction.UNCHANGED, id_, session.folder)
        return EditReport(verdict, id_, EditAction.UNCHANGED, session.release, session.folder)
    prepared, unread = _prepared(session, id_, now, below, progress)
    if prepared.folder is None:
        raise UsageError("\n".join(str(file.problem) for file in prepared.summary.problems))
    expect_bytes(check_folder(prepared.folder), now)
    place = write_folder(prepared.folder, session.patches)
    files = [AuthoredFile(path, Fate.EDITED, by_scope(own)) for path, own in prepared.hunks.items()]
    files += [AuthoredFile(path, Fate.ADDED) for path in now.changed if now.base.get(path) is None]
    report = _committed(session, id_, str(prepared.summary.releases))
    return replace(
        report,
        files=tuple(sorted(files, key=lambda file: file.path)),
        releases=str(prepared.summary.releases),
        unread=tuple(unread.items()),
        folder=place,
        merged=prepared.summary.merged,
    )


def _committed(session: Session, id_: str, releases: str) -> EditReport:
    """End a session whose feature is written."""
    emptied = remove(session)
    verdict = edited(EditAction.COMMITTED, id_, session.folder, releases, emptied=emptied)
    return EditReport(verdict, id_, EditAction.COMMITTED, session.release, session.folder)


def _prepared(
    session: Session,
    id_: str,
    now: Edited,
    below: Sequence[Feature],
    progress: Progress | None,
) -> tuple[Prepared, dict[str, str]]:
    """The feature that the edits make, tried on every known release; and those not readable."""
    from overlay.authoring.building import build, texts_with
    from overlay.authoring.locating import ReleaseTexts

    own, package = session.release, session.package
    files = [TwoTexts(path, now.base.get(path), now.now[path]) for path in now.changed]
    plain, unread = readable(own, now, package_releases.known(package), package, progress)
    syntax = Memo()
    # The session's own texts have the features below applied already.
    others = texts_with(below, plain, syntax) if below else plain
    texts = ReleaseTexts(plain.names, lambda name: now if name == own else _Tree(others, name))
    source = f"edits of {package.title} {own}"
    text = words(id_, session.notes.get(_TITLE, ""), source, package)
    return build(change_of(files, own, syntax), text, texts, {}, syntax), unread


@dataclass(frozen=True)
class _Tree:
    """One release's files."""

    texts: ReleaseTexts
    release: str

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; see ``overlay.package.Tree``."""
        return self.texts.read(self.release, path)
