"""A release of vLLM: out of the user's cache, or fetched from the configured package index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from overlay.errors import PackageIndexError
from overlay.targets.release_archive import CachedRelease, DamagedError, archive_path, write
from overlay.targets.target import Progress, Target, public_release

if TYPE_CHECKING:
    from overlay.targets.fetch import Fetched


#: How long one process waits for another one that fetches the same release.
LOCK_SECONDS = 900


def resolve_release(wanted: Version, name: str, *, progress: Progress | None = None) -> Target:
    """The read-only target of one release.

    A release in the cache needs no network.  Every file is checked by its hash when it is read;
    a damaged archive is made again.

    :raises PackageIndexError: if it is not in the cache and cannot be fetched.
    :raises ArchiveError: if what the index serves is dangerous or too large.
    """
    kept = _Kept(wanted, progress)
    trouble = (kept.trouble,) if kept.trouble else ()
    release, bad = public_release(kept.cached.version)
    return Target(
        name=name,
        vllm=kept.cached.version,
        release=release,
        root=None,
        record=None,
        record_file=None,
        warnings=(*kept.warnings, *trouble, *kept.cached.origin.warnings, *bad),
        reader=kept.read,
    )


def final_releases() -> list[Version]:
    """The final releases of vLLM on the configured index, oldest first, without yanked ones.

    :raises PackageIndexError: if the index does not answer.
    """
    from overlay.targets.http import Session
    from overlay.targets.index import listing
    from overlay.targets.pip_config import read_config

    found = listing(Session(read_config()))
    versions = {one.version for one in found.candidates if not one.yanked}
    plain = {Version(version.public) for version in versions if not version.is_prerelease}
    return sorted(plain)


class _Kept:
    """A release in the cache, fetched where it is missing or damaged."""

    def __init__(self, wanted: Version, progress: Progress | None) -> None:
        self._wanted, self._progress = wanted, progress
        self._path = archive_path(str(wanted))
        self.warnings: tuple[str, ...] = ()
        self.trouble: str | None = None
        self.cached = self._open() or self._obtain(reopen=True)

    def read(self, path: str) -> bytes | None:
        try:
            return self.cached.read(path)
        except DamagedError:
            self.cached = self._obtain(reopen=False)
            return self.cached.read(path)

    def _open(self) -> CachedRelease | None:
        try:
            return CachedRelease.open(self._path)
        except (FileNotFoundError, DamagedError):
            return None
        except OSError as error:
            self._warn(error)
            return None

    def _obtain(self, reopen: bool) -> CachedRelease:
        """Fetch the release, one process at a time.

        :param reopen: take what another process has fetched while this one waited.
        """
        import filelock

        lock = filelock.FileLock(f"{self._path}.lock", timeout=LOCK_SECONDS)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            held = lock.acquire()
        except filelock.Timeout as error:
            raise PackageIndexError(
                f"vLLM {self._wanted}: another process has been fetching it for more than "
                f"{LOCK_SECONDS} seconds (it holds {error.lock_file}). End it, then try again"
            ) from error
        except (OSError, NotImplementedError) as error:
            self._warn(error)
            fetched = self._fetch()
            return CachedRelease.in_memory(fetched.sources, fetched.origin)
        with held:
            found = self._open() if reopen else None
            return found or self._store(self._fetch())

    def _fetch(self) -> Fetched:
        from overlay.targets.fetch import fetch  # brings the network in: only where needed

        fetched = fetch(self._wanted, self._progress)
        self.warnings = fetched.warnings
        return fetched

    def _store(self, fetched: Fetched) -> CachedRelease:
        try:
            return write(self._path, fetched.sources, fetched.origin)
        except OSError as error:
            self._warn(error)
            return CachedRelease.in_memory(fetched.sources, fetched.origin)

    def _warn(self, error: Exception) -> None:
        why = getattr(error, "strerror", None) or error
        self.trouble = (
            f"the cache {self._path.parent} cannot be used ({why}): vLLM {self._wanted} was "
            "fetched for this command only. Make the folder writable or set OVERLAY_CACHE"
        )
