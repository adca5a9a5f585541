"""A release of vLLM: out of the user's cache, or fetched from the configured package index."""

from __future__ import annotations

import tempfile

from packaging.version import Version

from overlay.errors import PackageIndexError
from overlay.targets.cache import CachedRelease, DamagedError, Origin, archive_path, write, write_to
from overlay.targets.sdist import Sources
from overlay.targets.target import Progress, Target, public_release

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
    release, bad = public_release(kept.cached.version)
    return Target(
        name=name,
        vllm=kept.cached.version,
        release=release,
        root=None,
        record=None,
        record_file=None,
        warnings=(*kept.warnings, *kept.cached.origin.warnings, *bad),
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
        self.cached = self._open() or self._fetch_locked()

    def read(self, path: str) -> bytes | None:
        try:
            return self.cached.read(path)
        except DamagedError:
            self.cached = self._fetch_locked(replace=self.cached)
            return self.cached.read(path)

    def _open(self) -> CachedRelease | None:
        try:
            return CachedRelease.open(self._path)
        except (FileNotFoundError, NotADirectoryError, DamagedError):
            return None
        except OSError as error:
            self._warn(error)
            return None

    def _fetch_locked(self, replace: CachedRelease | None = None) -> CachedRelease:
        """Fetch the release unless another process has just done so.

        :param replace: a damaged release that must not be taken from the cache again.
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
            return self._store(*self._fetch())
        with held:
            found = None if replace is not None else self._open()
            return found or self._store(*self._fetch())

    def _fetch(self) -> tuple[Sources, Origin]:
        from overlay.targets.fetching import fetch  # brings the network in, half of our start time

        return fetch(self._wanted, self._progress)

    def _store(self, sources: Sources, origin: Origin) -> CachedRelease:
        try:
            return write(self._path, sources, origin)
        except OSError as error:
            self._warn(error)
        file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the reader's finalizer
        write_to(file, sources, origin)
        file.flush()
        return CachedRelease(file)

    def _warn(self, error: Exception) -> None:
        text = (
            f"the cache {self._path.parent} cannot be used ({error}): vLLM {self._wanted} was "
            "fetched for this command only. Make the folder writable or set OVERLAY_CACHE"
        )
        self.warnings = tuple(dict.fromkeys((*self.warnings, text)))
