"""What a user asks of a command, and the features that it is asked about.

A project names its patches folders once: in ``overlay.toml``, or a table in pyproject.toml.  The
nearest folder at or above the working folder that has either counts, and no other.  The file, its
folder and the folders that it names have to belong to the user or to root; what somebody else left
in a folder like /tmp is passed over::

    # overlay.toml                          # pyproject.toml
    patches = ["./our-patches"]             [tool.vllm-overlay]
                                            patches = ["./our-patches"]

Folders are relative to the file.  The command line reads it; the plugin does not, because the
processes of vLLM run wherever they are started: it is told by ``OVERLAY_PATCHES``.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay._features import sources
from overlay._features.folder import load, load_each
from overlay._features.model import Feature, of_package, packages_of
from overlay.errors import (
    ON_CHOSEN,
    Invocation,
    PatchFormatError,
    UsageError,
    absolute,
    described,
    did_you_mean,
)
from overlay.package import VLLM, Package
from overlay.settings import current_ids, in_home
from overlay.untrusted import (
    MalformedToml,
    parse_toml,
    read_regular,
    require_own_name,
    require_private,
)

if TYPE_CHECKING:
    from overlay.targets import Progress


#: Far above any file that a person writes.
_MAX_BYTES = 1024 * 1024

_TABLE = re.compile(rb"^\s*\[\s*tool\s*\.\s*[\"']?vllm-overlay[\"']?\s*\]", re.MULTILINE)


class Project(NamedTuple):
    """What a project names.

    :ivar file: the file that names it; ``None`` if the file does not exist.
    :ivar patches: absolute paths of patches folders, in order.
    :ivar ignored: files that somebody else left where everybody may make files.
    """

    file: Path | None = None
    patches: tuple[Path, ...] = ()
    ignored: tuple[Path, ...] = ()


def find_project() -> Project:
    """The project of the working folder.

    :raises PatchFormatError: with file and line, where the file is malformed.
    :raises UsageError: if it cannot be read.
    :raises NotPrivate: if somebody else could have written it, since it names code to be run.
    """
    try:
        start = Path.cwd()
    except FileNotFoundError:  # the working folder was removed
        return Project()
    ignored: list[Path] = []
    for place in (start, *start.parents):
        for file, is_table in ((place / "overlay.toml", False), (place / "pyproject.toml", True)):
            if _is_strangers(file):
                ignored.append(file)
                continue
            data = _document(file, is_table=is_table)
            if data is not None:
                return Project(file, _patches(file, data, is_table=is_table), tuple(ignored))
    return Project(ignored=tuple(ignored))


def _document(file: Path, *, is_table: bool) -> bytes | None:
    """The bytes of a project's file; ``None`` where there is none, or it is about other things.

    :raises NotPrivate: if somebody else could have written it, or made the link to it.
    :raises UsageError: if it cannot be read.
    """
    try:
        data = read_regular(file, _MAX_BYTES)
    except OSError as error:
        if is_table:
            return None  # it may have nothing to do with the overlay
        raise UsageError(
            f"cannot read the project's patches folders: {described(error)}"
        ) from error
    if data is None or (is_table and not _TABLE.search(data)):
        return None
    require_own_name(file)
    for place in (file.resolve(), file.resolve().parent):
        _require_own(place)
    return data


def _is_strangers(file: Path) -> bool:
    """Whether a file was left by somebody else where everybody may make files, such as /tmp.

    It says nothing of anybody's project, and would stop each command that runs below.
    """
    try:
        status, folder = os.lstat(file), os.stat(file.parent)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return bool(folder.st_mode & stat.S_IWOTH) and status.st_uid not in (os.geteuid(), 0)


def _require_own(place: Path) -> None:
    """Refuse what somebody else could have put there.

    :raises NotPrivate: unless it is the user's or root's; others may write into a folder only where
        each may rename no more than their own files (the sticky bit).
    """
    status = os.stat(place)
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if not (sticky and status.st_uid in (os.geteuid(), 0)):
        require_private(place, allow_group=True)


def _patches(file: Path, data: bytes, *, is_table: bool) -> tuple[Path, ...]:
    try:
        document = parse_toml(data)
    except MalformedToml as error:
        line = error.line or data.count(b"\n") + 1  # it is told but for the end
        raise PatchFormatError(str(file), line, f"expected TOML: {error}") from error
    table = document.get("tool", {}).get("vllm-overlay", {}) if is_table else document
    if not isinstance(table, dict):
        raise _malformed(file, data, "vllm-overlay", f"expected a table, found {table!r}")
    for key in table:
        if key != "patches":
            raise _malformed(file, data, key, f"expected the key patches, found {key}")
    folders = table.get("patches", [])
    if not isinstance(folders, list) or not all(isinstance(name, str) and name for name in folders):
        raise _malformed(
            file, data, "patches", f'expected a list such as ["./our-patches"], found {folders!r}'
        )
    return tuple(_folder(file, data, folder) for folder in folders)


def _folder(file: Path, data: bytes, folder: str) -> Path:
    """A patches folder that a project's file names: beside the file itself, not beside a link.

    :raises PatchFormatError: if there is none.
    :raises NotPrivate: if somebody else could have written it.
    """
    place = file.resolve().parent / in_home(folder)
    try:
        is_folder = place.is_dir()
    except ValueError:  # a NUL in it
        is_folder = False
    if not is_folder:
        raise _malformed(
            file, data, "patches", f"expected a folder of features at {place}, found none"
        )
    require_own_name(place)
    _require_own(place.resolve())
    return place


def _malformed(file: Path, data: bytes, key: str, problem: str) -> PatchFormatError:
    """The error of a key, with the line that sets it."""
    pattern = re.compile(rf"^\s*\[?[\"']?([\w.]*\.)?{re.escape(key)}[\"']?\s*[=\].]", re.MULTILINE)
    text = data.decode("utf-8-sig", "replace")
    match = pattern.search(text)
    line = text.count("\n", 0, match.end()) + 1 if match else None
    return PatchFormatError(str(file), line, problem)


def words_of(name: str | None, python: str | None) -> tuple[str, ...]:
    """The arguments that name a target in every working folder.

    :param name: TARGET, as the user named it; :param python: the same of ``--python``.
    """
    if name is None:
        if python is None:
            return ()
        on_path = os.sep not in python and not os.path.exists(python)
        return ("--python", python if on_path else absolute(python))
    from overlay.targets.resolution import target_release  # `list` has no target

    return (name,) if target_release(name) is not None else (absolute(name),)


#: What to do where a feature is in none of the folders.
FURTHER = "name the folder of a further feature with --patches DIR"

#: With which ``--require`` means every feature that is made for the release.
EVERY = "all"


class Request(NamedTuple):
    """The part of a command's arguments that all commands share.

    :ivar patches: folders with features beside those shipped, in order.
    :ivar features: ids of the features that are meant; empty: all.
    :ivar python: the interpreter or virtual environment whose vLLM is meant, where no target is
        named.
    :ivar require: ids of features that must be applied, or ``all``.
    :ivar without: ids of features that are not meant although they are at hand.
    :ivar named_as: what messages call the argument by which ``features`` were named.
    :ivar target: TARGET, as the user named it.
    :ivar progress: called while something is fetched; a ``Meter`` counts targets, too.
    """

    patches: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    python: str | None = None
    require: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    named_as: str = "--feature"
    target: str | None = None
    progress: Progress | None = None

    def with_current_ids(self) -> Request:
        """The same by the ids that features have now; a former one is warned of."""

        def note(text: str) -> None:
            warnings.warn(
                text, FutureWarning, stacklevel=7
            )  # at the caller of a function of the API

        return self._replace(
            features=current_ids(self.features, note),
            require=current_ids(self.require, note),
            without=current_ids(self.without, note),
        )

    def of_ids(self, ids: Iterable[str]) -> Request:
        """The same for features that an argument of the command names."""
        return self._replace(features=tuple(ids), named_as="ID").with_current_ids()

    @property
    def names_target(self) -> bool:
        """Whether the user named a target, and does not mean the vLLM of this Python."""
        return self.target is not None or self.python is not None

    def invocation(self, name: str, folders: Iterable[str | Path]) -> Invocation:
        """What the commands that messages name repeat of it.

        :param name: the command that was asked; only some choose features by ``--feature``.
        :param folders: those of ``patches`` that were named: folders of the environment and of a
            project's file need no repetition.
        """
        options = (("--feature", self.features), ("--without", self.without))
        return Invocation(
            words_of(self.target, self.python),
            tuple(absolute(folder) for folder in folders),
            tuple(word for option, ids in options for id_ in ids for word in (option, id_))
            if name in ON_CHOSEN
            else (),
        )

    def package(self, features: tuple[Feature, ...]) -> Package:
        """The package whose releases bare version numbers are: that of all features named, or vLLM.

        :raises UsageError: if a feature does not exist.
        """
        packages = packages_of(self.select(features)) if self.features else ()
        return packages[0] if len(packages) == 1 else VLLM

    @property
    def folders(self) -> tuple[Path, ...]:
        """The patches folders, the shipped one first.

        :raises OverlayError: if this installation lacks the shipped one.
        """
        return (sources.shipped_folder(), *(in_home(folder) for folder in self.patches))

    def load(self) -> tuple[Feature, ...]:
        """Every feature, whether it is meant or not, for a command that writes patches.

        Where features are named, what else is malformed leaves itself out.

        :raises PatchFormatErrors: with everything that is malformed, among what is named if any is.
        :raises UsageError: if a folder is not there.
        """
        if self.features:
            return tuple(feature for feature in self.at_hand() if not feature.malformed)
        return load(self.folders)

    def at_hand(self) -> tuple[Feature, ...]:
        """The same for a command that goes on without what is malformed, unless that was named.

        :returns: for each malformed feature one that says why (``Feature.malformed``).
        :raises PatchFormatErrors: for what was named, and a folder in which nothing is a feature.
        :raises UsageError: if a folder is not there.
        """
        return load_each(self.folders, self.features)

    def authored(
        self, package: Package, features: tuple[Feature, ...] | None = None
    ) -> tuple[Feature, ...]:
        """The features for one package, with which a command that writes patches works.

        :param features: all of them, where they are loaded already.
        :raises UsageError: if ``--feature`` names one for another package.
        """
        features = self.load() if features is None else features
        for feature in features:
            if feature.package != package and feature.id in self.features:
                raise UsageError(
                    f"{feature.id}: expected a feature for {package.title}, found one for "
                    f"{feature.package.title}: name a release of that, such as "
                    f"{feature.package.distribution}=={feature.releases.last}"
                )
        return of_package(features, package)

    def select(self, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """The features that are meant, in their own order.

        :raises UsageError: naming every id that there is not, and those that there are.
        """
        names = [feature.id for feature in features]
        for option, ids in ((self.named_as, self.features), ("--without", self.without)):
            if unknown := [name for name in dict.fromkeys(ids) if name not in names]:
                raise UsageError(
                    f"{option} {', '.join(unknown)}: expected one of {', '.join(names) or 'none'}"
                    + did_you_mean(unknown, names, FURTHER)
                )
        if both := sorted({*self.features} & {*self.without}):
            raise UsageError(
                f"--without {', '.join(both)}: expected features other than those of --feature"
            )
        return tuple(
            feature
            for feature in features
            if (not self.features or feature.id in self.features) and feature.id not in self.without
        )


def expect_known(require: Sequence[str], features: Sequence[Feature]) -> None:
    """Refuse a required feature that does not exist.

    :raises UsageError: naming every unknown id, and the known ones.
    """
    ids = [feature.id for feature in features]
    unknown = [name for name in dict.fromkeys(require) if name not in (*ids, EVERY)]
    if unknown:
        raise UsageError(
            f"--require {', '.join(unknown)}: expected {EVERY} or one of "
            f"{', '.join(ids) or 'none'}{did_you_mean(unknown, ids, FURTHER)}"
        )
