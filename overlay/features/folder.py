"""A patches folder as features: read, checked and digested.

Layout: ``<feature>/feature.toml``, ``<feature>/NN-<topic>/<first>..<last>.patch`` and
``<feature>/files/vllm/...``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from overlay.errors import OverlayError, PatchFormatError, PatchFormatErrors, UsageError
from overlay.features import sources
from overlay.features.feature_toml import entries, is_document, is_plain, read_feature, sha256_of
from overlay.features.model import Feature
from overlay.package import KNOWN_RELEASES

#: The origin of the features that come with the overlay.
SHIPPED = "shipped"


@dataclass(frozen=True)
class Hole:
    """A release inside a feature's range for which one of its topics has no variant."""

    topic: str
    release: str

    def __str__(self) -> str:
        return f"{self.topic} has no variant for {self.release}"


def load(folders: Sequence[Path]) -> tuple[Feature, ...]:
    """The features of the folders, folder by folder, by id within each.

    A folder that is named twice, by other paths perhaps, is one folder.

    :raises UsageError: if a folder is not there or cannot be read.
    :raises PatchFormatErrors: with everything that is malformed in any of them.
    """
    errors: list[PatchFormatError] = []
    found: list[Feature] = []
    owner: dict[str, Path] = {}
    for folder in _once(folders):
        for path, feature in _features(Path(folder), errors):
            if feature.id in owner:
                errors.append(
                    PatchFormatError(
                        str(path),
                        None,
                        f"the feature {feature.id} is already defined by {owner[feature.id]}; "
                        "give one of them another id",
                    )
                )
                continue
            owner[feature.id] = path
            found.append(feature)
    if errors:
        raise PatchFormatErrors(errors)
    return tuple(found)


def holes(feature: Feature, releases: Iterable[str] = KNOWN_RELEASES) -> tuple[Hole, ...]:
    """The releases inside the feature's range for which a topic has no variant, in order."""
    inside = [text for text in releases if Version(text) in feature.releases]
    return tuple(
        Hole(topic.name, text)
        for topic in feature.topics
        for text in inside
        if not any(Version(text) in variant.releases for variant in topic.variants)
    )


def digest(features: Iterable[Feature]) -> str:
    """One sha256 (hex) over the digests of a set of features, whatever their order."""
    return sha256_of(sorted(feature.digest for feature in features))


def _features(folder: Path, errors: list[PatchFormatError]) -> Iterator[tuple[Path, Feature]]:
    origin = _origin(folder)
    try:
        for path in _feature_folders(folder, errors):
            feature = read_feature(path, origin, errors)
            if feature is not None:
                yield path, feature
    except OSError as error:
        raise UsageError(f"cannot read the features in {folder}: {error}") from error


def _once(folders: Sequence[Path]) -> Iterable[Path]:
    found: dict[str, Path] = {}
    for folder in folders:
        found.setdefault(os.path.realpath(folder), Path(folder))
    return found.values()


def _origin(folder: Path) -> str:
    """What the ledger says for ever after: absolute, for the next command may run elsewhere."""
    place = os.path.abspath(folder)
    try:
        shipped = sources.shipped_folder()
    except OverlayError:
        return place
    return SHIPPED if os.path.realpath(folder) == os.path.realpath(shipped) else place


def _feature_folders(folder: Path, errors: list[PatchFormatError]) -> list[Path]:
    """The folders of the features, by name; anything that would be silently unused is an error."""
    if not folder.is_dir():
        raise UsageError(
            f"expected a folder of features at {folder}, found "
            f"{'no folder' if folder.exists() else 'nothing'}; name one with --patches DIR"
        )
    found = []
    for path in entries(folder):
        if path.name.startswith(".") or path.name == "__init__.py" or is_document(path):
            continue
        if not is_plain(path, errors):
            continue
        if not path.is_dir():
            errors.append(
                PatchFormatError(str(path), None, "expected only folders of features here")
            )
        elif not (path / "feature.toml").exists():
            errors.append(
                PatchFormatError(str(path), None, "expected a feature.toml in it, found none")
            )
        else:
            found.append(path)
    return found
