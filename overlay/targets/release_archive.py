"""Releases that were fetched before, one zip archive each, in the user's cache.

The archive is an ordinary zip.  Its comment says where its index lies (a member that is stored
uncompressed), and the index says where each file lies and what its sha256 is, so that reading one
file needs neither the list of members nor anything else of the archive.

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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from overlay.cache import PrivateFolder, cache_folder
from overlay.package import VLLM, Package
from overlay.targets.archive import Sources, left_out
from overlay.untrusted import parse_json

if TYPE_CHECKING:
    import zipfile


_SCHEMA = 1

_INDEX = "overlay-index.json"

_COMMENT_BYTES = 256

_LEVEL = 5

_DAMAGE = (ValueError, KeyError, TypeError, zlib.error, UnicodeDecodeError)


class DamagedError(Exception):
    """The archive is not what was written; it has to be made again."""


@dataclass(frozen=True)
class Origin:
    """The origin of a release.

    :ivar file: the file's name; :ivar index: the page that offered it; :ivar digest: the hash that
        the whole file was checked against (``sha256=...``), ``None`` where it could not be.
    :ivar warnings: what the user has to know about it, every time.
    """

    file: str
    index: str
    digest: str | None
    warnings: tuple[str, ...]


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


def archive_name(release: str, package: Package = VLLM) -> str:
    """The name of a release's archive in ``releases_folder``."""
    return f"{package.name}-{release}.zip"


def archive_path(release: str, package: Package = VLLM) -> Path:
    """The path of a release's archive, whether it is there or not."""
    return releases_folder().path / archive_name(release, package)


def write(release: str, sources: Sources, origin: Origin, package: Package = VLLM) -> CachedRelease:
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
