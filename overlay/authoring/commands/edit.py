"""``overlay edit`` and ``overlay new --file``: a feature as files of a release, in a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from overlay._features.model import Feature, of_package
from overlay._features.sources import SHARED, entries, shipped_folder, stray
from overlay.authoring import disk
from overlay.authoring import releases as package_releases
from overlay.authoring import session as sessions
from overlay.authoring.building import TwoTexts
from overlay.authoring.commands.edit_report import (
    AuthoredFile,
    EditAction,
    EditReport,
    authored,
    edited,
)
from overlay.authoring.commands.new import made_of, words
from overlay.authoring.editing import Edited, expect_bytes, lay_out
from overlay.authoring.editing import commit as compose_commit
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.session import DOCUMENT, Session, SessionKind, finish, from_anywhere, read
from overlay.authoring.triage import FileFate
from overlay.authoring.writing import check_folder, require_free, today, write_folder
from overlay.commands.request import FURTHER, Request
from overlay.errors import PackageIndexError, UsageError, command, did_you_mean
from overlay.package import VLLM, Package, file_problem, id_problem, package_named, package_problem
from overlay.planning.planner import plan
from overlay.planning.scope_cache import Memo
from overlay.planning.upstream import remembers
from overlay.report.progress import doing
from overlay.results import Fate
from overlay.settings import in_home
from overlay.targets import Progress
from overlay.untrusted import sha256

#: The notes of a session: the folders of patches it was begun with, and the title of a feature
#: that is not there yet.
_FOLDERS, _TITLE, _CONTEXT = "folders", "title", "context"


# Begin


def begin(
    request: Request, id_: str, release: str | None = None, more: Sequence[str] = ()
) -> EditReport:
    """Begin a session in ``./ID@RELEASE``, or lay further files into the one that is there.

    :param release: the release whose files are edited; default: the newest that the feature serves.
    """
    features = request._replace(features=(id_,)).load()
    feature = find_feature(features, id_)
    patches, package = writable_folder(feature), feature.package
    name = _release(release, package, feature)
    _expect_paths(more, package)
    features = of_package(features, package)
    earlier = features[: features.index(feature)]
    fresh = _fresh(id_, feature.source or "", name, patches, package)
    return _opened(request, fresh, feature, features, earlier, more)


def begin_new(
    request: Request,
    id_: str,
    files: Sequence[str],
    *,
    release: str | None = None,
    title: str = "",
    context: int | None = None,
) -> EditReport:
    """Lay a release's files into ``./ID@RELEASE``, to be edited and committed as a new feature.

    :param request: the feature is for the last of its patches folders, which may not exist yet.
    :param files: paths of the release, whose first folder is its package (``vllm/...``);
        of a session that is there: further ones.
    :param release: default: the newest known one.
    """
    patches = in_home(request.patches[-1])
    require_free(patches, id_, update=False, instead=f"{command('edit', id_)}, which edits that")
    first = files[0].partition("/")[0]
    package = package_named(first) if package_problem(first) is None else VLLM
    _expect_paths(files, package)
    name = _release(release, package)
    everything = _at_hand(request, patches)
    if any(feature.id == id_ for feature in everything):
        raise UsageError(f"{id_}: expected no feature of that id, found one; choose another id")
    features = of_package(everything, package)
    earlier = [  # those behind the new one are of the same folder
        each
        for each in features
        if each.shipped or each.id <= id_ or not _same(each.origin, patches)
    ]
    fresh = _fresh(id_, "", name, Path(os.path.abspath(patches)), package)
    notes = {_TITLE: title} if title else {}
    notes |= {} if context is None else {_CONTEXT: str(context)}
    fresh = replace(fresh, notes=notes)
    return _opened(request, fresh, None, features, earlier, files)


def _fresh(id_: str, source: str, release: str, patches: Path, package: Package) -> Session:
    folder, own = Path(f"{id_}@{release}"), {id_: source}
    return Session(folder, SessionKind.EDIT, own, release, (patches,), package=package)


def _opened(
    request: Request,
    fresh: Session,
    feature: Feature | None,
    features: Sequence[Feature],
    earlier: Sequence[Feature],
    more: Sequence[str],
) -> EditReport:
    """Begin a session, or lay further files into the one that is in its folder.

    :param more: files that are wanted beside those it patches.
    """
    release, package = fresh.release, fresh.package
    tree = package_releases.tree_of(release, package, request.progress)
    with doing(request.progress, f"laying out files of {package.title} {release}"):
        layout = lay_out(feature, earlier, tree, Version(release), more, Memo(), package)
    folders = "\n".join(os.path.abspath(each) for each in request.patches)
    below = {each.id: each.source or "" for each in layout.below}
    session = replace(fresh, below=below, notes={_FOLDERS: folders, **fresh.notes})
    action = EditAction.BEGUN
    if more and (session.folder / DOCUMENT).exists():
        action = EditAction.GROWN
        there = read(session.folder, SessionKind.EDIT)
        _expect_same(there, features)
        new = {path: data for path, data in layout.texts.items() if path not in there.files}
        bases = {path: data for path, data in layout.base.items() if path not in there.files}
        session = sessions.revise(replace(there, below={**there.below, **below}), new, bases)
    else:
        session = sessions.begin(session, layout.texts, layout.base)
    paths = sorted(path for path, file in session.files.items() if file.laid is not None)
    files = tuple(AuthoredFile(path, Fate.TO_EDIT) for path in paths)
    return _report(session, action, files=files, without=layout.without)


def _report(
    session: Session, action: EditAction, *, emptied: bool = True, **more: Any
) -> EditReport:
    (id_,) = session.features
    releases, unedited = more.get("releases"), more.get("left", ())
    verdict = edited(action, id_, session.folder, releases, unedited, emptied=emptied)
    return EditReport(verdict, id_, session.release, action=action, session=session.folder, **more)


def find_feature(features: Sequence[Feature], id_: str) -> Feature:
    """The feature with an id."""
    feature = next((feature for feature in features if feature.id == id_), None)
    if feature is None:
        ids = [feature.id for feature in features]
        raise UsageError(
            f"{id_}: expected one of {', '.join(ids) or 'none'}"
            f"{did_you_mean([id_], ids, FURTHER)}, or begin a new one with "
            f"{command('new', 'ID' if id_problem(id_) else id_, '--file', 'vllm/...')}"
        )
    return feature


def writable_folder(feature: Feature) -> Path:
    """The folder of patches that a feature is in."""
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


def _expect_paths(paths: Sequence[str], package: Package) -> None:
    for path in paths:
        if (problem := file_problem(path, package)) is not None:
            raise UsageError(f"--file: {problem}; name a file such as {package.name}/NAME.py")


def _release(text: str | None, package: Package, feature: Feature | None = None) -> str:
    """The release to edit on; by default the newest known one that a feature serves.

    :param text: as a bare version or with the name of the package (``vllm-ascend==0.23.0``).
    """
    if text is not None:
        try:
            return package_releases.version_of(text, package).public
        except UsageError as error:
            raise UsageError(f"--release: {error}") from error
    names = package_releases.names_of(package)
    if feature is not None:
        names = tuple(name for name in names if Version(name) in feature.releases)
        return names[-1] if names else str(feature.releases.last)
    if not names:
        raise UsageError(
            f"expected --release: the overlay knows no release of {package.title}; name one, "
            f"such as {package.distribution}==1.0"
        )
    return names[-1]


def _at_hand(request: Request, place: Path) -> tuple[Feature, ...]:
    """Every feature; the folder that is written to may not be there yet, by whatever path named."""
    folders = [in_home(each) for each in request.patches]
    there = [os.path.lexists(each) or not _same(each, place) for each in folders]
    readable = tuple(
        each for each, is_there in zip(request.patches, there, strict=True) if is_there
    )
    return request._replace(patches=readable).load()


def _same(folder: str | Path, other: str | Path) -> bool:
    return os.path.realpath(folder) == os.path.realpath(other)


# Abort and commit


def abort(folder: Path) -> EditReport:
    """Remove a session with all that is in it."""
    session = read(from_anywhere(folder), SessionKind.EDIT)
    sessions.abort(session)
    return _report(session, EditAction.ABORTED)


def commit(request: Request, folder: Path, context: int | None = None) -> EditReport:
    """Make the feature of a session's files, and end the session.

    :param context: how many lines of context the hunks of the edited files keep; default: what the
        session was begun with, or as many as they need.
    :raises UsageError: if there is no session, its base was edited, the feature, one below it or
        one of a new feature's id is another one by now, or a file holds what a feature cannot
        carry; the session stays.
    :raises OverlayError: if the features cannot be read or written; the session stays.
    """
    session = read(from_anywhere(folder), SessionKind.EDIT)
    if context is not None:
        session = replace(session, notes={**session.notes, _CONTEXT: str(context)})
    ((id_, source),) = session.features.items()
    folders = tuple(each for each in session.notes.get(_FOLDERS, "").split("\n") if each)
    request = request._replace(patches=(*request.patches, *folders))
    if source:
        features = request.authored(session.package)
        feature: Feature | None = find_feature(features, id_)
        if session.untouched():
            _expect_same(session, features)
            return _report(session, EditAction.UNCHANGED)
    else:
        features = of_package(_at_hand(request, session.patches[0]), session.package)
        feature = next((feature for feature in features if feature.id == id_), None)
    below = tuple(each for each in features if each.id in session.below)
    now = _present(session, below, request.progress)
    changed = bool(source or now.changed)
    if changed and feature is not None and feature.source != source and _gives(feature, now):
        # A commit was killed between the feature and the end of its session.
        span = str(feature.releases)
        report = _report(session, EditAction.COMMITTED, emptied=finish(session), releases=span)
        return replace(report, releases=None)
    _expect_same(session, features)
    if not changed:
        return _report(session, EditAction.UNCHANGED)
    if feature is None:
        written = _create(session, id_, below, now, request.progress)
    else:
        with doing(request.progress, f"making the patches of {id_} again"):
            written = _changed(session, feature, below, now, request.progress)
    return _report(session, EditAction.COMMITTED, emptied=finish(session), **written)


def _expect_same(session: Session, features: Sequence[Feature]) -> None:
    sources = {feature.id: feature.source or "" for feature in features}
    before = {**session.below, **session.features}
    changed = [name for name, source in before.items() if sources.get(name, "") != source]
    if changed:
        raise UsageError(
            f"{session.folder}: {', '.join(changed)} changed since the session began, and its "
            "files are made on what was there then. Nothing was written and the session is as it "
            "was; put the patches back, or begin another session elsewhere and copy your edits"
        )


def _present(session: Session, below: tuple[Feature, ...], progress: Progress | None) -> Edited:
    """What the session's files hold, and what they are compared with."""
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
        below_plan = plan(below, tree, Version(session.release), syntax=Memo())
        under = {change.path: change.after for change in below_plan.changes}
        base |= {path: under.get(path, tree.read(path)) for path in new}
    changed = [path for path in new if now[path] != base[path]]
    for path, file in session.files.items():
        data = now[path]
        if (None if data is None else sha256(data)) != file.laid:
            changed.append(path)
    return Edited(Version(session.release), base, now, tuple(sorted(changed)))


