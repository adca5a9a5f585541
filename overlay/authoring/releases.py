"""Name, list and open the releases of one package, for the commands that write patches.

They call a release by its bare number (``0.23.0rc1``), as ``Base`` and the ranges of a feature do;
the package is told beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import count

from packaging.version import Version

from overlay.authoring.locating import ReleaseTexts
from overlay.errors import UsageError
from overlay.package import VLLM, Package, parse_version
from overlay.report.progress import doing
from overlay.targets import Progress, Target, resolution
from overlay.targets.releases import releases_folder
from overlay.targets.resolution import release_named, releases, spelt


def names_of(package: Package) -> tuple[str, ...]:
    """The releases of a package that the overlay knows, oldest first; none of most packages.

    Every command that writes patches asks here, so that tests can let them know others.
    """
    return package.releases


def names_in(text: str, package: Package = VLLM) -> tuple[Package, tuple[str, ...]]:
    """The package and the releases, oldest first, that ``--releases`` names.

    :param package: the one that is meant where the text does not say it.
    """
    names = releases(text, package=package)
    own = package_of(names) if names else package
    return own, tuple(str(version_of(name, own)) for name in names)


def package_of(names: Iterable[str]) -> Package:
    """The one package of releases that are spelt as TARGET takes them; vLLM where there is none."""
    pairs = [release_named(name) for name in names]
    packages = {each[1] for each in pairs if each is not None} or {VLLM}
    if len(packages) > 1:
        titles = " and ".join(sorted(each.title for each in packages))
        raise UsageError(f"--releases: expected releases of one package, found those of {titles}")
    return packages.pop()


def version_of(name: str, package: Package) -> Version:
    """The version of a release that is spelt as TARGET takes it.

    :raises UsageError: if it is not a release of the package.
    """
    pair = release_named(name, package)
    if pair is None or pair[1].name != package.name:
        raise UsageError(f"{name!r} is not a release of {package.title}, such as 0.26.0")
    return pair[0]


def tree_of(release: str, package: Package, progress: Progress | None, which: str = "") -> Target:
    """The files of a release.

    :raises OverlayError: if it cannot be read.
    """
    with doing(progress, f"reading {package.title} {release}{which}"):
        return resolution.resolve(spelt(release, package), progress=progress)


def texts_of(names: Sequence[str], package: Package, progress: Progress | None) -> ReleaseTexts:
    """The files of releases, from the cache or the package index, each read once."""
    numbers = count(1)
    return ReleaseTexts(
        names,
        lambda release: tree_of(release, package, progress, f", {next(numbers)} of {len(names)}"),
        lambda: [name for name in cached(package) if name not in names],
    )


def cached(package: Package) -> tuple[str, ...]:
    """The releases of a package that lie in the cache, oldest first."""
    try:
        names = os.listdir(releases_folder().path)
    except OSError:
        return ()
    own = re.compile(re.escape(package.name) + r"-(\d[^/]*)\.zip")
    matches = filter(None, map(own.fullmatch, names))
    versions = filter(None, (parse_version(match[1]) for match in matches))
    return tuple(str(version) for version in sorted(versions))
