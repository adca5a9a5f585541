"""Releases of a package: from the user's cache, or fetched from the configured package index.

Each is one archive in the cache, an ordinary zip.  Its comment says where its index lies (a member
that is stored uncompressed), and the index says where each file lies and what its sha256 is, so
that reading one file needs neither the list of members nor anything else of the archive.

``zipfile`` is not used for reading, for two reasons.  It parses a central directory of 2600 members
before it reads the first one: 12 ms a release, against 2 ms for the index, and 0.25 s against 0.1 s
for all files that the shipped features patch in 21 releases.  And it has one position in the file,
which the workers of ``overlay check --releases`` would share, since they are forked; ``pread``
has none.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import weakref
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any

from packaging.version import Version

from overlay.cache import PrivateFolder, cache_folder
from overlay.errors import PackageIndexError
from overlay.package import VLLM, Package, PackageRelease
from overlay.targets import Origin, Progress, Sources, Target, left_out
from overlay.untrusted import NotPrivate, parse_json

if TYPE_CHECKING:
    import zipfile

#: How long one process waits for another one that fetches the same release.
LOCK_SECONDS = 900

_SCHEMA = 1

_INDEX = "overlay-index.json"

_COMMENT_BYTES = 256

_LEVEL = 5

_DAMAGE = (ValueError, KeyError, TypeError, zlib.error, UnicodeDecodeError)


def resolve_release(release: PackageRelease, name: str, progress: Progress | None) -> Target:
    """The read-only target of one release.

    A release in the cache needs no network.  Every file is checked by its hash when it is read;
    a damaged archive is made again.

    :param release: its version in the one spelling, as of ``same_release``.

    :raises PackageIndexError: if it is not in the cache and cannot be fetched.
    :raises ArchiveError: if what the index serves is dangerous or too large.
    """
    stored, notes = _stored(release, progress)
    archive = stored.archive
    trouble = (stored.trouble,) if stored.trouble else ()
    warnings = (*notes, *stored.warnings, *trouble, *archive.origin.warnings)
    return Target.of(
        archive.version,
        name,
        release.package,
        stored.read,
        warnings=warnings,
        lister=archive.paths,
    )


def _stored(
    release: PackageRelease, progress: Progress | None
) -> tuple[_StoredRelease, tuple[str, ...]]:
    """The release, and a warning where its local label had to be dropped."""
    try:
        return _StoredRelease(release, progress), ()
    except PackageIndexError as error:
        if release.version.local is None:
            raise
        plain = release._replace(version=Version(release.version.public))
        stored = _StoredRelease(plain, progress)
        return stored, (f"{plain} was taken for {release.version}: {error}",)


class _StoredRelease:
    """A release in the cache, fetched where it is missing or damaged.

    :ivar archive: the release; :ivar warnings: of this fetch, if there was one.
    :ivar trouble: why the cache could not be used, or ``None``.
    """

    def __init__(self, release: PackageRelease, progress: Progress | None) -> None:
        self._release, self._progress = release, progress
        self._archive = archive_name(str(release.version), release.package)
        self._folder = releases_folder()
        self.warnings: tuple[str, ...] = ()
        self.trouble: str | None = None
        self.archive = self._open() or self._obtain(reopen=True)

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``; the release is fetched again where its archive is damaged."""
        try:
            return self.archive.read(path)
        except DamagedError:
            self.archive = self._obtain(reopen=False)
            return self.archive.read(path)

    def _open(self) -> CachedRelease | None:
        try:
            return CachedRelease.open(str(self._release.version), self._release.package)
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
                    f"{self._release}: another process has been fetching it for more than "
                    f"{LOCK_SECONDS} seconds (it holds {error.lock_file}). End it, then try again"
                ) from error
            except (OSError, NotImplementedError, NotPrivate) as error:
                self._warn(error)
                return CachedRelease.in_memory(*self._fetch())
            return (self._open() if reopen else None) or self._store(*self._fetch())

    def _fetch(self) -> tuple[Sources, Origin]:
        from overlay.targets.fetch import fetch  # imports the network: only where it is needed

        sources, origin, self.warnings = fetch(self._release, self._progress)
        return sources, origin

    def _store(self, sources: Sources, origin: Origin) -> CachedRelease:
        try:
            return write(str(self._release.version), sources, origin, self._release.package)
        except (OSError, NotPrivate) as error:
            self._warn(error)
            return CachedRelease.in_memory(sources, origin)

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


class DamagedError(Exception):
    """The archive is not what was written; it has to be made again."""