def _gives(feature: Feature, edits: Edited) -> bool:
    feature_plan = plan([feature], edits, edits.release)
    texts = {change.path: change.after for change in feature_plan.changes}
    return all(texts.get(path, edits.base.get(path)) == now for path, now in edits.now.items())


def _context(session: Session) -> int | None:
    note = session.notes.get(_CONTEXT, "")
    return int(note) if note.isascii() and note.isdecimal() and len(note) <= 4 else None


# What is written; both give the further fields of the report


def _create(
    session: Session, id_: str, below: Sequence[Feature], now: Edited, progress: Progress | None
) -> dict[str, Any]:
    """Make and write a feature that is not there yet."""
    release, package = session.release, session.package
    source = f"edits of {package.title} {release}"
    text = words(id_, session.notes.get(_TITLE, ""), source, package)
    files = [TwoTexts(path, now.base.get(path), now.now[path]) for path in now.changed]
    names = package_releases.names_of(package)
    prepared = made_of(files, now, release, text, below, names, progress, _context(session))
    summary = prepared.summary
    if prepared.folder is None:
        raise UsageError("\n".join(str(file.problem) for file in summary.problems))
    expect_bytes(check_folder(prepared.folder), now)
    return {
        "folder": write_folder(prepared.folder, session.patches[0]),
        "files": authored(summary.files, prepared.hunks),
        "releases": str(summary.releases),
        "unread": prepared.unread,
        "merged": summary.merged,
    }


