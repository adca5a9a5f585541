"""A package index on the loopback interface that misbehaves as it is told."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from overlay.targets import Target
from tests.support import fake_vllm

#: A file that every fake release has.
PATH = "vllm/v1/spec_decode/proposer.py"

PROJECT_PAGE = "/simple/vllm/"

#: The page of another project; it names every file too, and clients pick those of theirs.
OTHER_PAGE = "/simple/vllm-ascend/"


@dataclass
class FakeIndex:
    """The switches of a running index, and the log of what it was asked.

    :ivar files: file name to bytes; :ivar hashes: file name to the sha256 that the page claims
        (left out: the true one; empty: none).
    :ivar cut: after how many bytes a file's answer breaks off, by file name, and how often.
    :ivar statuses: path to the statuses of its next answers.
    :ivar encodings: path to the Content-Encoding that its answer claims.
    :ivar stalled: paths that are answered only after the test is over.
    :ivar log: ``(path, Range header or None, bytes of the answer)`` of every request.
    """

    url: str = ""
    json: bool = False
    ranges: bool = True
    files: dict[str, bytes] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    yanked: set[str] = field(default_factory=set)
    cut: dict[str, tuple[int, int]] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    encodings: dict[str, str] = field(default_factory=dict)
    stalled: set[str] = field(default_factory=set)
    redirects: dict[str, str] = field(default_factory=dict)
    login: str | None = None
    log: list[tuple[str, str | None, int]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def simple(self) -> str:
        """The URL of the simple index."""
        return f"{self.url}/simple"

    def add(self, path: Path) -> None:
        """Serve the file at ``path``."""
        self.files[path.name] = path.read_bytes()

    def asked(self, name: str) -> int:
        """How often the file was asked for."""
        return sum(1 for path, _, _ in self.log if path == f"/files/{name}")

    def sent(self, name: str) -> int:
        """How many bytes of the file were sent."""
        return sum(count for path, _, count in self.log if path == f"/files/{name}")

    def page(self) -> tuple[bytes, str]:
        """The project's page, and its content type."""
        links = []
        for name, content in self.files.items():
            digest = self.hashes.get(name, hashlib.sha256(content).hexdigest())
            links.append((name, digest))
        if self.json:
            files = [
                {
                    "filename": name,
                    "url": f"../../files/{name}",
                    "hashes": {"sha256": digest} if digest else {},
                    "yanked": "broken" if name in self.yanked else False,
                }
                for name, digest in links
            ]
            body = json.dumps({"meta": {"api-version": "1.0"}, "name": "vllm", "files": files})
            return body.encode(), "application/vnd.pypi.simple.v1+json"
        rows = [
            f'<a href="../../files/{name}{f"#sha256={digest}" if digest else ""}"'
            f"{' data-yanked=broken' if name in self.yanked else ''}>{name}</a><br/>"
            for name, digest in links
        ]
        return f"<!DOCTYPE html><html><body>{''.join(rows)}</body></html>".encode(), "text/html"


@contextmanager
def serve() -> Iterator[FakeIndex]:
    """Run an index until the test is over."""
    index = FakeIndex()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"index": index}))
    server.daemon_threads = True
    index.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    index: FakeIndex

    def do_GET(self) -> None:
        self.path = urlsplit(self.path).path  # a client of a proxy asks for the whole URL
        self.index.authorizations.append(self.headers.get("Authorization"))
        if self.path in self.index.stalled:
            self.index.over.wait(30)
            return
        if self.index.login is not None:
            token = base64.b64encode(self.index.login.encode()).decode()
            if self.headers.get("Authorization") != f"Basic {token}":
                self._answer(401, b"who are you?", "text/plain")
                return
        if self.index.statuses.get(self.path):
            self._answer(self.index.statuses[self.path].pop(0), b"no", "text/plain")
        elif self.path in self.index.redirects:
            self.send_response(302)
            self.send_header("Location", self.index.redirects[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path in (PROJECT_PAGE, OTHER_PAGE):
            self._answer(200, *self.index.page())
        else:
            self._file(self.index.files.get(self.path.removeprefix("/files/")))

    def _file(self, content: bytes | None) -> None:
        if content is None:
            self._answer(404, b"no such file", "text/plain")
            return
        asked = self.headers.get("Range")
        if not self.index.ranges or asked is None:
            self._answer(200, content, "application/octet-stream")
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(content) - int(last))
        end = int(last) + 1 if first and last else len(content)
        part = content[start:end]
        self._answer(
            206,
            part,
            "application/octet-stream",
            f"bytes {start}-{start + len(part) - 1}/{len(content)}",
        )

    def _answer(self, status: int, body: bytes, kind: str, span: str | None = None) -> None:
        name = self.path.removeprefix("/files/")
        self.index.log.append((self.path, self.headers.get("Range"), len(body)))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if span is not None:
            self.send_header("Content-Range", span)
        if self.path in self.index.encodings:
            self.send_header("Content-Encoding", self.index.encodings[self.path])
        self.end_headers()
        length, times = self.index.cut.get(name, (0, 0))
        if times:
            self.index.cut[name] = (length, times - 1)
            body = body[:length]
        self.wfile.write(body)

    # `format` is the base class's name for it.
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep the test's output clean."""


def is_whole(target: Target, version: str = "0.26.0") -> bool:
    """Whether a target has every file of the fake release."""
    return all(target.read(name) == text for name, text in fake_vllm.files(version).items())
