"""``overlay import``: a foreign change becomes a feature in a folder of patches."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from packaging.version import Version

from overlay._features.model import Feature, of_package, paths_of
from overlay.authoring import releases as package_releases
from overlay.authoring.building import Prepared, texts_with
from overlay.authoring.commands.import_onto import open_onto, release_of
from overlay.authoring.disk import NewFolder, replace_features
from overlay.authoring.free_ids import expect_id, require_free
from overlay.authoring.git import Checkout
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import MAX_BYTES, Commit, IncomingFile, read_changes
from overlay.authoring.landing import ContextKept, Summary, landings, moved_lines, on_disk_only
from overlay.authoring.locating import OWN_BASE, Files, Origin, ReleaseTexts, release_before
from overlay.authoring.onto import ORIGIN
from overlay.authoring.paths import BY_RELEASES, PathRule, packages_in, path_of, place
from overlay.authoring.reports.ported import PortReport
from overlay.authoring.sources import ChangeSource, read_source
from overlay.authoring.triage import FileFate
from overlay.authoring.writing import check_folder, write_folder
from overlay.commands.request import Request
from overlay.errors import UsageError, told_once, without_secrets
from overlay.package import VLLM, Package, distribution_name, is_module
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import Syntax
from overlay.report.base import Report, by_fields, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, Line, Span, labelled
from overlay.report.progress import doing
from overlay.report.words import count, enumeration
from overlay.results import Fate, Outcome
from overlay.results.invocation import Invocation, absolute, command
from overlay.settings import in_home
from overlay.targets.resolution import release_named
from overlay.targets.target import Progress
from overlay.untrusted import read_regular

#: What the report of an import has of its summary, as it is there.
_OF_SUMMARY = ("title", "commits", "files", "outcomes", "merged", "holders", "warnings", "moved")

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
    :param checkout: a checkout of the package with the text that the change was made on.
    :param partial: leave out what Python alone cannot carry, instead of refusing it.
    :param each: make a feature of each commit, on top of those before; ``id_`` begins their ids.
    :param update: replace a feature of that id.
    :param context: how many lines of context the hunks keep; default: as many as they need.
    :param paths: what the user says about the paths of the change.
    :param onto: the release on which a person places it, in a session of ``port``.
    :raises UsageError: if a source is not a diff, holds what no feature can carry, or nothing that
        one would (only tests and documentation).
    :raises OverlayError: if a source or a release cannot be read, or the folder not be written.
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
        return _placed_onto(parts, id_, onto, patches, base, partial=partial, update=update)
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
    prepared, below = imports.on_top(part, part.sources, id_)
    _require_carried([prepared.summary], part)
    folder = prepared.folder
    written = None if folder is None else write_folder(folder, patches, update=update)
    return imports.report(prepared.summary, part, part.sources, below, written)


def _placed_onto(
    parts: Sequence[_Part],
    id_: str,
    onto: str,
    patches: Path,
    checkout: Origin | None,
    *,
    partial: bool,
    update: bool,
) -> PortReport:
    """Open the session of a change of one package."""
    if len(parts) > 1:
        titles = enumeration([part.package.title for part in parts])
        raise UsageError(
            f"--release {onto}: expected a change of one package, found one of {titles}: name the "
            "releases of one of them with --releases, and pass --partial"
        )
    (part,) = parts
    release = release_of(onto, part.package)
    texts = part.texts.with_name(release)
    return open_onto(
        part.sources,
        id_,
        release,
        texts,
        patches,
        part.package,
        checkout=checkout,
        partial=partial,
        update=update,
    )


def _origin(place: Path, package: Package, progress: Progress | None) -> Origin:
    """What `--base` names: a checkout or unpacked sources, one file of them, or a release.

    :raises UsageError: if it is none of these, or no text could ever be read from it.
    :raises OverlayError: if the release cannot be read.
    """
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

    :ivar texts: the releases that a feature of it may serve.
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
    :raises UsageError: if it names no release, or no release of a package is known.
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
        series: Sequence[Feature] = (),
    ) -> tuple[Prepared, tuple[str, ...]]:
        """The feature that sources make, on top of those of the folder where it needs them.

        :param series: the features that the commits before it make.
        :returns: the feature, and the ids of those of the folder on whose text it was made.
        """
        texts = texts_with(series, part.texts, self.syntax) if series else part.texts
        prepared = self.prepare(part, sources, id_, texts)
        unplaced = prepared.folder is None and not prepared.summary.problems
        if unplaced and self.checkout is not None and not series:
            return self._on_build(self.checkout, part, sources, id_) or prepared, ()
        if not prepared.summary.problems:
            return prepared, ()
        paths = {fate.path for fate in prepared.summary.problems}
        ids = {id_, *(feature.id for feature in series)}
        touching = [
            feature
            for feature in self.features(part.package)
            if feature.id not in ids and not paths.isdisjoint(paths_of([feature]))
        ]
        before = [each for each in touching if each.id < id_ or not self._is_beside(each)]
        for some in (before, touching) if len(before) < len(touching) else (before,):
            below = sorted((*some, *series), key=lambda each: (self._is_beside(each), each.id))
            texts = texts_with(below, part.texts, self.syntax)
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
        texts, paths = part.texts, [file.path for commit in part.commits for file in commit.files]
        before = release_before(origin, paths, texts, part.package)
        if before is None:
            return None
        release = f"{Version(before).base_version}.post1"
        build = ReleaseTexts(
            sorted((*texts.names, release), key=Version),
            lambda name: Files(origin) if name == release else texts.open(name),
        )
        prepared = self.prepare(part, sources, id_, build)
        span = prepared.summary.releases
        if prepared.folder is None or span is None or Version(release) not in span:
            return None
        note = (
            "no release has the text that it was made on: it is for builds behind "
            f"{before}, on which `overlay check` judges it by its lines and `overlay apply "
            "--untested` applies it; `overlay port` carries it to a release"
        )
        summary = prepared.summary
        outcomes = {name: summary.outcomes[name] for name in texts.names}
        summary = replace(summary, outcomes=outcomes, warnings=(*summary.warnings, note))
        own = {path: Files(origin).read(path) for path in prepared.hunks}
        texts_of_it = {f"{OWN_BASE}/{path}": data for path, data in own.items() if data is not None}
        folder = replace(prepared.folder, files={**prepared.folder.files, **texts_of_it})
        return replace(prepared, summary=summary, folder=folder)

    def prepare(
        self, part: _Part, sources: Sequence[ChangeSource], id_: str, texts: ReleaseTexts
    ) -> Prepared:
        """The feature that commits of sources make; nothing is written."""
        pages = list(dict.fromkeys(source.upstream for source in sources if source.upstream))
        return prepare(
            [commit for source in sources for commit in source.commits],
            id_,
            texts,
            source=sources[0].name,
            verbatim=b"".join(source.data for source in sources),
            today=datetime.now().astimezone().date().isoformat(),
            checkout=self.checkout,
            partial=self.partial,
            upstream=pages[0] if len(pages) == 1 else "",
            syntax=self.syntax,
            package=part.package,
            context=self.context,
            progress=self.request.progress,
            by_hand=lambda release: self.by_hand(part, sources, id_, release),
        )

    def report(
        self,
        summary: Summary,
        part: _Part,
        own: Sequence[ChangeSource],
        below: tuple[str, ...],
        folder: Path | None,
    ) -> ImportReport:
        """The report of a feature of ``own``, made on those of ``below``, in its folder."""
        span = None if summary.releases is None or folder is None else str(summary.releases)
        return ImportReport(
            concluded(summary, folder, self.by_hand(part, own, summary.id, _nearest(summary))),
            feature=summary.id,
            releases=span,
            folder=folder,
            context=None if folder is None else summary.context,
            prefixes=dict(part.prefixes),
            below=below,
            **{name: getattr(summary, name) for name in _OF_SUMMARY},
        )

    def by_hand(self, part: _Part, own: Sequence[ChangeSource], id_: str, release: str) -> str:
        """How a person places a change on a release, in a part of a sentence.

        :param own: the change, of what the command was given.
        """
        is_part = sum(len(source.commits) for source in own) < len(part.commits)
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
    """Make a feature of each commit, or of each package; all are prepared before one is written.

    :raises UsageError: if one of their ids exists and is not to be replaced.
    """
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
    complete = all(e.folder is not None or not _carried(e.summary) for e in prepared)
    some = any(entry.folder is not None for entry in prepared)
    written = _write_all(prepared, imports.patches) if complete and some else {}
    reports = []
    for part, sources, entry, below in entries:
        folder = written.get(entry.summary.id)
        reports.append(imports.report(entry.summary, part, sources, below, folder))
    return series(tuple(reports), tuple(placed))


class _Entry(NamedTuple):
    """A feature of several, with what it is made of."""

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
    features: list[Feature] = []
    commits = [(source, commit) for source in part.sources for commit in source.commits]
    for number, (source, commit) in enumerate(commits, 1):
        name = _id(id_, number, len(commits), commit)
        if not imports.update and _is_placed(imports.patches / name, commit):
            placed.append(name)
            features += [each for each in imports.features(part.package) if each.id == name]
            continue
        require_free(imports.patches, name, update=imports.update, option="--id")
        alone = (replace(source, commits=(commit,)),)
        with doing(imports.request.progress, f"making {name}, {number} of {len(commits)}"):
            entries.append(_Entry(part, alone, *imports.on_top(part, alone, name, features)))
        if (folder := entries[-1].prepared.folder) is not None:
            features.append(check_folder(folder))
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
    """The lines that a file's change takes out and puts in."""
    return [line for hunk in file.hunks for line in hunk.lines if line[0] != " "]


