"""Ask the package index for releases, and fetch what is needed of one: its source files."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from typing import IO, cast

from packaging.version import Version

from overlay.errors import PackageIndexError, without_secrets
from overlay.package import Package, parse_version
from overlay.targets.archives import Wheel, read_sdist, read_wheel
from overlay.targets.http import Session
from overlay.targets.http_errors import local_path
from overlay.targets.index import Candidate, OfferedRelease, listing, unknown_release
from overlay.targets.pip_config import read_config
from overlay.targets.remote_wheel import RangeFile
from overlay.targets.target import Origin, Progress, Sources
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


def offered_releases(package: Package, *, pre: bool = False) -> tuple[OfferedRelease, ...]:
    """The releases of a package on the configured index, oldest first, yanked ones included.

    :param pre: pre-releases as well as final ones; of a package that has release candidates,
        these come anyway, and ``pre`` adds the others.
    :raises PackageIndexError: if the index does not answer.
    """

    def counts(version: Version) -> bool:
        candidate = package.has_candidates and version.pre is not None and version.pre[0] == "rc"
        return not version.is_prerelease or (candidate and not version.is_devrelease)

    offered = listing(Session(read_config()), package).releases()
    return tuple(entry for entry in offered if pre or counts(entry.version))


def fetch(wanted: Version, progress: Progress | None, package: Package) -> Fetched:
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
    chosen = offered[0]
    sources, origin = _take(session, chosen, f"{package.title} {wanted}", progress, package)
    version = parse_version(sources.version or "")
    if version is None or Version(version.public) != Version(wanted.public):
        raise PackageIndexError(
            f"{chosen.index}: expected {chosen.filename} to hold {package.title} {wanted}, it says "
            f"that it is {sources.version}. Ask whoever runs the index"
        )
    return Fetched(sources, origin, listed.problems)


def _take(
    session: Session, chosen: Candidate, what: str, progress: Progress | None, package: Package
) -> tuple[Sources, Origin]:
    remote = None
    if not chosen.is_sdist and local_path(chosen.url) is None:
        remote = RangeFile.open(session, chosen.url)
    if remote is None:
        sources = _whole(session, chosen, what, progress, package)
        return sources, _origin(chosen, chosen.hash, _doubts(chosen, what))
    wheel = Wheel(cast(IO[bytes], remote), chosen.filename, package)
    remote.prefetch(wheel.extents(), what, progress)
    partly = (
        f"{what} has no sdist: its files were taken out of {chosen.filename} without fetching all "
        "of it. Each one matches the wheel's RECORD; the hash of the whole could not be checked"
    )
    return wheel.sources(), _origin(chosen, None, [*_doubts(chosen, what), partly])


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
    session: Session, chosen: Candidate, what: str, progress: Progress | None, package: Package
) -> Sources:
    """Read a file of which every byte is there and was checked against the index."""
    read = read_sdist if chosen.is_sdist else read_wheel
    if (path := local_path(chosen.url)) is not None:
        try:
            with open_regular(path) as file:
                _check_hash(file, chosen)
                return read(file, chosen.filename, package)
        except OSError as error:
            raise PackageIndexError(
                f"{chosen.index} offers {path}, which cannot be read: {error.strerror}"
            ) from error
    try:
        # A file without a name: whatever ends this process, nothing of it stays behind.
        with tempfile.TemporaryFile() as file:
            limit = MAX_SDIST_BYTES if chosen.is_sdist else MAX_WHEEL_BYTES
            session.download(chosen.url, file, what, progress, limit)
            _check_hash(file, chosen)
            return read(file, chosen.filename, package)
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
