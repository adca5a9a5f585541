"""``overlay prune``: propose what a folder of patches no longer needs, and carry it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from packaging.version import Version

from overlay._features.model import Feature, of_package, packages_of
from overlay._features.sources import entries, unread
from overlay.authoring import releases as package_releases
from overlay.authoring.disk import NewFolder, contents, finish_switch, replace_features
from overlay.authoring.pruning import Proposal, Pruner, ServedFeature
from overlay.commands.request import Request
from overlay.errors import OverlayError, UsageError, command
from overlay.package import VLLM, Package
from overlay.planning.scope_cache import Memo
from overlay.report import Report
from overlay.report.codes import Code, Verdict
from overlay.report.lines import Line, Span, count, labelled
from overlay.report.progress import counting
from overlay.targets.resolution import release_named


def prune(request: Request, *, oldest: str | None = None, write: bool = False) -> PruneReport:
    """Propose what the last folder of patches no longer needs, and carry it out where asked.

    :param oldest: the oldest release that is still served, of one package; default: the oldest
        known one, of every package that the folder has features for.
    """
    if not request.patches:
        raise UsageError(
            "expected a folder of patches to prune, found none: name one with --patches DIR, or in "
            "overlay.toml"
        )
    folder = request.folders[-1]
    if write:
        finish_switch(folder)
    features = request.load()
    own = [feature for feature in features if _lies_in(feature, folder)]
    spans = _served(oldest, packages_of(own) or (VLLM,))
    proposals: list[Proposal] = []
    holds: dict[str, str] = {}
    for package, names in spans.items():
        served = [_with_files(feature, folder) for feature in of_package(features, package)]
        texts = package_releases.texts_of(
            package_releases.names_of(package), package, request.progress
        )
        number = sum(entry.files is not None for entry in served)
        with counting(request.progress, "examined", number, "feature") as step:
            pruner = Pruner(texts, names, Memo())
            proposals += pruner.propose(served, step)
            holds |= pruner.holds
    if write and proposals:
        if [feature.source for feature in request.load()] != [each.source for each in features]:
            raise OverlayError(f"{folder}: it was changed meanwhile; run the command again")
        _carry_out(folder, proposals)
    return PruneReport(
        concluded(proposals, folder, oldest, written=write),
        folder=folder,
        releases=", ".join(_span(package, names) for package, names in spans.items()),
        written=write and bool(proposals),
        proposals=tuple(proposals),
        holds=holds,
    )


def _served(oldest: str | None, packages: Sequence[Package]) -> dict[Package, tuple[str, ...]]:
    """The known releases that are still served, oldest first, of each package that is pruned.

    :param oldest: of one package: that of the folder's features, or that which it names.
    :param packages: those that the folder has features for.
    :raises UsageError: if it is not a release, or nothing is known that could tell what is needed.
    """
    if oldest is None:
        spans = {package: package_releases.names_of(package) for package in packages}
        if unknown := [package for package, names in spans.items() if not names]:
            raise UsageError(
                f"expected features for packages whose releases the overlay knows, found some for "
                f"{unknown[0].title}: what of them no release needs cannot be told. Keep them in a "
                "folder of their own, or name with --releases the package that you mean"
            )
        return spans
    package, first = _first(oldest, packages[0] if len(packages) == 1 else VLLM)
    releases = package_releases.names_of(package)
    names = tuple(name for name in releases if Version(name) >= first)
    if not names:
        newest = (
            f"a release up to {releases[-1]}, the newest" if releases else "one of the releases"
        )
        raise UsageError(
            f"--releases {oldest}: expected {newest} that this overlay knows of {package.title}"
        )
    return {package: names}


def _first(oldest: str, package: Package) -> tuple[Package, Version]:
    """The package and the first of the releases that ``--releases`` names."""
    first, _, last = oldest.partition("..")
    pair, end = (release_named(name, package) for name in (first, last or first))
    if pair is None or end is None or end[0] < pair[0]:
        raise UsageError(
            f"--releases {oldest}: expected a range such as 0.26.0..0.33.0, or its first release, "
            "such as 0.26.0"
        )
    return pair[1], pair[0]


def _span(package: Package, names: Sequence[str]) -> str:
    span = f"{names[0]}..{names[-1]}"
    return span if package == VLLM else f"{package.title} {span}"


def _lies_in(feature: Feature, folder: Path) -> bool:
    return not feature.shipped and Path(feature.origin).resolve() == folder.resolve()


def _with_files(feature: Feature, folder: Path) -> ServedFeature:
    """A feature with the files of its folder, if that is the one to be pruned."""
    if not _lies_in(feature, folder):
        return ServedFeature(feature)
    files = contents(entries(folder)[feature.id])
    return ServedFeature(
        feature, {name: data for name, data in files.items() if unread(name) is None}
    )


def _carry_out(folder: Path, proposals: Sequence[Proposal]) -> None:
    changed: dict[str, dict[str, bytes | None]] = {}
    removed_ids: list[str] = []
    for proposal in proposals:
        if proposal.files is None:
            removed_ids.append(proposal.feature)
            changed.pop(proposal.feature, None)
        else:
            changed.setdefault(proposal.feature, {}).update(proposal.files)
    new = [NewFolder(id_, files, whole=False) for id_, files in changed.items()]
    replace_features(folder, new, removed_ids)


# The report


@dataclass(frozen=True)
class PruneReport(Report):
    """What ``prune`` proposes, or did.

    :ivar holds: feature -> why what no release needs stays.
    """

    _command: ClassVar[str] = "prune"
    _key: ClassVar[str] = "prune"
    folder: Path
    releases: str
    written: bool
    proposals: tuple[Proposal, ...]
    holds: Mapping[str, str]

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        yield labelled(0, "serves:   ", f"{self.releases}; {self.folder}")
        for entry in self.proposals:
            yield Line((Span(f"{entry.feature}  ", "heading"),), (Span(entry.text),))
            yield labelled(2, "evidence: ", entry.evidence)
        for id_, why in self.holds.items():
            yield labelled(0, "stays:    ", f"{id_}, with what no release needs: {why}")


def concluded(
    entries: Sequence[Proposal], folder: Path, oldest: str | None, *, written: bool
) -> Verdict:
    """The verdict of ``prune``.

    :param oldest: the oldest release that is served, as the user named it.
    """
    if not entries:
        return Verdict(Code.NOTHING_TO_PRUNE, f"Nothing to prune in {folder}.")
    number = count(len(entries), "proposal")
    if written:
        return Verdict(Code.PRUNED, f"Carried out {number} in {folder}.")
    step = command("prune", "--write", *(() if oldest is None else ("--releases", oldest)))
    text = f"Nothing was written: {number}, which {step} carries out."
    return Verdict(Code.CAN_BE_PRUNED, text)