def _write_all(prepared: Sequence[Prepared], patches: Path) -> dict[str, Path]:
    """Write every feature, all of them or none; ids to their folders."""
    folders = [entry.folder for entry in prepared if entry.folder is not None]
    new = [NewFolder(folder.text.id, folder.all_files()) for folder in folders]
    replace_features(patches, new)
    return {folder.text.id: patches / folder.text.id for folder in folders}


def _id(prefix: str, number: int, count: int, commit: Commit) -> str:
    """The id of one feature of a series; its number keeps the order of the commits."""
    words = re.sub(r"\(#\d+\)\s*$|^(\[[^\]]*\]\s*)+", "", commit.subject).lower()
    slug = re.sub(r"[^a-z0-9]+", "-", words)[:_SLUG].strip("-")
    digits = max(2, len(str(count)))
    return "-".join(part for part in (prefix, f"{number:0{digits}d}", slug) if part)


# The report


def _carried(summary: Summary) -> int:
    """How many files are edited or added, or should have been."""
    return sum(entry.fate in (Fate.EDITED, Fate.ADDED) for entry in summary.files)


def _require_carried(summaries: Sequence[Summary], part: _Part) -> None:
    """Refuse a change that has nothing to carry: only tests, documentation and the like.

    :raises UsageError: naming what was found instead.
    """
    if any(_carried(summary) for summary in summaries):
        return
    fates = [entry.fate.value for summary in summaries for entry in summary.files]
    kinds = enumeration([f"{fates.count(fate)} of {fate}" for fate in dict.fromkeys(fates)])
    place = next(file.place for commit in part.commits for file in commit.files)
    raise UsageError(
        f"{place}: expected a change of Python modules of {part.package.name}/, found nothing that "
        f"a feature carries ({kinds}): there is nothing to import"
    )


