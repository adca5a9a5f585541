"""Resolve a folder that holds a package: site-packages, a checkout, an unpacked sdist."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from overlay.errors import TargetError
from overlay.package import VLLM, Package, parse_release
from overlay.targets.metadata import (
    Distribution,
    keeps_rows,
    only_owner,
    read_bytes,
    same_name,
    source_version,
    unreadable,
    version_in_source,
)
from overlay.targets.record import Record
from overlay.targets.target import MAX_FILE_BYTES, Target, public_release, targets_of
from overlay.untrusted import read_below, way_out

#: The most files and folders of a package that are listed; vLLM 0.32.0 has 3,663 on a CPU.
MOST_ENTRIES = 50_000


class NotInFolder(TargetError):
    """A folder that does not hold a package."""


def resolve_folder(folder: Path, name: str, package: Package = VLLM) -> Target:
    """The target in ``folder``, which the user called ``name``.

    :raises NotInFolder: if it does not hold the package.
    :raises TargetError: if it cannot be looked into, or two distributions own the package.
    """
    _expect(folder, name, package)
    return build(folder / package.name, name, package=package)


def build(
    place: Path,
    name: str,
    *,
    fallback: Callable[[], str | None] = lambda: None,
    warnings: tuple[str, ...] = (),
    package: Package = VLLM,
) -> Target:
    """The target whose package is the folder ``place``, known to be there.

    :param fallback: asked for the version where nothing beside the package tells it.
    """
    beside = Path(os.path.realpath(place.parent))
    real = Path(os.path.realpath(place))
    root = real.parent
    if real.name != package.name:
        raise TargetError(
            f"the package {package.name} lies in {real}: expected a folder that is called "
            f"{package.name} itself, because the paths of a patch begin with {package.name}/. "
            "Rename the folder, and whatever leads there"
        )
    owner = only_owner(beside, package)
    version = owner.version if owner else source_version(root, package) or fallback()
    release, bad = public_release(version, package)
    rows = owner is not None and beside == root and keeps_rows(owner, package)
    return Target(
        name=name,
        vllm=version,
        release=release,
        root=root,
        record=Record(owner.record, package) if owner else None,
        record_file=owner.info / "RECORD" if owner and rows else None,
        warnings=(
            *warnings,
            *bad,
            *_contradictions(root, owner, package),
            *_left_behind(beside, owner, package),
        ),
        reader=file_reader(root, package),
        package=package,
        lister=None if owner else lambda: modules_below(root, package),
    )


def modules_below(root: Path, package: Package = VLLM) -> list[str]:
    """The paths of a package's modules below ``root``, those of outer folders first.

    Links are not followed, what cannot be listed is passed over, and at most ``MOST_ENTRIES`` are
    looked at: somebody else may have made the folder.
    """
    modules: list[str] = []
    pending, left = [package.name], MOST_ENTRIES
    while pending:
        folder = pending.pop(0)
        try:
            with os.scandir(root / folder) as listed:
                entries = sorted(islice(listed, left), key=lambda entry: entry.name)
        except OSError:
            continue
        left -= len(entries)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(f"{folder}/{entry.name}")
            elif entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                modules.append(f"{folder}/{entry.name}")
    return modules


def file_reader(root: Path, package: Package = VLLM) -> Callable[[str], bytes | None]:
    """Read files below ``root``, never through a link that leaves it.

    The function that is returned raises ``TargetError`` where something other than a plain file
    of at most ``MAX_FILE_BYTES`` is at the path.
    """

    def read(path: str) -> bytes | None:
        try:
            return read_below(root, path, MAX_FILE_BYTES)
        except OSError:  # a link on the way, or a problem that is told with where links lead
            return read_through_links(path)

    def read_through_links(path: str) -> bytes | None:
        full = root / path
        real = os.path.realpath(full)
        out = way_out(root, path, real)
        if out is not None:
            raise TargetError(
                f"{out[0]} leads out of the target, to {out[1]}: expected it inside {root}. "
                "Replace the symbolic link by a copy (with uv: --link-mode copy)"
            )
        if not os.path.lexists(real) and full.is_symlink():
            raise TargetError(
                f"{full} is a symbolic link to {real}, where nothing is: expected a file. "
                f"Reinstall {package.title}"
            )
        try:
            return read_below(root, os.path.relpath(real, root), MAX_FILE_BYTES)
        except OSError as error:
            raise TargetError(unreadable(full, error)) from error

    return read


def _contradictions(root: Path, owner: Distribution | None, package: Package) -> tuple[str, ...]:
    """A warning where a package's files and its distribution's metadata name two releases."""
    content = read_bytes(root / package.name / "_version.py") if owner else None
    stated = version_in_source(content) if content is not None else None
    if owner is None or stated is None:
        return ()
    try:
        same = parse_release(stated) == parse_release(owner.version)
    except ValueError:
        same = stated == owner.version
    if same:
        return ()
    warning = (
        f"{owner.info.name} says {owner.name} {owner.version}, but {package.name}/_version.py says "
        f"{stated}: the installation is a mixture; reinstall {package.title}"
    )
    return (warning,)


def _left_behind(beside: Path, owner: Distribution | None, package: Package) -> tuple[str, ...]:
    """A warning where more ``.dist-info`` folders have the name of the one that was taken."""
    others = same_name(beside, owner) if owner else []
    if owner is None or not others:
        return ()
    warning = (
        f"{beside} holds {owner.info.name} and {' and '.join(others)}: {owner.info.name} was "
        f"taken, because only its RECORD lists {package.name}/, but pip and importlib may read "
        f"another; reinstall {package.title}"
    )
    return (warning,)


def _expect(folder: Path, name: str, package: Package) -> None:
    try:
        with os.scandir(folder):
            pass
        if (folder / package.initial).is_file():
            return
    except OSError as error:
        raise TargetError(unreadable(folder, error)) from error
    found = "found none"
    if (folder / package.name).is_dir():
        found = (
            f"found a folder {package.name}/ without __init__.py, as an uninstalled "
            f"{package.title} leaves behind"
        )
    raise NotInFolder(
        f"{name}: expected a folder that holds {package.initial} (site-packages, a checkout or an "
        f"unpacked sdist), {found}.{_suggestion(folder, package)}"
    )


def _suggestion(folder: Path, package: Package) -> str:
    real = Path(os.path.realpath(folder))
    for base in (real, *real.parents[:3]):
        if base.name == package.name and (base / "__init__.py").is_file():
            return f" It lies inside the package itself: name {base.parent}"
    patterns = (
        f"lib*/python3*/site-packages/{package.initial}",
        f"Lib/site-packages/{package.initial}",
        f"*/{package.initial}",
    )
    for pattern in patterns:
        for file in sorted(real.glob(pattern)):
            return f" There is one further down: name {file.parent.parent}"
    return f" Name {targets_of(package)}"
