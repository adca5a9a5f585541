"""Read a patches folder as features, checked and digested.

Layout: ``<feature>/feature.toml``, ``<feature>/NN-<topic>/<first>..<last>.patch`` and
``<feature>/files/<package>/...``; ``shared/files/<package>/...`` holds modules that features name.
Files that an editor or a file manager leaves are named and ignored.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from overlay._features import sources
from overlay._features.feature_folder import ignored, is_plain, read_feature
from overlay._features.feature_toml import NO_RELEASES
from overlay._features.model import SHIPPED, Feature
from overlay.errors import (
    MAX_ERRORS,
    OverlayError,
    PatchFormatError,
    PatchFormatErrors,
    UsageError,
    bounded,
)
from overlay.package import id_problem
from overlay.results import Notice


class Hole(NamedTuple):
    """A release inside a feature's range for which one of its topics has no variant."""

    topic: str
    release: str

    def __str__(self) -> str:
        return f"{self.topic} has no variant for {self.release}"


class Malformed(NamedTuple):
    """A feature, or something else in a patches folder, that could not be read.

    :ivar id: the name of its folder, which a well-formed feature has as its id.
    :ivar errors: everything that is wrong with it; at least one.
    :ivar required: whether its feature.toml, as far as it can be read, says that vLLM must not
        start without it.
    """

    id: str
    errors: tuple[PatchFormatError, ...]
    required: bool


class Loaded(NamedTuple):
    """What patches folders hold, folder by folder, by id within each.

    :ivar features: those that could be read; :ivar malformed: those that could not.
    """

    features: tuple[Feature, ...]
    malformed: tuple[Malformed, ...]


def load(folders: Sequence[Path]) -> tuple[Feature, ...]:
    """Read the features of patches folders, all or none.

    :raises UsageError: if a folder is not there or cannot be read.
    :raises PatchFormatErrors: with everything that is malformed in any of them.
    """
    loaded = load_all(folders)
    errors = [error for malformed in loaded.malformed for error in malformed.errors]
    if errors:
        raise PatchFormatErrors(errors)
    return loaded.features


def load_each(folders: Sequence[Path], chosen_ids: Container[str] = ()) -> tuple[Feature, ...]:
    """Read the features of patches folders; what is malformed leaves itself out and nothing else.

    :param chosen_ids: the ids that the user named: one of these that is malformed is an error.
    :returns: the features, and for each that is malformed one that says so (``malformed``).
    :raises UsageError: if a folder is not there or cannot be read.
    :raises PatchFormatErrors: for what is named, and for a folder in which nothing is a feature.
    """
    loaded = load_all(folders)
    empty = [str(folder) for folder in folders if not sources.feature_documents(folder)]
    refused = [
        error
        for each in loaded.malformed
        for error in each.errors
        if each.id in chosen_ids or any(_lies_in(error, folder) for folder in empty)
    ]
    if refused:
        raise PatchFormatErrors(refused)
    ids = {feature.id for feature in loaded.features}
    return (*loaded.features, *(_left_out(each, ids) for each in loaded.malformed))


def _lies_in(error: PatchFormatError, folder: str) -> bool:
    return error.file == folder or error.file.startswith(folder.rstrip(os.sep) + os.sep)


def _left_out(malformed: Malformed, ids: Container[str]) -> Feature:
    """What stands for a malformed feature; where its id is another one's, its place is its id."""
    problems = tuple(str(error) for error in malformed.errors[:MAX_ERRORS])
    usable = id_problem(malformed.id) is None and malformed.id not in ids
    return Feature(
        malformed.id if usable else bounded(malformed.errors[0].file),
        "its files cannot be used",
        *("", ""),
        NO_RELEASES,
        *((), (), ()),
        origin="",
        digest="",
        required=malformed.required,
        malformed=problems,
    )


