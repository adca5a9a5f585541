"""Read the source files of a package out of a wheel or an sdist, within limits of size."""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

from overlay.errors import Absent, ArchiveError
from overlay.package import Package
from overlay.targets import MAX_FILE_BYTES, Sources, Target, targets_of
from overlay.targets.installations import Record, header, owns, unreadable, version_in_source
from overlay.untrusted import open_regular

#: The most members of an archive (vLLM 0.33.0 has 9629).
MAX_MEMBERS = 200_000

#: The most bytes that the source files of an archive may unpack to (vLLM 0.33.0: 137 million).
MAX_UNPACKED_BYTES = 1 << 30

#: How many times its size an sdist may unpack to (Python sources: 3 to 6 times) ...
MAX_RATIO = 100

#: ... which is checked from this many unpacked bytes on.
RATIO_FREE_BYTES = 64 * 1024 * 1024

#: The suffixes of the files that are taken out of a release: source files and texts.
TEXT_SUFFIXES = (
    ".cfg .cpp .cu .cuh .h .ini .jinja .jinja2 .json .md .py .pyi .sh .toml .txt .typed .yaml .yml"
).split()

_CHUNK_BYTES = 1 << 16

_DO_NOT_USE = "The archive is not what a build of vLLM makes: do not use it"

_WHEEL_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError),
    *(NotImplementedError, RuntimeError, ValueError),
)

_SDIST_DAMAGE = (
    *(tarfile.TarError, EOFError, zlib.error),
    *(gzip.BadGzipFile, ValueError, OverflowError),
)


def resolve_archive(path: Path, name: str, package: Package) -> Target:
    """The read-only target in a wheel or an sdist file, which the user called ``name``.

    :raises Absent: if the package is not in it.
    :raises ArchiveError: if it is neither, is damaged, dangerous or too large.
    """
    try:
        with open_regular(path) as file:
            magic = file.read(4)
            if magic[:2] == b"\x1f\x8b":
                sources = read_sdist(file, name, package)
                return Target.of(sources.version, name, package, sources.read, lister=sources.paths)
        if magic[:2] == b"PK":
            return _wheel(Wheel(path, name, package), path, name, package)
    except OSError as error:
        raise ArchiveError(f"{unreadable(path, error)}; name {targets_of(package)}") from error
    content = f"a file that begins with the bytes {magic.hex(' ')}" if magic else "an empty file"
    raise ArchiveError(
        f"{name}: expected a wheel (.whl, a zip archive) or an sdist (.tar.gz), found {content}. "
        f"Download it again, or name a folder that holds {package.name}/"
    )


def _wheel(wheel: Wheel, path: Path, name: str, package: Package) -> Target:
    def read(member: str) -> bytes | None:
        try:
            return wheel.read(member)
        except OSError as error:
            raise ArchiveError(unreadable(path, error)) from error

    version, record = wheel.metadata()
    rows = Record(record, package) if record else None
    return Target.of(version, name, package, read, record=rows)


def _check_member(archive: str, member: str) -> None:
    """Refuse a member whose path leads anywhere but below the folder it is unpacked in.

    :raises ArchiveError: if it is absolute, has ``..``, a backslash, a drive or a NUL.
    """
    parts = member.split("/")
    drive = len(parts[0]) == 2 and parts[0][1] == ":"
    if member.startswith("/") or ".." in parts or "\\" in member or "\0" in member or drive:
        raise ArchiveError(
            f"{archive}: expected members with plain relative paths, found {member!r}, which leads "
            f"elsewhere. {_DO_NOT_USE}"
        )


def _check_size(archive: str, member: str, size: int) -> None:
    """Refuse to read a member that is larger than any source file.

    :raises ArchiveError: if ``size`` is above ``MAX_FILE_BYTES``.
    """
    if size > MAX_FILE_BYTES:
        raise ArchiveError(
            f"{archive}: expected source files of at most {MAX_FILE_BYTES} bytes, {member} has "
            f"{size}. {_DO_NOT_USE}"
        )


def _not_in(archive: str, package: Package) -> Absent:
    return Absent(
        f"{archive}: expected a wheel or sdist of {package.title}, which holds {package.initial}; "
        f"this archive does not. Name an archive of {package.title}"
    )


def _is_text(path: str) -> bool:
    """Whether a file with this path is taken out of a release."""
    name = path.rsplit("/", 1)[-1]
    return name[name.rfind(".") :].lower() in TEXT_SUFFIXES if "." in name else False


