"""``overlay import`` of URLs, of a range of a checkout, and of each commit by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jsonschema
import pytest

from overlay._features.folder import load
from overlay.authoring import sources
from overlay.authoring.sources import page_of
from overlay.errors import UsageError
from tests.authoring.commands.test_import import SCHEMA, releases
from tests.authoring.test_importing import BASE, CHANGE, PATCHED, PATH, diff
from tests.support.cli import Cli
from tests.support.git_repository import Repository, needs_git

__all__ = ["releases"]  # the fixture

SECOND = PATCHED.replace(b"sizes = [1, 2, 4]", b"sizes = [1, 2, 4, 8]")
MAIL = b"From %s Mon Sep 17 00:00:00 2001\nFrom: Ada <a@example.com>\nSubject: [PATCH] %s\n\n---\n"


def mail(number: int, subject: bytes, change: bytes) -> bytes:
    return MAIL % (str(number).encode() * 40, subject) + b"\n" + change + b"-- \n2.39\n\n"


FIRST_MAIL = mail(1, b"[Core] Count runs", CHANGE)
MAILS = FIRST_MAIL + mail(2, b"Capture more", diff(PATH, PATCHED, SECOND))


@dataclass
class Server:
    """Pages by their path: status, content type, body; the paths that were asked for."""

    url: str = ""
    pages: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    drip: bool = False


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            status, kind, body = state.pages.get(self.path, (404, "text/plain", b"no"))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", body.decode())
                body = b""
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if not state.drip:
                self.wfile.write(body)
                return
            for byte in body:
                if over.wait(0.05):
                    return
                self.wfile.write(bytes([byte]))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            """Keep the test's output clean."""

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    state.url = f"http://127.0.0.1:{running.server_address[1]}"
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield state
    over.set()
    running.shutdown()
    thread.join()
    running.server_close()


PULL = "/vllm-project/vllm/pull/49391"


def test_a_pull_request_of_one_commit_is_its_mail(cli: Cli, server: Server, tmp_path: Path) -> None:
    server.pages[f"{PULL}.patch"] = (200, "text/plain; charset=utf-8", FIRST_MAIL)
    place = tmp_path / "ours"
    result = cli("import", server.url + PULL + "/files", "--id", "runs", "--patches", place)
    assert result.exit == 0, result.err
    (feature,) = load([place])
    assert feature.upstream == server.url + PULL
    assert feature.title == "[Core] Count runs"
    patch = next(place.glob("runs/*/0.*.patch")).read_text()
    assert f"Origin: other, {server.url}{PULL}\n" in patch
    assert "Author: Ada <a@example.com>\n" in patch
    assert (place / "runs/origin/01.patch").read_bytes() == FIRST_MAIL
    assert server.asked == [f"{PULL}.patch"]


def test_a_pull_request_of_several_commits_is_their_sum(
    cli: Cli, server: Server, tmp_path: Path
) -> None:
    server.pages[f"{PULL}.patch"] = (200, "text/plain", MAILS)
    server.pages[f"{PULL}.diff"] = (200, "text/plain", diff(PATH, BASE, SECOND))
    place = tmp_path / "ours"
    result = cli("import", server.url + PULL, "--id", "runs", "--patches", place, "--json")
    assert result.exit == 0, result.err
    assert result.json["import"]["title"] == "[Core] Count runs"
    assert server.asked == [f"{PULL}.patch", f"{PULL}.diff"]


def test_a_commit_and_a_plain_file_follow_redirects(
    cli: Cli, server: Server, tmp_path: Path
) -> None:
    server.pages["/o/r/commit/4f3ab2c1.patch"] = (302, "text/plain", b"/raw/1")
    server.pages["/raw/1"] = (200, "text/plain", FIRST_MAIL)
    server.pages["/x.diff"] = (200, "text/x-diff", CHANGE)
    for number, path in enumerate(("/o/r/pull/7/commits/4f3ab2c1", "/x.diff")):
        result = cli(
            "import", server.url + path, "--id", f"a{number}", "--patches", tmp_path / "ours"
        )
        assert result.exit == 0, result.err


