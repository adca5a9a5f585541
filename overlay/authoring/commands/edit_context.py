"""``overlay edit ID --context N``: give a feature's hunks another number of lines of context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from packaging.version import Version

from overlay._features.model import Feature, Hunk, Topic, Variant, of_package
from overlay._features.sources import entries
from overlay.authoring import disk
from overlay.authoring import releases as package_releases
from overlay.authoring.commands.edit import find_feature, writable_folder
from overlay.authoring.context import with_sides
from overlay.authoring.porting import Porter
from overlay.authoring.reports.authored import EditAction, EditReport, authored, context_changed
from overlay.authoring.triage import FileFate
from overlay.authoring.variants import patch_file, with_base_has
from overlay.authoring.writing import check_files, render_patch
from overlay.commands.request import Request
from overlay.planning.attempt import Texts, attempt
from overlay.planning.scope_cache import Memo
from overlay.results import Fate
from overlay.targets.target import Progress


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
                changed[patch_file(topic, variant)] = form.data
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
    """A variant's patch file with another context."""

    hunks: tuple[Hunk, ...]
    data: bytes


@dataclass(frozen=True)
class _Work:
    """What all variants of a feature share.

    :ivar earlier: the features that are applied before it; :ivar number: lines of context.
    """

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
        headers = {**patch.headers, "Last-Update": datetime.now().astimezone().date().isoformat()}
        if "Base" in headers and "Tells-Nothing" not in headers:
            headers = with_base_has(headers, hunks, before)
        data = render_patch(headers, patch.path, hunks).encode("utf-8", "surrogateescape")
        return _Form(hunks, data)

    def _text(self, topic: Topic, variant: Variant, release: str) -> bytes | None:
        return self.porter.text_for(self.feature, topic, variant, release, self.earlier)[0]