class Wheel:
    """The members of a wheel that matter: those of a package and its metadata.

    :param file: the archive's path, or a seekable binary file.
    :param name: what messages call it.
    :raises ArchiveError: if it is cut off, damaged, dangerous or too large.
    """

    def __init__(self, file: Path | IO[bytes], name: str, package: Package) -> None:
        self._name, self._package, self._folder = name, package, f"{package.name}/"
        try:
            self._zip = zipfile.ZipFile(file)
        except _WHEEL_DAMAGE as error:
            raise self._damaged(str(error)) from error
        self._members = self._index()

    def _index(self) -> dict[str, zipfile.ZipInfo]:
        infos = self._zip.infolist()
        if len(infos) > MAX_MEMBERS:
            raise ArchiveError(
                f"{self._name}: expected at most {MAX_MEMBERS} members, found {len(infos)}. "
                f"{_DO_NOT_USE}"
            )
        members: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            # zipfile cuts the name at a NUL and turns backslashes round on some systems.
            _check_member(self._name, info.orig_filename)
            if info.is_dir():
                continue
            if info.filename in members:
                raise self._damaged(f"it holds {info.filename} twice")
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise ArchiveError(
                    f"{self._name}: expected plain files only, {info.filename} is a link or a "
                    f"device. {_DO_NOT_USE}"
                )
            members[info.filename] = info
        return members

    def read(self, member: str) -> bytes | None:
        """A member's bytes, its checksum verified; ``None`` where it is not there.

        :raises ArchiveError: if it is damaged, encrypted or too large.
        """
        info = self._members.get(member)
        if info is None:
            return None
        _check_size(self._name, member, info.file_size)
        try:
            with self._zip.open(info) as file:
                return file.read(MAX_FILE_BYTES + 1)  # without a bound, a bomb goes off here
        except _WHEEL_DAMAGE as error:
            raise self._damaged(f"{member}: {error}") from error

    def metadata(self) -> tuple[str | None, bytes]:
        """The version of the distribution with the package, and its RECORD (empty: there is none).

        :raises Absent: if the package is not in it.
        :raises ArchiveError: if several distributions in the archive own the package.
        """
        if self._package.initial not in self._members:
            raise _not_in(self._name, self._package)
        infos = [
            member[: -len("/RECORD")]
            for member in self._members
            if member.endswith(".dist-info/RECORD") and member.count("/") == 1
        ]
        owning = [
            (info, raw)
            for info in infos
            if owns(raw := self.read(f"{info}/RECORD") or b"", self._package)
        ]
        if len(owning) > 1:
            raise self._damaged(f"it holds several distributions that own {self._folder}")
        if owning:
            info, record = owning[0]
            version = header(self.read(f"{info}/METADATA") or b"", "Version")
            return version or PurePosixPath(info).stem.rpartition("-")[2], record
        return version_in_source(self.read(f"{self._folder}_version.py") or b""), b""

    def extents(self) -> list[tuple[int, int]]:
        """The extents of the source files in the file, as ``(start, end)``, headers and all."""
        starts = sorted(info.header_offset for info in self._zip.infolist())
        ends = dict(zip(starts, [*starts[1:], self._zip.start_dir], strict=True))
        return [
            (info.header_offset, ends[info.header_offset])
            for member, info in self._members.items()
            if member.startswith(self._folder) and _is_text(member)
        ]

    def sources(self) -> Sources:
        """The source files of the package, each checked against the wheel's RECORD.

        :raises ArchiveError: if one does not match, or the wheel is damaged or of another package.
        """
        version, raw = self.metadata()
        record = Record(raw, self._package)
        files: dict[str, bytes] = {}
        other_paths: set[str] = set()
        total = 0
        for member, info in self._members.items():
            if not member.startswith(self._folder):
                continue
            if not _is_text(member):
                other_paths.add(member)
                continue
            _check_size(self._name, member, info.file_size)
            total += info.file_size
            if total > MAX_UNPACKED_BYTES:
                raise ArchiveError(
                    f"{self._name}: expected at most {MAX_UNPACKED_BYTES} bytes of source files, "
                    "found more. It is a bomb: do not use it"
                )
            content = self.read(member) or b""
            actual, expected = hashlib.sha256(content).hexdigest(), record.get(member)
            if actual != expected:
                raise ArchiveError(
                    f"{self._name}: {member} has the sha256 {actual}, its RECORD says {expected}. "
                    "The wheel is damaged or was changed: do not use it"
                )
            files[member] = content
        return Sources(version, files, frozenset(other_paths))

    def _damaged(self, problem: str) -> ArchiveError:
        return ArchiveError(
            f"{self._name}: expected a whole wheel, it is cut off or damaged ({problem}). "
            "Download it again"
        )


