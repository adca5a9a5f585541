"""Releases from an index where something goes wrong: what is said, and what is tried again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from overlay.errors import ArchiveError, PackageIndexError
from overlay.targets import http
from overlay.targets.resolution import resolve
from tests.support import fake_vllm
from tests.support.fake_index import PROJECT_PAGE, FakeIndex, is_whole, serve
from tests.support.release_sources import archive_path

pytestmark = pytest.mark.usefixtures("cache")


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

    assert is_whole(resolve("0.26.0"))


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
    assert is_whole(resolve("0.26.0"))

    index.cut[PROJECT_PAGE] = (200, http.ATTEMPTS)
    with pytest.raises(PackageIndexError, match=r"broke off|ended after 200"):
        resolve("0.25.0")


def test_a_busy_server_is_asked_again(tmp_path: Path, index: FakeIndex) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    index.statuses[PROJECT_PAGE] = [503, 429]

    assert is_whole(resolve("0.26.0"))


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
