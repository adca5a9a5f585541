"""Find what somebody edited in a target: what is neither the release's own nor the overlay's.

A file counts as edited where its bytes are neither those of the release (by RECORD, or by the
release itself where there is no RECORD) nor what the overlay wrote.  Its pristine text comes from
the ledger's copies, or else from the release; it is never guessed from the edited file.

Beside Python modules RECORD tells: a data file counts as edited where its bytes are not those that
RECORD lists.  Modes are in no RECORD, so nothing is known of them, and bytecode is Python's own.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay._features.sources import unread
from overlay.errors import PackageIndexError, TargetError
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.disk_state import Condition, condition
from overlay.package import VLLM, Package, Tree, file_problem, path_problem
from overlay.results import State
from overlay.targets.installations import Record
from overlay.untrusted import kind, open_regular, sha256

if TYPE_CHECKING:
    from overlay.on_disk.ledger import Entry, Ledger


_PIECE = 1 << 20

#: What was done to a data file.
EDITED, ADDED, REMOVED = "edited", "added", "removed"

#: What became of a file of which nobody said that it is to go.
MISSING = State.MISSING.value


class Beside(NamedTuple):
    """One change that is not one of a module.

    :ivar what: what was done, in a word or two: edited, added, removed, or what lies there.
    """

    path: str
    what: str


def beside(root: Path, record: Mapping[str, str], package: Package) -> tuple[Beside, ...]:
    """What was changed below the folder of a package and is no module, by path.

    :param record: sha256 (hex) of the release's own files by path.
    :raises TargetError: if a file cannot be read.
    """
    visited: set[str] = set()
    changed: list[Beside] = []
    for path, mode in _entries(root, package.name):
        visited.add(path)
        if (what := _changed(root, path, mode, record.get(path), package)) is not None:
            changed.append(Beside(path, what))
    changed += [
        Beside(path, REMOVED)
        for path in record
        if path not in visited and not _is_module(path, package)
    ]
    return tuple(sorted(changed))


def by_folder(changed: Iterable[Beside], record: Iterable[str]) -> tuple[Beside, ...]:
    """The same, where a folder of which RECORD lists nothing is named as one."""
    return tuple(sorted(_by_folder(changed, folders_of(record))))


def folders_of(paths: Iterable[str]) -> set[str]:
    """Every folder that holds one of some paths, at any depth."""
    return {
        "/".join(parts[:depth])
        for path in paths
        for parts in [path.split("/")]
        for depth in range(1, len(parts))
    }


def _entries(root: Path, name: str) -> Iterator[tuple[str, int]]:
    """The path and mode of every file and link below a folder, but for bytecode."""
    for place, folders, names in os.walk(root / name):
        folders[:] = [folder for folder in folders if folder != "__pycache__"]
        below = os.path.relpath(place, root).replace(os.sep, "/")
        for each in (*folders, *names):
            mode = os.lstat(os.path.join(place, each)).st_mode
            if not stat.S_ISDIR(mode) and not each.endswith(".pyc"):
                yield f"{below}/{each}", mode


def _changed(
    root: Path, path: str, mode: int, expected: str | None, package: Package
) -> str | None:
    """What was done to a file; ``None`` where it is the release's own, or a module."""
    if _is_module(path, package) and (stat.S_ISREG(mode) or expected is not None):
        return None
    if not stat.S_ISREG(mode):
        return kind(mode)
    if expected is None:
        return ADDED
    return None if _digest(root / path) == expected else EDITED


def _is_module(path: str, package: Package) -> bool:
    return path_problem(path, package) is None


def _digest(file: Path) -> str:
    """The sha256 (hex) of a file of any size."""
    total = hashlib.sha256()
    try:
        with open_regular(file) as opened:
            while piece := opened.read(_PIECE):
                total.update(piece)
    except OSError as error:
        raise TargetError(f"{file}: it cannot be read: {error.strerror or error}") from error
    return total.hexdigest()