def read_wheel(file: IO[bytes], name: str, package: Package) -> Sources:
    """Read the source files of a whole wheel; parameters and errors as of ``Wheel``."""
    return Wheel(file, name, package).sources()


def read_sdist(file: IO[bytes], name: str, package: Package) -> Sources:
    """Read the source files of an sdist, in one pass over the compressed tar.

    :param name: what messages call it.
    :raises Absent: if the package is not in it.
    :raises ArchiveError: if it is damaged, dangerous or too large.
    """
    try:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        with gzip.GzipFile(fileobj=file) as plain:
            bounded = cast("IO[bytes]", _Bounded(plain, name, size))
            with tarfile.open(fileobj=bounded, mode="r|", encoding="utf-8") as archive:
                sources = _collect(archive, name, package)
            while bounded.read(_CHUNK_BYTES):
                pass  # the checksum of the whole follows the last byte
            return sources
    except _SDIST_DAMAGE as error:
        raise ArchiveError(
            f"{name}: expected a whole sdist, it is cut off or damaged ({error}). Download it again"
        ) from error


def _collect(archive: tarfile.TarFile, name: str, package: Package) -> Sources:
    files: dict[str, bytes] = {}
    other_paths: set[str] = set()
    tops: set[str] = set()
    for member in _members(archive, name):
        top, path = _inner(member.name, package)
        tops.add(top)
        content = None
        inside = path.startswith(f"{package.name}/")
        if path == "PKG-INFO" or (inside and _is_text(path)):
            _check_size(name, member.name, member.size)
            file = archive.extractfile(member)
            content = file.read() if file is not None else b""
        if path in files or path in other_paths:
            raise ArchiveError(
                f"{name}: expected each file once, found {path} twice. Do not use it"
            )
        if content is not None:
            files[path] = content
        elif inside:
            other_paths.add(path)
    if package.initial not in files:
        raise _not_in(name, package)
    if len(tops) > 1:
        folders = ", ".join(sorted(tops)[:4])
        raise ArchiveError(
            f"{name}: expected an sdist with one folder at its top, found {len(tops)}: {folders}"
        )
    metadata = files.pop("PKG-INFO", b"")
    stated = files.get(f"{package.name}/_version.py", b"")
    version = header(metadata, "Version") or version_in_source(stated)
    return Sources(version, files, frozenset(other_paths))


def _members(archive: tarfile.TarFile, name: str) -> Iterator[tarfile.TarInfo]:
    """The files in an sdist."""
    count = 0
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # or tarfile keeps every header
        count += 1
        if count > MAX_MEMBERS:
            raise ArchiveError(f"{name}: expected at most {MAX_MEMBERS} members. {_DO_NOT_USE}")
        _check_member(name, member.name)
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            raise ArchiveError(
                f"{name}: expected plain files and folders only, {member.name} is a link or a "
                "device. If you trust the archive, unpack it and name the folder instead"
            )
        yield member


def _inner(member: str, package: Package) -> tuple[str, str]:
    """The folder at the top of an sdist that holds a member, and its path below that folder.

    Many projects keep their package below ``src/``, from where it is installed.
    """
    top, _, inner = member.removeprefix("./").partition("/")
    below = inner.removeprefix("src/")
    return top, below if below.startswith(f"{package.name}/") else inner


class _Bounded:
    """A stream that stops with an error before a bomb fills the memory."""

    def __init__(self, plain: gzip.GzipFile, name: str, compressed: int) -> None:
        self._plain, self._name, self._compressed = plain, name, compressed
        self._unpacked = 0

    def read(self, size: int = -1) -> bytes:
        chunk = self._plain.read(size)
        self._unpacked += len(chunk)
        grown = self._unpacked > RATIO_FREE_BYTES and self._unpacked > MAX_RATIO * self._compressed
        if grown or self._unpacked > MAX_UNPACKED_BYTES:
            raise ArchiveError(
                f"{self._name}: expected an sdist of at most {MAX_UNPACKED_BYTES} bytes unpacked "
                f"and {MAX_RATIO} times its size; this one of {self._compressed} bytes has "
                f"unpacked to {self._unpacked} and goes on. It is a bomb: do not use it"
            )
        return chunk
