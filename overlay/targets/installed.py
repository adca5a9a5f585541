"""Find the package that this Python would import, without importing it.

Only the interpreter's own path finder and the static finder that setuptools installs for
editable distributions are asked; neither executes anything of what it finds."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from overlay.errors import TargetError
from overlay.package import VLLM, Package
from overlay.targets.folder import build
from overlay.targets.metadata import header, is_likely, read_bytes
from overlay.targets.target import Target, targets_of
from overlay.untrusted import parse_json


class NotInstalled(TargetError):
    """A package that a Python could not import, because nothing of that name is on its path."""


class Found(NamedTuple):
    """The place to which the import of a package would lead.

    :ivar package: its folder as found, links and all.
    :ivar shadowed: further packages of that name that the first one hides.
    """

    package: Path
    shadowed: tuple[Path, ...]


def resolve_installed(package: Package = VLLM) -> Target:
    """The target that this Python would import as a package.

    :raises NotInstalled: if there is none.
    :raises TargetError: if it lies in an archive, or two distributions own it.
    """
    location = find(sys.path, sys.meta_path, package=package)
    here = os.path.realpath(location.package)
    warnings = tuple(
        f"this Python imports {package.title} from {location.package}; another one at {other} is "
        "hidden by it and is left as it is (name its folder to work on it)"
        for other in dict.fromkeys(location.shadowed)
        if os.path.realpath(other) != here
    )
    root = Path(here).parent
    return build(
        location.package,
        str(root),
        fallback=lambda: editable_version(root, sys.path, package),
        warnings=warnings,
        package=package,
    )


def find(
    path: Sequence[str],
    meta_path: Sequence[Any],
    *,
    also: Sequence[Path] = (),
    python: str | None = None,
    package: Package = VLLM,
) -> Found:
    """Look along ``path``, then in the editable finders of ``meta_path``, then in ``also``.

    :param also: folders of packages of that name that editable installations lead to.
    :param python: what to call the Python that would import it; default: this one.
    :param package: the one to find.
    :raises NotInstalled: if no such package is there.
    :raises TargetError: if the first one is not a plain folder.
    """
    specs = [spec for entry in path if (spec := PathFinder.find_spec(package.name, [entry]))]
    for finder in meta_path:
        if getattr(finder, "__module__", "").startswith("__editable__"):
            spec = finder.find_spec(package.name)
            specs += [spec] if spec is not None else []
    leftovers = [place for spec in specs if spec.origin is None for place in _places(spec)]
    real = [spec for spec in specs if spec.origin is not None]
    packages = [Path(spec.origin).parent for spec in real[1:] if _is_package(spec) and spec.origin]
    packages += also
    if real:
        return Found(_folder(real[0], package), tuple(packages))
    if packages:
        return Found(packages[0], tuple(packages[1:]))
    raise NotInstalled(_nothing(path, leftovers, python or sys.executable, package))


def _places(spec: ModuleSpec) -> list[str]:
    return [str(place) for place in spec.submodule_search_locations or ()]


def _is_package(spec: ModuleSpec) -> bool:
    return os.path.basename(spec.origin or "") == "__init__.py" and os.path.isfile(
        spec.origin or ""
    )


def _folder(spec: ModuleSpec, package: Package) -> Path:
    origin = str(spec.origin)
    archive = getattr(spec.loader, "archive", None)
    if archive is not None:
        raise TargetError(
            f"this Python imports {package.title} from inside the archive {archive}: expected a "
            "plain folder, because a file in an archive cannot be patched in place. Unpack it into "
            "a folder and put that on sys.path, or name the archive as TARGET where it is a wheel"
        )
    if not _is_package(spec):
        raise TargetError(
            f"this Python imports {package.name} from {origin}: expected the package "
            f"{package.initial}. Something else is called {package.name} here; remove or rename it"
        )
    return Path(os.path.abspath(origin)).parent


def _nothing(path: Sequence[str], leftovers: Sequence[str], python: str, package: Package) -> str:
    text = (
        f"no {package.title}: expected a package {package.name} that {python} could import, found "
        "none on its path."
    )
    for place in dict.fromkeys(leftovers):
        text += f" The folder {place} has no __init__.py: it is left over, or something else."
    closed = [entry for entry in path if os.path.isdir(entry) and not os.access(entry, os.R_OK)]
    for entry in closed:
        text += f" The folder {entry} on the path may not be read by this user."
    return text + (
        f" Install {package.title} into this environment, run overlay with the Python that has it, "
        f"or name a TARGET: {targets_of(package)}"
    )


def editable_version(root: Path, path: Sequence[str], package: Package = VLLM) -> str | None:
    """The version of the distribution that ``pip install --editable`` left for a source tree."""
    for entry in path:
        try:
            names = sorted(os.listdir(entry or "."))
        except OSError:
            continue  # sys.path holds archives and folders that do not exist: nothing to look at
        for name in names:
            if not name.endswith(".dist-info") or not is_likely(name, package):
                continue
            info = Path(entry) / name
            if (source := _editable_source(info)) and source in (root, *root.parents):
                return header(read_bytes(info / "METADATA") or b"", "Version")
    return None


def _editable_source(info: Path) -> Path | None:
    raw = read_bytes(info / "direct_url.json")
    if raw is None:
        return None
    from urllib.parse import unquote, urlsplit

    try:
        data = parse_json(raw)
        editable = bool(data["dir_info"]["editable"])
        url = urlsplit(str(data["url"]))
        if not editable or url.scheme != "file":
            return None
        return Path(os.path.realpath(unquote(url.path)))
    except (ValueError, KeyError, TypeError):
        return None  # written by something else than an editable install
