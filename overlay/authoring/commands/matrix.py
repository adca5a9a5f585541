"""``overlay log --matrix``: every feature on every release, and how a port would land elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from packaging.version import Version

from overlay.authoring.releases import package_of
from overlay.authoring.reports.history import Cell, Elsewhere, MatrixReport, Row, matrix_of
from overlay.commands.assess import examine
from overlay.commands.parallel import cores, in_processes
from overlay.commands.request import Request
from overlay.features.model import of_package, packages_of
from overlay.package import VLLM, Package
from overlay.planning.obsolete import obsolete_by
from overlay.planning.upstream import module_outcome
from overlay.report.progress import counting
from overlay.results import Outcome, State, whole_outcome
from overlay.targets.resolution import release_named, releases, resolve, spelt

if TYPE_CHECKING:
    from overlay.authoring.locating import ReleaseTexts
    from overlay.features.model import Feature, Topic, Variant
    from overlay.planning.scopes import Syntax

#: The states in which it is of interest how a port would land.
_CARRIED = (State.INAPPLICABLE, State.PARTIAL, State.DRIFTED, State.MISSING)


def matrix(request: Request, span: str | None = None) -> MatrixReport:
    """Every feature for a package on every release of it, and the ids of those for others.

    :param span: releases as ``--releases`` takes them; default: all.
    :raises OverlayError: if a release cannot be read.
    """
    from overlay.authoring.locating import ReleaseTexts
    from overlay.planning.scope_cache import Memo

    names = releases("all" if span is None else span)
    package = package_of(names)
    every = request.at_hand()
    features = of_package(every, package)
    known = [spelt(release, package) for release in package.releases]
    bases = tuple(dict.fromkeys((*known, *names)))
    texts = ReleaseTexts(bases, lambda release: resolve(release, progress=request.progress))
    column = _Column(features, texts, Memo())
    workers = min(cores(), len(names))
    if workers < 2 or not hasattr(os, "fork"):
        columns = [column.cells(name) for name in names]
    else:
        with counting(request.progress, "read", len(names), "release") as step:
            columns = in_processes(column.cells, names, workers, step)
    rows = tuple(
        Row(feature.id, tuple(cells[at] for cells in columns))
        for at, feature in enumerate(features)
    )
    elsewhere = tuple(_elsewhere(every, other) for other in packages_of(every) if other != package)
    return MatrixReport(matrix_of(rows), tuple(names), rows, elsewhere)


def _elsewhere(features: Sequence[Feature], package: Package) -> Elsewhere:
    """The features for a package that the matrix does not show."""
    own = of_package(features, package)
    span = "all"
    if not package.releases:
        first = min(feature.releases.first for feature in own)
        span = f"{first}..{max(feature.releases.last for feature in own)}"
    ids = tuple(feature.id for feature in own)
    return Elsewhere(package.title, ids, f"{package.distribution}=={span}")


@dataclass(frozen=True)
class _Column:
    """What is the same for every release."""

    features: tuple[Feature, ...]
    texts: ReleaseTexts
    syntax: Syntax

    def cells(self, release: str) -> list[Cell]:
        """Each feature on one release.

        :raises OverlayError: if the release cannot be read.
        """
        found = examine(resolve(release), self.features)
        return [
            Cell(
                release,
                result.state,
                self._outcome(feature, release) if result.state in _CARRIED else None,
            )
            for feature, result in zip(self.features, found.report.features, strict=True)
        ]

    def _outcome(self, feature: Feature, release: str) -> Outcome | None:
        """How a port of a feature would land, judged topic by topic from the variant nearest to it.

        :returns: ``None`` where no variant tells the text that it was made on, or the release has
            what the feature is for no more.
        """
        named = release_named(release)
        read, record = partial(self.texts.read, release), self.texts.record(release)
        if obsolete_by(feature, None if named is None else named[0], read, record) is not None:
            return None
        outcomes: list[Outcome | None]
        outcomes = [self._carried(topic, release) for topic in feature.topics]
        outcomes += (module_outcome(added, read) for added in feature.added)
        known = [outcome for outcome in outcomes if outcome is not None]
        return whole_outcome(known) if known and len(known) == len(outcomes) else None

    def _carried(self, topic: Topic, release: str) -> Outcome | None:
        from overlay.authoring.carry import carry

        named = release_named(release)
        variant = _nearest(topic.variants, named[0] if named else Version(release))
        patch = variant.patch
        if patch.retired:
            return Outcome.UPSTREAM
        last = str(variant.releases.last)
        package = VLLM if named is None else named[1]
        base = spelt(patch.headers.get("Base", last), package)
        if base not in self.texts.names:
            return None
        before = self.texts.read(base, patch.path)
        if before is None:
            return None
        there = self.texts.read(release, patch.path)
        return carry(before, patch.hunks, there, self.syntax).outcome


def _nearest(variants: Sequence[Variant], release: Version) -> Variant:
    """The variant whose range is nearest: the newest that is not newer, else the oldest."""
    older = [variant for variant in variants if variant.releases.first <= release]
    if older:
        return max(older, key=lambda variant: variant.releases)
    return min(variants, key=lambda variant: variant.releases)
