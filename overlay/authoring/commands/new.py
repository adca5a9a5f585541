"""``overlay new``: what was edited in an installed vLLM becomes a feature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from overlay.authoring import releases as package_releases
from overlay.authoring.commands.edits import Made, Workshop, feature_of, survey
from overlay.authoring.free_ids import require_free
from overlay.authoring.reports.authored import NewReport, authored, made_new
from overlay.authoring.triage import FileFate
from overlay.authoring.writing import write_folder
from overlay.commands.scene import resolve
from overlay.errors import UsageError
from overlay.package import VLLM
from overlay.results import Fate
from overlay.results.invocation import command

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.commands.request import Request
    from overlay.targets.target import Progress


def new_from_edits(
    request: Request,
    id_: str,
    patches: Path,
    *,
    title: str = "",
    releases: str | None = None,
    update: bool = False,
    progress: Progress | None = None,
) -> NewReport:
    """Make a feature of the edits of an installed vLLM; the edits stay where they are.

    :param patches: the folder that the feature is written to.
    :param title: what the change does, in a line; by default made of the id.
    :param releases: as ``--releases`` takes them; with a name (``vllm-ascend==all``) they tell the
        package that was edited; default: every known release of vLLM.
    :param update: replace a feature of that id.
    :raises UsageError: if the id exists or cannot be one, the target is a file or a release, or
        what the edits were made on cannot be told.
    :raises OverlayError: if the target, its pristine text or the features cannot be read.
    """
    require_free(patches, id_, update=update)
    package, known = VLLM, None
    if releases is not None:
        package, known = package_releases.named(releases)
    target = resolve(request, package)
    if target.root is None:
        raise UsageError(
            f"{target.name}: expected an installed {package.title} or a folder that holds "
            f"{package.name}/, where files were edited; found a file or a release, which nobody "
            "edits"
        )
    surveyed = survey(request, target, target.root, progress)
    if any(feature.id == id_ for feature in surveyed.below):
        raise UsageError(
            f"{id_} is applied there and its files were edited since: choose another id, on top of "
            f"it, or take the edits over in {command('edit', id_)}"
        )
    made = feature_of(surveyed, id_, patches, title=title, releases=known, progress=progress)
    return written(surveyed, made, patches, update=update)


def written(surveyed: Workshop, made: Made, patches: Path, *, update: bool = False) -> NewReport:
    """Write a feature that was made of edits, if it is complete, and say what it is.

    :raises OverlayError, OSError: if it cannot be written.
    """
    prepared = made.prepared
    summary, folder = prepared.summary, None
    if prepared.folder is not None:
        folder = write_folder(prepared.folder, patches, update=update)
    span = None if folder is None else str(summary.releases)
    files = authored(summary.files, prepared.hunks, surveyed.stacks)
    return NewReport(
        made_new(summary.id, files, folder, span, surveyed.others or ()),
        feature=summary.id,
        target=surveyed.target.name,
        release=str(surveyed.release),
        files=files,
        outcomes=summary.outcomes,
        releases=span,
        merged=summary.merged,
        unread=made.unread,
        folder=folder,
        beside=surveyed.others or (),
    )


def found(surveyed: Workshop, feature: Feature) -> NewReport:
    """The report of a feature that holds the edits already."""
    hunks = {
        variant.patch.path: variant.patch.hunks
        for topic in feature.topics
        for variant in topic.variants
        if surveyed.release in variant.releases
    }
    added = {added.path for added in feature.added}
    fates = [
        FileFate(edit.path, Fate.ADDED if edit.path in added else Fate.EDITED)
        for edit in surveyed.edits
    ]
    files = authored(fates, hunks, surveyed.stacks)
    folder = Path(feature.origin) / feature.id
    return NewReport(
        made_new(feature.id, files, folder, str(feature.releases), surveyed.others or ()),
        feature=feature.id,
        target=surveyed.target.name,
        release=str(surveyed.release),
        files=files,
        releases=str(feature.releases),
        folder=folder,
        beside=surveyed.others or (),
    )
