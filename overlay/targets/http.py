"""Fetch what an index serves, over http(s) or from ``file:`` URLs, with pip's settings.

``requests`` carries it: proxies, netrc, certificates, redirects (which drop logins) and retries.
Every failure becomes a ``PackageIndexError`` that names the URL, without its secrets.

``requests`` and ``urllib3`` limit only the silence between two bytes, so a server that sends one
byte a second, in the headers, in the body, in redirects or in one answer after another, would be
waited for without end.  A ``Clock`` cuts the connections off instead.
"""

from __future__ import annotations

import netrc
import os
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.utils import get_netrc_auth
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.exceptions import HTTPError as TransportError
from urllib3.exceptions import TimeoutError as TransportTimeout
from urllib3.poolmanager import ProxyManager

from overlay.errors import PackageIndexError, causes_of, is_offline, without_secrets
from overlay.targets import Progress
from overlay.targets.pip_config import IndexConfig
from overlay.untrusted import read_regular

#: Statuses of a server that may answer if it is asked again.
BUSY = (429, 500, 502, 503, 504)

#: The message where the user forbids the network.
OFFLINE = (
    "--offline forbids the network. Run the command once without --offline, which keeps what it "
    "fetches in the cache"
)


class NotFoundError(PackageIndexError):
    """The server answers, and has no such page."""


class BrokenOffError(PackageIndexError):
    """The answer began and broke off, or the server is busy; asking again may help."""


def split(url: str) -> SplitResult:
    """The parts of a URL.

    :raises PackageIndexError: if it has none (``http://[::1``).
    """
    try:
        return urlsplit(url)
    except ValueError as error:
        raise PackageIndexError(no_url(url)) from error


def no_url(text: str) -> str:
    """The message of a text that should be a URL; what parsers say of it may hold a password."""
    return (
        f"{without_secrets(text)}: expected an http, https or file URL. Check the index URL in "
        "pip's configuration (PIP_INDEX_URL)"
    )


