"""Releases: fetched from an index that may do anything, checked, kept, and read back."""

from __future__ import annotations

import hashlib
import io
import os
import random
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import URLError

import filelock
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import ArchiveError, PackageIndexError, UsageError
from overlay.releases import KNOWN_RELEASES
from overlay.targets import (
    Target,
    fetch_all,
    fetching,
    http,
    pip_config,
    release,
    releases,
    resolve,
)
from overlay.targets.cache import CachedRelease, DamagedError, Origin, archive_path, write_to
from overlay.targets.pip_config import IndexConfig
from overlay.targets.sources import Sources
from tests.support import fake_vllm
from tests.support.fake_index import PROJECT_PAGE, FakeIndex, serve

_PATH = "vllm/v1/spec_decode/proposer.py"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own; retries do not wait."""
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.001)
    return tmp_path / "cache"


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch):
    """Replace what pip is configured to."""

    def set_config(*indexes: str, **settings: object) -> None:
        config = IndexConfig(tuple(indexes), **{"timeout": 5.0, **settings})  # type: ignore[arg-type]
        for module in (fetching, pip_config):
            monkeypatch.setattr(module, "read_config", lambda: config)

    return set_config


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch):
    """From now on, whoever asks for the network fails the test."""

    def cut() -> None:
        def fail() -> None:
            raise AssertionError("the network was asked for")

        monkeypatch.setattr(fetching, "read_config", fail)

    return cut


@pytest.fixture
def index(configure) -> Iterator[FakeIndex]:
    """A running index, configured as the only one."""
    with serve() as running:
        configure(running.simple)
        yield running


def _is_whole(target: Target, version: str = "0.26.0") -> bool:
    return all(target.read(name) == text for name, text in fake_vllm.files(version).items())


# Where a release comes from


@pytest.mark.parametrize("json", [False, True], ids=["html", "json"])
def test_the_sdist_is_preferred(tmp_path: Path, index: FakeIndex, json: bool) -> None:
    index.json = json
    wheel, sdist = fake_vllm.wheel(tmp_path), fake_vllm.sdist(tmp_path)
    index.add(wheel)
    index.add(sdist)

    target = resolve("0.26.0")

    assert _is_whole(target)
    assert (target.name, target.vllm, target.root) == ("0.26.0", "0.26.0", None)
    assert (target.record, target.warnings) == (None, ())
    assert (index.asked(wheel.name), index.asked(sdist.name)) == (0, 1)


def _large_wheel(folder: Path, version: str = "0.15.1") -> Path:
    binary = random.Random(7).randbytes(6 << 20)
    return fake_vllm.wheel(folder, version, extra={"vllm/_C.abi3.so": binary})


@pytest.mark.parametrize("json", [False, True], ids=["html", "json"])
def test_of_a_wheel_only_what_is_needed_is_fetched(
    tmp_path: Path, index: FakeIndex, json: bool
) -> None:
    index.json = json
    wheel = _large_wheel(tmp_path)
    index.add(wheel)

    target = resolve("0.15.1")

    assert _is_whole(target, "0.15.1")
    assert index.sent(wheel.name) < wheel.stat().st_size / 3
    (warning,) = target.warnings
    assert "the hash of the whole could not be checked" in warning
    assert resolve("0.15.1").warnings == target.warnings
    with pytest.raises(ArchiveError, match="only text files"):
        target.read("vllm/_C.abi3.so")


def test_a_wheel_is_fetched_whole_where_ranges_are_not_served(
    tmp_path: Path, index: FakeIndex
) -> None:
    index.ranges = False
    wheel = _large_wheel(tmp_path)
    index.add(wheel)

    target = resolve("0.15.1")

    assert _is_whole(target, "0.15.1")
    assert target.warnings == ()


def test_a_whole_wheel_is_checked_against_the_index(tmp_path: Path, index: FakeIndex) -> None:
    index.ranges = False
    wheel = fake_vllm.wheel(tmp_path)
    index.add(wheel)
    index.hashes[wheel.name] = "0" * 64

    with pytest.raises(PackageIndexError, match=r"expected the sha256 0{64}"):
        resolve("0.26.0")


def test_a_wheel_that_contradicts_its_record_is_refused(tmp_path: Path, index: FakeIndex) -> None:
    wheel = fake_vllm.wheel(tmp_path)
    with zipfile.ZipFile(wheel) as old:
        contents = {name: old.read(name) for name in old.namelist()}
    contents[_PATH] += b"# changed\n"
    with zipfile.ZipFile(wheel, "w") as new:
        for name, content in contents.items():
            new.writestr(name, content)
    index.add(wheel)

    with pytest.raises(ArchiveError, match="its RECORD says") as caught:
        resolve("0.26.0")

    assert _PATH in str(caught.value)


def test_a_folder_of_links_and_a_file_index(tmp_path: Path, configure) -> None:
    fake_vllm.sdist(tmp_path / "links", "0.26.0")
    fake_vllm.sdist(tmp_path / "simple" / "vllm", "0.27.0")
    (tmp_path / "links" / "vllm-broken.whl").write_bytes(b"")
    (tmp_path / "links" / "torch-2.0.tar.gz").write_bytes(b"")
    configure((tmp_path / "simple").as_uri(), find_links=((tmp_path / "links").as_uri(),))

    assert _is_whole(resolve("0.26.0"))
    assert _is_whole(resolve("0.27.0"), "0.27.0")


def test_a_file_index_with_a_page(tmp_path: Path, configure) -> None:
    sdist = fake_vllm.sdist(tmp_path / "files")
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    page = tmp_path / "simple" / "vllm" / "index.html"
    page.parent.mkdir(parents=True)
    link = f"<a href='../../files/{sdist.name}#sha256={digest}'>x</a>"
    page.write_text(link)
    configure((tmp_path / "simple").as_uri())

    target = resolve("0.26.0")

    assert _is_whole(target)
    assert target.warnings == ()


def test_an_index_without_the_project_is_passed_over(tmp_path: Path, index, configure) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    configure(f"{index.url}/empty", (tmp_path / "none").as_uri(), index.simple)

    assert resolve("0.26.0").warnings == ()


def test_a_broken_index_beside_a_good_one_is_a_warning_this_time_only(
    tmp_path: Path, index, configure
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    index.statuses["/broken/vllm/"] = [400]
    configure(f"{index.url}/broken", index.simple)

    (warning,) = resolve("0.26.0").warnings

    assert "/broken/vllm/: the server answers 400" in warning
    assert resolve("0.26.0").warnings == ()


def test_a_local_label_is_matched_only_where_it_is_asked_for(
    tmp_path: Path, index: FakeIndex
) -> None:
    index.add(fake_vllm.sdist(tmp_path, "0.26.0+cpu"))
    index.add(fake_vllm.sdist(tmp_path, "0.26.0"))

    assert resolve("0.26.0").vllm == "0.26.0"
    assert resolve("0.26.0+cpu").vllm == "0.26.0+cpu"
    with pytest.raises(PackageIndexError, match=r"vLLM 0\.26\.0\+cu9"):
        resolve("0.26.0+cu9")


def test_a_yanked_release_is_a_warning(tmp_path: Path, index: FakeIndex) -> None:
    sdist = fake_vllm.sdist(tmp_path)
    index.add(sdist)
    index.yanked.add(sdist.name)

    assert "was yanked from" in resolve("0.26.0").warnings[0]


def test_a_file_without_a_hash_is_a_warning(tmp_path: Path, index: FakeIndex) -> None:
    sdist = fake_vllm.sdist(tmp_path)
    index.add(sdist)
    index.hashes[sdist.name] = ""

    assert "it was not checked" in resolve("0.26.0").warnings[0]


def test_what_reads_as_a_release_is_one_even_beside_a_folder_of_that_name(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    fake_vllm.tree(tmp_path / "0.26.0", "0.99.0")
    monkeypatch.chdir(tmp_path)

    found = resolve("0.26.0")

    assert found.vllm == "0.26.0"
    assert "write ./0.26.0" in found.warnings[0]
    assert resolve("./0.26.0").vllm == "0.99.0"


# What may go wrong


def test_an_unknown_release_names_its_neighbours(tmp_path: Path, index: FakeIndex) -> None:
    for version in ("0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0rc1", "0.27.0", "0.28.0"):
        index.add(fake_vllm.sdist(tmp_path, version))

    with pytest.raises(PackageIndexError) as caught:
        resolve("0.26.1.dev3+gabc")

    assert "Releases near it: 0.25.0, 0.25.1, 0.26.0, 0.27.0, 0.28.0." in str(caught.value)
    assert index.simple in str(caught.value)


def test_a_release_may_be_named_without_its_last_zero(tmp_path: Path, index: FakeIndex) -> None:
    index.add(fake_vllm.sdist(tmp_path, "0.26.0"))
    assert resolve("0.26").vllm == "0.26.0"


def test_no_index_has_the_project(index: FakeIndex, configure) -> None:
    configure(f"{index.url}/empty")
    with pytest.raises(PackageIndexError, match="None of them has it"):
        resolve("0.26.0")

    configure()
    with pytest.raises(PackageIndexError, match="pip's no-index is set"):
        resolve("0.26.0")


def test_a_wrong_hash_is_an_error_that_gives_both(tmp_path: Path, index: FakeIndex) -> None:
    sdist = fake_vllm.sdist(tmp_path)
    index.add(sdist)
    index.hashes[sdist.name] = "1" * 64

    with pytest.raises(PackageIndexError) as caught:
        resolve("0.26.0")

    assert "1" * 64 in str(caught.value)
    assert hashlib.sha256(sdist.read_bytes()).hexdigest() in str(caught.value)
    assert not archive_path("0.26.0").exists()


def test_a_file_that_is_gone(tmp_path: Path, index: FakeIndex) -> None:
    sdist = fake_vllm.sdist(tmp_path)
    index.add(sdist)
    index.statuses[f"/files/{sdist.name}"] = [404] * 9

    with pytest.raises(PackageIndexError, match="the server answers 404"):
        resolve("0.26.0")


@pytest.mark.parametrize("ranged", [False, True], ids=["sdist", "wheel"])
def test_a_download_that_breaks_off_is_tried_again(
    tmp_path: Path, index: FakeIndex, ranged: bool
) -> None:
    path = (fake_vllm.wheel if ranged else fake_vllm.sdist)(tmp_path)
    index.add(path)
    index.cut[path.name] = (500, http.ATTEMPTS - 1)

    assert _is_whole(resolve("0.26.0"))


@pytest.mark.parametrize("ranged", [False, True], ids=["sdist", "wheel"])
def test_a_download_that_always_breaks_off(tmp_path: Path, index: FakeIndex, ranged: bool) -> None:
    path = (fake_vllm.wheel if ranged else fake_vllm.sdist)(tmp_path)
    index.add(path)
    index.cut[path.name] = (500, http.ATTEMPTS)

    with pytest.raises(PackageIndexError, match=r"broke off|ended after 500"):
        resolve("0.26.0")

    assert not archive_path("0.26.0").exists()


@pytest.mark.parametrize("json", [False, True], ids=["html", "json"])
def test_a_page_that_breaks_off_is_not_taken_for_the_whole(
    tmp_path: Path, index: FakeIndex, json: bool
) -> None:
    index.json = json
    for version in ("0.25.0", "0.26.0"):
        index.add(fake_vllm.sdist(tmp_path, version))
    index.cut[PROJECT_PAGE] = (200, http.ATTEMPTS - 1)
    assert _is_whole(resolve("0.26.0"))

    index.cut[PROJECT_PAGE] = (200, http.ATTEMPTS)
    with pytest.raises(PackageIndexError, match=r"broke off|ended after 200"):
        resolve("0.25.0")


def test_a_busy_server_is_asked_again(tmp_path: Path, index: FakeIndex) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    index.statuses[PROJECT_PAGE] = [503, 429]

    assert _is_whole(resolve("0.26.0"))


def test_a_server_that_is_silent(index: FakeIndex, configure) -> None:
    configure(index.simple, timeout=0.2)
    index.stalled.add(PROJECT_PAGE)

    with pytest.raises(PackageIndexError, match=r"expected an answer within 0\.2 seconds"):
        resolve("0.26.0")


def test_nobody_listens(index: FakeIndex, configure) -> None:
    with serve() as gone:
        url = gone.simple
    configure(url)

    with pytest.raises(PackageIndexError, match="cannot be reached") as caught:
        resolve("0.26.0")

    assert "releases that are in the cache already need no network" in str(caught.value)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"files": [{}]}', b'{"files": 3}'])
def test_a_json_page_that_cannot_be_read(
    index: FakeIndex, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeIndex, "page", lambda self: (body, "application/json"))

    with pytest.raises(PackageIndexError, match="expected a JSON page"):
        resolve("0.26.0")


def test_a_file_that_holds_another_release(tmp_path: Path, index: FakeIndex) -> None:
    index.files["vllm-0.26.0.tar.gz"] = fake_vllm.sdist(tmp_path, "0.27.0").read_bytes()

    with pytest.raises(PackageIndexError, match=r"it says that it is 0\.27\.0"):
        resolve("0.26.0")


def test_a_dangerous_sdist_stays_dangerous(tmp_path: Path, index: FakeIndex) -> None:
    index.add(fake_vllm.sdist(tmp_path, extra={"../evil.py": b""}))

    with pytest.raises(ArchiveError, match="which leads elsewhere"):
        resolve("0.26.0")


def test_a_folder_of_links_that_may_not_be_listed_is_named(
    tmp_path: Path, index: FakeIndex, configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    configure(index.simple, find_links=(tmp_path.as_uri(),))

    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)

    assert f"{tmp_path.as_uri()}: cannot be listed" in resolve("0.26.0").warnings[0]


# How the network is reached


def test_the_proxy_is_used(tmp_path: Path, index: FakeIndex, configure) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    configure("http://nowhere.example/simple", proxy=index.url)

    assert _is_whole(resolve("0.26.0"))


def test_certificates_are_checked_unless_the_host_is_trusted() -> None:
    session = http.Session(IndexConfig((), trusted_hosts=frozenset({"a.example", "b.example:8"})))

    def mode(url: str) -> ssl.VerifyMode:
        (handler,) = (
            one
            for one in session._opener(url).handlers
            if isinstance(one, urllib.request.HTTPSHandler)
        )
        context: ssl.SSLContext = handler._context  # type: ignore[attr-defined]
        return context.verify_mode

    assert mode("https://c.example/x") == ssl.CERT_REQUIRED
    assert mode("https://b.example/x") == ssl.CERT_REQUIRED
    assert mode("https://a.example:99/x") == ssl.CERT_NONE
    assert mode("https://b.example:8/x") == ssl.CERT_NONE


def test_a_certificate_file_that_is_none_is_an_error(
    tmp_path: Path, index: FakeIndex, configure
) -> None:
    configure(index.simple, cert=str(tmp_path / "none.pem"))

    with pytest.raises(PackageIndexError, match=r"none\.pem"):
        resolve("0.26.0")


def test_a_certificate_that_is_not_trusted_says_what_to_set(configure) -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"

    said = str(http._network_error("https://me:pw@a.example/x", URLError(error), 5))

    assert said.startswith("https://a.example/x: ")
    assert "self-signed certificate" in said
    assert "PIP_CERT" in said


# Passwords


def test_a_netrc_file_that_cannot_be_parsed_is_an_error(tmp_path: Path, index: FakeIndex) -> None:
    (tmp_path / "netrc").write_text("machine")

    with pytest.raises(PackageIndexError, match="netrc: expected a readable netrc file"):
        resolve("0.26.0")


def test_the_password_of_the_index_is_used_and_never_shown(
    tmp_path: Path, index: FakeIndex, configure
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    index.login = "me:s3cr%t"
    url = index.simple.replace("//", "//me:s3cr%25t@")
    configure(url)

    assert _is_whole(resolve("0.26.0"))
    with pytest.raises(PackageIndexError) as caught:
        resolve("0.99.0")
    assert "s3cr" not in str(caught.value)
    assert b"s3cr" not in archive_path("0.26.0").read_bytes()


def test_the_password_of_a_netrc_file_is_used(tmp_path: Path, index: FakeIndex) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hidden\n")
    index.add(fake_vllm.sdist(tmp_path))
    index.login = "me:hidden"

    assert _is_whole(resolve("0.26.0"))


def test_a_missing_password_says_where_to_put_one(index: FakeIndex) -> None:
    index.login = "me:hidden"

    with pytest.raises(PackageIndexError, match=r"401 .* into a netrc file"):
        resolve("0.26.0")


def test_a_redirect_does_not_carry_the_password_away(
    tmp_path: Path, index: FakeIndex, configure
) -> None:
    sdist = fake_vllm.sdist(tmp_path)
    with serve() as other:
        other.add(sdist)
        index.add(sdist)
        index.redirects[f"/files/{sdist.name}"] = f"{other.url}/files/{sdist.name}"
        configure(index.simple.replace("//", "//me:hidden@"))

        assert _is_whole(resolve("0.26.0"))

        assert other.authorizations == [None]
        assert set(index.authorizations) != {None}


# The cache


def test_a_kept_release_needs_no_network(tmp_path: Path, index: FakeIndex, offline) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    resolve("0.26.0")
    offline()

    assert _is_whole(resolve("0.26.0"))


def test_the_archive_is_a_zip_like_any_other(tmp_path: Path, index: FakeIndex) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    resolve("0.26.0")

    with zipfile.ZipFile(archive_path("0.26.0")) as archive:
        assert archive.testzip() is None
        assert archive.read(_PATH) == fake_vllm.files()[_PATH]


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "index", "version"])
def test_a_damaged_archive_is_made_again(tmp_path: Path, index: FakeIndex, damage: str) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    resolve("0.26.0")
    path = archive_path("0.26.0")
    content = path.read_bytes()
    inside = content.find(_PATH.encode()) + len(_PATH) + 20
    comment = content.rfind(b"overlay-index ")
    path.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "empty": b"",
            "text": content[:inside] + b"XXXX" + content[inside + 4 :],
            "index": content.replace(b'"left_out"', b'"left-out"'),
            "version": content[:comment] + b"overlay-index 9" + content[comment + 15 :],
        }[damage]
    )

    assert _is_whole(resolve("0.26.0"))
    assert path.read_bytes() == content
    assert index.asked("vllm-0.26.0.tar.gz") == 2


def test_a_file_that_is_damaged_while_the_target_is_in_use_is_made_again(
    tmp_path: Path, index: FakeIndex, offline
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    target = resolve("0.26.0")
    path = archive_path("0.26.0")
    content = path.read_bytes()
    with open(path, "r+b") as file:
        file.write(bytes(len(content)))

    assert _is_whole(target)
    assert path.read_bytes() == content

    with open(path, "r+b") as file:
        file.write(bytes(len(content)))
    index.statuses[PROJECT_PAGE] = [500] * 9
    with pytest.raises(PackageIndexError, match="answers 500"):
        target.read(_PATH)


def _archive(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    sources = Sources("0.26.0", files, frozenset({"vllm/a.so"}))
    write_to(out, sources, Origin("vllm.tar.gz", "index", None, ("careful",)))
    return out.getvalue()


def _opened(raw: bytes) -> CachedRelease:
    return CachedRelease(lambda offset, length: raw[offset : offset + length], len(raw))


@given(
    st.dictionaries(
        st.text(
            st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1
        ).map("vllm/{}".format),
        st.binary(max_size=300),
        max_size=5,
    )
)
def test_the_archive_gives_back_what_was_written(files: dict[str, bytes]) -> None:
    found = _opened(_archive(files))

    assert found.paths() == sorted(files)
    assert {path: found.read(path) for path in files} == files
    assert (found.version, found.origin.warnings) == ("0.26.0", ("careful",))
    with pytest.raises(ArchiveError):
        found.read("vllm/a.so")


_TEXTS = {"vllm/a.py": b"print(1)\n" * 30, "vllm/b.py": bytes(range(256))}
_WRITTEN = _archive(_TEXTS)


@pytest.mark.parametrize("change", [1, 0x20, 0x80])
def test_no_damaged_byte_is_passed_on(change: int) -> None:
    refused = 0
    for at in range(len(_WRITTEN)):
        raw = bytearray(_WRITTEN)
        raw[at] ^= change
        try:
            found = _opened(bytes(raw))
            texts = {path: found.read(path) for path in _TEXTS}
        except DamagedError:
            refused += 1
            continue
        assert texts == _TEXTS
        assert (found.version, found.paths()) == ("0.26.0", sorted(_TEXTS))
        assert found.origin == Origin("vllm.tar.gz", "index", None, ("careful",))
    assert refused > sum(map(len, _TEXTS.values())) / 4


def test_who_waits_for_a_release_takes_what_the_other_one_fetched(
    tmp_path: Path, index: FakeIndex, offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    resolve("0.26.0")
    path = archive_path("0.26.0")
    aside = path.rename(path.with_suffix(".aside"))
    offline()
    waiting = threading.Event()
    acquire = filelock.FileLock.acquire

    def announce(self: filelock.FileLock, *args: object, **options: object) -> object:
        waiting.set()
        return acquire(self, *args, **options)  # type: ignore[arg-type]

    with ThreadPoolExecutor(1) as pool:
        with filelock.FileLock(f"{path}.lock"):
            monkeypatch.setattr(filelock.FileLock, "acquire", announce)
            target = pool.submit(resolve, "0.26.0")
            assert waiting.wait(30)
            aside.rename(path)

        assert _is_whole(target.result(30))


def test_a_process_that_fetches_for_too_long_is_named(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "LOCK_SECONDS", 0.1)
    path = archive_path("0.26.0")
    path.parent.mkdir(parents=True)

    with filelock.FileLock(f"{path}.lock"), pytest.raises(PackageIndexError) as caught:
        resolve("0.26.0")

    assert f"{path}.lock" in str(caught.value)


def test_processes_that_want_the_same_release_fetch_it_once(
    tmp_path: Path, index: FakeIndex
) -> None:
    sdist = fake_vllm.sdist(tmp_path)
    index.add(sdist)
    code = (
        "import sys; from overlay.targets import fetching, resolve; "
        "from overlay.targets.pip_config import IndexConfig; "
        "fetching.read_config = lambda: IndexConfig((sys.argv[1],)); "
        "sys.stdout.buffer.write(resolve('0.26.0').read(sys.argv[2]))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, index.simple, _PATH],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(6)
    ]

    for process in started:
        out, errors = process.communicate(timeout=60)
        assert (out, errors) == (fake_vllm.files()[_PATH], b"")
    assert index.asked(sdist.name) == 1


@pytest.mark.parametrize("where", ["a file", "read-only"])
def test_a_cache_that_cannot_be_written_is_a_warning(
    tmp_path: Path, index: FakeIndex, cache: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    if where == "a file":
        cache.write_text("in the way")
    else:
        make = tempfile.mkstemp

        def refuse(*words: Any, **options: Any) -> tuple[int, str]:
            if str(options.get("dir", "")).startswith(str(cache)):
                raise PermissionError(13, "Permission denied")
            return make(*words, **options)

        monkeypatch.setattr(tempfile, "mkstemp", refuse)  # root may write everywhere

    target = resolve("0.26.0")

    assert _is_whole(target)
    assert len(target.warnings) == 1
    assert "set OVERLAY_CACHE" in target.warnings[0]


def test_what_a_killed_process_left_in_the_cache_is_taken_away(
    tmp_path: Path, index: FakeIndex
) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    path = archive_path("0.26.0")
    path.parent.mkdir(parents=True)
    (path.parent / f".{path.name}.abc.new").write_bytes(b"half")

    resolve("0.26.0")

    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]


def test_a_full_disk_while_downloading(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(fake_vllm.sdist(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(http.Session, "_download", full)

    with pytest.raises(PackageIndexError, match=r"No space left on device.*TMPDIR"):
        resolve("0.26.0")


def test_nothing_is_left_in_the_temporary_folder(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    for version in ("0.26.0", "0.27.0"):
        index.add(fake_vllm.sdist(tmp_path, version))
    index.hashes["vllm-0.27.0.tar.gz"] = "0" * 64

    resolve("0.26.0")
    with pytest.raises(PackageIndexError):
        resolve("0.27.0")

    assert list(scratch.iterdir()) == []
    assert not list(archive_path("0.26.0").parent.glob(".*"))


def test_progress_is_told(tmp_path: Path, index: FakeIndex) -> None:
    sdist, wheel = fake_vllm.sdist(tmp_path), fake_vllm.wheel(tmp_path, "0.15.1")
    index.add(sdist)
    index.add(wheel)
    calls: list[tuple[str, int, int | None]] = []

    resolve("0.26.0", progress=lambda *call: calls.append(call))

    size = sdist.stat().st_size
    assert calls[-1] == ("vLLM 0.26.0", size, size)


def test_several_releases_come_in_the_order_asked_for(tmp_path: Path, index: FakeIndex) -> None:
    names = ["0.27.0", "0.26.0", "0.28.0"]
    for name in names:
        index.add(fake_vllm.sdist(tmp_path, name))

    assert [target.vllm for target in fetch_all(names)] == names


# --releases


def test_known_releases_need_no_network(offline, configure) -> None:
    configure()
    offline()

    assert releases("all") == KNOWN_RELEASES
    assert releases("0.20.0..0.33.0") == KNOWN_RELEASES
    assert releases("0.25.0..0.26.0") == ("0.25.0", "0.25.1", "0.26.0")
    assert releases("0.26.0") == ("0.26.0",)
    assert releases("0.26.0, 0.20.0..0.20.1,0.26.0") == ("0.20.0", "0.20.1", "0.26.0")
    assert releases("0.26.1.dev3+gabc") == ("0.26.1.dev3+gabc",)


def test_a_range_beyond_the_known_releases_asks_the_index(tmp_path: Path, index: FakeIndex) -> None:
    for version in ("0.15.1", "0.34.0rc1", "0.34.0", "0.35.0"):
        index.add(fake_vllm.sdist(tmp_path, version))
    index.add(fake_vllm.sdist(tmp_path, "0.36.0"))
    index.yanked.add("vllm-0.36.0.tar.gz")

    assert releases("0.32.0..0.99.0") == ("0.32.0", "0.33.0", "0.34.0", "0.35.0")
    assert releases("0.15.0..0.20.0") == ("0.15.1", "0.20.0")


@pytest.mark.parametrize(
    "text", ["", "0.20.0..", "..", "0.33.0..0.20.0", "newest", "0.20.3..0.20.9"]
)
def test_releases_that_mean_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="--releases"):
        releases(text)


@pytest.mark.network
def test_real_releases_from_the_configured_index() -> None:
    """0.26.0 has an sdist, 0.15.1 has only wheels of half a gigabyte."""
    for name in ("0.26.0", "0.15.1"):
        target = resolve(name)

        runner = target.read("vllm/v1/worker/gpu_model_runner.py")
        assert target.vllm == name
        assert runner is not None
        compile(runner, "gpu_model_runner.py", "exec")
        assert archive_path(name).stat().st_size < 50_000_000
