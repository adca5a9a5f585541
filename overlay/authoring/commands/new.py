"""``overlay new --from-edits``: what somebody edited in a target becomes a feature.

``revert --keep-as`` keeps edits in the same way; ``new --file`` makes its feature by ``made_of``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from overlay._features.model import Feature
from overlay.authoring import releases as package_releases
from overlay.authoring.building import Prepared, StackedTexts, TwoTexts, Words, build, change_of
from overlay.authoring.commands.edit_report import (
    AuthoredFile,
    NewReport,
    authored,
    made_new,
    not_compared,
)
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.triage import FileFate
from overlay.authoring.variants import serving
from overlay.authoring.writing import check_folder, require_free, today, write_folder
from overlay.commands.request import Request
from overlay.commands.scene import resolve
from overlay.errors import PackageIndexError, TargetError, UsageError, command
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import conditions, void
from overlay.on_disk.edits import (
    MISSING,
    Beside,
    FileEdit,
    PristineFiles,
    beside,
    by_folder,
    data_edits,
    find,
    unhashed,
)
from overlay.on_disk.journal import reading
from overlay.on_disk.ledger import Ledger
from overlay.package import VLLM, Package, Tree, path_problem
from overlay.planning.matching import removed_by
from overlay.planning.planner import plan as make_plan
from overlay.planning.scope_cache import Memo
from overlay.report.progress import doing
from overlay.results import Fate, Plan
from overlay.targets import Progress, Target
from overlay.untrusted import sha256


def new_from_edits(
    request: Request,
    id_: str,
    patches: Path,
    *,
    title: str = "",
    releases: str | None = None,
    update: bool = False,
    context: int | None = None,
    removals: bool = False,
) -> NewReport:
    """Make a feature of the edits of an installed vLLM; the edits stay where they are.

    :param releases: as ``--releases`` takes them; with a name (``vllm-ascend==all``) they tell the
        package that was edited; default: every known release of vLLM.
    :param removals: whether a file that is missing was removed on purpose, and not lost.
    """
    require_free(patches, id_, update=update)
    package, names = VLLM, None
    if releases is not None:
        package, names = package_releases.names_in(releases)
    try:
        target = resolve(request, package)
    except TargetError as error:
        other = "Where another package was edited, name it: --releases NAME==VERSION"
        raise TargetError(f"{error}. {other}" if releases is None else str(error)) from error
    if target.root is None:
        raise UsageError(
            f"{target.name}: expected an installed {package.title} or a folder that holds "
            f"{package.name}/, where files were edited; found a file or a release, which nobody "
            "edits"
        )
    workshop = survey(request, target, target.root, removals=removals)
    if any(feature.id == id_ for feature in workshop.below):
        raise UsageError(
            f"{id_} is applied there and its files were edited since: choose another id, on top of "
            f"it, or take the edits over in {command('edit', id_)}"
        )
    prepared = feature_of(workshop, id_, patches, title=title, releases=names, context=context)
    return written(workshop, prepared, patches, update=update)


def written(
    workshop: Workshop, prepared: Prepared, patches: Path, *, update: bool = False
) -> NewReport:
    """Write a feature that was made of edits, if it is complete, and say what it is."""
    summary, folder = prepared.summary, None
    if prepared.folder is not None:
        folder = write_folder(prepared.folder, patches, update=update)
    return _report(
        workshop,
        summary.id,
        authored(summary.files, prepared.hunks, workshop.stacks),
        folder,
        None if folder is None else str(summary.releases),
        outcomes=summary.outcomes,
        merged=summary.merged,
        unread=prepared.unread,
        context=None if folder is None else summary.context,
        moved=summary.moved,
    )


def held_report(workshop: Workshop, feature: Feature) -> NewReport:
    """The report of a feature that holds the edits already."""
    patches = [variant.patch for _, variant in serving(feature, workshop.release)]
    hunks = {patch.path: patch.hunks for patch in patches}
    added = {added.path for added in feature.added}
    fates = [
        FileFate(edit.path, Fate.ADDED if edit.path in added else Fate.EDITED)
        for edit in workshop.edits
    ]
    files = authored(fates, hunks, workshop.stacks)
    folder = Path(feature.origin) / feature.id
    return _report(workshop, feature.id, files, folder, str(feature.releases))


def _report(
    workshop: Workshop,
    id_: str,
    files: tuple[AuthoredFile, ...],
    folder: Path | None,
    span: str | None,
    **more: Any,
) -> NewReport:
    """What was made of edits."""
    return NewReport(
        made_new(id_, files, folder, span, workshop.left_out),
        id_,
        str(workshop.release),
        files,
        releases=span,
        folder=folder,
        target=workshop.target.name,
        beside=workshop.left_out,
        warning=not_compared(workshop.target.package) if workshop.beside is None else "",
        **more,
    )


# The edits


@dataclass(frozen=True)
class Workshop:
    """A target that was edited, with what is needed to make a feature of the edits.

    :ivar edits: by path.
    :ivar below: the features that are applied and touch an edited file, in their order.
    :ivar written: path -> what the overlay wrote there, of each edited file that it patched.
    :ivar features: every feature at hand, in order.
    :ivar beside: what was changed and is no module; ``None`` where no RECORD tells it.
    :ivar lost: the files that are missing, and of which nobody said that they are to go.
    """

    target: Target
    release: Version
    ledger: Ledger | None
    pristine: PristineFiles
    edits: tuple[FileEdit, ...]
    features: tuple[Feature, ...]
    folders: tuple[Path, ...]
    below: tuple[Feature, ...] = ()
    written: Mapping[str, bytes | None] = field(default_factory=dict)
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    beside: tuple[Beside, ...] | None = None
    lost: tuple[FileEdit, ...] = ()
    progress: Progress | None = None

    @property
    def left_out(self) -> tuple[Beside, ...]:
        """What differs and is in no feature of the edits; a folder that is gone as one."""
        paths = [edit.path for edit in self.lost]
        present = set(self.target.record or paths).difference(paths)
        lost = [Beside(path, MISSING) for path in paths]
        added = (edit.path for edit in self.edits if edit.pristine is None)
        runs = (path for path in added if os.access(self.pristine.root / path, os.X_OK))
        modes = (Beside(path, "its mode: executable") for path in runs)
        return (*(self.beside or ()), *modes, *(by_folder(lost, present) if present else lost))

    def base(self, edit: FileEdit) -> bytes | None:
        """The text that an edit was made on."""
        return edit.pristine if edit.written is None else self.written[edit.path]


def survey(request: Request, target: Target, root: Path, *, removals: bool = False) -> Workshop:
    """Find the edits of a target, and the texts that they were made on; nothing is written.

    A file that is missing was lost: an installation that was cut off lacks some, too.  It was
    removed where the user says so, or a feature at hand removes it.

    :param removals: whether the user says so.
    :raises UsageError: if its release cannot be told, an apply was interrupted there, or the
        features that patched an edited file are not at hand as they were applied.
    :raises OverlayError: if a file or its pristine text cannot be read.
    """
    package = target.package
    release = target.release
    early = release is not None and release.is_prerelease and not package.has_candidates
    if release is None or early or release.is_devrelease:
        version = "none can be told" if release is None else f"found {release}"
        raise UsageError(
            f"{target.name}: expected a {package.title} of a final release, whose files the "
            f"edits can be compared with; {version}. Make a diff of the build's own files, such as "
            "its unpacked wheel, and these (diff -ru BUILD EDITED), and import it on those: "
            f"{command('import', 'FILE', '--id', 'ID', '--base', 'BUILD')}"
        )
    with reading(root, package=package) as interrupted:
        if interrupted is not None:
            raise UsageError(
                f"{root}: an {interrupted.action} was interrupted there; run it again first, so "
                "that what the overlay wrote can be told from edits"
            )
        ledger = ledgers.load(root, package)
        if ledger is not None and void(ledger, conditions(ledger, target.read), target.public):
            ledger = None
        pristine = PristineFiles(
            target,
            root,
            ledger,
            target.record,
            lambda: package_releases.tree_of(str(release), package, request.progress),
            package,
        )
        with doing(request.progress, f"looking for edits in {target.name}"):
            edits = find(pristine)
        record = target.record
        changed_beside: tuple[Beside, ...] | None = None
        bare = (path for path in unhashed(record) if path_problem(path, package) is not None)
        if record is not None and not any(bare):
            of_data, rest = data_edits(pristine, beside(root, record, package))
            edits = tuple(sorted((*edits, *of_data), key=lambda edit: edit.path))
            changed_beside = by_folder(rest, record)
    # The folder that is written to comes last, and may not be there yet.
    if request.patches and not os.path.lexists(request.folders[-1]):
        request = request._replace(patches=request.patches[:-1])
    features = request.authored(package)
    paths = _removed_by(features, release)
    lost = {edit for edit in edits if not (removals or edit.now is not None or edit.path in paths)}
    workshop = Workshop(
        target,
        release,
        ledger,
        pristine,
        tuple(edit for edit in edits if edit not in lost),
        features,
        request.folders,
        beside=changed_beside,
        lost=tuple(edit for edit in edits if edit in lost),
        progress=request.progress,
    )
    return _with_patched(workshop) if any(edit.written for edit in workshop.edits) else workshop


def _removed_by(features: Sequence[Feature], release: Version) -> set[str]:
    return {
        variant.patch.path
        for feature in features
        for _, variant in serving(feature, release)
        if removed_by(variant.patch.hunks)
    }


def _with_patched(workshop: Workshop) -> Workshop:
    """Work out what the overlay wrote to the edited files: it is planned again, and compared."""
    assert workshop.ledger is not None
    touched = {edit.path: edit for edit in workshop.edits if edit.written is not None}
    patching = {
        entry.result.feature: entry
        for entry in workshop.ledger.applied
        if any(file.path in touched for file in entry.result.files)
    }
    below = tuple(feature for feature in workshop.features if feature.id in patching)
    below_plan = _plan(below, workshop)
    written = {change.path: change.after for change in below_plan.changes}
    for path, edit in touched.items():
        data = written.get(path)
        # What was edited before the overlay came is part of what it wrote, and of the edit.
        if data is None or (not edit.before and sha256(data) != edit.written):
            origin = " and ".join(f"{name} ({entry.origin})" for name, entry in patching.items())
            raise UsageError(
                f"{path}: it was edited after the overlay had patched it, and what the overlay "
                f"wrote is needed: expected the patches that were applied, {origin}; those at hand "
                "make another text. Name their folders with --patches, in the form in which they "
                "were applied"
            )
    stacks = {
        path: tuple(
            name
            for name, entry in patching.items()
            if any(file.path == path for file in entry.result.files)
        )
        for path in touched
    }
    return replace(workshop, below=below, written=written, stacks=stacks)


def _plan(features: Sequence[Feature], workshop: Workshop) -> Plan:
    return make_plan(features, workshop.pristine, workshop.release, None, Memo())


# A feature of the edits


def feature_of(
    workshop: Workshop,
    id_: str,
    patches: Path,
    *,
    title: str = "",
    releases: Sequence[str] | None = None,
    context: int | None = None,
) -> Prepared:
    """The feature that makes the edits of a target, tried on releases; nothing is written.

    :param patches: the folder of patches that it is for: the order of features depends on it.
    """
    release, package = str(workshop.release), workshop.target.package
    files = [TwoTexts(edit.path, workshop.base(edit), edit.now) for edit in workshop.edits]
    text = words(id_, title, f"edits of an installed {package.title} {release}", package)
    tree: Tree = workshop.pristine
    if workshop.below:
        pristine = ReleaseTexts((release,), lambda _: workshop.pristine)
        tree = StackedTexts(workshop.below, pristine, Memo()).open(release)
    names = package_releases.names_of(package) if releases is None else releases
    prepared = made_of(
        files, tree, release, text, workshop.below, names, workshop.progress, context
    )
    if prepared.folder is not None:
        _expect_edits(workshop, check_folder(prepared.folder), patches)
    return prepared


def made_of(
    files: Sequence[TwoTexts],
    tree: Tree,
    release: str,
    text: Words,
    below: Sequence[Feature],
    names: Sequence[str],
    progress: Progress | None,
    context: int | None = None,
) -> Prepared:
    """The feature that edits of a release make, tried on releases; nothing is written.

    :param tree: the release's files with the features below applied.
    :param names: the releases that it may serve, beside the one of the edits.
    """
    syntax = Memo()
    plain, unread = readable(release, tree, names, text.package, progress)
    trees = StackedTexts(below, plain, syntax) if below else plain
    texts = ReleaseTexts(plain.names, lambda name: tree if name == release else trees.open(name))
    change = change_of(files, release, syntax, context)
    return replace(build(change, text, texts, {}, syntax, progress), unread=unread)


def words(id_: str, title: str, source: str, package: Package = VLLM) -> Words:
    """What a feature that is made of edits says about itself."""
    return Words(
        id_,
        title or id_.replace("-", " ").capitalize(),
        title or f"{source[:1].upper()}{source[1:]}",
        "",
        f"vendor, {source}",
        "",
        today(),
        package,
    )


def readable(
    own: str, tree: Tree, candidates: Sequence[str], package: Package, progress: Progress | None
) -> tuple[ReleaseTexts, dict[str, str]]:
    """The releases to try; those that cannot be read are left out, with the reason."""
    trees: dict[str, Tree] = {own: tree}
    unread: dict[str, str] = {}
    for number, name in enumerate(candidates, 1):
        if name not in trees:
            try:
                which = f", {number} of {len(candidates)}"
                trees[name] = package_releases.tree_of(name, package, progress, which)
            except PackageIndexError as error:
                unread[name] = str(error)
    names = sorted(trees, key=Version)
    return ReleaseTexts(names, trees.__getitem__), unread


def _expect_edits(workshop: Workshop, feature: Feature, patches: Path) -> None:
    """Refuse a feature by which the features that are applied would not give the edited files.

    :raises UsageError: naming the files, and why where the plan tells.
    """
    order = _placed(feature, patches, workshop)
    feature_plan = _plan(order, workshop)
    texts = {change.path: change.after for change in feature_plan.changes}
    wrong = [
        edit.path for edit in workshop.edits if texts.get(edit.path, edit.pristine) != edit.now
    ]
    if not wrong:
        return
    reasons = [
        str(reason)
        for result in feature_plan.features
        for file in result.files
        for reason in (file.reason, *(hunk.reason for hunk in file.hunks))
        if reason is not None
    ]
    later = [other.id for other in order[order.index(feature) + 1 :]]
    advice = (
        f"{feature.id} comes before {', '.join(later)} in the order of features, on which the "
        "edits are based: choose an id that sorts behind"
        if later
        else "; ".join(dict.fromkeys(reasons)) or "please report this"
    )
    raise UsageError(
        f"{', '.join(wrong)}: applying {feature.id} would not give the edited bytes, so nothing "
        f"was written: {advice}"
    )


def _placed(feature: Feature, patches: Path, workshop: Workshop) -> list[Feature]:
    """The features below an edit with one more, in the order in which they are applied."""
    places = [os.path.realpath(folder) for folder in workshop.folders]

    def place(each: Feature) -> tuple[int, str]:
        own = patches if each is feature else Path(each.origin)
        real = places[0] if each.shipped and each is not feature else os.path.realpath(own)
        return (places.index(real) if real in places else len(places)), each.id

    other_features = (other for other in workshop.below if other.id != feature.id)
    return sorted([*other_features, feature], key=place)


# What revert needs to know


def saved(workshop: Workshop, id_: str) -> Feature | None:
    """The feature at hand that holds all edits already; ``None`` where there is none of that id."""
    feature = next((each for each in workshop.features if each.id == id_), None)
    if feature is None:
        return None
    try:
        _expect_edits(workshop, feature, Path(feature.origin))
    except UsageError as error:
        update = f", or {command('new', id_, '--from-edits', '--update')} first"
        raise UsageError(
            f"--keep-as {id_}: there is a feature of that id, and it does not hold these edits. "
            f"Choose another id{'' if feature.shipped else update}"
        ) from error
    return feature


def holder(workshop: Workshop) -> Feature | None:
    """The feature at hand that holds all edits, whatever its id; ``None`` where there is none."""
    below = {feature.id for feature in workshop.below}
    for feature in workshop.features:
        if feature.id not in below and not feature.shipped:
            try:
                _expect_edits(workshop, feature, Path(feature.origin))
            except UsageError:
                continue  # it makes other texts, or none
            return feature
    return None
