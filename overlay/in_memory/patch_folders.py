"""The patches folders of a process: which features they hold, for which packages, what is required.

Each process of vLLM asks, so no ``feature.toml`` is parsed that has no line which may answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from overlay._features import sources as shipped
from overlay._features.sources import entries, feature_documents, is_shared, left_behind, stray
from overlay.package import VLLM, Package, package_named
from overlay.untrusted import read_regular

if TYPE_CHECKING:
    from overlay.settings import Switches


def patches_folders(switches: Switches) -> list[Path]:
    """The folders of features that this process looks into."""
    return [shipped.shipped_folder(), *switches.patches]


def feature_paths(folders: Iterable[Path]) -> Iterator[tuple[str, Path, Path]]:
    """Name, path and patches folder of all that may be a feature; what is none is in no ledger."""
    visited = set()
    for folder in folders:
        place = os.path.realpath(folder)
        if place in visited:
            continue
        visited.add(place)
        try:
            members = entries(place)
        except OSError:
            members = {"": Path(place)}  # whoever plans says what is wrong with the folder
        for name, path in members.items():
            beside = stray(name) or name in ("__init__.py", "README.md")
            if not (beside or left_behind(name) or is_shared(path)):
                yield name, path, Path(place)


def further_packages(folders: Iterable[Path]) -> tuple[Package, ...]:
    """The packages other than vLLM that features in folders patch, by name."""
    packages = {package_in(path) for _, path, _ in feature_paths(folders)} - {VLLM}
    return tuple(sorted(packages, key=lambda package: package.name))


def package_in(feature: Path) -> Package:
    """The package that a feature's folder says it patches; vLLM where it says none.

    What is malformed is vLLM's: loading the feature reports it.
    """
    document = feature / "feature.toml"
    if not _may_set(document, b"package"):
        return VLLM
    from overlay._features.documents import parse_toml

    try:
        name = parse_toml(read_regular(document, follow=False) or b"").get("package")
        return package_named(name) if isinstance(name, str) else VLLM
    except (OSError, ValueError):
        return VLLM


def required_features(switches: Switches) -> frozenset[str]:
    """The ids of the features whose own feature.toml says that vLLM must not start without them."""
    ids: set[str] = set()
    for folder in patches_folders(switches):
        if any(_may_set(document, b"required") for document in feature_documents(folder)):
            from overlay._features.folder import load_all

            loaded = load_all([folder])
            ids |= {feature.id for feature in loaded.features if feature.required}
            ids |= {malformed.id for malformed in loaded.malformed if malformed.required}
    return frozenset(ids)


def _may_set(document: Path, key: bytes) -> bool:
    """Whether a line of a feature.toml may set a key; loading it says what cannot be read."""
    try:
        data = read_regular(document, follow=False) or b""
    except OSError:
        return False
    lines = data.splitlines() if key in data else []
    return any(line.partition(b"=")[0].strip(b" \t\"'") == key for line in lines)
