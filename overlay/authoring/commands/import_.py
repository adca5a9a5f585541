"""``overlay import``: a foreign change becomes a feature in a folder of patches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from overlay._features.folder import load
from overlay._features.model import Feature, of_package, paths_of
from overlay.authoring import releases as package_releases
from overlay.authoring.building import Prepared, texts_with
from overlay.authoring.disk import NewFolder, replace_features
from overlay.authoring.free_ids import expect_id, require_free
from overlay.authoring.git import Checkout
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import Commit
from overlay.authoring.landing import Summary, landings, on_disk_only
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.paths import BY_RELEASES, PathRule, packages_in, path_of, place
from overlay.authoring.sources import ChangeSource, read_source
from overlay.authoring.triage import FileFate
from overlay.authoring.writing import check_folder, write_folder
from overlay.errors import UsageError, told_once
from overlay.package import VLLM, Package, distribution_name, is_module
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import Syntax
from overlay.report.base import Report, by_fields, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, Line, Span, labelled
from overlay.report.words import count, enumeration
from overlay.results import Fate, Outcome
from overlay.results.invocation import Invocation, absolute
from overlay.targets.target import Progress

#: The most letters of a subject that an id of ``--each`` takes.
_SLUG = 40


def import_change(
    sources: Sequence[str],
    id_: str,
    patches: Path,
    *,
    releases: str | None = None,
    checkout: Path | None = None,
    partial: bool = False,
    each: bool = False,
    update: bool = False,
    paths: PathRule = BY_RELEASES,
    progress: Progress | None = None,
) -> ImportReport | SeriesReport:
    """Make a feature of diffs or mails, and write it below ``patches``.

    :param sources: files, ``-`` for standard input, URLs of pull requests or commits, or
        ``CHECKOUT@A..B``; laid on each other in their order.
    :param releases: as ``--releases`` takes them; default: every known release of the package that
        the change is of: vLLM, or another known one whose modules it edits.
    :param checkout: a checkout of the package with the text that the change was made on.
    :param partial: leave out what Python alone cannot carry, instead of refusing it.
    :param each: make a feature of each commit, on top of those before; ``id_`` begins their ids.
    :param update: replace a feature of that id.
    :param paths: what the user says about the paths of the change.
    :raises UsageError: if a source is not a diff, holds what no feature can carry, or nothing that
        one would (only tests and documentation).
    :raises OverlayError: if a source or a release cannot be read, or the folder not be written.
    """
    if each:
        expect_id(id_, "--id")
    else:
        require_free(patches, id_, update=update, option="--id")
    if checkout is not None and not checkout.is_dir():
        raise UsageError(
            f"--base {checkout}: expected a checkout of the package, found no such folder"
        )
    read = [read_source(source, each=each) for source in sources]
    parts = _parts(read, releases, paths, progress)
    if checkout is not None:
        _expect_checkout(checkout, parts[0].package)
    imports = _Imports(Memo(), checkout, partial, patches, update)
    if each or len(parts) > 1:
        return _series(imports, parts, id_, each=each)
    (part,) = parts
    prepared, below = imports.on_top(part, part.sources, id_)
    _require_carried([prepared.summary], part)
    folder = prepared.folder
    written = None if folder is None else write_folder(folder, patches, update=update)
    return _report(prepared.summary, written, part.prefixes, below)


def _expect_checkout(folder: Path, package: Package) -> None:
    """Refuse a base from which no text could ever be read.

    :raises UsageError: if neither the package nor a history of git is there.
    """
    if (folder / package.name).is_dir():
        return
    try:
        Checkout(folder)
    except UsageError as error:
        raise UsageError(
            f"--base {folder}: expected a checkout of {package.title} or its unpacked sources, "
            f"found no folder {package.name} there, and no history of git"
        ) from error


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


def _parts(
    sources: Sequence[ChangeSource],
    releases: str | None,
    rule: PathRule,
    progress: Progress | None,
) -> tuple[_Part, ...]:
    """A change by the packages that it is for, its paths found; vLLM's first.

    :param releases: as ``--releases`` takes them; with a name (``vllm-ascend==all``) it tells the
        one package, otherwise the paths of the change do.
    :raises UsageError: if it names no release, or no release of a package is known.
    """
    files = [file for source in sources for commit in source.commits for file in commit.files]
    packages = packages_in([file.path for file in files]) or (VLLM,)
    first, names = packages[0], package_releases.names_of(packages[0])
    if releases is not None:
        first, names = package_releases.names_in(releases, packages[0])
    further = () if first not in packages or rule != BY_RELEASES else packages[1:]
    if releases is not None and "==" in releases:
        further = ()
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
    """The arguments that every feature of an import shares."""

    syntax: Syntax
    checkout: Path | None
    partial: bool
    patches: Path
    update: bool

    def on_top(
        self, part: _Part, sources: Sequence[ChangeSource], id_: str
    ) -> tuple[Prepared, tuple[str, ...]]:
        """The feature that sources make, on top of those of the folder where it needs them.

        :returns: the feature, and the ids of those on whose text it was made.
        """
        prepared = self.prepare(part, sources, id_, part.texts)
        if not prepared.summary.problems or not self.patches.is_dir():
            return prepared, ()
        paths = {fate.path for fate in prepared.summary.problems}
        touching = [
            feature
            for feature in of_package(load([self.patches]), part.package)
            if feature.id < id_ and paths & {*paths_of([feature]), *_modules(feature)}
        ]
        stacked = (
            self.prepare(part, sources, id_, texts_with(touching, part.texts, self.syntax))
            if touching
            else prepared
        )
        if stacked.summary.problems:
            return prepared, ()
        return stacked, tuple(feature.id for feature in touching)

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
        )


def _modules(feature: Feature) -> list[str]:
    """The paths of the modules that a feature adds."""
    return [module.path for module in feature.added]


# Several features: --each, and a change of several packages


def _series(imports: _Imports, parts: Sequence[_Part], id_: str, *, each: bool) -> SeriesReport:
    """Make a feature of each commit, or of each package; all are prepared before one is written.

    :raises UsageError: if one of their ids exists and is not to be replaced.
    """
    reports: list[tuple[Prepared, _Part]] = []
    for part in parts:
        own = id_ if part is parts[0] else f"{id_}-{distribution_name(part.package.distribution)}"
        if each:
            reports += [(entry, part) for entry in _each(imports, part, own)]
        else:
            require_free(imports.patches, own, update=imports.update, option="--id")
            prepared, _ = imports.on_top(part, part.sources, own)
            reports.append((prepared, part))
        _require_carried([entry.summary for entry, of in reports if of is part], part)
    prepared_all = [entry for entry, _ in reports]
    complete = all(e.folder is not None or not _carried(e.summary) for e in prepared_all)
    some = any(entry.folder is not None for entry in prepared_all)
    written = _write_all(prepared_all, imports.patches) if complete and some else {}
    return series(
        tuple(
            _report(entry.summary, written.get(entry.summary.id), part.prefixes)
            for entry, part in reports
        )
    )


def _each(imports: _Imports, part: _Part, id_: str) -> list[Prepared]:
    """Make a feature of each commit, on top of those before."""
    prepared: list[Prepared] = []
    features: list[Feature] = []
    commits = [(source, commit) for source in part.sources for commit in source.commits]
    for number, (source, commit) in enumerate(commits, 1):
        name = _id(id_, number, len(commits), commit)
        require_free(imports.patches, name, update=imports.update, option="--id")
        below = texts_with(features, part.texts, imports.syntax)
        alone = replace(source, commits=(commit,))
        prepared.append(imports.prepare(part, [alone], name, below))
        if (folder := prepared[-1].folder) is not None:
            features.append(check_folder(folder))
    return prepared


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


def _report(
    summary: Summary,
    folder: Path | None,
    prefixes: tuple[tuple[str, str], ...] = (),
    below: tuple[str, ...] = (),
) -> ImportReport:
    span = None if summary.releases is None or folder is None else str(summary.releases)
    return ImportReport(
        concluded(summary, folder),
        feature=summary.id,
        title=summary.title,
        commits=summary.commits,
        files=summary.files,
        outcomes=summary.outcomes,
        releases=span,
        merged=summary.merged,
        folder=folder,
        holders=summary.holders,
        warnings=summary.warnings,
        prefixes=dict(prefixes),
        below=below,
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
            yield labelled(0, "paths     ", f"{before or 'no folder'} is {after or 'left out'}")
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
                base = entry.base or "a text that only --base has"
                hunks = "removed" if entry.removes else count(entry.hunks, "hunk")
                what = f"{hunks}, made on {base}"
            yield labelled(0, "carried   ", f"{entry.path}  {what}")
        for path, releases in self.holders.items():
            yield labelled(0, "taken     ", f"{path}  another file in {enumeration(releases)}")
        yield from landings(self.outcomes)
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
        silent = [name for name in ("warnings", "prefixes", "below") if not getattr(self, name)]
        return by_fields(self, "conclusion", "holders", *silent)


@dataclass(frozen=True)
class SeriesReport(Report):
    """What ``import --each`` made of several commits: a feature each, on top of each other.

    :ivar imports: in the order of the commits.
    """

    _command: ClassVar[str] = "import"
    imports: tuple[ImportReport, ...]

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

    def own_data(self) -> dict[str, Any]:
        """The reports, without a key of their own."""
        return {"imports": plain(self.imports)}


def _problems(imports: Iterable[ImportReport]) -> list[str]:
    """Why files could not be placed."""
    return told_once(
        (entry.path, entry.problem) for each in imports for entry in each.files if entry.problem
    )


def series(imports: tuple[ImportReport, ...]) -> SeriesReport:
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
    return SeriesReport(Verdict(worst.code, text), imports)


def concluded(summary: Summary, folder: Path | None) -> Verdict:
    """The verdict of ``import``."""
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
        return Verdict(Code.NOT_IMPORTED, text)
    wrote = f"Wrote {folder} for {summary.releases}"
    if summary.review:
        text = f"{wrote}, where it was merged: review it before you apply it."
        return Verdict(Code.IMPORT_REVIEW, text)
    check = Invocation(patches=(absolute(folder.parent),)).command("check")
    return Verdict(Code.IMPORTED, f"{wrote}; {check} tries it.")


def _not_placed(files: int) -> str:
    return f"Nothing was written: {count(files, 'file')} could not be placed."
