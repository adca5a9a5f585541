"""Resolve what the user names as TARGET, and the releases that ``--releases`` names."""

from __future__ import annotations

import os
import re
import stat
import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from overlay.errors import (
    Absent,
    PackageIndexError,
    ReleaseError,
    TargetError,
    UsageError,
)
from overlay.package import (
    KNOWN_PACKAGES,
    VLLM,
    Package,
    PackageRelease,
    ReleaseRange,
    distribution_name,
    known_package,
    namespace_problem,
    package_named,
    package_of_distribution,
    package_problem,
    parse_version,
    same_release,
)
from overlay.targets import Progress, Target, targets_of
from overlay.targets.environments import (
    environment_at,
    is_environment,
    named_interpreter,
    resolve_environment,
    resolve_installed,
)
from overlay.targets.installations import resolve_folder
from overlay.targets.releases import resolve_release

#: A release with the name of its distribution, as pip takes it; what may follow ``==`` in
#: ``--releases`` is more than a version.
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9](?:[-_.A-Za-z0-9]*[A-Za-z0-9])?)\s*==\s*(?P<rest>\S+)")


_STATE = re.compile(r"\.(?P<name>[A-Za-z_][A-Za-z0-9_]*)-overlay")


def resolve(
    target: str | None,
    *,
    python: str | None = None,
    progress: Progress | None = None,
    package: Package = VLLM,
) -> Target:
    """The target that ``target`` names; ``None`` is the package that a Python would import.

    What reads as a version number is a release, unless a file or folder of that name is there: then
    that is meant, and a warning names the release.  With its name (``vllm==0.26.0``) a release is
    always one.

    :param python: the interpreter or virtual environment that is meant where ``target`` is
        ``None``; ``None``: this one.
    :param progress: called while a release is fetched.
    :param package: the one that is meant where ``target`` does not say it.
    :raises Absent: if a Python, a folder, a wheel or an sdist does not have the package.
    :raises TargetError: if there is no such target, or the package cannot be patched there.
    :raises ArchiveError: if a wheel or sdist is damaged, dangerous or too large.
    :raises PackageIndexError: if a release cannot be fetched.
    """
    if target is not None and not target.strip():
        raise TargetError(
            f"TARGET is empty: omit it to mean the installed {package.title}, or name "
            f"{targets_of(package)}"
        )
    if target is None and python is not None:
        return resolve_environment(named_interpreter(python), python, package)
    if target is None:
        return resolve_installed(package)
    if (release := target_release(target, package)) is not None:
        return _fetched(release, target, progress)
    if (release := release_named(target, package)) is None:
        return _resolve_path(target, package)
    rule = f"{target!r} is here, so it is read as that place; the release is {release.requirement}"
    try:
        place = _resolve_path(f".{os.sep}{target}", package)
    except TargetError as error:
        error.args = (f"{error} ({rule})",)
        raise
    return replace(place, name=target, warnings=(*place.warnings, rule))


def _resolve_path(target: str, package: Package) -> Target:
    """The target that a path names; errors as of ``resolve``."""
    path = Path(os.path.expanduser(target))
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise TargetError(
            f"{target!r}: expected a path that can be looked at, the system says: {what}; name "
            f"{targets_of(package)}"
        ) from error
    if is_environment(path, (package,)):
        return resolve_environment(path, target, package)
    if mode is not None and stat.S_ISDIR(mode):
        return resolve_folder(path, target, package)
    if mode is not None:
        from overlay.targets.archives import resolve_archive  # imports zipfile and tarfile

        return resolve_archive(path, target, package)
    raise TargetError(_not_there(target, package))


def resolve_each(
    target: str | None,
    packages: Sequence[Package],
    *,
    python: str | None = None,
    patched: bool = False,
    progress: Progress | None = None,
) -> tuple[Target, ...]:
    """The packages of a target that features patch, in the order of ``packages``.

    A package that is not there is passed over, unless none of them is.  What is there and cannot
    be patched is an error, for whichever package.

    :param packages: those that are asked for, at least one; the first is the one that is missed
        where there is none.  Those that the overlay has patched there come behind them, if
        ``patched`` says so.
    :param python: as of ``resolve``.
    :raises TargetError: as ``resolve``, and if a release is one of a package that is not asked for.
    """
    if target is not None and (release := target_release(target, packages[0])) is not None:
        if release.package not in (*packages, VLLM):
            raise TargetError(_without_features(target, packages))
        return (_fetched(release, target, progress),)
    missing: TargetError | None = None
    resolved = []
    further = patched_in(_folders(target, python)) if patched else ()
    for package in dict.fromkeys((*packages, *further)):
        try:
            resolved.append(resolve(target, python=python, package=package))
        except Absent as error:
            missing = missing or error
    if not resolved and missing is not None:
        raise missing
    return tuple(resolved)


