"""Ask the package index for releases, and fetch what is needed of one: its source files."""

from __future__ import annotations

import hashlib
import tempfile
from typing import IO, cast

from packaging.version import Version

from overlay.errors import PackageIndexError, without_secrets
from overlay.package import Package, PackageRelease, parse_version
from overlay.targets.archives import Wheel, read_sdist, read_wheel
from overlay.targets.http import IndexSession
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


def offered_releases(package: Package, *, pre: bool = False) -> tuple[OfferedRelease, ...]:
    """The releases of a package on the configured index, oldest first, yanked ones included.

    :param pre: pre-releases as well as final ones; of a package that has release candidates,
        these come anyway, and ``pre`` adds the others.
    :raises PackageIndexError: if the index does not answer.
    """

    def counts(version: Version) -> bool:
        candidate = package.has_candidates and version.pre is not None and version.pre[0] == "rc"
        return not version.is_prerelease or (candidate and not version.is_devrelease)

    offered = listing(IndexSession(read_config()), package).releases()
    return tuple(entry for entry in offered if pre or counts(entry.version))


def fetch(
    release: PackageRelease, progress: Progress | None
) -> tuple[Sources, Origin, tuple[str, ...]]:
    """Fetch what is needed of a release from the configured package index.

    The sdist is preferred; of a wheel only the parts with source files are fetched, where the
    server serves parts.

    :returns: its files, where they come from, and what went wrong this time, which need not be
        told of the release ever after.
    :raises PackageIndexError: if no index has it, or it cannot be fetched whole.
    :raises ArchiveError: if what the index serves is dangerous or too large.
    """
    session = IndexSession(read_config())
    offers = listing(session, release.package)
    candidates = offers.of(release.version)
    if not candidates:
        raise unknown_release(release, offers)
    candidate = candidates[0]
    sources, origin = _take(session, candidate, release, progress)
    version = parse_version(sources.version or "")
    if version is None or Version(version.public) != Version(release.version.public):
        raise PackageIndexError(
            f"{candidate.index}: expected {candidate.filename} to hold {release}, it says that it "
            f"is {sources.version}. Ask whoever runs the index"
        )
    return sources, origin, offers.problems


def _take(
    session: IndexSession, candidate: Candidate, release: PackageRelease, progress: Progress | None
) -> tuple[Sources, Origin]:
    doubts = _doubts(candidate, release)
    remote = None
    if not candidate.is_sdist and local_path(candidate.url) is None:
        remote = RangeFile.open(session, candidate.url)
    if remote is None:
        sources = _whole(session, candidate, release, progress)
        return sources, _origin(candidate, candidate.hash, doubts)
    wheel = Wheel(cast(IO[bytes], remote), candidate.filename, release.package)
    remote.prefetch(wheel.extents(), str(release), progress)
    doubts.append(
        f"{release} has no sdist: its files were taken out of {candidate.filename} without "
        "fetching all of it. Each one matches the wheel's RECORD; the hash of the whole could not "
        "be checked"
    )
    return wheel.sources(), _origin(candidate, None, doubts)


def _doubts(candidate: Candidate, release: PackageRelease) -> list[str]:
    warnings = []
    if candidate.yanked:
        warnings.append(f"{release} was yanked from {candidate.index}")
    if candidate.hash is None:
        unchecked = f"gives no hash for {candidate.filename}: it was not checked"
        warnings.append(f"{candidate.index} {unchecked}")
    return warnings


def _origin(candidate: Candidate, digest: tuple[str, str] | None, warnings: list[str]) -> Origin:
    return Origin(
        file=candidate.filename,
        index=candidate.index,
        digest="=".join(digest) if digest else None,
        warnings=tuple(warnings),
    )


def _whole(
    session: IndexSession, candidate: Candidate, release: PackageRelease, progress: Progress | None
) -> Sources:
    """Read a file of which every byte is there and was checked against the index."""
    read = read_sdist if candidate.is_sdist else read_wheel
    if (path := local_path(candidate.url)) is not None:
        try:
            with open_regular(path) as file:
                _check_hash(file, candidate)
                return read(file, candidate.filename, release.package)
        except OSError as error:
            raise PackageIndexError(
                f"{candidate.index} offers {path}, which cannot be read: {error.strerror}"
            ) from error
    try:
        # A file without a name: whatever ends this process, nothing of it stays behind.
        with tempfile.TemporaryFile() as file:
            limit = MAX_SDIST_BYTES if candidate.is_sdist else MAX_WHEEL_BYTES
            session.download(candidate.url, file, str(release), progress, limit)
            _check_hash(file, candidate)
            return read(file, candidate.filename, release.package)
    except OSError as error:
        raise PackageIndexError(
            f"{release}: {candidate.filename} cannot be kept in {tempfile.tempdir or 'any folder'} "
            f"while it is read: {error.strerror}. Make room there, or set TMPDIR to another folder"
        ) from error


def _check_hash(file: IO[bytes], candidate: Candidate) -> None:
    if candidate.hash is None:
        return
    algorithm, expected = candidate.hash
    state = hashlib.new(algorithm)
    file.seek(0)
    while chunk := file.read(1 << 20):
        state.update(chunk)
    if state.hexdigest() != expected:
        raise PackageIndexError(
            f"{without_secrets(candidate.url)}: expected the {algorithm} {expected} that "
            f"{candidate.index} gives, found {state.hexdigest()}. The download is damaged or was "
            "changed on the way: try again, and ask whoever runs the index if it persists"
        )