def load_all(folders: Sequence[Path], *, private: bool = False) -> Loaded:
    """Read the features of patches folders, each one for itself.

    A folder that is named twice, by other paths perhaps, is one folder.  Of features with the same
    id the first is read, and the others are malformed.

    :param private: whether to refuse all features of a folder that somebody else could have
        written (other than the shipped one); otherwise that is one of the first one's notices.
    :raises UsageError: if a folder is not there or cannot be read.
    """
    features: list[Feature] = []
    malformed: list[Malformed] = []
    places: dict[str, Path] = {}
    for folder in _once(folders):
        try:
            for entry in _read_folder(folder, private):
                if isinstance(entry, Malformed):
                    malformed.append(entry)
                    continue
                place = folder / entry.id
                first = places.setdefault(entry.id, place)
                if first == place:
                    features.append(entry)
                else:
                    malformed.append(_defined_twice(entry, place, first))
        except OSError as error:
            raise UsageError(f"cannot read the features in {folder}: {error}") from error
    return Loaded(tuple(features), tuple(malformed))


def holes(feature: Feature, releases: Iterable[str] | None = None) -> tuple[Hole, ...]:
    """The releases inside the feature's range for which a topic has no variant, in order.

    :param releases: those that are asked about; default: those of its package that are known.
    """
    every = feature.package.releases if releases is None else releases
    inside = [text for text in every if Version(text) in feature.releases]
    return tuple(
        Hole(topic.name, text)
        for topic in feature.topics
        for text in inside
        if not any(Version(text) in variant.releases for variant in topic.variants)
    )


def _read_folder(folder: Path, private: bool) -> Iterator[Feature | Malformed]:
    """Each feature of one patches folder, and whatever else lies in it unused."""
    if not folder.is_dir():
        raise UsageError(
            f"expected a folder of features at {folder}, found "
            f"{'no folder' if folder.exists() else 'nothing'}; name one with --patches DIR"
        )
    origin = _origin(folder)
    problem = None if origin == SHIPPED else sources.owner_problem(folder)
    notices = [] if problem is None else [_open_to_others(folder, problem)]
    notices += [
        ignored(path)
        for name, path in sources.entries(folder).items()
        if sources.stray(name) and not name.startswith(".")
    ]
    for _, path in sources.feature_paths(folder):
        if problem is not None and private:
            refused = PatchFormatError(str(path), None, f"it was not read: {problem}")
            yield Malformed(path.name, (refused,), required=False)
            continue
        errors = sources.ErrorList()
        feature = None
        if _is_feature(path, errors):
            feature = read_feature(path, folder, origin, errors)
        if feature is None:
            yield Malformed(path.name, tuple(errors), sources.is_required(path))
        else:
            yield replace(feature, notices=(*notices, *feature.notices))
            notices = []


def _open_to_others(folder: Path, problem: str) -> Notice:
    return Notice(
        str(folder),
        f"somebody else could have written these patches: {problem}. The plugin does not read "
        "them; correct the owner or the mode",
    )


def _is_feature(path: Path, errors: sources.ErrorList) -> bool:
    """Whether it is a feature's folder; anything that would be silently unused is an error."""
    if not is_plain(path, errors):
        return False
    if not path.is_dir():
        errors.add(path, "expected only folders of features here")
        return False
    if path.name == sources.SHARED:
        for place in sources.misplaced(path):
            errors.add(
                place,
                "expected only files/ in the folder of modules that features share; a feature "
                "needs another id than shared, and a folder of that name",
            )
        return False
    if not os.path.lexists(path / "feature.toml"):
        errors.add(path, "expected a feature.toml in it, found none")
        return False
    return True


def _defined_twice(feature: Feature, path: Path, first: Path) -> Malformed:
    error = PatchFormatError(
        str(path),
        None,
        f"the feature {feature.id} is already defined by {first}; give one of them another id",
    )
    return Malformed(feature.id, (error,), feature.required)


def _once(folders: Iterable[Path]) -> Iterable[Path]:
    """The folders without those that were there by another path, in their order."""
    places: dict[str, Path] = {}
    for folder in folders:
        places.setdefault(os.path.realpath(folder), Path(folder))
    return places.values()


def _origin(folder: Path) -> str:
    """Origin recorded in the ledger; absolute, since later commands may run in another folder."""
    place = os.path.abspath(folder)
    try:
        shipped = sources.shipped_folder()
    except OverlayError:
        return place
    return SHIPPED if os.path.realpath(folder) == os.path.realpath(shipped) else place
