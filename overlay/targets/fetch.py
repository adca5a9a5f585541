"""Ask the package index for releases, and fetch what is needed of one: its source files."""

from __future__ import annotations

import hashlib
import io
import tempfile
from bisect import bisect_right
from collections.abc import Sequence
from typing import IO, cast

from packaging.version import Version

from overlay.errors import ArchiveError, PackageIndexError, without_secrets
from overlay.package import Package, PackageRelease, parse_version
from overlay.targets import Origin, Progress, Sources
from overlay.targets.archives import MAX_UNPACKED_BYTES, Wheel, read_sdist, read_wheel
from overlay.targets.http import IndexSession, RemotePart, local_path, too_large
from overlay.targets.index import Candidate, OfferedRelease, listing, unknown_release
from overlay.targets.pip_config import configured
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

    offered = listing(IndexSession(configured()), package).releases()
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
    session = IndexSession(configured())
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
    wheel = Wheel(cast("IO[bytes]", remote), candidate.filename, release.package)
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


#: The first request: the end of the file, where a wheel of vLLM keeps its list of members.
TAIL_BYTES = 1 << 20

#: Parts that lie closer together than this are fetched in one request.
GAP_BYTES = 1 << 18

#: Parts are joined up to this size.
SPAN_BYTES = 1 << 23

#: A source file, or the list of members, that takes more than this is a forgery.
MAX_SPAN_BYTES = 1 << 26


class RangeFile(io.RawIOBase):
    """A seekable file over a URL; what ``prefetch`` or an earlier read fetched is kept.

    :raises PackageIndexError: from every read, if the part cannot be fetched or the file behind
        the URL changes.
    """

    def __init__(self, session: IndexSession, url: str, tail: RemotePart) -> None:
        super().__init__()
        self._session, self._url = session, url
        self.total, self._tag = tail.total, tail.tag
        self._position = 0
        self._starts: list[int] = []
        self._parts: list[bytes] = []
        self._keep(tail.start, tail.content)

    @classmethod
    def open(cls, session: IndexSession, url: str) -> RangeFile | None:
        """The file at ``url``; ``None`` where the server does not serve parts.

        :raises PackageIndexError: if the server cannot be reached.
        """
        tail = session.span(url, f"bytes=-{TAIL_BYTES}")
        return None if tail is None or _end(tail) != tail.total else cls(session, url, tail)

    def prefetch(
        self, spans: Sequence[tuple[int, int]], what: str, progress: Progress | None
    ) -> None:
        """Fetch the given ``(start, end)`` parts in as few requests as is sensible.

        :raises PackageIndexError: if a part cannot be fetched.
        :raises ArchiveError: if they are more than the source files of any release.
        """
        missing_spans = join_spans(
            [span for span in spans if self._cached(span[0], span[1]) is None]
        )
        total, fetched = sum(end - start for start, end in missing_spans), 0
        if total > MAX_UNPACKED_BYTES:
            raise ArchiveError(too_large(self._url, MAX_UNPACKED_BYTES, total))
        for start, end in missing_spans:
            self._fetch(start, end)
            fetched += end - start
            if progress is not None:
                progress(what, fetched, total)

    def readable(self) -> bool:
        """Always: see ``io.RawIOBase``."""
        return True

    def seekable(self) -> bool:
        """Always: see ``io.RawIOBase``."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position of the next read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.total}[whence]
        if base + offset < 0:
            raise ValueError(f"negative position {base + offset}")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        """The next ``size`` bytes, fewer at the end of the file."""
        end = self.total if size is None or size < 0 else min(self._position + size, self.total)
        start = min(self._position, end)
        if start == end:
            return b""
        content = self._cached(start, end)
        if content is None:
            self._fetch(start, min(max(end, start + GAP_BYTES), self.total))
            content = self._cached(start, end) or b""
        self._position = end
        return content

    def _cached(self, start: int, end: int) -> bytes | None:
        at = bisect_right(self._starts, start) - 1
        if at < 0:
            return None
        first, part = self._starts[at], self._parts[at]
        return part[start - first : end - first] if end <= first + len(part) else None

    def _keep(self, start: int, content: bytes) -> None:
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._parts.insert(at, content)

    def _fetch(self, start: int, end: int) -> None:
        if end - start > MAX_SPAN_BYTES:
            raise ArchiveError(
                f"{without_secrets(self._url)}: expected members of at most {MAX_SPAN_BYTES} "
                f"bytes, found one of {end - start}. It is not what a build of vLLM makes"
            )
        span = self._session.span(self._url, f"bytes={start}-{end - 1}")
        if span is None or span.start != start or _end(span) != end:
            raise PackageIndexError(
                f"{without_secrets(self._url)}: expected the bytes {start} to {end - 1}, the "
                "server gave others. The index or a proxy on the way is broken"
            )
        if (span.total, span.tag) != (self.total, self._tag):
            raise PackageIndexError(
                f"{without_secrets(self._url)}: the file changed while it was read. Try again"
            )
        self._keep(start, span.content)


def join_spans(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ``(start, end)`` parts that lie close together, up to ``SPAN_BYTES`` each."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] <= GAP_BYTES and end - joined[-1][0] <= SPAN_BYTES:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _end(span: RemotePart) -> int:
    return span.start + len(span.content)
