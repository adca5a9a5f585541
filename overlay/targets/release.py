"""Resolve a release of a package: from the user's cache, or from the configured package index."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from packaging.version import Version

from overlay.errors import PackageIndexError
from overlay.package import VLLM, Package, same_release
from overlay.targets.release_archive import (
    CachedRelease,
    DamagedError,
    archive_name,
    releases_folder,
    write,
)
from overlay.targets.target import Progress, Target, public_release
from overlay.untrusted import NotPrivate

if TYPE_CHECKING:
    from overlay.targets.fetch import Fetched
    from overlay.targets.index import OfferedRelease


#: How long one process waits for another one that fetches the same release.
LOCK_SECONDS = 900


def resolve_release(
    wanted: Version, name: str, *, progress: Progress | None = None, package: Package = VLLM
) -> Target:
    """The read-only target of one release.

    A release in the cache needs no network.  Every file is checked by its hash when it is read;
    a damaged archive is made again.

    :raises PackageIndexError: if it is not in the cache and cannot be fetched.
    :raises ArchiveError: if what the index serves is dangerous or too large.
    """
    stored, notes = _stored(same_release(wanted), progress, package)
    trouble = (stored.trouble,) if stored.trouble else ()
    release, bad = public_release(stored.archive.version, package)
    return Target(
        name=name,
        vllm=stored.archive.version,
        release=release,
        root=None,
        record=None,
        record_file=None,
        warnings=(*notes, *stored.warnings, *trouble, *stored.archive.origin.warnings, *bad),
        reader=stored.read,
        package=package,
        lister=stored.archive.paths,
    )


def _stored(
    wanted: Version, progress: Progress | None, package: Package
) -> tuple[_StoredRelease, tuple[str, ...]]:
    """The release, and a warning where its local label had to be dropped."""
    try:
        return _StoredRelease(wanted, progress, package), ()
    except PackageIndexError as error:
        if wanted.local is None:
            raise
        plain = Version(wanted.public)
        stored = _StoredRelease(plain, progress, package)
        return stored, (f"{package.title} {plain} was taken for {wanted}: {error}",)


def offered_releases(*, pre: bool = False, package: Package = VLLM) -> tuple[OfferedRelease, ...]:
    """The releases of a package on the configured index, oldest first, yanked ones included.

    :param pre: pre-releases as well as final ones; of a package that has release candidates,
        these come anyway, and ``pre`` adds the others.
    :raises PackageIndexError: if the index does not answer.
    """
    from overlay.targets.http import Session
    from overlay.targets.index import listing
    from overlay.targets.pip_config import read_config

    def counts(version: Version) -> bool:
        candidate = package.has_candidates and version.pre is not None and version.pre[0] == "rc"
        return not version.is_prerelease or (candidate and not version.is_devrelease)

    offered = listing(Session(read_config()), package).releases()
    return tuple(entry for entry in offered if pre or counts(entry.version))


class _StoredRelease:
    """A release in the cache, fetched where it is missing or damaged.

    :ivar archive: the release; :ivar warnings: of this fetch, if there was one.
    :ivar trouble: why the cache could not be used, or ``None``.
    """

    def __init__(self, wanted: Version, progress: Progress | None, package: Package) -> None:
        self._wanted, self._progress, self._package = wanted, progress, package
        self._name = str(wanted)
        self._archive = archive_name(self._name, package)
        self._folder = releases_folder()
        self.warnings: tuple[str, ...] = ()
        self.trouble: str | None = None
        self.archive = self._open() or self._obtain(reopen=True)

    @property
    def _what(self) -> str:
        return f"{self._package.title} {self._wanted}"

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``; the release is fetched again where its archive is damaged."""
        try:
            return self.archive.read(path)
        except DamagedError:
            self.archive = self._obtain(reopen=False)
            return self.archive.read(path)

    def _open(self) -> CachedRelease | None:
        try:
            return CachedRelease.open(self._name, self._package)
        except (FileNotFoundError, DamagedError):
            return None
        except (OSError, NotPrivate) as error:
            self._warn(error)
            return None

    def _obtain(self, reopen: bool) -> CachedRelease:
        """Fetch the release, one process at a time.

        :param reopen: take what another process has fetched while this one waited.
        """
        import filelock

        with ExitStack() as stack:
            try:
                stack.enter_context(self._folder.lock(self._archive, LOCK_SECONDS))
            except filelock.Timeout as error:
                raise PackageIndexError(
                    f"{self._what}: another process has been fetching it for more than "
                    f"{LOCK_SECONDS} seconds (it holds {error.lock_file}). End it, then try again"
                ) from error
            except (OSError, NotImplementedError, NotPrivate) as error:
                self._warn(error)
                fetched = self._fetch()
                return CachedRelease.in_memory(fetched.sources, fetched.origin)
            return (self._open() if reopen else None) or self._store(self._fetch())

    def _fetch(self) -> Fetched:
        from overlay.targets.fetch import fetch  # imports the network: only where it is needed

        fetched = fetch(self._wanted, self._progress, self._package)
        self.warnings = fetched.warnings
        return fetched

    def _store(self, fetched: Fetched) -> CachedRelease:
        try:
            return write(self._name, fetched.sources, fetched.origin, self._package)
        except (OSError, NotPrivate) as error:
            self._warn(error)
            return CachedRelease.in_memory(fetched.sources, fetched.origin)

    def _warn(self, error: Exception) -> None:
        """Keep why the cache is not used: of all releases in the same words, to be told once."""
        if isinstance(error, NotPrivate):
            why = str(error)
        else:
            why = f"{getattr(error, 'strerror', None) or error}; make it writable for yourself"
        self.trouble = (
            f"the cache {self._folder.path} was not used, so the release was fetched for this "
            f"command alone: {why}; or set OVERLAY_CACHE to a folder of your own"
        )