def _folders(target: str | None, python: str | None) -> Sequence[str]:
    """The folders that hold the packages of a target, as far as they can be told."""
    place = python if target is None else target
    if place is None:
        return sys.path
    path = Path(os.path.expanduser(place))
    try:
        return environment_at(path, place).path if is_environment(path) else (str(path),)
    except (TargetError, OSError):
        return ()  # resolving it says what is wrong


def patched_in(folders: Iterable[str]) -> tuple[Package, ...]:
    """The packages in folders beside which the overlay keeps its own files, by name."""
    packages = set()
    for folder in folders:
        try:
            names = os.listdir(folder or ".")
        except (OSError, ValueError):
            continue  # sys.path holds archives, folders that do not exist, and whatever else
        for name in names:
            match = _STATE.fullmatch(name)
            if match is not None and package_problem(match["name"]) is None:
                packages.add(package_named(match["name"]))
    return tuple(sorted(packages, key=lambda package: package.name))


def release_named(text: str, package: Package = VLLM) -> PackageRelease | None:
    """The release that a text names; ``None`` where it names none.

    :param package: whose release a mere version number is.
    """
    match = _NAMED.fullmatch(text.strip())
    owner = package if match is None else package_of_distribution(match["name"])
    version = parse_version(text if match is None else match["rest"])
    return None if owner is None or version is None else PackageRelease(version, owner)


def target_release(text: str, package: Package = VLLM) -> PackageRelease | None:
    """The release that a TARGET names, as ``release_named``; a place of the name comes before it.

    :param package: whose release a mere version number is.
    """
    release = release_named(text, package)
    if release is None or (_NAMED.fullmatch(text.strip()) is None and os.path.lexists(text)):
        return None
    return release._replace(version=same_release(release.version))


def spelt(release: str, package: Package) -> str:
    """A release as TARGET takes it: with its name where the number alone is something else."""
    if package.name == VLLM.name and not os.path.lexists(release):
        return release
    return f"{package.distribution}=={release}"


def _fetched(release: PackageRelease, name: str, progress: Progress | None) -> Target:
    try:
        return resolve_release(release, name, progress)
    except PackageIndexError as error:
        raise ReleaseError(name, str(error)) from error


def _not_there(target: str, package: Package) -> str:
    """What to name in the place of a TARGET that is neither a release nor a file."""
    folder = distribution_name(target).replace("-", "_")
    owner = None if "/" in target else known_package([folder])
    if owner is None:
        return (
            f"{target!r}: expected {targets_of(package)}; there is no such file or folder, and it "
            "is not a release number"
        )
    release = spelt(owner.releases[-1], owner)
    every = "all" if owner.name == VLLM.name else f"{owner.distribution}==all"
    return (
        f"{target!r}: expected a TARGET, found the name of a package; omit it to mean the "
        f"installed one, or name a release ({release}); `overlay check --releases {every}` checks "
        "every release that the overlay knows"
    )


def _without_features(target: str, packages: Sequence[Package]) -> str:
    names = ", ".join(package.distribution for package in packages)
    return (
        f"{target}: expected a release of a package that features patch ({names}); name the folder "
        "of patches for another package with --patches DIR"
    )


def releases(text: str, *, pre: bool = False, package: Package = VLLM) -> tuple[str, ...]:
    """The releases that ``--releases`` names, as TARGET takes them, oldest first, each once.

    ``all`` is every release that the shipped features are made for: the answer needs no network
    and is the same every day.  A range between two of those (``0.20.0..0.33.0``) is too; for one
    that reaches beyond them the index is asked which releases lie there, and has to have that end.
    ``new`` is every release on the index that this overlay does not know, but those older than all
    that it knows; it may be none.  A single release is itself, and commas join several of these.
    Each of them may begin with the name of another package (``vllm-ascend==all``).

    :param pre: whether ``new`` holds pre-releases, too.
    :param package: the one that is meant where a part does not say it.
    :raises UsageError: if it is none of these, or a range that holds no release.
    :raises PackageIndexError: if the index has to be asked and does not answer.
    """
    versions: dict[Package, set[Version]] = {}
    for part in text.split(","):
        owner, rest = _owner(part.strip(), text, package)
        parts = _new(owner, pre) if rest == "new" else _part(rest, text, owner)
        versions.setdefault(owner, set()).update(parts)
    return tuple(
        spelt(str(version), owner) for owner in versions for version in sorted(versions[owner])
    )


