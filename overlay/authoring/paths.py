"""Find where the paths of a foreign change begin: what precedes the package in them is cut off.

A diff of an installed package, of a copy beside it, of a source tree that keeps its Python in a
folder of its own, or of files inside the package names each file in another way.  The releases say
which one is meant: a path is cut, or put below the package's folder, so that a release has it.
What stands before the package in one path stands before it in the others of the change, too, which
places the files that no release has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from overlay.authoring.incoming import ChangeKind, Commit, IncomingFile
from overlay.authoring.locating import ReleaseTexts, replay
from overlay.authoring.triage import is_beside
from overlay.errors import ArchiveError, TargetError, UsageError
from overlay.package import KNOWN_PACKAGES, Package, check_path, paths_in

#: What a copy of the package's folder is called: its name and one of these.
_COPY = re.compile(
    r"[.~+-](?!.*-info$).*|[._-]?(orig|old|new|bak|backup|copy|mod|modified|patched|pristine)\d*"
)

#: The folders in which Python finds packages.
_SITES = ("site-packages", "dist-packages")

#: Of more files with one name none is looked into.
_MOST = 60

#: The lines that a change must show of a file for them to tell which one it is.
_TELLING = 3


class PathRule(NamedTuple):
    """What the user says about the paths of a change.

    :ivar strip: how many folders are cut off each name, as ``patch -p`` counts them; ``None`` for
        what the releases tell.
    :ivar directory: the folder that the names are relative to then; empty for none.
    """

    strip: int | None = None
    directory: str = ""


BY_RELEASES = PathRule()


@dataclass(frozen=True)
class Placed:
    """A change whose paths are those of the package.

    :ivar prefixes: what precedes the package's folder, or stands for it -> what it is.
    """

    commits: tuple[Commit, ...]
    prefixes: tuple[tuple[str, str], ...] = ()


def package_in(paths: Sequence[str]) -> Package | None:
    """The package that the overlay knows and that some paths lead through, vLLM first.

    >>> package_in(["docs/a.md", "src/vllm_ascend/utils.py"]).title
    'vllm-ascend'
    >>> package_in(["vllm.orig/utils.py"]).title
    'vLLM'
    """
    for copies in (False, True):
        for package in KNOWN_PACKAGES:
            if any(next(_below(path, package, copies=copies), None) for path in paths):
                return package
    return None


def packages_in(paths: Sequence[str]) -> tuple[Package, ...]:
    """The packages that the overlay knows and that some paths lead through."""
    first = package_in(paths)
    further = (
        package
        for package in KNOWN_PACKAGES
        if package != first and any(path_of(path, package) is not None for path in paths)
    )
    return () if first is None else (first, *further)


def path_of(path: str, package: Package) -> str | None:
    """A path from the folder of a package on, where it leads through that; else ``None``."""
    own = next(_below(path, package), None)
    # The outermost package is the one that is patched: vllm/plugins/vllm_ascend is vLLM's.
    further = (
        next(_below(path, other), "") for other in KNOWN_PACKAGES if other.name != package.name
    )
    return own if own is not None and all(len(other) < len(own) for other in further) else None


def place(
    commits: Sequence[Commit], package: Package, texts: ReleaseTexts, rule: PathRule = BY_RELEASES
) -> Placed:
    """The change with the paths of the package."""
    if rule != BY_RELEASES:
        files = [_ruled(file, rule) for commit in commits for file in commit.files]
        if files and not any(file.path.startswith(f"{package.name}/") for file in files):
            options = [] if rule.strip is None else [f"--strip {rule.strip}"]
            options += [f"--directory {rule.directory}"] if rule.directory else []
            raise UsageError(
                f"{files[0].place}: expected a path in {package.name}/ by {' '.join(options)}, "
                f"found {files[0].path}: leave the option out, and the releases tell"
            )
        return Placed(_with(commits, files))
    return _Placing(package, texts).placed(commits)


def _ruled(file: IncomingFile, rule: PathRule) -> IncomingFile:
    """A file with its paths as the user says."""
    old, new = (_cut(name, rule, file) for name in file.names)
    if rule.strip is None:
        old, new = (
            None if path is None else _below_directory(path, rule)
            for path in (file.old_path or file.path, file.path)
        )
    path = new or old or file.path
    return replace(file, path=path, old_path=None if old in (None, path) else old)


def _cut(name: str | None, rule: PathRule, file: IncomingFile) -> str | None:
    if name is None or rule.strip is None:
        return None
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) <= rule.strip:
        raise UsageError(
            f"{file.place}: expected more than {rule.strip} folders to strip, found the name {name}"
        )
    return _below_directory("/".join(parts[rule.strip :]), rule)


def _below_directory(path: str, rule: PathRule) -> str:
    folder = rule.directory.strip("/")
    return f"{folder}/{path}" if folder else path


def _with(commits: Sequence[Commit], files: Sequence[IncomingFile]) -> tuple[Commit, ...]:
    remaining = iter(files)
    return tuple(
        replace(commit, files=tuple(next(remaining) for _ in commit.files)) for commit in commits
    )


class _Placing:
    """The paths of a change while the releases are asked about them."""

    def __init__(self, package: Package, texts: ReleaseTexts) -> None:
        self.package, self.texts = package, texts
        self.prefixes: dict[str, str] = {}
        self._there: dict[str, bool] = {}
        self._folders: set[str] | None = None

    def placed(self, commits: Sequence[Commit]) -> Placed:
        files = [file for commit in commits for file in commit.files]
        inside = not any(
            path_of(name, package) is not None
            for file in files
            for name in _names(file)
            for package in (self.package, *KNOWN_PACKAGES)
        )
        results = {n: path for n, file in enumerate(files) if (path := self._edited(file, inside))}
        for number, file in enumerate(files):
            if number not in results and (path := self._other(file)) is not None:
                results[number] = path
        placed = [
            self._as(file, results[number]) if number in results else self._created(file)
            for number, file in enumerate(files)
        ]
        return Placed(_with(commits, placed), tuple(self.prefixes.items()))

    def _as(self, file: IncomingFile, path: str) -> IncomingFile:
        renamed = file.kind in (ChangeKind.RENAMED, ChangeKind.COPIED) and file.old_path
        old = (self._by_prefix(renamed) or renamed) if renamed else None
        return self._created(replace(file, path=path, old_path=None if old == path else old))

    def _created(self, file: IncomingFile) -> IncomingFile:
        """A file that is added, where its hunk and its date, or the releases, say so."""
        if file.kind is not ChangeKind.MODIFIED or not file.creates or len(file.hunks) != 1:
            return file
        if not file.dated and self._has(file.path):
            return file
        return replace(file, kind=ChangeKind.ADDED, old_path=None)

    # An edited file: a release has it

    def _edited(self, file: IncomingFile, inside: bool) -> str | None:
        """The path of a file that releases have; ``None`` where none does."""
        names = _names(file)
        for tier in self._tiers(names, inside, file):
            there = [path for path in dict.fromkeys(tier) if self._has(path)]
            if len(there) > 1:
                there = [path for path in there if self._takes(path, file)] or there
            if len(there) > 1:
                raise UsageError(
                    f"{file.place}: expected the path of one file of {self.package.title}, found "
                    f"{names[0]}, which may be {' or '.join(there[:3])}: name the folder that the "
                    "paths are relative to with --directory, or how many folders precede the "
                    "package with --strip"
                )
            if there:
                self._learn(names, there[0])
                return there[0]
        return None

    def _tiers(self, names: Sequence[str], inside: bool, file: IncomingFile) -> Iterator[list[str]]:
        """The paths that names may mean, those that say more before those that say less."""
        name = self.package.name
        yield [path for each in names if (path := path_of(each, self.package)) is not None]
        yield [path for each in names for path in _below(each, self.package)]
        yield [path for each in names for path in _below(each, self.package, copies=True)]
        if not inside:
            return
        below = [f"{name}/{each}" for each in names if not each.startswith("/")]
        yield [path for path in below if not is_beside(file.path) or self._takes(path, file)]
        # From here on a name says little, and the lines of the change have to say the rest.
        if sum(bool(text.strip()) for hunk in file.hunks for text in hunk.pre) >= _TELLING:
            shorter = [f"{name}/{short}" for each in names for short in _shorter(each)]
            for paths in (shorter, self._ending(names)):
                yield [path for path in paths if self._has(path) and self._takes(path, file)]

    def _ending(self, names: Sequence[str]) -> list[str]:
        """The files of the newest release whose paths end as a name does, the longest end first."""
        release = self.texts.names[-1:]
        paths = [path for name in release for path in paths_in(self.texts.open(name))]
        for name in names:
            for end in (name, *_shorter(name)):
                if there := [path for path in paths if path.endswith(f"/{end}")]:
                    return there if len(there) <= _MOST else []
        return []

    def _has(self, path: str) -> bool:
        if path not in self._there:
            self._there[path] = any(
                self._read(release, path) is not None for release in reversed(self.texts.names)
            )
        return self._there[path]

    def _read(self, release: str, path: str) -> bytes | None:
        try:
            check_path(path, self.package)
        except TargetError:
            return None
        try:
            return self.texts.read(release, path)
        except ArchiveError:
            return b""  # a file of the release that is not a text

    def _takes(self, path: str, file: IncomingFile) -> bool:
        """Whether a release's text of a file takes every hunk."""
        texts = {self._read(release, path) for release in self.texts.names} - {None}
        return any(replay(data, file.hunks) is not None for data in texts if data is not None)

    # Any other: its paths are written as those of the others are

    def _learn(self, names: Sequence[str], path: str) -> None:
        """Remember what precedes the package in the names of a file."""
        for name in names:
            parts, own = name.split("/"), path.split("/")
            while parts and len(own) > 1 and parts[-1] == own[-1]:
                parts.pop()
                own.pop()
            if len(own) == len(path.split("/")):
                continue  # the copy of a file, whose name says nothing of others
            before, after = "".join(f"{part}/" for part in parts), "".join(f"{p}/" for p in own)
            if before != after:
                self.prefixes.setdefault(before, after)

    def _by_prefix(self, name: str) -> str | None:
        """The path that a name has by what precedes the package in others; longest first."""
        for before, after in sorted(self.prefixes.items(), key=lambda pair: -len(pair[0])):
            if name.startswith(before):
                return after + name.removeprefix(before)
            site = before.removesuffix(after) if before.endswith(after) else None
            if site and name.startswith(site):
                return name.removeprefix(site)
        return None

    def _other(self, file: IncomingFile) -> str | None:
        """The path of a file that no release has; ``None`` where its names lack the package."""
        names = _names(file)
        for tier in (
            [path for name in names if (path := self._by_prefix(name)) is not None],
            [path for name in names if (path := path_of(name, self.package)) is not None],
            [path for name in names for path in _below(name, self.package)],
            [path for name in names for path in _below(name, self.package, copies=True)],
        ):
            paths = list(dict.fromkeys(tier))
            if paths:
                path = next((path for path in paths if self._is_beside(path)), paths[0])
                if path.startswith(f"{self.package.name}/"):
                    self._learn(names, path)
                return path
        return None

    def _is_beside(self, path: str) -> bool:
        """Whether the newest release has the folder of a file."""
        if self._folders is None:
            release = self.texts.names[-1:]
            paths = [path for name in release for path in paths_in(self.texts.open(name))]
            self._folders = {path.rpartition("/")[0] for path in paths}
        return path.rpartition("/")[0] in self._folders


