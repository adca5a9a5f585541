"""An index behind https: whose certificates are trusted, seen from a real connection."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from overlay.errors import PackageIndexError
from overlay.targets.http import IndexSession
from overlay.targets.pip_config import IndexConfig

#: A self-signed certificate for 127.0.0.1 and its key; nothing but these tests knows it.
PEM = Path(__file__).with_name("loopback.pem")


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"page")

    # `format` is the base class's name for it.
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep the test's output clean."""


@pytest.fixture
def url() -> Iterator[str]:
    """A page on an https server with that certificate."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}/simple/"
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(url: str, config: IndexConfig) -> bytes:
    return IndexSession(config).page(url, "text/html", 100)[0]


def test_an_unknown_certificate_is_refused_with_advice(url: str) -> None:
    with pytest.raises(PackageIndexError, match=r"certificate that this system trusts.*PIP_CERT"):
        fetch(url, IndexConfig(()))


def test_the_configured_certificate_is_trusted(url: str) -> None:
    assert fetch(url, IndexConfig((), cert=str(PEM))) == b"page"


def test_a_trusted_host_needs_no_certificate(url: str) -> None:
    assert fetch(url, IndexConfig((), trusted_hosts=frozenset({"127.0.0.1"}))) == b"page"
    with pytest.raises(PackageIndexError):
        fetch(url, IndexConfig((), trusted_hosts=frozenset({"example.com"})))


def test_the_store_of_the_system_is_trusted(url: str) -> None:
    """As OpenSSL finds it: by SSL_CERT_FILE here, which a process reads when it begins."""
    code = (
        "import sys\n"
        "from overlay.targets.http import IndexSession\n"
        "from overlay.targets.pip_config import IndexConfig\n"
        "print(IndexSession(IndexConfig(())).page(sys.argv[1], 'text/html', 100)[0])\n"
    )
    environment = {**os.environ, "SSL_CERT_FILE": str(PEM)}
    done = subprocess.run(
        [sys.executable, "-c", code, url],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("b'page'\n", "")


@pytest.mark.parametrize("elsewhere", ["ftp://a.example/x", "nonsense", "https://", "http://[::1"])
def test_what_is_no_url_is_an_error(elsewhere: str) -> None:
    with pytest.raises(PackageIndexError):
        fetch(elsewhere, IndexConfig((), timeout=1))


def test_a_file_url_is_read_only_if_it_is_a_plain_file(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text("<a>")
    assert fetch(page.as_uri(), IndexConfig(())) == b"<a>"
    page.unlink()
    with pytest.raises(PackageIndexError, match="the file does not exist"):
        fetch(page.as_uri(), IndexConfig(()))
    os.mkfifo(page)
    with pytest.raises(PackageIndexError, match="found a pipe"):
        fetch(page.as_uri(), IndexConfig(()))
    page.unlink()
    page.write_text("x" * 101)
    with pytest.raises(PackageIndexError, match="at most 100 bytes"):
        fetch(page.as_uri(), IndexConfig(()))