def _by_folder(changed: Iterable[Beside], own: set[str]) -> Iterator[Beside]:
    """The changes, with those in a folder that is not the release's as one."""
    folders: dict[tuple[str, str], int] = {}
    for each in changed:
        parts = each.path.split("/")
        ways = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        foreign = next((way for way in ways if way not in own), None)
        if foreign is None:
            yield each
        else:
            what = MISSING if each.what == MISSING else ADDED
            folders[foreign, what] = folders.get((foreign, what), 0) + 1
    for (folder, what), files in folders.items():
        yield Beside(f"{folder}/", f"{what}, {files} file{'s' if files > 1 else ''}")


#: The most bytes of data files that become part of a feature.
_MOST_BYTES = 64 * 1024 * 1024

#: The module that a build writes, so that two builds of one release differ in it.
_BUILT = "_version.py"


@dataclass(frozen=True)
class FileEdit:
    """One edited file.

    :ivar now: its present bytes; ``None`` where somebody removed it.
    :ivar pristine: the release's own bytes; ``None`` where the release has no such file.
    :ivar written: sha256 of what the overlay wrote there; ``None`` where it wrote nothing.
    :ivar before: whether it was edited before the overlay patched it, so that what the overlay
        wrote holds that edit.
    """

    path: str
    now: bytes | None
    pristine: bytes | None
    written: str | None = None
    before: bool = False


class PristineFiles:
    """The release's own files of a target, edited or not; satisfies ``overlay.package.Tree``.

    :param tree: the target as it is; :param root: its folder.
    :param ledger: what the overlay did there; ``None`` where nothing is applied.
    :param record: sha256 of the release's own files by path; ``None`` where there is no RECORD.
    :param release: opens the release itself; asked only where nothing in the target has the text.
    :param package: the package that the target holds.
    """

    def __init__(
        self,
        tree: Tree,
        root: Path,
        ledger: Ledger | None,
        record: Mapping[str, str] | None,
        release: Callable[[], Tree],
        package: Package = VLLM,
    ) -> None:
        self.tree, self.root, self.ledger, self.record = tree, root, ledger, record
        self._open = release
        self._release: Tree | None = None
        self.package = package
        self._bare = unhashed(record)
        self._alone = False
        self._copies = ledgers.copies(root, package)

    def read(self, path: str) -> bytes | None:
        """The release's own bytes of a file; ``None`` where it has no such file.

        :raises LedgerError: if the pristine copy of it is missing or damaged.
        :raises TargetError: if the release's file is not the one that RECORD lists.
        :raises PackageIndexError: if the release has to be fetched and cannot be.
        """
        if not self._is_recorded(path):
            return self.of_release(path)
        expected = (self.record or {}).get(path)
        if expected is None:
            return self._overlooked(path)
        entry = None if self.ledger is None else self.ledger.entry(path)
        if entry is not None and entry.before == expected:
            return self._copies(expected)
        now = self.tree.read(path)
        if now is not None and sha256(now) == expected:
            return now
        data = self.of_release(path)
        if data is None or sha256(data) != expected:
            present = "no such file" if data is None else f"one with {sha256(data)[:12]}..."
            raise TargetError(
                f"{path}: it was edited, and its own text is needed: expected a file with the "
                f"sha256 {expected[:12]}... of RECORD in the release, found {present}. This is "
                f"another build of {self.package.title} than the package index has; make the diff "
                "against its source, and use `overlay import`"
            )
        return data

    def edited_before(self, entry: Entry) -> bool:
        """Whether a file was edited before the overlay patched it."""
        if entry.before is None:
            return False
        expected = (self.record or {}).get(entry.path)
        if expected is not None:
            return entry.before != expected
        listed = not self._is_recorded(entry.path)
        own = self.of_release(entry.path) if listed else self._overlooked(entry.path)
        return own is None or entry.before != sha256(own)

    def _overlooked(self, path: str) -> bytes | None:
        """A file of the release that a RECORD with rows missing does not list: it is not added."""
        entry = None if self.ledger is None else self.ledger.entry(path)
        is_added = entry is not None and entry.before is None
        if is_added or self._alone or self.tree.read(path) is None:
            return None
        try:
            return self.of_release(path)
        except PackageIndexError:
            self._alone = True  # a build that no index has: there is RECORD alone
            return None

    def _is_recorded(self, path: str) -> bool:
        """Whether RECORD says which bytes the release has of a file, or that it has none."""
        return self.record is not None and path not in self._bare

    def of_release(self, path: str) -> bytes | None:
        """The bytes of a file in the release as it was published."""
        if self._release is None:
            self._release = self._open()
        return self._release.read(path)