class CachedRelease:
    """A release in an archive, which may be replaced or removed on disk meanwhile.

    :param read_at: gives the bytes at an offset, fewer at the end; :param size: of the archive.
    :raises DamagedError: if the archive is not what was written.
    """

    def __init__(self, read_at: Callable[[int, int], bytes], size: int) -> None:
        self._read_at, self._size = read_at, size
        index = self._index()
        try:
            origin = {**index["origin"], "warnings": tuple(index["origin"]["warnings"])}
            self.origin = Origin(**origin)
            self.version: str | None = index["vllm"]
            self._left_out = frozenset(index["left_out"])
            self._files: Mapping[str, Any] = index["files"]
        except _DAMAGE as error:
            raise DamagedError(f"its index cannot be read: {error!r}") from error

    @classmethod
    def open(cls, release: str, package: Package = VLLM) -> CachedRelease:
        """Open the archive of a release.

        :raises FileNotFoundError: if there is none.
        :raises NotPrivate: if somebody else could have written it.
        :raises DamagedError: if it is not what was written.
        """
        descriptor = releases_folder().open(archive_name(release, package))

        # A position of its own for every read: threads and forks share the descriptor.
        def read_at(offset: int, length: int) -> bytes:
            return os.pread(descriptor, length, offset)

        # Held open for as long as something may read: nobody else knows when to close.
        weakref.finalize(read_at, os.close, descriptor)
        return cls(read_at, os.fstat(descriptor).st_size)

    @classmethod
    def in_memory(cls, sources: Sources, origin: Origin) -> CachedRelease:
        """The same without a file, where the cache cannot be written to."""
        file = io.BytesIO()
        write_to(file, sources, origin)
        raw = file.getvalue()
        return cls(lambda offset, length: raw[offset : offset + length], len(raw))

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``, checked; ``None`` where the release has no such file.

        :raises DamagedError: if they are not what was written.
        :raises ArchiveError: if the release has the file but it was left out.
        """
        if path in self._left_out:
            raise left_out(path)
        entry = self._files.get(path)
        if entry is None:
            return None
        try:
            offset, length, digest = entry
            content = zlib.decompress(self._at(offset, length), -zlib.MAX_WBITS)
        except _DAMAGE as error:
            raise DamagedError(f"{path} cannot be read: {error}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise DamagedError(f"{path} has another sha256 than was written")
        return content

    def paths(self) -> list[str]:
        """The paths of all files."""
        return sorted(self._files)

    def _index(self) -> dict[str, Any]:
        length = min(self._size, _COMMENT_BYTES)
        tail = self._at(self._size - length, length)
        fields = tail[tail.rfind(b"overlay-index ") :].split()
        try:
            if int(fields[1]) != _SCHEMA:
                raise DamagedError(f"it was written by another overlay (format {fields[1]!r})")
            raw = self._at(int(fields[2]), int(fields[3]))
            if hashlib.sha256(raw).hexdigest().encode() != fields[4]:
                raise DamagedError("its index has another sha256 than was written")
            index = parse_json(raw)
        except (*_DAMAGE, IndexError) as error:
            raise DamagedError(f"its index cannot be found: {error!r}") from error
        if not isinstance(index, dict):
            raise DamagedError("its index is not a table")
        return index

    def _at(self, offset: int, length: int) -> bytes:
        try:
            content = self._read_at(offset, length)
        except OSError as error:
            raise DamagedError(f"it cannot be read: {error.strerror}") from error
        if len(content) != length:
            raise DamagedError("it is cut off")
        return content


def releases_folder() -> PrivateFolder:
    """The folder of all archives; they hold what anybody may read."""
    return PrivateFolder(cache_folder() / "releases", mode=0o755, allow_group=True)


def archive_name(release: str, package: Package) -> str:
    """The name of a release's archive in ``releases_folder``."""
    return f"{package.name}-{release}.zip"


def write(release: str, sources: Sources, origin: Origin, package: Package) -> CachedRelease:
    """Put a release into the cache, whole or not at all, and open it.

    :raises OSError: if the folder cannot be written to.
    :raises NotPrivate: if somebody else can write to it.
    """
    folder = releases_folder()
    folder.sweep()
    with folder.writing(archive_name(release, package), durable=True) as file:
        write_to(file, sources, origin)
    return CachedRelease.open(release, package)


def write_to(file: IO[bytes], sources: Sources, origin: Origin) -> None:
    """Write the archive of a release into an open file."""
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        entries = {}
        for path, content in sorted(sources.files.items()):
            info = zipfile.ZipInfo(path)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content, compresslevel=_LEVEL)
            digest = hashlib.sha256(content).hexdigest()
            entries[path] = (_data_offset(info), info.compress_size, digest)
        index = {
            "vllm": sources.version,
            "origin": vars(origin),
            "left_out": sorted(sources.left_out),
            "files": entries,
        }
        raw = json.dumps(index, separators=(",", ":")).encode()
        info = zipfile.ZipInfo(_INDEX)
        archive.writestr(info, raw, compress_type=zipfile.ZIP_STORED)
        digest = hashlib.sha256(raw).hexdigest()
        place = f"{_data_offset(info)} {len(raw)}"
        archive.comment = f"overlay-index {_SCHEMA} {place} {digest}".encode()


def _data_offset(info: zipfile.ZipInfo) -> int:
    """The offset of a member's data: its local header is 30 bytes, the name, and no extra field."""
    return info.header_offset + 30 + len(info.filename.encode())
