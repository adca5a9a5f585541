"""``revert --keep-as``: the edits of a target become a feature before they are taken out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from overlay._features.model import Feature
from overlay.authoring.commands.edit_report import NewReport, not_compared
from overlay.authoring.commands.new import (
    Workshop,
    feature_of,
    held_report,
    holder,
    saved,
    survey,
    written,
)
from overlay.authoring.writing import expect_id, require_free
from overlay.commands.request import Request
from overlay.commands.revert import Keep, Kept
from overlay.commands.scene import root_of
from overlay.errors import OverlayError, UsageError, command
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.edits import folders_of
from overlay.on_disk.journal import reading
from overlay.report.lines import enumeration, was_were
from overlay.results import Change
from overlay.targets import Target


def keep(request: Request, targets: Sequence[Target], keep_as: Keep) -> Kept:
    """Make the feature of the edits, unless there is one that holds them; a target stays as it is.

    A feature is for one package.  Where several were edited, all but one of them must have features
    at hand that hold their edits.
    """
    expect_id(keep_as.id, "--keep-as")
    workshops, notes = _surveyed(request, targets)
    edited = [workshop for workshop in workshops if workshop.edits]
    with_others = [workshop for workshop in workshops if workshop.beside]
    notes += [
        not_compared(workshop.target.package) for workshop in workshops if workshop.beside is None
    ]
    beside = tuple((o.path, o.what) for workshop in with_others for o in workshop.beside or ())
    titles = enumeration([workshop.target.package.title for workshop in with_others])
    lost = [edit.path for workshop in workshops for edit in workshop.lost]
    if lost:
        notes.append(
            f"{enumeration(lost, most=3)} {was_were(lost)} missing, perhaps lost, so no feature "
            "removes it: `overlay new ID --from-edits --removals` makes one before a revert"
        )
    edits = {
        workshop.target.package.name: [
            Change(edit.path, edit.now, edit.pristine) for edit in (*workshop.edits, *workshop.lost)
        ]
        for workshop in workshops
    }
    if not edited:
        what = "no module" if beside else "nothing"
        looked_at = enumeration([workshop.target.package.title for workshop in workshops])
        notes.append(f"{what} was edited in {looked_at}, so no feature was made")
        return Kept(edits, None, None, targets[0], tuple(notes), beside, titles)
    holders = {id(workshop): saved(workshop, keep_as.id) for workshop in edited}
    if len(edited) > 1:
        for workshop in edited:
            holders[id(workshop)] = holders[id(workshop)] or holder(workshop)
    free = [workshop for workshop in edited if holders[id(workshop)] is None]
    if len(free) > 1:
        raise UsageError(_several(free, keep_as.id))
    of_id = [each for each in edited if (same := holders[id(each)]) and same.id == keep_as.id]
    own = [*free, *of_id, *edited][0]
    for workshop in edited:
        feature = holders[id(workshop)]
        if workshop is not own and feature is not None:
            title = workshop.target.package.title
            notes.append(f"the edits of {title} are kept in {Path(feature.origin) / feature.id}")
    report = _report(own, holders[id(own)], keep_as)
    notes += _emptied(edited)
    return Kept(edits, report, report.folder, own.target, tuple(notes), beside, titles)


def _emptied(edited: Sequence[Workshop]) -> list[str]:
    """A note of the folders that the edits brought, and that stay without their modules."""
    stay: set[str] = set()
    for workshop in edited:
        record = workshop.target.record or ()
        new_paths = [edit.path for edit in workshop.edits if edit.pristine is None]
        stay |= folders_of(new_paths) - folders_of(record) if record else set()
    text = enumeration(sorted(f"{folder}/" for folder in stay))
    return [f"modules are taken out of {text}, and no folder is removed"] if stay else []


def _surveyed(request: Request, targets: Sequence[Target]) -> tuple[list[Workshop], list[str]]:
    """The packages with their edits, and a note for each of which they cannot be told.

    A package that the overlay did not patch loses nothing by a revert: it is passed over where its
    edits cannot be told, unless it is the only one.
    """
    workshops, notes, errors = [], [], []
    for target in targets:
        root = root_of(target, "revert")
        try:
            workshops.append(survey(request, target, root))
        except OverlayError as error:
            with reading(root, package=target.package):
                if ledgers.load(root, target.package) is not None:
                    raise
            errors.append(error)
            notes.append(f"{target.package.title} was not looked at for edits: {error}")
    if not any(workshop.edits for workshop in workshops) and errors:
        raise errors[0]
    return workshops, notes


def _report(own: Workshop, feature: Feature | None, keep_as: Keep) -> NewReport:
    """The feature that holds the edits: the one that does already, or else a new one."""
    if feature is not None:
        return held_report(own, feature)
    again = command("new", keep_as.id, "--from-edits", "--update")
    replace = f"{again} first, which replaces it"
    require_free(keep_as.patches, keep_as.id, update=False, instead=replace)
    return written(own, feature_of(own, *keep_as), keep_as.patches)


def _several(free: Sequence[Workshop], id_: str) -> str:
    """The refusal of edits of several packages, with the commands that go on."""
    titles = [workshop.target.package.title for workshop in free]
    where = "; ".join(
        f"{workshop.target.package.title}: {enumeration([e.path for e in workshop.edits], most=3)}"
        for workshop in free
    )
    scopes = map(_scope, free[1:])
    commands = [str(command("new", "OTHER", "--from-edits", "--releases", each)) for each in scopes]
    return (
        f"--keep-as {id_}: expected edits of one package, since a feature is for one; found those "
        f"of {enumeration(titles)} ({where}). Run {enumeration(commands)} first: edits that a "
        "feature holds are taken out, too"
    )


def _scope(workshop: Workshop) -> str:
    """The releases by which ``new --from-edits`` knows a package."""
    package = workshop.target.package
    return f"{package.distribution}=={'all' if package.releases else workshop.release}"