def _names(file: IncomingFile) -> tuple[str, ...]:
    """The names of a file, that after the change first, without what means nothing in them."""
    names = (file.path,) if file.kind in _APART else (file.path, file.old_path)
    plain = (re.sub(r"^(\./+)+|(?<=/)(\./+)+", "", name) for name in names if name)
    return tuple(dict.fromkeys(plain))


#: Kinds of changes whose two names are those of two files.
_APART = (ChangeKind.RENAMED, ChangeKind.COPIED)


def _below(path: str, package: Package, *, copies: bool = False) -> Iterator[str]:
    """A path from each folder of the package's name on, that of an installation first.

    :param copies: the folders that are called as copies of the package are, and no others.
    """
    parts = path.split("/")
    for at in sorted(range(len(parts) - 1), key=lambda at: not at or parts[at - 1] not in _SITES):
        own = parts[at] == package.name
        if own is not copies and (own or _is_copy(parts[at], package)):
            yield "/".join([package.name, *parts[at + 1 :]])


def _is_copy(part: str, package: Package) -> bool:
    """Whether a folder is called as a copy of the package is."""
    return part.startswith(package.name) and bool(_COPY.fullmatch(part[len(package.name) :]))


def _shorter(path: str) -> Iterator[str]:
    """A path without its first folder, its first two, and so on."""
    parts = path.split("/")
    for at in range(1, len(parts)):
        yield "/".join(parts[at:])