def unhashed(record: Mapping[str, str] | None) -> frozenset[str]:
    """The files that a RECORD lists without a hash: they are the release's, whatever they hold."""
    return record.without_hash if isinstance(record, Record) else frozenset()


def find(files: PristineFiles) -> tuple[FileEdit, ...]:
    """The edited Python modules of a target, by path; nothing is written and nothing run.

    :raises OverlayError: if a file, or its pristine text, cannot be read.
    """
    return tuple(edit for path in sorted(_candidates(files)) if (edit := _edit(path, files)))


def data_edits(
    files: PristineFiles, changed: Sequence[Beside]
) -> tuple[tuple[FileEdit, ...], tuple[Beside, ...]]:
    """The edited data files of a target that a feature can carry, and what else was changed.

    :param changed: what was changed and is no module.  What the overlay itself wrote is not an
        edit; what somebody made of that, ``find`` tells.
    """
    edits: list[FileEdit] = []
    rest: list[Beside] = []
    listed = set() if files.ledger is None else {entry.path for entry in files.ledger.entries}
    room = _MOST_BYTES
    for change in changed:
        if change.path in listed:
            continue
        edit = _data_edit(files, change)
        room -= 0 if edit is None else len(edit.now or b"")
        if edit is None or room < 0:
            rest.append(change)
        elif edit.now != edit.pristine:
            edits.append(edit)
    return tuple(edits), tuple(rest)


def _data_edit(files: PristineFiles, change: Beside) -> FileEdit | None:
    """The edit of a data file; ``None`` where its bytes cannot be carried or put back.

    What a tool left (``a.py.orig``) is no edit that anybody means, and no folder keeps it.
    """
    is_left = change.what == ADDED and unread(change.path) is not None
    what_is_carried = change.what in (EDITED, ADDED, REMOVED) and not is_left
    if not what_is_carried or file_problem(change.path, files.package) is not None:
        return None
    try:
        return FileEdit(change.path, files.tree.read(change.path), files.read(change.path))
    except TargetError:
        return None  # too large, or the release at hand has texts only


def _candidates(files: PristineFiles) -> set[str]:
    paths = set(_modules(files))
    if files.ledger is not None:
        paths |= {entry.path for entry in files.ledger.entries}
    if files.record is None:
        return paths - {f"{files.package.name}/{_BUILT}"}
    return paths | {path for path in files.record if path_problem(path, files.package) is None}


def _modules(files: PristineFiles) -> Iterator[str]:
    """The path of each Python module below the folder of a package.

    With a RECORD a link, pipe or the like of which that tells nothing is not a module, but one of
    what ``beside`` names.
    """
    package = files.package
    for place, folders, names in os.walk(files.root / package.name):
        folders[:] = [name for name in folders if name != "__pycache__"]
        below = os.path.relpath(place, files.root).replace(os.sep, "/")
        for name in names:
            if not name.endswith(".py") or path_problem(f"{below}/{name}", package) is not None:
                continue
            if files.record is None or stat.S_ISREG(os.lstat(os.path.join(place, name)).st_mode):
                yield f"{below}/{name}"


def _edit(path: str, files: PristineFiles) -> FileEdit | None:
    """The edit of one file; ``None`` where nobody edited it."""
    now = files.tree.read(path)
    entry = None if files.ledger is None else files.ledger.entry(path)
    if entry is not None:
        state, before = condition(entry, now), files.edited_before(entry)
        if state in (Condition.OURS, Condition.PRISTINE) and not before:
            return None
        written = None if state is Condition.PRISTINE else entry.after
        return FileEdit(path, now, files.read(path), written, before)
    if files.record is not None and now is not None and files.record.get(path) == sha256(now):
        return None
    pristine = files.read(path)
    return None if pristine == now else FileEdit(path, now, pristine)