def _changed(
    session: Session,
    feature: Feature,
    below: Sequence[Feature],
    now: Edited,
    progress: Progress | None,
) -> dict[str, Any]:
    """Write a feature as its session has it now; the parameters as for ``_create``."""
    (patches,), id_ = session.patches, feature.id
    trees = package_releases.texts_of((), session.package, progress)
    unread: dict[str, str] = {}
    # Nothing of the feature, old or new, is applied to those that have it by memory.
    names = package_releases.names_of(session.package)
    served = [name for name in names if not remembers(feature, Version(name))]
    form = compose_commit(
        feature,
        disk.contents(entries(patches)[id_]),
        now,
        _fits(trees, unread, below, now.changed),
        served,
        today(),
        _context(session),
    )
    disk.replace_features(patches, [disk.NewFolder(id_, form.files, whole=False)])
    fates = [
        *(FileFate(path, Fate.EDITED if own else Fate.OWN) for path, own in form.hunks.items()),
        *(FileFate(path, Fate.ADDED) for path in form.added),
        *(FileFate(path, Fate.REMOVED) for path in form.removed),
    ]
    return {
        "folder": patches / id_,
        "files": authored(fates, form.hunks),
        "releases": str(form.releases),
        "left": form.unedited,
        "unread": unread,
        "merged": None if feature.merged is None else str(feature.merged),
    }


def _fits(
    trees: ReleaseTexts, unread: dict[str, str], below: Sequence[Feature], paths: Sequence[str]
) -> Callable[[Feature, str], bool]:
    """Whether a form of the feature lands on a release, in the files that were edited."""
    memo = Memo()

    def fits(feature: Feature, release: str) -> bool:
        if release in unread:
            return False
        try:
            tree = trees.open(release)
        except PackageIndexError as error:
            unread[release] = str(error)
            return False
        trial = plan([*below, feature], tree, Version(release), syntax=memo)
        own = trial.features[-1]
        return not any(file.state.needs_attention for file in own.files if file.path in paths)

    return fits
