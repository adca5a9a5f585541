"""What is at hand in a process: the features of its patches folders, and the packages they are for.

Each process of vLLM asks, so no ``feature.toml`` is parsed that has no line which may answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from overlay._features import sources
from overlay.package import VLLM, Package, package_named
from overlay.untrusted import read_regular

if TYPE_CHECKING:
    from overlay.settings import Switches
    from overlay.targets.target import Target


def patches_folders(switches: Switches) -> list[Path]:
    """The folders of features that this process looks into."""
    return [sources.shipped_folder(), *switches.patches]


def feature_paths(folders: Iterable[Path]) -> Iterator[tuple[str, Path, Path]]:
    """Name, path and patches folder of all that may be a feature; what is none is in no ledger."""
    for folder in map(Path, dict.fromkeys(map(os.path.realpath, folders))):
        try:
            members = list(sources.feature_paths(folder))
        except OSError:
            members = [("", folder)]  # whoever plans says what is wrong with the folder
        for name, path in members:
            yield name, path, folder


def required_features(switches: Switches) -> frozenset[str]:
    """The features without which vLLM must not start, by the environment or by themselves.

    ``all`` among them is every one.
    """
    ids = set(switches.present)
    for name, path, _ in feature_paths(patches_folders(switches)):
        if document := _document(path, b"required"):
            from overlay._features.documents import is_required

            ids.update([name] if is_required(document) else ())
    return frozenset(ids)


def further_packages(folders: Iterable[Path]) -> tuple[Package, ...]:
    """The packages other than vLLM that features in folders patch, by name."""
    packages = {package_in(path) for _, path, _ in feature_paths(folders)} - {VLLM}
    return tuple(sorted(packages))


def package_in(feature: Path) -> Package:
    """The package that a feature's folder says it patches; vLLM where it says none.

    What is malformed is vLLM's: loading the feature reports it.
    """
    if not (document := _document(feature, b"package")):
        return VLLM
    from overlay._features.documents import parse_toml

    try:
        name = parse_toml(document).get("package")
        return package_named(name) if isinstance(name, str) else VLLM
    except ValueError:
        return VLLM


def _document(feature: Path, key: bytes) -> bytes:
    """A feature's ``feature.toml``; nothing where no line of it may set a key, or it is unreadable.

    Loading the feature says what cannot be read.
    """
    try:
        data = read_regular(feature / "feature.toml", follow=False) or b""
    except OSError:
        return b""
    lines = data.splitlines() if key in data else []
    sets = any(line.partition(b"=")[0].strip(b" \t\"'") == key for line in lines)
    return data if sets else b""


def running(package: Package) -> Target:
    """The package that this process imported; before it did, the one that it would import.

    :raises Absent: if there is none.
    :raises TargetError: if it is not a plain folder.
    """
    place = _imported(package.name)
    if place is None:
        from overlay.targets.environments import resolve_installed

        return resolve_installed(package)
    from overlay.targets.installations import target_at

    root = os.path.dirname(os.path.realpath(place))
    stated = getattr(sys.modules[package.name], "__version__", None)
    return target_at(place, root, package, path=sys.path, stated=stated)


def root_of(package: Package) -> Path | None:
    """The folder that holds a package, as this process imports it; nothing is imported for it."""
    place = _imported(package.name)
    if place is None:
        try:
            spec = find_spec(package.name)
        except (ImportError, ValueError, AttributeError):
            return None
        if spec is None or os.path.basename(spec.origin or "") != "__init__.py":
            return None
        place = Path(str(spec.origin)).parent
    return Path(os.path.realpath(place)).parent


def _imported(name: str) -> Path | None:
    """The folder of a package that was imported from files."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        return None
    return Path(os.path.dirname(os.path.abspath(file)))
