"""``overlay edit --rename``, ``--fold``, ``--split``, ``--context``: no editing by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

from packaging.version import Version

from overlay._features.model import Feature, Hunk, Topic, Variant, of_package
from overlay._features.sources import entries, unread
from overlay.authoring import disk
from overlay.authoring import releases as package_releases
from overlay.authoring.commands.edit import find_feature, writable_folder
from overlay.authoring.commands.edit_report import EditAction, EditReport, authored, context_changed
from overlay.authoring.context import with_sides
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import Porter
from overlay.authoring.pruning import groups_of
from overlay.authoring.reshaping import Files, folded, needing, renamed, split
from overlay.authoring.triage import FileFate
from overlay.authoring.variants import patch_file, with_base_has
from overlay.authoring.writing import check_files, patch_bytes, require_free, today
from overlay.commands.request import Request
from overlay.errors import UsageError, command
from overlay.planning.attempt import Texts, attempt
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import Syntax
from overlay.report import Report
from overlay.report.codes import Code, Verdict
from overlay.report.lines import Line, count, enumeration, labelled
from overlay.report.progress import counting
from overlay.results import Change, Fate
from overlay.targets import Progress


@dataclass(frozen=True)
class ReshapeReport(Report):
    """What became of features that were renamed, folded or split."""

    _command: ClassVar[str] = "edit"
    _key: ClassVar[str] = "reshape"
    folder: Path
    written: tuple[str, ...]
    removed: tuple[str, ...]

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """What was written and removed."""
        yield labelled(0, "written:  ", enumeration(list(self.written)))
        if self.removed:
            yield labelled(0, "removed:  ", enumeration(list(self.removed)))


def rename(request: Request, id_: str, new: str) -> ReshapeReport:
    """Give a feature another id; the order of features follows the spelling of ids."""
    folder, features = _at_hand(request, id_)
    require_free(folder, new, update=False, option="--rename")
    changed = {new: renamed(_files(folder, id_), new)}
    for feature in features:
        if feature.id != id_ and not feature.shipped and Path(feature.origin) == folder:
            files = needing(_files(folder, feature.id), id_, new)
            changed |= {} if files is None else {feature.id: files}
    return _written(request, folder, features, changed, (id_,), f"Renamed {id_} to {new}")


def fold(request: Request, id_: str, other: str) -> ReshapeReport:
    """Make one feature of two of a folder; it keeps the id and the words of the first."""
    folder, features = _at_hand(request, id_)
    second = find_feature(features, other)
    if writable_folder(second) != folder or id_ == other:
        raise UsageError(f"--fold {other}: expected another feature of {folder}")
    first = find_feature(features, id_)
    if first.package != second.package:
        raise UsageError(f"--fold {other}: expected a feature for {first.package.title}")
    pair = sorted((first, second), key=features.index)
    files = folded(pair[0], pair[1], [_files(folder, each.id) for each in pair], id_)
    changed = {id_: files}
    for feature in features:
        if feature.id not in (id_, other) and writable_in(feature, folder):
            needs = needing(_files(folder, feature.id), other, id_)
            changed |= {} if needs is None else {feature.id: needs}
    return _written(request, folder, features, changed, (other,), f"Folded {other} into {id_}")


def split_off(
    request: Request, id_: str, topics: Sequence[str], new: str, title: str = ""
) -> ReshapeReport:
    """Make a feature of some topics of another one."""
    folder, features = _at_hand(request, id_)
    require_free(folder, new, update=False, option="--into")
    rest, files = split(find_feature(features, id_), _files(folder, id_), topics, new, title)
    what = f"Split {count(len(topics), 'topic')} of {id_} off into {new}"
    return _written(request, folder, features, {id_: rest, new: files}, (), what)


def writable_in(feature: Feature, folder: Path) -> bool:
    """Whether a feature is one of a folder of the user's own."""
    return not feature.shipped and Path(feature.origin) == folder


def _at_hand(request: Request, id_: str) -> tuple[Path, tuple[Feature, ...]]:
    every = request._replace(features=()).load()
    feature = find_feature(every, id_)
    return writable_folder(feature), of_package(every, feature.package)


def _files(folder: Path, id_: str) -> Files:
    files = disk.contents(entries(folder)[id_])
    return {name: data for name, data in files.items() if unread(name) is None}


def _written(
    request: Request,
    folder: Path,
    features: tuple[Feature, ...],
    changed: Mapping[str, Files],
    removed_ids: tuple[str, ...],
    what: str,
) -> ReshapeReport:
    """Write features whose form changed, once every release is known to get the same bytes."""
    touched = {*changed, *removed_ids}
    before = [feature for feature in features if feature.id in touched]
    origin, shared = before[0].origin, before[0].shared_modules()
    new = [
        replace(check_files(id_, files, shared=shared), origin=origin)
        for id_, files in changed.items()
    ]
    at = features.index(before[0])
    ours = [each for each in features if writable_in(each, folder) and each.id not in touched]
    foreign = [each for each in features if not writable_in(each, folder)]
    head = [each for each in foreign if features.index(each) < at]
    after = (
        *head,
        *sorted([*ours, *new], key=lambda each: each.id),
        *(each for each in foreign if each not in head),
    )
    names = package_releases.names_of(before[0].package)
    texts = package_releases.texts_of(names, before[0].package, request.progress)
    with counting(request.progress, "compared", len(names), "release") as step:
        _expect_same(features, after, touched, texts, step)
    disk.replace_features(
        folder,
        [disk.NewFolder(id_, files) for id_, files in changed.items()],
        [id_ for id_ in removed_ids if id_ not in changed],
    )
    text = f"{what}: every known release gets the same bytes; {command('check')} tries it."
    return ReshapeReport(Verdict(Code.RESHAPED, text), folder, tuple(changed), removed_ids)


