"""Resolve what the user names as TARGET, and the releases that ``--releases`` names."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from overlay.errors import ArchiveError, PackageIndexError, TargetError, UsageError
from overlay.package import KNOWN_RELEASES, ReleaseRange
from overlay.targets.environments import is_environment, resolve_environment
from overlay.targets.folder import resolve_folder
from overlay.targets.metadata import unreadable
from overlay.targets.target import TARGETS, Progress, Target
from overlay.untrusted import open_regular


def resolve_archive(path: Path, name: str) -> Target:
    """The read-only target in a wheel or an sdist file, which the user called ``name``.

    :raises ArchiveError: if it is neither, is damaged, dangerous or too large, or holds no vLLM.
    """
    try:
        with open_regular(path) as file:
            magic = file.read(4)
    except OSError as error:
        raise ArchiveError(unreadable(path, error)) from error
    if magic[:2] == b"PK":
        from overlay.targets.wheel import resolve_wheel

        return resolve_wheel(path, name)
    if magic[:2] == b"\x1f\x8b":
        from overlay.targets.sdist import resolve_sdist

        return resolve_sdist(path, name)
    content = (
        "an empty file" if not magic else f"a file that begins with the bytes {magic.hex(' ')}"
    )
    raise ArchiveError(
        f"{name}: expected a wheel (.whl, a zip archive) or an sdist (.tar.gz), found {content}. "
        "Download it again, or name a folder that holds vllm/"
    )


def resolve(target: str | None, *, progress: Progress | None = None) -> Target:
    """The target that ``target`` names; ``None`` is the vLLM that this Python would import.

    What reads as a version number is a release, even where a file is called so too: write
    ``./0.26.0`` to mean the file.

    :param progress: called while a release is fetched.
    :raises TargetError: if there is no such target, or it is not vLLM.
    :raises ArchiveError: if a wheel or sdist is damaged, dangerous or too large.
    :raises PackageIndexError: if a release cannot be fetched.
    """
    if target is not None and not target.strip():
        raise TargetError(f"TARGET is empty: omit it to mean the installed vLLM, or name {TARGETS}")
    if target is None:
        from overlay.targets.installed import resolve_installed

        return resolve_installed()
    if (release := _version(target)) is not None:
        from overlay.targets.release import resolve_release

        try:
            resolved = resolve_release(release, target, progress=progress)
        except PackageIndexError as error:
            raise PackageIndexError(f"release {target}: {error}") from error
        return _doubted(resolved) if os.path.lexists(target) else resolved
    path = Path(os.path.expanduser(target))
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TargetError(
            f"{target!r}: expected {TARGETS}; there is no such file or folder, and it is not a "
            "release number"
        ) from error
    except (OSError, ValueError) as error:
        raise TargetError(f"{target!r}: expected a path that can be looked at: {error}") from error
    if is_environment(path):
        return resolve_environment(path, target)
    if is_folder:
        return resolve_folder(path, target)

    return resolve_archive(path, target)


def releases(text: str, *, pre: bool = False) -> tuple[str, ...]:
    """The releases that ``--releases`` names, oldest first, each once.

    ``all`` is every release that the shipped features are made for: the answer needs no network
    and is the same every day.  A range within those (``0.20.0..0.33.0``) is too; for a range that
    reaches beyond them the package index is asked which final releases lie there.  ``new`` is
    every release on the index that this overlay does not know, but those older than all that it
    knows; it may be none.  A single release is itself, and commas join several of these.

    :param pre: whether ``new`` holds pre-releases, too.

    :raises UsageError: if it is none of these, or a range that holds no release.
    :raises PackageIndexError: if the index has to be asked and does not answer.
    """
    versions: set[Version] = set()
    for part in text.split(","):
        versions.update(_new(pre) if part.strip() == "new" else _part(part.strip(), text))
    return tuple(str(version) for version in sorted(versions))


def _new(pre: bool) -> Iterable[Version]:
    """The releases on the index that are not known, without yanked ones."""
    from overlay.targets.release import offered_releases

    known = [Version(release) for release in KNOWN_RELEASES]
    return [
        entry.version
        for entry in offered_releases(pre=pre)
        if not entry.yanked and entry.version > known[0] and entry.version not in known
    ]


def _doubted(resolved: Target) -> Target:
    warning = (
        f"{resolved.name} is read as a release; to mean the file or folder of that name here, "
        f"write ./{resolved.name}"
    )
    return replace(resolved, warnings=(*resolved.warnings, warning))


def _part(part: str, text: str) -> Iterable[Version]:
    known = [Version(release) for release in KNOWN_RELEASES]
    if part == "all":
        return known
    if ".." in part:
        try:
            span = ReleaseRange.parse(part)
        except ValueError as error:
            raise UsageError(f"--releases {text}: {error}") from error
        candidates = known
        if span.first < known[0] or span.last > known[-1]:
            from overlay.targets.release import offered_releases

            offered = (entry.version for entry in offered_releases() if not entry.yanked)
            candidates = sorted({*known, *offered})
        inside = [version for version in candidates if version in span]
        if not inside:
            raise UsageError(f"--releases {text}: expected a range that holds releases, found none")
        return inside
    if (single := _version(part)) is not None:
        return [single]
    raise UsageError(
        f"--releases {text}: expected 'all', 'new', a closed range such as 0.20.0..0.33.0, or a "
        f"release such as 0.26.0; found {part!r}"
    )


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