def packages_meant(text: str, package: Package) -> tuple[Package, ...]:
    """The packages whose releases ``--releases`` names, even where it names none of them.

    :param package: the one that is meant where a part does not say it.
    :raises UsageError: if a name cannot be a package's.
    """
    return tuple(dict.fromkeys(_owner(part.strip(), text, package)[0] for part in text.split(",")))


def _owner(part: str, text: str, package: Package) -> tuple[Package, str]:
    """The package that a part of ``--releases`` is about, and the rest of it."""
    match = _NAMED.fullmatch(part)
    if match is None:
        return package, part
    owner = package_of_distribution(match["name"])
    if owner is None:
        raise UsageError(f"--releases {text}: {match['name']!r} cannot be a package of Python")
    if (problem := namespace_problem(match["name"])) is not None:
        raise UsageError(f"--releases {text}: {problem}")
    return owner, match["rest"]


def _on_index(package: Package, pre: bool) -> list[Version]:
    """The releases on the index, without yanked ones."""
    from overlay.targets.fetch import offered_releases  # imports the network

    return [offer.version for offer in offered_releases(package, pre=pre) if not offer.yanked]


def _new(package: Package, pre: bool) -> Iterable[Version]:
    """The releases on the index that the overlay does not know, without older ones."""
    made_for = [Version(release) for release in package.releases]
    return [
        version
        for version in _on_index(package, pre)
        if not made_for or (version > made_for[0] and version not in made_for)
    ]


def _part(part: str, text: str, package: Package) -> Iterable[Version]:
    if part == "all":
        if not package.releases:
            raise UsageError(
                f"--releases {text}: the shipped features are made for no release of "
                f"{package.title}; name a range, such as {package.distribution}==1.0..2.0"
            )
        return map(Version, package.releases)
    if ".." in part:
        try:
            span = ReleaseRange.parse(part, package)
        except ValueError as error:
            raise UsageError(f"--releases {text}: {error}{_whose(part, package)}") from error
        return _inside(span, text, package)
    if (version := parse_version(part)) is not None:
        return [version]
    raise UsageError(
        f"--releases {text}: expected 'all', 'new', a closed range such as 0.20.0..0.33.0, or a "
        f"release such as 0.26.0; found {part!r}"
    )


def _inside(span: ReleaseRange, text: str, package: Package) -> Sequence[Version]:
    """The releases of a range: those that the overlay knows, and where it needs to, the index's.

    :raises UsageError: if one of the ends is no release, so that nobody could look at it.
    """
    candidates = [Version(release) for release in package.releases]
    beyond = not candidates or span.first < candidates[0] or span.last > candidates[-1]
    if beyond:
        candidates = sorted({*candidates, *_on_index(package, pre=False)})
    ends = dict.fromkeys((span.first, span.last))
    if missing := [str(end) for end in ends if end not in candidates]:
        newest = f"; the newest there is {candidates[-1]}" if candidates else ""
        near = [str(each) for end in missing for each in _beside(Version(end), candidates)]
        newest = newest if beyond or not near else f"; there are {', '.join(dict.fromkeys(near))}"
        raise UsageError(
            f"--releases {text}: expected a range that begins and ends at releases of "
            f"{package.title}, found {' and '.join(missing)}, which the overlay does not know"
            f"{', and the package index does not offer or has yanked' if beyond else ''}{newest}"
        )
    return [version for version in candidates if span.first <= version <= span.last]


def _beside(version: Version, candidates: Sequence[Version]) -> Sequence[Version]:
    """The releases before and behind a version that is none of them."""
    at = bisect_left(candidates, version)
    return candidates[max(0, at - 1) : at + 1]


def _whose(part: str, package: Package) -> str:
    """How to write a range that is one of another package, which has release candidates."""
    for other in KNOWN_PACKAGES:
        if other.has_candidates and other != package:
            with suppress(ValueError):
                span = ReleaseRange.parse(part, other)
                if {span.first, span.last} & set(other.candidates()):
                    return f"; of {other.title}, write {other.distribution}=={part}"
    return ""