# The report


@dataclass(frozen=True)
class ImportReport(Report):
    """What ``import`` made of a foreign change.

    :ivar feature: the id; :ivar title: the subject of the change.
    :ivar files: in the order in which they were judged.
    :ivar outcomes: release -> how the whole change lands there, oldest first.
    :ivar releases: the range that the new variants serve; ``None`` where nothing was written.
    :ivar merged: the first release that has the change itself.
    :ivar folder: the new feature; ``None`` where nothing was written.
    :ivar holders: path of an added module -> the releases that have another file of that name.
    :ivar warnings: what looks wrong although it was written.
    :ivar context: how much context its hunks keep, where that was chosen.
    :ivar moved: path -> release -> the file to which upstream moved what is changed in it.
    :ivar prefixes: how paths of the change begin -> how those of the package do.
    :ivar below: the features of the folder on whose text it was made.
    """

    _command: ClassVar[str] = "import"
    _key: ClassVar[str] = "import"
    feature: str
    title: str
    commits: int
    files: tuple[FileFate, ...]
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    releases: str | None = None
    merged: str | None = None
    folder: Path | None = None
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    context: ContextKept | None = None
    moved: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)
    below: tuple[str, ...] = ()

    @property
    def error(self) -> str | None:
        """Why files could not be placed, a sentence for each cause."""
        return "\n".join(_problems([self])) or None

    @property
    def carried(self) -> tuple[FileFate, ...]:
        """The files that are edited or added, or should have been."""
        return tuple(entry for entry in self.files if entry.fate in (Fate.EDITED, Fate.ADDED))

    @property
    def left_out(self) -> dict[str, int]:
        """How many files were left out, by kind."""
        fates = [entry.fate for entry in self.files if entry not in self.carried]
        kinds = [fate.value for fate in fates]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        read = f"{count(len(self.files), 'file')}, {count(self.commits, 'commit')}: {self.title}"
        yield labelled(0, "read      ", read)
        for before, after in self.prefixes.items():
            subject = f"{before} is" if before else "what names no folder is in"
            yield labelled(0, "paths     ", f"{subject} {after or 'left out'}")
        if self.below:
            yield labelled(0, "on top of ", enumeration(self.below))
        if self.left_out:
            kinds = [f"{number} {kind}" for kind, number in self.left_out.items()]
            yield labelled(0, "left out  ", enumeration(kinds))
        for entry in self.carried:
            if entry.problem is not None:
                continue  # told as the report's error
            what = "added module" if is_module(entry.path) else "added file"
            if entry.fate is Fate.EDITED:
                hunks = "removed" if entry.removes else count(entry.hunks, "hunk")
                what = f"{hunks}, made on {entry.made_on}"
            yield labelled(0, "carried   ", f"{entry.path}  {what}")
        for path, releases in self.holders.items():
            yield labelled(0, "taken     ", f"{path}  another file in {enumeration(releases)}")
        yield from landings(self.outcomes)
        yield from moved_lines(self.moved, self.feature if self.folder else "")
        if self.context is not None:
            yield self.context.line
        edited = [
            entry.path
            for entry in self.carried
            if entry.fate is Fate.EDITED or not is_module(entry.path)
        ]
        removed = [entry.path for entry in self.carried if entry.removes]
        yield from on_disk_only(edited, self.releases, removed)
        for warning in self.warnings:
            yield labelled(0, "warning:  ", warning)

    def plain(self) -> dict[str, Any]:
        """The fields of the JSON, which has some only where they say something."""
        some = ("warnings", "context", "moved", "prefixes", "below")
        silent = [name for name in some if not getattr(self, name)]
        return by_fields(self, "conclusion", "holders", *silent)