def without_login(url: str) -> str:
    """``url`` without user and password, as it is asked for."""
    parts = split(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def local_path(url: str) -> Path | None:
    """The path that a ``file:`` URL names, ``None`` for other URLs."""
    parts = split(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def broken_off(url: str, expected: int, length: int) -> str:
    """The message of an answer that ended before its bytes did."""
    return (
        f"{without_secrets(url)}: expected {expected} bytes, the connection ended after {length}. "
        "Try again"
    )


def too_large(url: str, limit: int, length: int | None = None) -> str:
    """The message of an answer of more bytes than anything there has.

    :param length: how many there are, as far as that is known.
    """
    size_text = "the server sends more" if length is None else f"found {length}"
    return f"{without_secrets(url)}: expected at most {limit} bytes, {size_text}"


def too_slow(url: str, seconds: float) -> str:
    """The message of an answer that is not complete in time."""
    return (
        f"{without_secrets(url)}: expected all of it within {seconds:g} seconds, the server is "
        "slower. Check the network and pip's proxy setting, or set PIP_DEFAULT_TIMEOUT to more "
        "seconds, of which this limit is a multiple"
    )


def bad_range(value: str | None, url: str) -> str:
    """The message of an answer that does not say which part of a file it is."""
    return (
        f"{without_secrets(url)}: expected a Content-Range such as 'bytes 0-99/1234', found "
        f"{value!r}. The index or a proxy on the way is broken"
    )


def bad_encoding(url: str, encoding: str) -> str:
    """The message of a page that is encoded in a way that was not asked for."""
    return (
        f"{without_secrets(url)}: expected a page as it is, or as whole gzip, found the "
        f"Content-Encoding {encoding!r}. The index or a proxy on the way is broken"
    )


def status_error(url: str, answer: requests.Response) -> PackageIndexError:
    """The error of an answer with an error's status."""
    status = answer.status_code
    reason = without_secrets(answer.reason or "")
    text = f"{without_secrets(url)}: the server answers {status} {reason}."
    if status in (404, 410):
        return NotFoundError(f"{text} Check the index URL in pip's configuration")
    if status in (401, 403):
        return PackageIndexError(
            f"{text} Put user and password into the index URL or into a netrc file"
        )
    if status in BUSY:
        return BrokenOffError(f"{text} Try again later")
    return PackageIndexError(f"{text} Check the index URL in pip's configuration")


def network_error(url: str, error: Exception, timeout: float) -> PackageIndexError:
    """The error of a request that got no answer.

    :param timeout: seconds that were waited for one.
    """
    where, causes = without_secrets(url), list(causes_of(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return PackageIndexError(
                f"{where}: expected a certificate that this system trusts: {cause.verify_message}. "
                "Set pip's 'cert' (PIP_CERT) or SSL_CERT_FILE to the right bundle"
            )
        if isinstance(cause, (requests.Timeout, TimeoutError)):
            return PackageIndexError(
                f"{where}: expected an answer within {timeout:g} seconds, none came. Check the "
                "network and pip's proxy setting, or set PIP_DEFAULT_TIMEOUT"
            )
    if isinstance(error, ValueError):
        return PackageIndexError(no_url(url))
    return PackageIndexError(
        f"{where}: cannot be reached: {without_secrets(str(causes[-1]))}. Check the network and "
        "pip's index and proxy settings; releases that are in the cache already need no network"
    )


class Clock:
    """The limit of time of one task, such as fetching a release, and of each part of it.

    :param seconds: the limit of the whole, from now on.
    :ivar limit: seconds that the part had which runs now, or ran last.
    """

    def __init__(self, seconds: float) -> None:
        self._end = self._part = time.monotonic() + seconds
        self.limit = seconds
        self._watched: list[socket.socket] = []

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._part

    @contextmanager
    def running(self, seconds: float) -> Iterator[None]:
        """Limit a part: when its time is up, each connection that it uses is cut off.

        :param seconds: for the part; less where less is left of the whole.
        """
        now = time.monotonic()
        self._part, self.limit = min(self._end, now + seconds), seconds
        timer = threading.Timer(max(0.0, self._part - now), self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._watched.clear()

    def watch(self, connected: socket.socket | None) -> None:
        """Have a socket cut off when the time is up.

        :raises ConnectTimeoutError: if it is already.
        """
        if connected is not None:
            self._watched.append(connected)
        if self.over:
            raise ConnectTimeoutError(f"the {self.limit:g} seconds of the request are over")

    def _cut(self) -> None:
        for connected in list(self._watched):
            with suppress(OSError):  # closed, or TLS has put another in its place
                socket.socket.shutdown(connected, socket.SHUT_RDWR)


def pools(clock: Clock) -> dict[str, type[HTTPConnectionPool]]:
    """Pools whose connections a clock watches, by scheme.

    It has to know the sockets: a connection forgets its own where the answer has no length.
    """

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            clock.watch(None)
            connection = super()._new_conn()
            clock.watch(connection)  # a proxy may drip before there is TLS
            return connection

        def request(self, *words: Any, **options: Any) -> None:
            clock.watch(self.sock)
            super().request(*words, **options)

    class Secure(Plain, HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            clock.watch(self.sock)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


class Carrier(requests.Session):
    """A ``requests`` session that reads nothing of a redirect but its headers.

    ``requests`` reads the body as well, all of it, whatever its size.
    """

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Where an answer leads to; its connection is closed."""
        target = super().get_redirect_target(resp)
        if target is not None:
            resp.close()
            resp._content = b""  # as if it had been read
            vars(resp)["_content_consumed"] = True
        return target


#: Times pip's timeout (15 seconds unless it is configured) that a page may take, with all redirects
#: and retries, so that PIP_DEFAULT_TIMEOUT raises these limits too: two minutes.
PAGE_TIMEOUTS = 8

#: The same for all that is fetched of one release: half an hour.
RELEASE_TIMEOUTS = 120

#: How often something is asked for that a broken connection or a busy server kept back.
ATTEMPTS = 3

#: The pause before the second attempt; it doubles each time.
RETRY_SECONDS = 0.5

_MAX_REDIRECTS = 10

_CHUNK_BYTES = 1 << 18

_T = TypeVar("_T")


@dataclass(frozen=True)
class RemotePart:
    """A part of a file on a server.

    :ivar start: where it starts; :ivar total: bytes of the whole file; :ivar tag: the file's ETag.
    """

    content: bytes
    start: int
    total: int
    tag: str


class IndexSession:
    """Fetches what one release needs, or a list of releases, with one configuration.

    Everything has a limit of bytes, and of time from the first request on.
    """

    def __init__(self, config: IndexConfig) -> None:
        self.config = config
        self.clock = Clock(RELEASE_TIMEOUTS * config.timeout)
        self._carriers: dict[bool, requests.Session] = {}
        self._logins = _logins(config)

    def page(self, url: str, accept: str, limit: int) -> tuple[bytes, str, str]:
        """A page's bytes (at most ``limit``), content type and final URL.

        :raises PackageIndexError: if it cannot be fetched (``NotFoundError``: there is none).
        """
        if (path := local_path(url)) is not None:
            return _local_page(path, url, limit), "text/html", url

        def once() -> tuple[bytes, str, str]:
            with self.open(url, {"Accept": accept}) as answer:
                content = _plain(_read_all(answer, limit, url), answer, limit, url)
                return content, answer.headers.get("Content-Type") or "", answer.url or url

        return self._within(PAGE_TIMEOUTS, url, once)

    def span(self, url: str, ask: str) -> RemotePart | None:
        """A part of a file; ``None`` where the server does not serve parts.

        :param ask: the value of the ``Range`` header, such as ``bytes=0-99``.
        :raises PackageIndexError: if it cannot be fetched.
        """

        def once() -> RemotePart | None:
            with self.open(url, {"Range": ask}, passed=(400, 405, 416, 501)) as answer:
                if answer.status_code != 206:
                    return None
                start, end, total = _content_range(answer.headers.get("Content-Range"), url)
                if end - start > (limit := _length(ask)):
                    raise PackageIndexError(too_large(url, limit, end - start))
                content = _read_all(answer, end - start, url)
                return RemotePart(content, start, total, answer.headers.get("ETag") or "")

        return self._within(RELEASE_TIMEOUTS, url, once)

    def download(
        self, url: str, file: IO[bytes], what: str, progress: Progress | None, limit: int
    ) -> None:
        """Write the whole of ``url``, at most ``limit`` bytes, into ``file``, from its start.

        :raises PackageIndexError: if it cannot be fetched, or breaks off on every attempt.
        """

        def once() -> None:
            file.seek(0)
            file.truncate()
            self._download(url, file, what, progress, limit)

        self._within(RELEASE_TIMEOUTS, url, once)

    def _download(
        self, url: str, file: IO[bytes], what: str, progress: Progress | None, limit: int
    ) -> None:
        with self.open(url, {}) as answer:
            total = _content_length(answer)
            received = 0
            if total is not None and total > limit:
                raise PackageIndexError(too_large(url, limit, total))
            while chunk := _read(answer, _CHUNK_BYTES, url):
                received += len(chunk)
                if received > limit:
                    raise PackageIndexError(too_large(url, limit))
                file.write(chunk)
                if progress is not None:
                    progress(what, received, total)
            if total is not None and received != total:
                raise BrokenOffError(broken_off(url, total, received))

    def _within(self, timeouts: int, url: str, action: Callable[[], _T]) -> _T:
        """Try a request again where the answer broke off, as long as there is time.

        ``urllib3`` tries again only before an answer begins, and reads all of a busy server's.

        :param timeouts: the limit of time for all attempts together, in times of pip's timeout.
        """
        with self.clock.running(timeouts * self.config.timeout):
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    answer = action()
                except PackageIndexError as error:
                    if self.clock.over:
                        raise PackageIndexError(too_slow(url, self.clock.limit)) from error
                    if attempt == ATTEMPTS or not isinstance(error, BrokenOffError):
                        raise
                    time.sleep(RETRY_SECONDS * 2 ** (attempt - 1))
                    continue
                if self.clock.over:  # an answer without a length ends where it was cut off
                    raise PackageIndexError(too_slow(url, self.clock.limit))
                return answer
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def open(
        self, url: str, headers: Mapping[str, str], passed: tuple[int, ...] = ()
    ) -> Iterator[requests.Response]:
        """Ask for ``url``; a failed connection is tried again.

        :param passed: statuses that are handed on instead of raised.
        :raises PackageIndexError: if there is no answer, or one with an error's status, or the user
            forbids the network.
        """
        clean = without_login(url)
        if is_offline():
            raise PackageIndexError(OFFLINE)
        try:
            carrier = self.carrier(clean)
            answer = carrier.get(
                clean,
                # Said again: a variable (REQUESTS_CA_BUNDLE) would come before the session's own.
                verify=carrier.verify,
                headers={**headers, "Accept-Encoding": "identity"},
                auth=self._login(url),
                proxies=self._proxies(),
                timeout=self.config.timeout,
                stream=True,
            )
        except (requests.RequestException, TransportError, OSError, ValueError) as error:
            raise network_error(url, error, self.config.timeout) from error
        with answer:
            if answer.status_code >= 400 and answer.status_code not in passed:
                raise status_error(url, answer)
            yield answer

    def carrier(self, url: str) -> requests.Session:
        """The ``requests`` session for ``url``: one checks certificates, one trusts the host.

        :raises PackageIndexError: if the configured certificates cannot be read.
        """
        parts = urlsplit(url)
        trusted = bool({parts.hostname, parts.netloc} & self.config.trusted_hosts)
        if trusted not in self._carriers:
            carrier = Carrier()
            carrier.headers["User-Agent"] = "vllm-overlay"
            carrier.max_redirects = _MAX_REDIRECTS
            carrier.verify = False if trusted else self.config.cert or True
            carrier.mount("https://", Adapter(self._context(trusted), self.clock))
            carrier.mount("http://", Adapter(None, self.clock))
            self._carriers[trusted] = carrier
        return self._carriers[trusted]

    def _context(self, trusted: bool) -> ssl.SSLContext:
        """What decides about certificates: the system's store, or pip's setting."""
        cert = self.config.cert
        try:
            folder = cert if cert and os.path.isdir(cert) else None
            context = ssl.create_default_context(cafile=None if folder else cert, capath=folder)
            if self.config.client_cert:
                context.load_cert_chain(self.config.client_cert)
        except (OSError, ssl.SSLError) as error:
            pip_settings = f"'cert' ({cert}) and 'client-cert' ({self.config.client_cert})"
            raise PackageIndexError(
                f"expected pip's {without_secrets(pip_settings)} to name certificate files: {error}"
            ) from error
        if trusted:  # pip's trusted-host means exactly this
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        return context

    def _proxies(self) -> dict[str, str] | None:
        """Pip's proxy, which comes before the variables that ``requests`` reads."""
        proxy = self.config.proxy
        return {"http": proxy, "https": proxy} if proxy else None

    def _login(self, url: str) -> tuple[str, str] | None:
        """User and password for ``url``: its own, those of its index, or those of a netrc file."""
        parts = urlsplit(url)
        if parts.username is not None:
            return unquote(parts.username), unquote(parts.password or "")
        host = parts.netloc.rpartition("@")[2]
        if host in self._logins:
            return self._logins[host]
        try:
            return get_netrc_auth(url, raise_errors=True)
        except OSError:
            return None  # another user's: nobody meant us to use it
        except netrc.NetrcParseError as error:
            raise PackageIndexError(
                f"{error.filename}: expected a readable netrc file: {error}"
            ) from error


class Adapter(HTTPAdapter):
    """Connections that fail are tried again, and certificates are checked as ``context`` says.

    :param clock: watches every connection.
    """

    def __init__(self, context: ssl.SSLContext | None, clock: Clock) -> None:
        self.context, self._pools = context, pools(clock)
        retries = _Retries(
            total=None,
            connect=ATTEMPTS - 1,
            read=ATTEMPTS - 1,
            status=0,
            other=0,
            redirect=False,
            backoff_factor=RETRY_SECONDS,
            raise_on_status=False,
            respect_retry_after_header=False,  # a server may ask for hours
        )
        super().__init__(max_retries=retries)

    def init_poolmanager(self, *words: Any, **options: Any) -> None:
        """Do as ``HTTPAdapter`` does, with the context."""
        super().init_poolmanager(*words, **options, ssl_context=self.context)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        """Do as ``HTTPAdapter`` does, with the context."""
        manager = super().proxy_manager_for(proxy, **options, ssl_context=self.context)
        if isinstance(manager, ProxyManager):  # and not SOCKS, which has connections of its own
            manager.pool_classes_by_scheme = self._pools
        return manager


class _Retries(urllib3.Retry):
    """Retries of all but a server that is silent: the user waited for it once already."""

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: Any = None,
        error: Exception | None = None,
        *rest: Any,
        **options: Any,
    ) -> _Retries:
        if isinstance(error, TransportTimeout) and not isinstance(error, NewConnectionError):
            raise error
        return super().increment(method, url, response, error, *rest, **options)


def _local_page(path: Path, url: str, limit: int) -> bytes:
    try:
        content = read_regular(path, limit)
    except OSError as error:
        raise PackageIndexError(f"{url}: cannot be read: {error.strerror}") from error
    if content is None:
        raise NotFoundError(f"{url}: the file does not exist")
    return content


def _logins(config: IndexConfig) -> dict[str, tuple[str, str]]:
    """Host and port to the login in an index URL: its files are fetched with the same."""
    logins: dict[str, tuple[str, str]] = {}
    for url in (*config.indexes, *config.find_links):
        parts = split(url)
        if parts.username is not None:
            host = parts.netloc.rpartition("@")[2]
            logins[host] = (unquote(parts.username), unquote(parts.password or ""))
    return logins


def _read(answer: requests.Response, size: int, url: str) -> bytes:
    try:
        chunk: bytes = answer.raw.read(size, decode_content=False)
    except (TransportError, OSError) as error:
        message = without_secrets(f"{url}: the answer broke off: {error}. Try again")
        raise BrokenOffError(message) from error
    return chunk


def _read_all(answer: requests.Response, limit: int, url: str) -> bytes:
    parts: list[bytes] = []
    remaining = limit + 1
    while remaining > 0 and (chunk := _read(answer, min(remaining, _CHUNK_BYTES), url)):
        parts.append(chunk)
        remaining -= len(chunk)
    if remaining <= 0:
        raise PackageIndexError(too_large(url, limit))
    length, received = _content_length(answer), limit + 1 - remaining
    if length is not None and length != received:
        raise BrokenOffError(broken_off(url, length, received))
    return b"".join(parts)


def _plain(content: bytes, answer: requests.Response, limit: int, url: str) -> bytes:
    """A page that is compressed although nobody asked for it, as stores of files do."""
    encoding = answer.headers.get("Content-Encoding", "").lower()
    if encoding in ("", "identity"):
        return content
    unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        if encoding not in ("gzip", "x-gzip"):
            raise zlib.error(encoding)
        content = unpacking.decompress(content, limit + 1)
    except zlib.error as error:
        raise PackageIndexError(bad_encoding(url, encoding)) from error
    if len(content) > limit:
        raise PackageIndexError(too_large(url, limit))
    if not unpacking.eof:
        raise PackageIndexError(bad_encoding(url, encoding))
    return content


def _content_length(answer: requests.Response) -> int | None:
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else None


def _length(ask: str) -> int:
    """How many bytes a ``Range`` header asks for: ``bytes=100-199`` or ``bytes=-100``."""
    first, _, last = ask.removeprefix("bytes=").partition("-")
    return int(last) - int(first) + 1 if first else int(last)


def _content_range(value: str | None, url: str) -> tuple[int, int, int]:
    """Start, end (exclusive) and whole length out of ``bytes 0-99/1234``."""
    try:
        unit, _, rest = (value or "").partition(" ")
        span, _, total = rest.partition("/")
        first, _, last = span.partition("-")
        numbers = int(first), int(last) + 1, int(total)
    except ValueError as error:
        raise PackageIndexError(bad_range(value, url)) from error
    if unit != "bytes" or not 0 <= numbers[0] < numbers[1] <= numbers[2]:
        raise PackageIndexError(bad_range(value, url))
    return numbers
