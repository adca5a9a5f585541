"""Fetch what an index serves, over http(s) or from ``file:`` URLs, with pip's settings.

Every failure becomes a ``PackageIndexError`` that names the URL, without its password."""

from __future__ import annotations

import base64
import http.client
import netrc
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from overlay.errors import PackageIndexError
from overlay.targets.pip_config import IndexConfig
from overlay.targets.target import Progress

#: How often something is asked for that a broken connection or a busy server kept back.
ATTEMPTS = 3

#: The pause before the second attempt; it doubles each time.
RETRY_SECONDS = 0.5

_CHUNK_BYTES = 1 << 18

_RETRIED = (429, 500, 502, 503, 504)

_T = TypeVar("_T")

_NETWORK = (OSError, http.client.HTTPException)


class NotFoundError(PackageIndexError):
    """The server answers, and has no such page."""


class TransientError(PackageIndexError):
    """The answer broke off or did not come; asking again may help."""


@dataclass(frozen=True)
class Span:
    """A part of a file on a server.

    :ivar start: where it starts; :ivar total: bytes of the whole file; :ivar tag: the file's ETag.
    """

    content: bytes
    start: int
    total: int
    tag: str


class Session:
    """Fetches with one configuration."""

    def __init__(self, config: IndexConfig) -> None:
        self.config = config
        self._openers: dict[bool, urllib.request.OpenerDirector] = {}
        self._passwords = _passwords(config)

    def page(self, url: str, accept: str, limit: int) -> tuple[bytes, str, str]:
        """A page's bytes (at most ``limit``), content type and final URL.

        :raises PackageIndexError: if it cannot be fetched (``NotFoundError``: there is none).
        """

        def once() -> tuple[bytes, str, str]:
            with self.open(url, {"Accept": accept, "Accept-Encoding": "identity"}) as answer:
                content = _read_all(answer, limit, url)
                return content, answer.headers.get("Content-Type") or "", answer.geturl() or url

        return self._retry(once)

    def span(self, url: str, ask: str) -> Span | None:
        """A part of a file; ``None`` where the server does not serve parts.

        :param ask: the value of the ``Range`` header, such as ``bytes=0-99``.
        :raises PackageIndexError: if it cannot be fetched.
        """

        def once() -> Span | None:
            headers = {"Range": ask, "Accept-Encoding": "identity"}
            with self.open(url, headers, passed=(400, 405, 416, 501)) as answer:
                if answer.status != 206:
                    return None
                start, end, total = _content_range(answer.headers.get("Content-Range"), url)
                content = _read_all(answer, end - start, url)
                return Span(content, start, total, answer.headers.get("ETag") or "")

        return self._retry(once)

    def download(self, url: str, file: IO[bytes], what: str, progress: Progress | None) -> None:
        """Write the whole of ``url`` into ``file``, from its start.

        :raises PackageIndexError: if it cannot be fetched, or breaks off on every attempt.
        """

        def once() -> None:
            file.seek(0)
            file.truncate()
            self._download(url, file, what, progress)

        self._retry(once)

    def _download(self, url: str, file: IO[bytes], what: str, progress: Progress | None) -> None:
        with self.open(url, {"Accept-Encoding": "identity"}) as answer:
            length = answer.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            done = 0
            while chunk := _read(answer, _CHUNK_BYTES, url):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(what, done, total)
            if total is not None and done != total:
                raise TransientError(_short(url, total, done))

    def _retry(self, action: Callable[[], _T]) -> _T:
        for attempt in range(ATTEMPTS - 1):
            with suppress(TransientError):
                return action()
            time.sleep(RETRY_SECONDS * 2**attempt)
        return action()

    @contextmanager
    def open(
        self, url: str, headers: Mapping[str, str], passed: tuple[int, ...] = ()
    ) -> Iterator[http.client.HTTPResponse]:
        """Ask for ``url``; statuses in ``passed`` are handed on instead of raised.

        :raises PackageIndexError: ``NotFoundError``, ``TransientError`` or plain.
        """
        clean, authorization = self._authorization(url)
        try:
            request = urllib.request.Request(clean, headers=dict(headers))
            if authorization is not None:
                request.add_unredirected_header("Authorization", authorization)
            answer = self._opener(clean).open(request, timeout=self.config.timeout)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in passed:
                    yield error  # type: ignore[misc]  # HTTPError is the answer, status and all
                    return
                raise _status_error(url, error) from error
        except (*_NETWORK, ValueError) as error:
            raise _network_error(url, error, self.config.timeout) from error
        with answer:
            yield answer

    def _opener(self, url: str) -> urllib.request.OpenerDirector:
        parts = urlsplit(url)
        trusted = bool({parts.hostname, parts.netloc} & self.config.trusted_hosts)
        if trusted not in self._openers:
            handlers: list[urllib.request.BaseHandler] = [
                urllib.request.HTTPSHandler(context=self._context(trusted))
            ]
            if proxy := self.config.proxy:
                handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
            opener = urllib.request.build_opener(*handlers)
            opener.addheaders = [("User-Agent", "vllm-overlay")]
            self._openers[trusted] = opener
        return self._openers[trusted]

    def _context(self, trusted: bool) -> ssl.SSLContext:
        cert = self.config.cert
        try:
            folder = cert if cert and os.path.isdir(cert) else None
            context = ssl.create_default_context(cafile=None if folder else cert, capath=folder)
            if self.config.client_cert:
                context.load_cert_chain(self.config.client_cert)
        except (OSError, ssl.SSLError) as error:
            raise PackageIndexError(
                f"expected pip's 'cert' ({cert}) and 'client-cert' ({self.config.client_cert}) to "
                f"name certificate files: {error}"
            ) from error
        if trusted:  # pip's trusted-host means exactly this
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _authorization(self, url: str) -> tuple[str, str | None]:
        """The URL without user and password, and the header that carries them."""
        parts = urlsplit(url)
        clean = without_password(url)
        if parts.scheme not in ("http", "https"):
            return clean, None
        host = parts.netloc.rpartition("@")[2]
        if parts.username is not None:
            login = (unquote(parts.username), unquote(parts.password or ""))
        elif host in self._passwords:
            login = self._passwords[host]
        elif (found := _netrc(parts.hostname or "")) is not None:
            login = found
        else:
            return clean, None
        token = base64.b64encode(":".join(login).encode()).decode()
        return clean, f"Basic {token}"


