"""Servers that drip, lie and never end: each request has a limit of bytes and of time, as a whole.

The limits are made small; the servers are on the loopback interface and end with the test.
"""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from overlay.authoring import sources
from overlay.errors import PackageIndexError
from overlay.targets import fetch as fetching
from overlay.targets import http
from overlay.targets.fetch import RangeFile
from overlay.targets.index import parse_page
from overlay.targets.pip_config import IndexConfig
from overlay.targets.resolution import resolve
from tests.support import fake_vllm
from tests.support.fake_index import FakeIndex

pytestmark = pytest.mark.usefixtures("cache")

#: Seconds of pip's timeout here; a page, and all of a release, may take three times that.
TIMEOUT = 0.2

Behaviour = Callable[[socket.socket, int], None]

OK = b"HTTP/1.1 200 OK\r\n"
PAGE = OK + b"Content-Type: text/plain\r\n"


@contextmanager
def server(behaviour: Behaviour) -> Iterator[tuple[str, list[int]]]:
    """The URL of a server, and the numbers of the connections that it had."""
    seen: list[int] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def handle(connection: socket.socket, number: int) -> None:
        with connection, suppress(OSError):
            connection.settimeout(5)
            connection.recv(1 << 16)
            behaviour(connection, number)

    def accept() -> None:
        with suppress(OSError):
            while len(seen) < 50:
                connection, _ = listening.accept()
                seen.append(len(seen))
                threading.Thread(target=handle, args=(connection, len(seen)), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", seen
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(5)


def drip(head: bytes, byte: bytes = b"x") -> Behaviour:
    """A byte every few milliseconds, for twenty seconds at most."""

    def behave(connection: socket.socket, _: int) -> None:
        connection.sendall(head)
        for _ in range(2000):
            connection.sendall(byte)
            time.sleep(0.01)

    return behave


def flood(head: bytes, piece: bytes = b"x" * 65536) -> Behaviour:
    """As many bytes as the client takes, up to 256 MiB."""

    def behave(connection: socket.socket, _: int) -> None:
        connection.sendall(head)
        for _ in range((1 << 28) // len(piece)):
            connection.sendall(piece)

    return behave


def busy_drip(connection: socket.socket, number: int) -> None:
    """Half of an answer each time."""
    drip(b"HTTP/1.1 503 No\r\nX: ")(connection, number)


def redirects(connection: socket.socket, number: int) -> None:
    """Somewhere else each time, a little later."""
    time.sleep(0.1)
    connection.sendall(b"HTTP/1.1 302 On\r\nLocation: /%d\r\nContent-Length: 0\r\n" % number)
    connection.sendall(b"Connection: close\r\n\r\n")


DRIPS = {
    "headers": drip(OK + b"X-Slow: "),
    "the first line": drip(b"H"),
    "header after header": drip(OK, b"A: b\r\n"),
    "a body with a length": drip(PAGE + b"Content-Length: 100000\r\n\r\n"),
    "a body without a length": drip(PAGE + b"\r\n"),
    "chunks": drip(PAGE + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "continue": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "the body of a redirect": drip(
        b"HTTP/1.1 302 On\r\nLocation: /\r\nContent-Length: 99999\r\n\r\n"
    ),
    "a busy server's headers": busy_drip,
}


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PAGE_TIMEOUTS", 3)
    monkeypatch.setattr(http, "RELEASE_TIMEOUTS", 3)


def session(timeout: float = TIMEOUT) -> http.IndexSession:
    return http.IndexSession(IndexConfig((), timeout=timeout))


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@pytest.mark.parametrize("name", DRIPS)
def test_a_page_that_drips_ends_in_time(name: str) -> None:
    error = pytest.raises(PackageIndexError)
    with server(DRIPS[name]) as (url, _), at_most(10), error as caught:
        session().page(f"{url}/simple/?token=s3cret", "text/html", 1 << 20)
    said = str(caught.value)
    assert "expected all of it within 0.6 seconds" in said or "redirect" in said
    assert "PIP_DEFAULT_TIMEOUT" in said or "redirect" in said
    assert "s3cret" not in said


@pytest.mark.parametrize("name", DRIPS)
def test_the_change_at_a_url_that_drips_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sources, "SECONDS", 0.3)
    with server(DRIPS[name]) as (url, _), at_most(10), pytest.raises(sources.FetchError) as caught:
        sources.fetch(f"{url}/x.diff?token=s3cret#frag", 1 << 20)
    said = str(caught.value)
    assert "within 0.3 seconds" in said or "redirect" in said
    assert not {"s3cret", "frag"} & set(said.replace("=", " ").replace("#", " ").split())


def test_redirects_and_retries_count_as_one_request() -> None:
    error = pytest.raises(PackageIndexError, match=r"within 0\.6 seconds")
    with server(redirects) as (url, seen), at_most(10), error:
        session().page(url, "text/html", 1 << 20)
    assert len(seen) < 10


def test_all_parts_of_a_release_share_one_limit() -> None:
    """A server that takes almost all the time for each of a hundred parts."""
    size = 1 << 30

    def part(connection: socket.socket, number: int) -> None:
        time.sleep(0.0 if number == 1 else 0.1)
        start = size - 9 if number == 1 else (number - 2) << 20
        end = size if number == 1 else start + 1
        connection.sendall(b"HTTP/1.1 206 Part\r\nConnection: close\r\n")
        connection.sendall(b"Content-Range: bytes %d-%d/%d\r\n" % (start, end - 1, size))
        connection.sendall(b"Content-Length: %d\r\n\r\n" % (end - start) + b"x" * (end - start))

    error = pytest.raises(PackageIndexError, match="expected all of it within")
    with server(part) as (url, seen), at_most(10), error:
        file = RangeFile.open(session(), url)
        assert file is not None
        file.prefetch([(at << 20, (at << 20) + 1) for at in range(40)], "", None)
    assert len(seen) < 12


@pytest.mark.parametrize(
    "head",
    [
        PAGE + b"\r\n",
        PAGE + b"Content-Length: 1000000000000000\r\n\r\n",
        PAGE + b"Content-Length: -1\r\n\r\n",
        PAGE + b"Content-Encoding: gzip\r\n\r\n",
    ],
)
def test_no_answer_is_larger_than_its_limit(head: bytes, tmp_path: Path) -> None:
    limit, file = 1 << 20, io.BytesIO()
    with server(flood(head)) as (url, _), at_most(10):
        for ask in (
            lambda: session(1).page(url, "text/html", limit),
            lambda: session(1).download(url, file, "it", None, limit),
            lambda: sources.fetch(url, limit),
        ):
            with pytest.raises(PackageIndexError):
                ask()
    assert len(file.getvalue()) <= limit


@pytest.mark.parametrize("span", ["0-999999999999999/9999999999999999", "0-1048576/1048577"])
def test_a_part_that_is_larger_than_asked_for_is_refused(span: str) -> None:
    head = b"HTTP/1.1 206 Part\r\nContent-Range: bytes " + span.encode() + b"\r\n\r\n"
    error = pytest.raises(PackageIndexError, match="expected at most 1048576 bytes, found")
    with server(flood(head)) as (url, _), at_most(10), error:
        RangeFile.open(session(1), url)


@pytest.mark.parametrize("status", [302, 503])
def test_the_body_of_a_redirect_or_an_error_is_not_read(status: int) -> None:
    """``requests`` and ``urllib3`` would read all of it into memory."""
    sent = []

    def behave(connection: socket.socket, _: int) -> None:
        connection.sendall(b"HTTP/1.1 %d X\r\nLocation: /next\r\n\r\n" % status)
        for _ in range(400):
            connection.sendall(b"x" * 65536)
            sent.append(65536)

    with server(behave) as (url, seen), at_most(10), pytest.raises(PackageIndexError):
        session(1).page(url, "text/html", 1 << 20)
    assert sum(sent) < len(seen) * (1 << 23)


def test_a_release_that_is_too_large_leaves_nothing_behind(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    monkeypatch.setattr(fetching, "MAX_SDIST_BYTES", 100)
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    with pytest.raises(PackageIndexError, match="expected at most 100 bytes, found"):
        resolve("0.26.0")
    assert os.listdir(place) == []


def test_a_busy_server_is_asked_again(tmp_path: Path, index: FakeIndex) -> None:
    sdist = fake_vllm.sdist(tmp_path)
    index.add(sdist)
    index.statuses[f"/files/{sdist.name}"] = [503, 429]
    resolve("0.26.0")
    assert index.asked(sdist.name) == 3


def test_the_timer_of_a_request_ends_with_it(tmp_path: Path, index: FakeIndex) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    before = threading.active_count()
    resolve("0.26.0")
    deadline = time.monotonic() + 5
    while threading.active_count() > before + 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("unit", "kind"),
    [
        *(
            (unit, "text/html")
            for unit in (b"<![", b"<!--", b"<a ", b'<a href="', b"<", b"</", b"&#")
        ),
        *((unit, "text/html") for unit in (b"<base href=x/>", b"<a href=http://[>", b"\xff\x00")),
        *((unit, "application/json") for unit in (b"[", b'{"files":', b"9", b'"\\ud800', b"\xff")),
    ],
)
def test_no_page_raises_another_error_or_takes_long(unit: bytes, kind: str) -> None:
    """A million brackets, a base for each link, and what Python's own parsers give up on."""
    began = time.process_time()
    with suppress(PackageIndexError):
        assert parse_page(unit * ((1 << 19) // len(unit)), kind, "http://h/") == []
    assert time.process_time() - began < 5


def test_a_file_with_a_version_of_thousands_of_digits_is_passed_over() -> None:
    digits = b"9" * 5000
    page = b"<a href=vllm-%s.tar.gz>x</a><a href=vllm-%s-py3-none-any.whl>x</a>" % (digits, digits)
    assert parse_page(page, "text/html", "http://h/") == []


def test_the_first_base_of_a_page_counts() -> None:
    page = b"<base href=/a/><base href=/b/><a href=vllm-0.26.0.tar.gz>x</a>"
    (file,) = parse_page(page, "text/html", "http://h/")
    assert file.url == "http://h/a/vllm-0.26.0.tar.gz"