def _expect_same(
    before: Sequence[Feature],
    after: Sequence[Feature],
    touched: set[str],
    texts: ReleaseTexts,
    step: Callable[[], None],
) -> None:
    """Refuse another form of features by which a release would get other bytes."""
    syntax = Memo()
    for name in texts.names:
        old, new = (_bytes(each, touched, texts, name, syntax) for each in (before, after))
        if old != new:
            paths = sorted({change.path for change in old ^ new})
            raise UsageError(
                f"{enumeration(paths) or 'its features'}: {name} would get something else, since "
                "features that change the same lines come in another order, or a range became "
                "narrower. Nothing was written; choose an id that sorts where it did, or change "
                "the ranges first"
            )
        step()


def _bytes(
    features: Sequence[Feature],
    touched: set[str],
    texts: ReleaseTexts,
    release: str,
    syntax: Syntax,
) -> set[Change]:
    """What a release gets of the features that are touched and those that share a file with them.

    Where one of them needs somebody, nothing is applied, in both forms alike.
    """
    changes: set[Change] = set()
    for group in groups_of(features):
        if touched & {feature.id for feature in group}:
            changes |= {*texts.plan(group, release, syntax).changes}
    return changes


# Another context


def keep_context(
    request: Request, id_: str, number: int, progress: Progress | None = None
) -> EditReport:
    """Write a feature's hunks with so many lines of context, where so many tell the place.

    On each release on which a variant landed it makes the same text as before; one of which that
    is not so keeps its hunks.
    """
    features = request._replace(features=(id_,)).load()
    feature = find_feature(features, id_)
    patches = writable_folder(feature)
    same = of_package(features, feature.package)
    names = package_releases.names_of(feature.package)
    porter = Porter(package_releases.texts_of(names, feature.package, progress), Memo())
    work = _Work(porter, feature, same[: same.index(feature)], number)
    files = disk.contents(entries(patches)[id_])
    changed: dict[str, bytes] = {}
    hunks: dict[str, tuple[Hunk, ...]] = {}
    for topic in feature.topics:
        for variant in topic.variants:
            if (form := work.form(topic, variant)) is not None:
                changed[patch_file(variant)] = form.data
                hunks[variant.patch.path] = form.hunks
    if changed:
        check_files(id_, {**files, **changed}, shared=feature.shared_modules())
        disk.replace_features(patches, [disk.NewFolder(id_, changed, whole=False)])
    folder = patches / id_
    return EditReport(
        context_changed(id_, folder, number, len(changed), str(feature.releases)),
        id_,
        str(feature.releases.last),
        files=authored([FileFate(path, Fate.EDITED) for path in hunks], hunks),
        releases=str(feature.releases) if changed else None,
        folder=folder if changed else None,
        action=EditAction.COMMITTED if changed else EditAction.UNCHANGED,
        session=folder,
    )


class _Form(NamedTuple):
    hunks: tuple[Hunk, ...]
    data: bytes


@dataclass(frozen=True)
class _Work:
    """What all variants of a feature share."""

    porter: Porter
    feature: Feature
    earlier: Sequence[Feature]
    number: int

    def form(self, topic: Topic, variant: Variant) -> _Form | None:
        """A variant with that context; ``None`` where it stays as it is."""
        patch = variant.patch
        names = [n for n in self.porter.texts.names if Version(n) in variant.releases]
        base = patch.headers.get("Base") or (names[-1] if names else str(variant.releases.last))
        before = self._text(topic, variant, base)
        if patch.retired or before is None:
            return None
        hunks = tuple(with_sides(before, patch.hunks, self.number, self.porter.syntax))
        if [hunk.lines for hunk in hunks] == [hunk.lines for hunk in patch.hunks]:
            return None
        answers = Texts(self.porter.syntax)
        for text in {self._text(topic, variant, name) for name in (*names, base)}:
            after = attempt(patch, text, answers).after
            form = patch._replace(hunks=hunks)
            if after is not None and attempt(form, text, answers).after != after:
                return None
        headers = {**patch.headers, "Last-Update": today()}
        if "Base" in headers and "Tells-Nothing" not in headers:
            headers = with_base_has(headers, hunks, before)
        return _Form(hunks, patch_bytes(headers, patch.path, hunks))

    def _text(self, topic: Topic, variant: Variant, release: str) -> bytes | None:
        return self.porter.text_for(self.feature, topic, variant, release, self.earlier)[0]