def without_password(url: str) -> str:
    """``url`` without user and password, as it may be shown and stored."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def local_path(url: str) -> Path | None:
    """The path that a ``file:`` URL names, ``None`` for other URLs."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _passwords(config: IndexConfig) -> dict[str, tuple[str, str]]:
    """Host and port to the login in an index URL: its files are fetched with the same."""
    found: dict[str, tuple[str, str]] = {}
    for url in (*config.indexes, *config.find_links):
        parts = urlsplit(url)
        if parts.username is not None:
            host = parts.netloc.rpartition("@")[2]
            found[host] = (unquote(parts.username), unquote(parts.password or ""))
    return found


def _netrc(host: str) -> tuple[str, str] | None:
    path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        login = netrc.netrc(path).authenticators(host)
    except OSError:
        return None  # there is none, or it is another user's: nobody meant us to use it
    except netrc.NetrcParseError as error:
        raise PackageIndexError(f"{path}: expected a readable netrc file: {error}") from error
    return (login[0], login[2] or "") if login else None


def _read(answer: http.client.HTTPResponse, size: int, url: str) -> bytes:
    try:
        return answer.read(size)
    except _NETWORK as error:
        raise TransientError(f"{without_password(url)}: the answer broke off: {error!r}") from error


def _read_all(answer: http.client.HTTPResponse, limit: int, url: str) -> bytes:
    parts: list[bytes] = []
    left = limit + 1
    while left > 0 and (chunk := _read(answer, min(left, _CHUNK_BYTES), url)):
        parts.append(chunk)
        left -= len(chunk)
    if left <= 0:
        raise PackageIndexError(
            f"{without_password(url)}: expected at most {limit} bytes, the server sends more"
        )
    length = answer.headers.get("Content-Length")
    done = limit + 1 - left
    if length and length.isdigit() and int(length) != done:
        raise TransientError(_short(url, int(length), done))
    return b"".join(parts)


def _short(url: str, expected: int, found: int) -> str:
    return (
        f"{without_password(url)}: expected {expected} bytes, the connection ended after {found}. "
        "Try again"
    )


def _content_range(value: str | None, url: str) -> tuple[int, int, int]:
    """Start, end (exclusive) and whole length out of ``bytes 0-99/1234``."""
    try:
        unit, _, rest = (value or "").partition(" ")
        span, _, total = rest.partition("/")
        first, _, last = span.partition("-")
        numbers = int(first), int(last) + 1, int(total)
    except ValueError as error:
        raise PackageIndexError(_bad_range(value, url)) from error
    if unit != "bytes" or not 0 <= numbers[0] < numbers[1] <= numbers[2]:
        raise PackageIndexError(_bad_range(value, url))
    return numbers


def _bad_range(value: str | None, url: str) -> str:
    return (
        f"{without_password(url)}: expected a Content-Range such as 'bytes 0-99/1234', found "
        f"{value!r}. The index or a proxy on the way is broken"
    )


def _status_error(url: str, error: urllib.error.HTTPError) -> PackageIndexError:
    text = f"{without_password(url)}: the server answers {error.code} {error.reason}."
    if error.code in (404, 410):
        return NotFoundError(f"{text} Check the index URL in pip's configuration")
    if error.code in (401, 403):
        return PackageIndexError(
            f"{text} Put user and password into the index URL or into a netrc file"
        )
    if error.code in _RETRIED:
        return TransientError(f"{text} Try again later")
    return PackageIndexError(f"{text} Check the index URL in pip's configuration")


def _network_error(url: str, error: Exception, timeout: float) -> PackageIndexError:
    reason = getattr(error, "reason", None) or error
    shown = without_password(url)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return PackageIndexError(
            f"{shown}: expected a certificate that this system trusts: {reason.verify_message}. "
            "Set pip's 'cert' (PIP_CERT) or SSL_CERT_FILE to the right bundle"
        )
    if isinstance(reason, FileNotFoundError):
        return NotFoundError(f"{shown}: there is no such file")
    if isinstance(reason, TimeoutError):
        return PackageIndexError(
            f"{shown}: expected an answer within {timeout:g} seconds, none came. Check the network "
            "and pip's proxy setting, or set PIP_DEFAULT_TIMEOUT"
        )
    if isinstance(error, ValueError):
        return PackageIndexError(f"{shown}: expected an http, https or file URL: {error}")
    return TransientError(
        f"{shown}: cannot be reached: {reason}. Check the network and pip's index and proxy "
        "settings; releases that are in the cache already need no network"
    )