@dataclass(frozen=True)
class SeriesReport(Report):
    """What ``import --each`` made of several commits: a feature each, on top of each other.

    :ivar imports: in the order of the commits; :ivar placed: those that were placed by hand before.
    """

    _command: ClassVar[str] = "import"
    imports: tuple[ImportReport, ...]
    placed: tuple[str, ...] = ()

    @property
    def error(self) -> str | None:
        """Why files could not be placed, a sentence for each cause."""
        return "\n".join(_problems(self.imports)) or None

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """The text of the report."""
        for entry in self.imports:
            yield Line((Span(entry.feature, "heading"),))
            yield from entry.own_lines()
            yield BLANK
        if self.placed:
            yield labelled(0, "there     ", f"{enumeration(self.placed)}, placed by hand before")
            yield BLANK

    def own_data(self) -> dict[str, Any]:
        """The reports, without a key of their own."""
        return {"imports": plain(self.imports)}


def _problems(imports: Iterable[ImportReport]) -> list[str]:
    """Why files could not be placed."""
    return told_once(
        (entry.path, entry.problem) for each in imports for entry in each.files if entry.problem
    )


def series(imports: tuple[ImportReport, ...], placed: tuple[str, ...] = ()) -> SeriesReport:
    """The report of a series, which is written as a whole or not at all."""
    # A commit of tests alone is left out, and nothing is wrong with it.
    carried = [entry for entry in imports if entry.carried] or list(imports)
    worst = max(carried, key=lambda entry: int(entry.exit))
    written = [entry.feature for entry in imports if entry.folder is not None]
    if written:
        text = f"Wrote {count(len(written), 'feature')}: {enumeration(written)}."
        if worst.code is Code.IMPORT_REVIEW:
            text = f"{text[:-1]}; review what was merged before you apply it."
    elif unplaced := sum(entry.problem is not None for each in imports for entry in each.files):
        text = _not_placed(unplaced)
    else:
        text = worst.verdict
    return SeriesReport(Verdict(worst.code, text), imports, placed)


def concluded(summary: Summary, folder: Path | None, by_hand: str) -> Verdict:
    """The verdict of ``import``.

    :param by_hand: how a person places the change.
    """
    if summary.problems:
        return Verdict(Code.NOT_PLACED, _not_placed(len(summary.problems)))
    if not _carried(summary):
        return Verdict(
            Code.NOT_IMPORTED, "Nothing was written: the change has no Python module of vllm/."
        )
    if folder is None:
        why, modules = "see above", list(summary.holders)
        if modules:
            single = "is a file of its own there"
            there = single if len(modules) == 1 else "are files of their own there"
            why = f"{enumeration(modules, most=3)} {there}: give the added module another name"
        text = f"Nothing was written: {summary.id} lands on none of the releases; {why}."
        if not modules:
            text = f"{text[:-1]}. {by_hand[:1].upper()}{by_hand[1:]}."
        return Verdict(Code.NOT_IMPORTED, text)
    wrote = f"Wrote {folder} for {summary.releases}"
    if summary.review:
        text = f"{wrote}, where it was merged: review it before you apply it."
        return Verdict(Code.IMPORT_REVIEW, text)
    check = Invocation(patches=(absolute(folder.parent),)).command("check")
    return Verdict(Code.IMPORTED, f"{wrote}; {check} tries it.")


def _nearest(summary: Summary) -> str:
    """The release on which a change that lands nowhere is placed most easily.

    It is the last one before the first that has it, or has a part of it; else the newest.
    """
    names = list(summary.outcomes) or [""]
    there = (Outcome.UPSTREAM, Outcome.PARTLY)
    first = next((at for at, o in enumerate(summary.outcomes.values()) if o in there), 0)
    return names[first - 1]


def _not_placed(files: int) -> str:
    return f"Nothing was written: {count(files, 'file')} could not be placed."
