"""What somebody edited in a target, as a feature: ``new --from-edits`` and ``revert --keep-as``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from overlay.authoring import releases as package_releases
from overlay.authoring.building import Prepared, Words, build, texts_with
from overlay.authoring.from_texts import TwoTexts, change_of
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.writing import check_folder
from overlay.errors import PackageIndexError, UsageError
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.beside import Beside, beside
from overlay.on_disk.disk_state import conditions, void
from overlay.on_disk.edits import Edit, PristineFiles, find, unhashed
from overlay.on_disk.journal import reading
from overlay.on_disk.ledger import Ledger
from overlay.package import VLLM, Package, path_problem
from overlay.planning.planner import plan as make_plan
from overlay.planning.scope_cache import Memo
from overlay.results import Plan
from overlay.results.invocation import command
from overlay.targets.target import public
from overlay.untrusted import sha256

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.commands.request import Request
    from overlay.package import Tree
    from overlay.targets.target import Progress, Target


@dataclass(frozen=True)
class Workshop:
    """A target that was edited, with what is needed to make a feature of the edits.

    :ivar pristine: the release's own files; :ivar edits: by path.
    :ivar below: the features that are applied and touch an edited file, in their order.
    :ivar written: path -> what the overlay wrote there, of each edited file that it patched.
    :ivar stacks: path -> ids of the features that patched it.
    :ivar features: every feature at hand, in order; :ivar folders: where they come from, in order.
    :ivar others: what was changed and is no module; ``None`` where no RECORD tells it.
    """

    target: Target
    release: Version
    ledger: Ledger | None
    pristine: PristineFiles
    edits: tuple[Edit, ...]
    features: tuple[Feature, ...]
    folders: tuple[Path, ...]
    below: tuple[Feature, ...] = ()
    written: Mapping[str, bytes | None] = field(default_factory=dict)
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    others: tuple[Beside, ...] | None = None

    def base(self, edit: Edit) -> bytes | None:
        """The text that an edit was made on."""
        return edit.pristine if edit.written is None else self.written[edit.path]


def survey(
    request: Request, target: Target, root: Path, progress: Progress | None = None
) -> Workshop:
    """Find the edits of a target, and the texts that they were made on; nothing is written.

    :raises UsageError: if its release cannot be told, an apply was interrupted there, or the
        features that patched an edited file are not at hand as they were applied.
    :raises OverlayError: if a file or its pristine text cannot be read.
    """
    package = target.package
    release = target.release
    early = release is not None and release.is_prerelease and not package.has_candidates
    if release is None or early or release.is_devrelease:
        found = "none can be told" if release is None else f"found {release}"
        raise UsageError(
            f"{target.name}: expected a {package.title} of a final release, whose files the "
            f"edits can be compared with; {found}. Make a diff, and use `overlay import`"
        )
    with reading(root, package=package) as interrupted:
        if interrupted is not None:
            raise UsageError(
                f"{root}: an {interrupted.action} was interrupted there; run it again first, so "
                "that what the overlay wrote can be told from edits"
            )
        ledger = ledgers.load(root, package)
        if ledger is not None and void(ledger, conditions(ledger, target.read), public(target)):
            ledger = None
        pristine = PristineFiles(
            target,
            root,
            ledger,
            target.record,
            lambda: package_releases.tree_of(str(release), package, progress),
            package,
        )
        edits = find(pristine)
        record = target.record
        bare = (path for path in unhashed(record) if path_problem(path, package) is not None)
        others = None if record is None or any(bare) else beside(root, record, package)
    # The folder that is written to comes last, and may not be there yet.
    if request.patches and not os.path.lexists(request.folders[-1]):
        request = request._replace(patches=request.patches[:-1])
    features = request.authored(package)
    surveyed = Workshop(
        target, release, ledger, pristine, edits, features, request.folders, others=others
    )
    return _with_patched(surveyed) if any(edit.written for edit in edits) else surveyed


def _with_patched(surveyed: Workshop) -> Workshop:
    """Work out what the overlay wrote to the edited files: it is planned again, and compared."""
    assert surveyed.ledger is not None
    touched = {edit.path: edit for edit in surveyed.edits if edit.written is not None}
    patching = {
        entry.result.feature: entry
        for entry in surveyed.ledger.applied
        if any(file.path in touched for file in entry.result.files)
    }
    below = tuple(feature for feature in surveyed.features if feature.id in patching)
    planned = _plan(below, surveyed)
    written = {change.path: change.after for change in planned.changes}
    for path, edit in touched.items():
        data = written.get(path)
        # What was edited before the overlay came is part of what it wrote, and of the edit.
        if data is None or (not edit.before and sha256(data) != edit.written):
            named = " and ".join(f"{name} ({entry.origin})" for name, entry in patching.items())
            raise UsageError(
                f"{path}: it was edited after the overlay had patched it, and what the overlay "
                f"wrote is needed: expected the patches that were applied, {named}; those at hand "
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
    return replace(surveyed, below=below, written=written, stacks=stacks)


def _plan(features: Sequence[Feature], surveyed: Workshop) -> Plan:
    return make_plan(features, surveyed.pristine, surveyed.release, None, Memo())


# A feature of the edits


class Made(NamedTuple):
    """A feature made of edits, not written yet.

    :ivar unread: releases that could not be read, with the error, so that they are not served.
    """

    prepared: Prepared
    unread: Mapping[str, str]


def feature_of(
    surveyed: Workshop,
    id_: str,
    patches: Path,
    *,
    title: str = "",
    releases: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Made:
    """The feature that makes the edits of a target, tried on releases; nothing is written.

    :param patches: the folder of patches that it is for: the order of features depends on it.
    :param releases: those that it may serve; the target's own is always one.  Default: those that
        are known of its package.
    :raises UsageError: if applying it would not give the edited files byte for byte.
    """
    release, package = str(surveyed.release), surveyed.target.package
    files = [TwoTexts(edit.path, surveyed.base(edit), edit.now) for edit in surveyed.edits]
    text = words(id_, title, f"edits of an installed {package.title} {release}", package)
    tree: Tree = surveyed.pristine
    if surveyed.below:
        pristine = ReleaseTexts((release,), lambda _: surveyed.pristine)
        tree = texts_with(surveyed.below, pristine, Memo()).open(release)
    names = package_releases.known(package) if releases is None else releases
    made = made_of(files, tree, release, text, surveyed.below, names, progress)
    if made.prepared.folder is not None:
        _expect_edits(surveyed, check_folder(made.prepared.folder), patches)
    return made


def made_of(
    files: Sequence[TwoTexts],
    tree: Tree,
    release: str,
    text: Words,
    below: Sequence[Feature],
    names: Sequence[str],
    progress: Progress | None,
) -> Made:
    """The feature that edits of a release make, tried on releases; nothing is written.

    :param tree: the release's files with the features below applied.
    :param names: the releases that it may serve, beside the one of the edits.
    """
    syntax = Memo()
    plain, unread = readable(release, tree, names, text.package, progress)
    others = texts_with(below, plain, syntax) if below else plain
    texts = ReleaseTexts(plain.names, lambda name: tree if name == release else others.open(name))
    return Made(build(change_of(files, release, syntax), text, texts, {}, syntax), unread)


def words(id_: str, title: str, source: str, package: Package = VLLM) -> Words:
    """What a feature that is made of edits says about itself.

    :param title: what the change does, in a line; by default made of the id.
    :param source: where the edits were made.
    """
    return Words(
        id_,
        title or id_.replace("-", " ").capitalize(),
        title or f"{source[:1].upper()}{source[1:]}",
        "",
        f"vendor, {source}",
        "",
        datetime.now().astimezone().date().isoformat(),
        package,
    )


def readable(
    own: str, tree: Tree, wanted: Sequence[str], package: Package, progress: Progress | None
) -> tuple[ReleaseTexts, dict[str, str]]:
    """The releases to try; those that cannot be read are left out, with the reason.

    :param own: the release on which the edits were made, and ``tree`` its files.
    """
    trees: dict[str, Tree] = {own: tree}
    unread: dict[str, str] = {}
    for name in wanted:
        if name not in trees:
            try:
                trees[name] = package_releases.tree_of(name, package, progress)
            except PackageIndexError as error:
                unread[name] = str(error)
    names = sorted(trees, key=Version)
    return ReleaseTexts(names, trees.__getitem__), unread


def _expect_edits(surveyed: Workshop, feature: Feature, patches: Path) -> None:
    """Refuse a feature by which the features that are applied would not give the edited files.

    :raises UsageError: naming the files, and why where the plan tells.
    """
    order = _placed(feature, patches, surveyed)
    planned = _plan(order, surveyed)
    made = {change.path: change.after for change in planned.changes}
    wrong = [edit.path for edit in surveyed.edits if made.get(edit.path, edit.pristine) != edit.now]
    if not wrong:
        return
    reasons = [
        str(reason)
        for result in planned.features
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


def _placed(feature: Feature, patches: Path, surveyed: Workshop) -> list[Feature]:
    """The features below an edit with one more, in the order in which they are applied."""
    places = [os.path.realpath(folder) for folder in surveyed.folders]

    def place(each: Feature) -> tuple[int, str]:
        own = patches if each is feature else Path(each.origin)
        real = places[0] if each.shipped and each is not feature else os.path.realpath(own)
        return (places.index(real) if real in places else len(places)), each.id

    others = (other for other in surveyed.below if other.id != feature.id)
    return sorted([*others, feature], key=place)


# What revert needs to know


def saved(surveyed: Workshop, id_: str) -> Feature | None:
    """The feature at hand that holds all edits already; ``None`` where there is none of that id.

    :raises UsageError: if there is one, and it does not hold them.
    """
    feature = next((each for each in surveyed.features if each.id == id_), None)
    if feature is None:
        return None
    try:
        _expect_edits(surveyed, feature, Path(feature.origin))
    except UsageError as error:
        update = f", or {command('new', id_, '--from-edits', '--update')} first"
        raise UsageError(
            f"--keep-as {id_}: there is a feature of that id, and it does not hold these edits. "
            f"Choose another id{'' if feature.shipped else update}"
        ) from error
    return feature


def holder(surveyed: Workshop) -> Feature | None:
    """The feature at hand that holds all edits, whatever its id; ``None`` where there is none."""
    below = {feature.id for feature in surveyed.below}
    for feature in surveyed.features:
        if feature.id not in below and not feature.shipped:
            try:
                _expect_edits(surveyed, feature, Path(feature.origin))
            except UsageError:
                continue  # it makes other texts, or none
            return feature
    return None
