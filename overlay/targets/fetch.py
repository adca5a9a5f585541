"""Fetch what is needed of a release: its sdist, or the source files out of its wheel."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from packaging.version import Version

from overlay.errors import ArchiveError, PackageIndexError, without_secrets
from overlay.package import VLLM, Package, parse_release
from overlay.targets.archive import MAX_UNPACKED_BYTES, Sources, check_size, is_text
from overlay.targets.http import Session
from overlay.targets.http_errors import local_path
from overlay.targets.index import Candidate, listing, unknown_release
from overlay.targets.pip_config import read_config
from overlay.targets.record import Record
from overlay.targets.release_archive import Origin
from overlay.targets.remote_wheel import RangeFile
from overlay.targets.sdist import read_sources
from overlay.targets.target import Progress
from overlay.targets.wheel import Wheel
from overlay.untrusted import open_regular

#: The most bytes of an sdist; those of vLLM 0.33.0 unpack to 137 million.
MAX_SDIST_BYTES = 1 << 28

#: The most bytes of a wheel of which all has to be fetched; with its kernels, vLLM's has some
#: hundred million.
MAX_WHEEL_BYTES = 1 << 31


@dataclass(frozen=True)
class Fetched:
    """A release as it came from the index.

    :ivar warnings: what went wrong this time, and need not be said of the release ever after.
    """

    sources: Sources
    origin: Origin
    warnings: tuple[str, ...]


def fetch(wanted: Version, progress: Progress | None, package: Package = VLLM) -> Fetched:
    """Fetch what is needed of a release from the configured package index.

    The sdist is preferred; of a wheel only the parts with source files are fetched, where the
    server serves parts.

    :raises PackageIndexError: if no index has it, or it cannot be fetched whole.
    :raises ArchiveError: if what the index serves is dangerous or too large.
    """
    session = Session(read_config())
    listed = listing(session, package)
    offered = listed.of(wanted)
    if not offered:
        raise unknown_release(wanted, listed, package)
    sources, origin = _take(session, offered[0], f"{package.title} {wanted}", progress, package)
    _expect_version(sources, wanted, offered[0], package)
    return Fetched(sources, origin, listed.problems)


def _take(
    session: Session, chosen: Candidate, what: str, progress: Progress | None, package: Package
) -> tuple[Sources, Origin]:
    remote = None
    if not chosen.is_sdist and local_path(chosen.url) is None:
        remote = RangeFile.open(session, chosen.url)
    if remote is None:
        read = read_sources if chosen.is_sdist else _read_wheel
        sources = _whole(
            session, chosen, what, progress, lambda file, name: read(file, name, package)
        )
        return sources, _origin(chosen, chosen.hash, _doubts(chosen, what))
    wheel = Wheel(cast(IO[bytes], remote), chosen.filename)
    members = [member for member in wheel.members if _is_source(member, package)]
    remote.prefetch(wheel.extents(members), what, progress)
    partly = (
        f"{what} has no sdist: its files were taken out of {chosen.filename} without fetching all "
        "of it. Each one matches the wheel's RECORD; the hash of the whole could not be checked"
    )
    return wheel_sources(wheel, package), _origin(chosen, None, [*_doubts(chosen, what), partly])


def _expect_version(sources: Sources, wanted: Version, chosen: Candidate, package: Package) -> None:
    try:
        right = parse_release(sources.version or "") == Version(wanted.public)
    except ValueError:
        right = False
    if not right:
        raise PackageIndexError(
            f"{chosen.index}: expected {chosen.filename} to hold {package.title} {wanted}, it says "
            f"that it is {sources.version}. Ask whoever runs the index"
        )


def wheel_sources(wheel: Wheel, package: Package = VLLM) -> Sources:
    """The source files of a package in a wheel, each checked against its RECORD.

    :raises ArchiveError: if one does not match, or the wheel is damaged or of another package.
    """
    version, raw = wheel.metadata(package)
    record = Record(raw, package)
    files: dict[str, bytes] = {}
    others: set[str] = set()
    total = 0
    for member, info in wheel.members.items():
        if not member.startswith(f"{package.name}/"):
            continue
        if not is_text(member):
            others.add(member)
            continue
        check_size(wheel.name, member, info.file_size)
        total += info.file_size
        if total > MAX_UNPACKED_BYTES:
            raise ArchiveError(
                f"{wheel.name}: expected at most {MAX_UNPACKED_BYTES} bytes of source files, found "
                "more. It is a bomb: do not use it"
            )
        content = wheel.read(member) or b""
        actual, expected = hashlib.sha256(content).hexdigest(), record.get(member)
        if actual != expected:
            raise ArchiveError(
                f"{wheel.name}: {member} has the sha256 {actual}, its RECORD says {expected}. The "
                "wheel is damaged or was changed: do not use it"
            )
        files[member] = content
    return Sources(version, files, frozenset(others))


def _is_source(member: str, package: Package) -> bool:
    return member.startswith(f"{package.name}/") and is_text(member)


def _read_wheel(file: Path | IO[bytes], name: str, package: Package) -> Sources:
    return wheel_sources(Wheel(file, name), package)


def _doubts(chosen: Candidate, what: str) -> list[str]:
    warnings = []
    if chosen.yanked:
        warnings.append(f"{what} was yanked from {chosen.index}")
    if chosen.hash is None:
        warnings.append(f"{chosen.index} gives no hash for {chosen.filename}: it was not checked")
    return warnings


def _origin(chosen: Candidate, digest: tuple[str, str] | None, warnings: list[str]) -> Origin:
    return Origin(
        file=chosen.filename,
        index=chosen.index,
        digest="=".join(digest) if digest else None,
        warnings=tuple(warnings),
    )


def _whole(
    session: Session,
    chosen: Candidate,
    what: str,
    progress: Progress | None,
    read: Callable[[Path | IO[bytes], str], Sources],
) -> Sources:
    """Read a file of which every byte is there and was checked against the index."""
    if (path := local_path(chosen.url)) is not None:
        try:
            with open_regular(path) as file:
                _check_hash(file, chosen)
        except OSError as error:
            raise PackageIndexError(
                f"{chosen.index} offers {path}, which cannot be read: {error.strerror}"
            ) from error
        return read(path, chosen.filename)
    try:
        # A file without a name: whatever ends this process, nothing of it stays behind.
        with tempfile.TemporaryFile() as file:
            limit = MAX_SDIST_BYTES if chosen.is_sdist else MAX_WHEEL_BYTES
            session.download(chosen.url, file, what, progress, limit)
            _check_hash(file, chosen)
            return read(file, chosen.filename)
    except OSError as error:
        raise PackageIndexError(
            f"{what}: {chosen.filename} cannot be kept in {tempfile.tempdir or 'any folder'} "
            f"while it is read: {error.strerror}. Make room there, or set TMPDIR to another folder"
        ) from error


def _check_hash(file: IO[bytes], chosen: Candidate) -> None:
    if chosen.hash is None:
        return
    algorithm, expected = chosen.hash
    state = hashlib.new(algorithm)
    file.seek(0)
    while chunk := file.read(1 << 20):
        state.update(chunk)
    if state.hexdigest() != expected:
        raise PackageIndexError(
            f"{without_secrets(chosen.url)}: expected the {algorithm} {expected} that "
            f"{chosen.index} gives, found {state.hexdigest()}. The download is damaged or was "
            "changed on the way: try again, and ask whoever runs the index if it persists"
        )
