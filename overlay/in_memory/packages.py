"""The packages of this process: those that it has imported, or would import."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.in_memory.patch_folders import further_packages, patches_folders
from overlay.package import VLLM, Package

if TYPE_CHECKING:
    from overlay.settings import Switches
    from overlay.targets.target import Target


def running_vllm() -> Target:
    """The vLLM that this process imported; before it did, the one that it would import.

    :raises TargetError: if there is none, or it is not a plain folder.
    """
    place = _imported("vllm")
    if place is None:
        from overlay.targets.environments import resolve_installed

        return resolve_installed(VLLM)
    from overlay.targets.installations import target_at

    root = os.path.dirname(os.path.realpath(place))
    return target_at(place, root, VLLM, stated=getattr(sys.modules["vllm"], "__version__", None))


def running_beside(switches: Switches) -> tuple[Target, ...]:
    """The packages beside vLLM that features are for; one that is not there is passed over.

    :raises TargetError: if one is there and cannot be patched.
    """
    targets = []
    for package in further_packages(patches_folders(switches)):
        from overlay.targets.environments import resolve_installed
        from overlay.targets.installations import target_at
        from overlay.targets.target import Absent

        place = _imported(package.name)
        if place is not None:
            root = os.path.dirname(os.path.realpath(place))
            targets.append(target_at(place, root, package, path=sys.path))
            continue
        try:
            targets.append(resolve_installed(package))
        except Absent:
            continue
    return tuple(targets)


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
