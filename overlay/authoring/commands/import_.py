"""``overlay import``: a foreign change becomes a feature in a folder of patches."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from overlay._features.model import Feature, of_package, paths_of
from overlay.authoring import releases as package_releases
from overlay.authoring.building import Prepared, StackedTexts
from overlay.authoring.commands.import_onto import ORIGIN, open_onto
from overlay.authoring.commands.import_report import (
    ImportReport,
    SeriesReport,
    carried,
    concluded,
    nearest,
    series,
)
from overlay.authoring.commands.port_report import PortReport
from overlay.authoring.git import Checkout
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import MAX_BYTES, Commit, IncomingFile, read_changes
from overlay.authoring.landing import Summary
from overlay.authoring.locating import (
    OWN_BASE,
    Origin,
    ReleaseTexts,
    behind,
    files_of,
    release_before,
)
from overlay.authoring.paths import BY_RELEASES, PathRule, packages_in, path_of, place
from overlay.authoring.sources import ChangeSource, joined, read_source
from overlay.authoring.writing import (
    check_folder,
    expect_id,
    replace_folders,
    require_free,
    today,
    write_folder,
)
from overlay.commands.request import Request
from overlay.errors import UsageError, command, without_secrets
from overlay.package import VLLM, Package, distribution_name
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import Syntax
from overlay.report.lines import enumeration
from overlay.report.progress import counting, doing
from overlay.results import Fate
from overlay.settings import in_home
from overlay.targets import Progress
from overlay.targets.resolution import release_named
from overlay.untrusted import read_regular

#: The most letters of a subject that an id of ``--each`` takes.
_SLUG = 40


def import_change(
    request: Request,
    sources: Sequence[str],
    id_: str,
    patches: Path,
    *,
    releases: str | None = None,
    checkout: Path | None = None,
    partial: bool = False,
    each: bool = False,
    update: bool = False,
    context: int | None = None,
    paths: PathRule = BY_RELEASES,
    onto: str | None = None,
) -> ImportReport | SeriesReport | PortReport:
    """Make a feature of diffs or mails, and write it below ``patches``.

    :param sources: files, ``-`` for standard input, URLs of pull requests or commits, or
        ``CHECKOUT@A..B``; laid on each other in their order.
    :param releases: as ``--releases`` takes them; default: every known release of the package that
        the change is of: vLLM, or another known one whose modules it edits.
    :raises UsageError: if a source is not a diff, holds what no feature can carry, or nothing that
        one would (only tests and documentation).
    """
    if each and onto is not None:
        raise UsageError("--each and --release: expected one of them; a session is of one feature")
    if each:
        expect_id(id_, "--id")
    else:
        require_free(patches, id_, update=update, option="--id")
    read = []
    for source in sources:
        with doing(request.progress, f"reading {without_secrets(source)}"):
            read.append(read_source(source, each=each))
    packages, names = _packages(read, releases)
    base = None if checkout is None else _origin(checkout, packages[0], request.progress)
    parts = _parts(read, packages, names, paths, request.progress)
    if onto is not None:
        part = _only_part(parts, onto)
        change, texts, package = joined(part.sources), part.texts, part.package
        kinds = {"partial": partial, "update": update}
        return open_onto(change, id_, onto, texts, patches, package, checkout=base, **kinds)
    options = {
        "--base": checkout,
        "--releases": releases,
        "--strip": paths.strip,
        "--directory": paths.directory,
    }
    values = {name: str(value) for name, value in options.items() if value not in (None, "")}
    flags = {"--partial": partial, "--update": update}
    again = tuple(word for pair in values.items() for word in pair)
    again += tuple(name for name, is_given in flags.items() if is_given)
    shared = request, Memo(), base, partial, patches, update, context
    imports = _Imports(*shared, tuple(sources), again, len(parts) > 1)
    if each or len(parts) > 1:
        return _series(imports, parts, id_, each=each)
    (part,) = parts
    alone = _Entry(part, part.sources, *imports.on_top(part, part.sources, id_))
    _require_carried([alone.prepared.summary], part)
    folder = alone.prepared.folder
    written = None if folder is None else write_folder(folder, patches, update=update)
    return imports.reports([alone], {id_: written})[0]


def _only_part(parts: Sequence[_Part], onto: str) -> _Part:
    if len(parts) > 1:
        titles = enumeration([part.package.title for part in parts])
        raise UsageError(
            f"--release {onto}: expected a change of one package, found one of {titles}: name the "
            "releases of one of them with --releases, and pass --partial"
        )
    return parts[0]


def _origin(place: Path, package: Package, progress: Progress | None) -> Origin:
    """What `--base` names: a checkout or unpacked sources, one file of them, or a release."""
    if not os.path.lexists(place) and release_named(str(place), package) is not None:
        _, names = package_releases.names_in(str(place), package)
        if len(names) == 1:
            return package_releases.tree_of(names[0], package, progress)
    if place.is_file() or (place / package.name).is_dir():
        return place
    if not place.is_dir():
        raise UsageError(
            f"--base {place}: expected a checkout of the package, one file of it or a release, "
            "found no such folder"
        )
    try:
        Checkout(place)
    except UsageError as error:
        raise UsageError(
            f"--base {place}: expected a checkout of {package.title} or its unpacked sources, "
            f"found no folder {package.name} there, and no history of git"
        ) from error
    return place


@dataclass(frozen=True)
class _Part:
    """What a change does to one package, with the paths of that.

    :ivar prefixes: what precedes the package in the paths of the change -> what it is.
    """

    package: Package
    texts: ReleaseTexts
    sources: tuple[ChangeSource, ...]
    prefixes: tuple[tuple[str, str], ...]

    @property
    def commits(self) -> tuple[Commit, ...]:
        """The commits of all sources."""
        return tuple(commit for source in self.sources for commit in source.commits)


def _packages(
    sources: Sequence[ChangeSource], releases: str | None
) -> tuple[tuple[Package, ...], tuple[str, ...]]:
    """The packages that a change is for, vLLM's first, and the releases of the first of them.

    :param releases: as ``--releases`` takes them; with a name (``vllm-ascend==all``) it tells the
        one package, otherwise the paths of the change do.
    """
    files = [file for source in sources for commit in source.commits for file in commit.files]
    packages = packages_in([file.path for file in files]) or (VLLM,)
    if releases is None:
        return packages, package_releases.names_of(packages[0])
    first, names = package_releases.names_in(releases, packages[0])
    return ((first,) if "==" in releases or first not in packages else packages), names


def _parts(
    sources: Sequence[ChangeSource],
    packages: Sequence[Package],
    names: Sequence[str],
    rule: PathRule,
    progress: Progress | None,
) -> tuple[_Part, ...]:
    """A change by the packages that it is for, its paths found; in the order of these.

    :param names: the releases of the first of them.
    """
    first, further = packages[0], packages[1:] if rule == BY_RELEASES else ()
    parts = []
    for package in (first, *further):
        served = names if package == first else package_releases.names_of(package)
        texts = package_releases.texts_of(served, package, progress)
        own = [_of(source, package, further if package == first else None) for source in sources]
        placed = place([c for each in own for c in each.commits], package, texts, rule)
        remaining = iter(placed.commits)
        own = [replace(each, commits=tuple(next(remaining) for _ in each.commits)) for each in own]
        parts.append(
            _Part(package, texts, tuple(each for each in own if each.commits), placed.prefixes)
        )
    return tuple(parts)


def _of(source: ChangeSource, package: Package, further: Sequence[Package] | None) -> ChangeSource:
    """A source with what it does to one package.

    :param further: the packages whose files are not taken; ``None``: only those of the package are.
    """

    def is_own(path: str) -> bool:
        if further is None:
            return path_of(path, package) is not None
        return all(path_of(path, other) is None for other in further)

    commits = (
        replace(commit, files=tuple(file for file in commit.files if is_own(file.path)))
        for commit in source.commits
    )
    return replace(source, commits=tuple(commit for commit in commits if commit.files))


@dataclass(frozen=True)
class _Imports:
    """The arguments that every feature of an import shares.

    :ivar sources: what the command was given; :ivar again: the options that place it by hand, too.
    :ivar several: whether the change is of several packages.
    """

    request: Request
    syntax: Syntax
    checkout: Origin | None
    partial: bool
    patches: Path
    update: bool
    context: int | None
    sources: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    several: bool = False

    def on_top(
        self,
        part: _Part,
        sources: Sequence[ChangeSource],
        id_: str,
        series: StackedTexts | None = None,
    ) -> tuple[Prepared, tuple[str, ...]]:
        """The feature that sources make, on top of those of the folder where it needs them.

        :param series: the releases with the features that the commits before it make.
        :returns: the feature, and the ids of those of the folder on whose text it was made.
        """
        earlier = () if series is None else series.features
        prepared = self.prepare(part, sources, id_, series if earlier and series else part.texts)
        unplaced = prepared.folder is None and not prepared.summary.problems
        if unplaced and self.checkout is not None and not earlier:
            return self._on_build(self.checkout, part, sources, id_) or prepared, ()
        if not prepared.summary.problems:
            return prepared, ()
        paths = {fate.path for fate in prepared.summary.problems}
        ids = {id_, *(feature.id for feature in earlier)}
        touching = [
            feature
            for feature in self.features(part.package)
            if feature.id not in ids and not paths.isdisjoint(paths_of([feature]))
        ]
        before = [each for each in touching if each.id < id_ or not self._is_beside(each)]
        for some in (before, touching) if len(before) < len(touching) else (before,):
            below = sorted((*some, *earlier), key=lambda each: (self._is_beside(each), each.id))
            texts = StackedTexts(below, part.texts, self.syntax)
            stacked = self.prepare(part, sources, id_, texts) if some else prepared
            if stacked.summary.problems:
                continue
            if len(some) > len(before):
                last = max(each.id for each in some if self._is_beside(each))
                raise UsageError(
                    f"{sources[0].name}: it was made on what {enumeration([e.id for e in some])} "
                    f"makes of {min(paths)}, and {id_} comes before {last} in the order of ids: "
                    f"choose one behind it, such as --id {last}-{id_}"
                )
            return stacked, tuple(feature.id for feature in some)
        return prepared, ()

    def features(self, package: Package) -> tuple[Feature, ...]:
        """The features at hand, those shipped first."""
        request = self.request
        if request.patches and not self.patches.is_dir():
            request = request._replace(patches=request.patches[:-1])
        return tuple(each for each in of_package(request.at_hand(), package) if not each.malformed)

    def _is_beside(self, feature: Feature) -> bool:
        """Whether a feature is one of the folder that is written to, or of this import."""
        folders = [in_home(folder).absolute() for folder in self.request.patches[:-1]]
        return not feature.shipped and Path(feature.origin).absolute() not in folders

    def _on_build(
        self, origin: Origin, part: _Part, sources: Sequence[ChangeSource], id_: str
    ) -> Prepared | None:
        """The feature for a build between releases, whose text is that of `--base`.

        A range holds releases alone, so it is what follows the last one before the build: there is
        no such release, and on a build the feature is judged by its lines.

        :returns: ``None`` where the change is not of that text either.
        """
        texts, every = part.texts, [file.path for commit in part.commits for file in commit.files]
        paths = [path for path in every if path_of(path, part.package) == path]
        before = release_before(origin, paths, texts, part.package)
        if before is None:
            return None
        release = behind(before, texts.names)
        build = ReleaseTexts(
            sorted((*texts.names, release), key=Version),
            lambda name: files_of(origin) if name == release else texts.open(name),
        )
        prepared = self.prepare(part, sources, id_, build)
        summary, span = prepared.summary, prepared.summary.releases
        if prepared.folder is None or span is None or Version(release) not in span:
            return None
        note = (
            "no release has the text that it was made on: it is for builds behind "
            f"{before}, on which `overlay check` judges it by its lines and `overlay apply "
            "--untested` applies it; `overlay port` carries it to a release"
        )
        outcomes = {name: summary.outcomes[name] for name in texts.names}
        summary = replace(summary, outcomes=outcomes, warnings=(*summary.warnings, note))
        own = {path: files_of(origin).read(path) for path in prepared.hunks}
        texts_of_it = {f"{OWN_BASE}/{path}": data for path, data in own.items() if data is not None}
        folder = replace(prepared.folder, files={**prepared.folder.files, **texts_of_it})
        return replace(prepared, summary=summary, folder=folder)

    def prepare(
        self, part: _Part, sources: Sequence[ChangeSource], id_: str, texts: ReleaseTexts
    ) -> Prepared:
        """The feature that commits of sources make; nothing is written."""
        source = joined(sources)
        return prepare(
            source.commits,
            id_,
            texts,
            source=source.name,
            verbatim=source.data,
            today=today(),
            checkout=self.checkout,
            partial=self.partial,
            upstream=source.upstream,
            syntax=self.syntax,
            package=part.package,
            context=self.context,
            progress=self.request.progress,
            by_hand=lambda release: self.by_hand(part, sources, id_, release),
        )

    def reports(
        self, entries: Sequence[_Entry], written: Mapping[str, Path | None]
    ) -> tuple[ImportReport, ...]:
        """The report of each feature.

        :param written: id -> the folder of the feature.
        """
        reports, notes = [], self._of_needless_base(entries)
        for part, own, prepared, below in entries:
            summary = prepared.summary
            summary = replace(summary, warnings=(*summary.warnings, *notes))
            folder, notes = written.get(summary.id), ()
            by_hand = self.by_hand(part, own, summary.id, nearest(summary))
            verdict = concluded(summary, folder, by_hand)
            reports.append(ImportReport(verdict, summary, folder, dict(part.prefixes), below))
        return tuple(reports)

    def _of_needless_base(self, entries: Sequence[_Entry]) -> tuple[str, ...]:
        """What is said once where releases have all that `--base` was given for."""
        names = {name for entry in entries for name in entry.part.texts.names}
        files = [file for entry in entries for file in entry.prepared.summary.files]
        edited = [file for file in files if file.fate is Fate.EDITED]
        by_id = all(file.by_id for file in edited)
        asks = not by_id and not isinstance(self.checkout, Path)  # it names one of several releases
        if self.checkout is None or asks or any(file.base not in names for file in edited):
            return ()
        start = "--base was not needed" if by_id else "--base RELEASE would do"
        return (f"{start}: each edited file has the text of a release",)

    def by_hand(self, part: _Part, own: Sequence[ChangeSource], id_: str, release: str) -> str:
        """How a person places a change on a release, in a part of a sentence."""
        is_part = len(joined(own).commits) < len(part.commits)
        names, first, last = self.sources, "place it by hand: ", ""
        if is_part or "-" in names:
            names, first = (f"{id_}.patch",), f"{first}save it as {id_}.patch, then "
            if is_part and not (self.several or self.update):
                last = "; then this command takes the others"
        options = ("--id", id_, "--release", release, *self.again)
        if self.several and "--releases" not in options:
            options += ("--partial", "--releases", f"{part.package.distribution}=={release}")
        return f"{first}{command('import', *names, *options)}{last}"


# Several features: --each, and a change of several packages


def _series(imports: _Imports, parts: Sequence[_Part], id_: str, *, each: bool) -> SeriesReport:
    """Make a feature of each commit, or of each package; all are prepared before one is written."""
    entries: list[_Entry] = []
    placed: list[str] = []
    for part in parts:
        own = id_ if part is parts[0] else f"{id_}-{distribution_name(part.package.distribution)}"
        if each:
            of_part, of_hands = _each(imports, part, own)
            placed += of_hands
        else:
            require_free(imports.patches, own, update=imports.update, option="--id")
            of_part = [_Entry(part, part.sources, *imports.on_top(part, part.sources, own))]
        _require_carried([entry.prepared.summary for entry in of_part], part)
        entries += of_part
    prepared = [entry.prepared for entry in entries]
    complete = all(e.folder is not None or not carried(e.summary.files) for e in prepared)
    folders = {entry.folder.text.id: entry.folder for entry in prepared if entry.folder is not None}
    written: dict[str, Path] = {}
    if complete and folders:
        replace_folders([*folders.values()], imports.patches)
        written = {name: imports.patches / name for name in folders}
    return series(imports.reports(entries, written), tuple(placed))


class _Entry(NamedTuple):
    part: _Part
    sources: Sequence[ChangeSource]
    prepared: Prepared
    below: tuple[str, ...]


def _each(imports: _Imports, part: _Part, id_: str) -> tuple[list[_Entry], list[str]]:
    """Make a feature of each commit, on top of those before and of the folder's.

    :returns: the features, and the ids of those that a person placed by hand before.
    """
    entries: list[_Entry] = []
    placed: list[str] = []
    series = StackedTexts((), part.texts, imports.syntax)
    commits = [(source, commit) for source in part.sources for commit in source.commits]
    with counting(imports.request.progress, "made", len(commits), "feature") as step:
        for number, (source, commit) in enumerate(commits, 1):
            name = _id(id_, number, len(commits), commit)
            if not imports.update and _is_placed(imports.patches / name, commit):
                placed.append(name)
                series.add([each for each in imports.features(part.package) if each.id == name])
                step()
                continue
            require_free(imports.patches, name, update=imports.update, option="--id")
            alone = (replace(source, commits=(commit,)),)
            entries.append(_Entry(part, alone, *imports.on_top(part, alone, name, series)))
            if (folder := entries[-1].prepared.folder) is not None:
                series.add([check_folder(folder)])
            step()
    if placed and not entries:
        require_free(imports.patches, placed[0], update=False, option="--id")
    return entries, placed


def _is_placed(folder: Path, commit: Commit) -> bool:
    """Whether a folder is the feature of a commit alone, as one placed by hand is."""
    data = read_regular(folder / ORIGIN, MAX_BYTES)
    try:
        origin = read_changes(data or b"", ORIGIN)
    except UsageError:
        return False
    theirs = [file for each in origin for file in each.files]
    return list(map(_changed, commit.files)) == list(map(_changed, theirs))


def _changed(file: IncomingFile) -> list[tuple[str, str]]:
    return [line for hunk in file.hunks for line in hunk.lines if line[0] != " "]


def _id(prefix: str, number: int, count: int, commit: Commit) -> str:
    """The id of one feature of a series; its number keeps the order of the commits."""
    words = re.sub(r"\(#\d+\)\s*$|^(\[[^\]]*\]\s*)+", "", commit.subject).lower()
    slug = re.sub(r"[^a-z0-9]+", "-", words)[:_SLUG].strip("-")
    digits = max(2, len(str(count)))
    return "-".join(part for part in (prefix, f"{number:0{digits}d}", slug) if part)


def _require_carried(summaries: Sequence[Summary], part: _Part) -> None:
    """Refuse a change that has nothing to carry: only tests, documentation and the like."""
    if any(carried(summary.files) for summary in summaries):
        return
    fates = [entry.fate.value for summary in summaries for entry in summary.files]
    kinds = enumeration([f"{fates.count(fate)} of {fate}" for fate in dict.fromkeys(fates)])
    place = next(file.place for commit in part.commits for file in commit.files)
    raise UsageError(
        f"{place}: expected a change of Python modules of {part.package.name}/, found nothing that "
        f"a feature carries ({kinds}): there is nothing to import"
    )