@pytest.mark.parametrize(
    ("page", "word"),
    [
        ((404, "text/plain", b""), "404 Not Found: check the URL"),
        ((500, "text/plain", b""), "500 Internal Server Error: try again later"),
        ((200, "text/html; charset=utf-8", b"<html>log in"), "answers a web page"),
        ((200, "text/plain", b"nothing\n"), "expected a unified diff"),
        ((302, "text/plain", PULL.encode() + b".patch"), "cannot be fetched: Exceeded 30 redir"),
    ],
)
def test_what_a_server_serves_instead_is_said(
    cli: Cli, server: Server, tmp_path: Path, page: tuple[int, str, bytes], word: str
) -> None:
    server.pages[f"{PULL}.patch"] = page
    result = cli("import", server.url + PULL, "--id", "runs", "--patches", tmp_path / "ours")
    assert result.exit == 2
    assert word in result.err
    assert not (tmp_path / "ours").exists()


def test_an_answer_is_bounded_in_size_and_time(
    cli: Cli, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pages[f"{PULL}.patch"] = (200, "text/plain", FIRST_MAIL)
    monkeypatch.setattr("overlay.authoring.sources.MAX_BYTES", 100)
    large = cli("import", server.url + PULL, "--id", "runs", "--patches", tmp_path / "ours")
    assert (large.exit, "at most 100 bytes" in large.err) == (2, True)
    server.drip = True
    monkeypatch.setattr("overlay.authoring.sources.MAX_BYTES", 10_000)
    monkeypatch.setattr(sources, "SECONDS", 0.4)
    began = time.monotonic()
    slow = cli("import", server.url + PULL, "--id", "runs", "--patches", tmp_path / "ours")
    assert (slow.exit, "within 0.4 seconds" in slow.err) == (2, True)
    assert time.monotonic() - began < 10


def test_no_network_is_said_with_what_to_do(cli: Cli, tmp_path: Path) -> None:
    result = cli(
        "import", "http://127.0.0.1:9/o/r/pull/1", "--id", "a", "--patches", tmp_path / "ours"
    )
    assert result.exit == 2
    assert "http://127.0.0.1:9/o/r/pull/1.patch: cannot be fetched" in result.err
    assert "save the diff to a file elsewhere and import that" in result.err
    assert "object at 0x" not in result.err


@pytest.mark.parametrize(
    ("url", "mails"),
    [
        ("https://github.com/o/r/pull/7", "https://github.com/o/r/pull/7.patch"),
        ("https://github.com/o/r/pull/7/", "https://github.com/o/r/pull/7.patch"),
        ("https://github.com/o/r/pull/7/commits", "https://github.com/o/r/pull/7.patch"),
        ("https://github.com/o/r/pull/7/files?w=1#x", "https://github.com/o/r/pull/7.patch"),
        ("https://github.com/o/r/commit/4f3ab2c1", "https://github.com/o/r/commit/4f3ab2c1.patch"),
        ("https://gitlab.com/o/r/-/merge_requests/3/diffs", None),
        ("https://github.com/o/r/compare/a...b", "https://github.com/o/r/compare/a...b.patch"),
    ],
)
def test_pages_have_mails_beside_them(url: str, mails: str | None) -> None:
    assert page_of(url).mails == (mails or "https://gitlab.com/o/r/-/merge_requests/3.patch")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a/b/pull/1",
        "file:///etc/passwd.patch",
        "http://[::1",
        "https://github.com/o/r",
        "http:///a.patch",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        page_of(url)


def test_no_password_is_shown(cli: Cli, tmp_path: Path) -> None:
    for url in (
        "http://ada:secret@127.0.0.1:9/pull/1",
        "http://ada:secret@127.0.0.1:9/nothing",
        "http://ada:secret @127.0.0.1:9/pull/1",
        "http://127.0.0.1:9/nothing;token=secret",
        "https:ada:secret@127.0.0.1:9/x.diff",
        "ada:secret@127.0.0.1:9/x.diff",
    ):
        result = cli("import", url, "--id", "a", "--patches", tmp_path / "ours")
        assert (result.exit, "secret" in result.err) == (2, False)
        assert "127.0.0.1:9" in result.err


# Checkouts


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository.create(tmp_path / "src")
    repository.commit("Base", {PATH: BASE})
    repository("branch", "base")
    repository.commit("[Core] Count runs (#12345)", {PATH: PATCHED, "tests/test_a.py": b"a = 1\n"})
    repository.commit("Only tests", {"tests/test_a.py": b"a = 2\n"})
    repository.commit("Capture more!", {PATH: SECOND})
    return repository


@needs_git
def test_a_range_of_a_checkout_is_laid_on_each_other(
    cli: Cli, repository: Repository, tmp_path: Path
) -> None:
    place = tmp_path / "ours"
    result = cli("import", f"{repository.folder}@base..", "--id", "runs", "--patches", place)
    assert result.exit == 0, result.err
    (feature,) = load([place])
    assert feature.upstream.endswith("/pull/12345")
    assert str(tmp_path) not in next(place.glob("runs/*/0.*.patch")).read_text()
    assert "3 commits" in result.out


@needs_git
def test_each_commit_becomes_a_feature_on_top_of_those_before(
    cli: Cli, repository: Repository, tmp_path: Path
) -> None:
    place = tmp_path / "ours"
    words = ("import", f"{repository.folder}@base..main", "--id", "runs", "--each", "--patches")
    result = cli(*words, place, "--json")
    assert result.exit == 0, result.err
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    features = load([place])
    assert [feature.id for feature in features] == [
        "runs-01-count-runs",
        "runs-03-capture-more",
    ]
    from packaging.version import Version

    from overlay.planning.planner import plan
    from tests.authoring.test_importing import Tree

    planned = plan(features, Tree("0.22.0"), Version("0.22.0"))
    assert [change.after for change in planned.changes] == [SECOND]
    refused = cli(*words, place)
    assert (refused.exit, "--update" in refused.err) == (2, True)
    assert cli(*words, place, "--update").exit == 0


@needs_git
def test_a_range_with_merges_is_its_sum(cli: Cli, repository: Repository, tmp_path: Path) -> None:
    repository("checkout", "-q", "-b", "side", "base")
    repository.commit("Aside", {"docs/a.md": b"a\n"})
    repository("merge", "-q", "-m", "Merge", "main")
    words = ("--id", "runs", "--patches", tmp_path / "ours")
    refused = cli("import", f"{repository.folder}@base..side", "--each", *words)
    assert (refused.exit, "1 merges" in refused.err) == (2, True)
    result = cli("import", f"{repository.folder}@base..side", *words)
    assert result.exit == 0, result.err


@needs_git
@pytest.mark.parametrize(
    ("revisions", "word"),
    [
        ("nowhere..main", "is called 'nowhere'"),
        ("--output=/tmp/x..main", "is called '--output=/tmp/x'"),
        ("base..--help", "is called '--help'"),
        ("..main", "expected CHECKOUT@A..B"),
        ("base...main", "expected CHECKOUT@A..B"),
        ("main..base", "found none"),
    ],
)
def test_bad_ranges_are_refused(
    cli: Cli, repository: Repository, tmp_path: Path, revisions: str, word: str
) -> None:
    result = cli(
        "import", f"{repository.folder}@{revisions}", "--id", "a", "--patches", tmp_path / "ours"
    )
    assert result.exit == 2
    assert word in result.err
    assert not (tmp_path / "ours").exists()


@needs_git
def test_the_base_is_found_in_the_history_of_a_checkout(
    cli: Cli, repository: Repository, tmp_path: Path
) -> None:
    between = BASE.replace(b"[1, 2, 4]", b"[9]")
    repository("checkout", "-q", "base")
    repository.commit("A text that no release has", {PATH: between})
    repository("checkout", "-q", "main")
    change = tmp_path / "a.diff"
    after = between.replace(b"return sizes", b"return sizes or [1]")
    change.write_bytes(diff(PATH, between, after))
    words = ("import", change, "--id", "runs", "--patches", tmp_path / "ours")
    assert cli(*words).exit == 2
    repository("branch", "keep", "HEAD")
    result = cli(*words, "--base", repository.folder)
    assert result.exit == 0, result.out + result.err
    assert f"{PATH}  1 hunk, made on a text that only --base has" in result.out
    told = cli(*words, "--base", repository.folder, "--update", "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(told)
    assert [file["base"] for file in told["import"]["files"]] == [None]


def test_a_checkout_that_has_the_text_of_a_release_names_the_release(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "src" / PATH).parent.mkdir(parents=True)
    (tmp_path / "src" / PATH).write_bytes(BASE)
    change = tmp_path / "a.diff"
    change.write_bytes(
        diff(PATH, BASE, PATCHED, ids=False) + diff("vllm/v1/notes.py", None, b"NOTES = 1\n")
    )
    words = ("import", change, "--id", "runs", "--patches", tmp_path / "ours")
    result = cli(*words, "--base", tmp_path / "src")
    assert result.exit == 0, result.out + result.err
    assert f"{PATH}  1 hunk, made on 0.21.0..0.22.0\n" in result.out
    assert "vllm/v1/notes.py  added module\n" in result.out
