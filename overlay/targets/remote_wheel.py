"""Read a wheel on a server by fetching only the parts that are read (HTTP ranges)."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence

from overlay.errors import ArchiveError, PackageIndexError, without_secrets
from overlay.targets.archives import MAX_UNPACKED_BYTES
from overlay.targets.http import IndexSession, RemotePart
from overlay.targets.http_errors import too_large
from overlay.targets.target import Progress

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
