"""Resolve a folder that holds ``vllm/``: site-packages, a checkout, an unpacked sdist."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from overlay.errors import TargetError
from overlay.package import parse_release
from overlay.targets.metadata import (
    Distribution,
    only_owner,
    read_bytes,
    source_version,
    unreadable,
    version_in_source,
)
from overlay.targets.record import Record
from overlay.targets.target import MAX_FILE_BYTES, TARGETS, Target, public_release
from overlay.untrusted import read_below, way_out


def resolve_folder(folder: Path, name: str) -> Target:
    """The target in ``folder``, which the user called ``name``.

    :raises TargetError: if it holds no vLLM, or two distributions own the one it holds.
    """
    _expect_vllm(folder, name)
    return build(folder / "vllm", name)


def build(
    package: Path,
    name: str,
    *,
    fallback: Callable[[], str | None] = lambda: None,
    warnings: tuple[str, ...] = (),
) -> Target:
    """The target whose package is the folder ``package``, known to be there.

    :param fallback: asked for the version where nothing beside the package tells it.
    """
    beside = Path(os.path.realpath(package.parent))
    real = Path(os.path.realpath(package))
    root = real.parent
    if real.name != "vllm":
        raise TargetError(
            f"the package vllm lies in {real}: expected a folder that is called vllm itself, "
            "because the paths of a patch begin with vllm/. Rename the folder, and whatever "
            "leads there"
        )
    owner = only_owner(beside)
    stated = owner.version if owner else source_version(root) or fallback()
    release, bad = public_release(stated)
    return Target(
        name=name,
        vllm=stated,
        release=release,
        root=root,
        record=Record(owner.record) if owner else None,
        record_file=owner.info / "RECORD" if owner and beside == root else None,
        warnings=(*warnings, *bad, *_contradictions(root, owner)),
        reader=file_reader(root),
    )


def file_reader(root: Path) -> Callable[[str], bytes | None]:
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
                "Reinstall vLLM"
            )
        try:
            return read_below(root, os.path.relpath(real, root), MAX_FILE_BYTES)
        except OSError as error:
            raise TargetError(unreadable(full, error)) from error

    return read


def _contradictions(root: Path, owner: Distribution | None) -> tuple[str, ...]:
    """A warning where vLLM's own files and the distribution's metadata disagree on the release."""
    content = read_bytes(root / "vllm" / "_version.py") if owner else None
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
        f"{owner.info.name} says {owner.name} {owner.version}, but vllm/_version.py says {stated}: "
        "the installation is a mixture; reinstall vLLM"
    )
    return (warning,)


def _expect_vllm(folder: Path, name: str) -> None:
    try:
        with os.scandir(folder):
            pass
        if (folder / "vllm" / "__init__.py").is_file():
            return
    except OSError as error:
        raise TargetError(unreadable(folder, error)) from error
    present = "found none"
    if (folder / "vllm").is_dir():
        present = "found a folder vllm/ without __init__.py, as an uninstalled vLLM leaves behind"
    raise TargetError(
        f"{name}: expected a folder that holds vllm/__init__.py (site-packages, a checkout or an "
        f"unpacked sdist), {present}.{_suggestion(folder)}"
    )


def _suggestion(folder: Path) -> str:
    real = Path(os.path.realpath(folder))
    for base in (real, *real.parents[:3]):
        if base.name == "vllm" and (base / "__init__.py").is_file():
            return f" It lies inside the package itself: name {base.parent}"
    patterns = (
        "lib*/python3*/site-packages/vllm/__init__.py",
        "Lib/site-packages/vllm/__init__.py",
        "*/vllm/__init__.py",
    )
    for pattern in patterns:
        for package in sorted(real.glob(pattern)):
            return f" There is one further down: name {package.parent.parent}"
    return f" Name {TARGETS}"
