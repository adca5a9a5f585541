"""Read the source files of an sdist, in one pass over the compressed tar."""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from overlay.errors import ArchiveError
from overlay.package import VLLM, Package
from overlay.targets.archive import (
    MAX_MEMBERS,
    MAX_RATIO,
    MAX_UNPACKED_BYTES,
    RATIO_FREE_BYTES,
    NotInArchive,
    Sources,
    check_member,
    check_size,
    is_text,
)
from overlay.targets.metadata import header, unreadable, version_in_source
from overlay.targets.target import Target, public_release
from overlay.untrusted import open_regular

_CHUNK_BYTES = 1 << 16

_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError)


def resolve_sdist(path: Path, name: str, package: Package = VLLM) -> Target:
    """The read-only target in the sdist at ``path``.

    :raises NotInArchive: if the package is not in it.
    :raises ArchiveError: if it is damaged, dangerous or too large.
    """
    sources = read_sources(path, name, package)
    release, warnings = public_release(sources.version, package)
    return Target(
        name=name,
        vllm=sources.version,
        release=release,
        root=None,
        record=None,
        record_file=None,
        warnings=warnings,
        reader=sources.read,
        package=package,
        lister=lambda: sources.files,
    )


def read_sources(file: Path | IO[bytes], name: str, package: Package = VLLM) -> Sources:
    """Read an sdist once.

    :param file: its path, or itself, open.
    :param name: what messages call it.
    :raises ArchiveError: as ``resolve_sdist``.
    """
    try:
        if not isinstance(file, Path):
            return _read(file, name, package)
        with open_regular(file) as compressed:
            return _read(compressed, name, package)
    except _DAMAGE as error:
        raise ArchiveError(
            f"{name}: expected a whole sdist, it is cut off or damaged ({error}). Download it again"
        ) from error
    except OSError as error:
        place = file if isinstance(file, Path) else Path(name)
        raise ArchiveError(unreadable(place, error)) from error


def _read(compressed: IO[bytes], name: str, package: Package) -> Sources:
    size = compressed.seek(0, os.SEEK_END)
    compressed.seek(0)
    with gzip.GzipFile(fileobj=compressed) as plain:
        bounded = cast(IO[bytes], _Bounded(plain, name, size))
        with tarfile.open(fileobj=bounded, mode="r|", encoding="utf-8") as archive:
            sources = _collect(_members(archive, name, package), name, package)
        while bounded.read(_CHUNK_BYTES):
            pass  # the checksum of the whole follows the last byte
        return sources


def _members(
    archive: tarfile.TarFile, name: str, package: Package
) -> Iterator[tuple[str, bytes | None]]:
    """Path in the archive and content of every file; content ``None`` where it is not kept."""
    count = 0
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # or tarfile keeps every header
        count += 1
        if count > MAX_MEMBERS:
            raise ArchiveError(
                f"{name}: expected at most {MAX_MEMBERS} members. The archive is not what a build "
                "of vLLM makes: do not use it"
            )
        check_member(name, member.name)
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            raise ArchiveError(
                f"{name}: expected plain files and folders only, {member.name} is a link or a "
                "device. If you trust the archive, unpack it and name the folder instead"
            )
        yield member.name, _content(archive, member, name, package)


def _inner(member: str, package: Package) -> tuple[str, str]:
    """The folder at the top of an sdist that holds a member, and its path below that folder.

    Many projects keep their package below ``src/``, from where it is installed.
    """
    top, _, inner = member.removeprefix("./").partition("/")
    below = inner.removeprefix("src/")
    return top, below if below.startswith(f"{package.name}/") else inner


def _content(
    archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, package: Package
) -> bytes | None:
    inner = _inner(member.name, package)[1]
    if inner != "PKG-INFO" and not (inner.startswith(f"{package.name}/") and is_text(inner)):
        return None
    check_size(name, member.name, member.size)
    file = archive.extractfile(member)
    return file.read() if file is not None else b""


def _collect(members: Iterator[tuple[str, bytes | None]], name: str, package: Package) -> Sources:
    files: dict[str, bytes] = {}
    others: set[str] = set()
    tops: set[str] = set()
    for path, content in members:
        top, inner = _inner(path, package)
        tops.add(top)
        if inner in files or inner in others:
            raise ArchiveError(
                f"{name}: expected each file once, found {inner} twice. Do not use it"
            )
        if content is not None:
            files[inner] = content
        elif inner.startswith(f"{package.name}/"):
            others.add(inner)
    if package.initial not in files:
        raise NotInArchive(name, package)
    if len(tops) > 1:
        named = ", ".join(sorted(tops)[:4])
        raise ArchiveError(
            f"{name}: expected an sdist with one folder at its top, found {len(tops)}: {named}"
        )
    metadata = files.pop("PKG-INFO", b"")
    stated = files.get(f"{package.name}/_version.py", b"")
    version = header(metadata, "Version") or version_in_source(stated)
    return Sources(version, files, frozenset(others))


class _Bounded:
    """A stream that stops with an error before a bomb fills the memory."""

    def __init__(self, plain: gzip.GzipFile, name: str, compressed: int) -> None:
        self._plain, self._name, self._compressed = plain, name, compressed
        self._done = 0

    def read(self, size: int = -1) -> bytes:
        chunk = self._plain.read(size)
        self._done += len(chunk)
        grown = self._done > RATIO_FREE_BYTES and self._done > MAX_RATIO * self._compressed
        if grown or self._done > MAX_UNPACKED_BYTES:
            raise ArchiveError(
                f"{self._name}: expected an sdist of at most {MAX_UNPACKED_BYTES} bytes unpacked "
                f"and {MAX_RATIO} times its size; this one of {self._compressed} bytes has "
                f"unpacked to {self._done} and goes on. It is a bomb: do not use it"
            )
        return chunk
