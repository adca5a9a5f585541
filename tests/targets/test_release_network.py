"""How the network is reached: proxies, certificates, passwords."""

from __future__ import annotations

import gzip
import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import pytest

from overlay.errors import PackageIndexError
from overlay.targets import http
from overlay.targets.pip_config import IndexConfig
from overlay.targets.resolution import resolve
from tests.support import fake_vllm
from tests.support.fake_index import PROJECT_PAGE, FakeIndex, is_whole, serve
from tests.support.release_sources import archive_path

pytestmark = pytest.mark.usefixtures("cache")

# How the network is reached


def test_the_proxy_is_used(tmp_path: Path, index: FakeIndex, configure) -> None:
    index.add(fake_vllm.sdist(tmp_path))
    configure("http://nowhere.example/simple", proxy=index.url)

    assert is_whole(resolve("0.26.0"))


@pytest.mark.parametrize(
    ("encoding", "pack", "found"),
    [
        ("gzip", gzip.compress, None),
        ("identity", bytes, None),
        ("gzip", lambda page: gzip.compress(page)[:-9], "or as whole gzip"),
        ("gzip", bytes, "or as whole gzip"),
        ("br", bytes, "Content-Encoding 'br'"),
        ("gzip, gzip", lambda page: gzip.compress(gzip.compress(page)), "'gzip, gzip'"),
        ("gzip", lambda page: gzip.compress(page + bytes(1 << 27), 1), "expected at most"),
    ],
)
def test_a_page_that_is_compressed_unasked_is_read_or_named(
    tmp_path: Path,
    index: FakeIndex,
    configure,
    monkeypatch: pytest.MonkeyPatch,
    encoding: str,
    pack: Callable[[bytes], bytes],
    found: str | None,
) -> None:
    """As stores of files do, whatever was asked for."""
    index.add(fake_vllm.sdist(tmp_path))
    index.encodings[PROJECT_PAGE] = encoding
    page, kind = index.page()
    monkeypatch.setattr(index, "page", lambda: (pack(page), kind))
    configure(index.simple)
    if found is None:
        assert is_whole(resolve("0.26.0"))
        return
    with pytest.raises(PackageIndexError, match=found):
        resolve("0.26.0")


def test_certificates_are_checked_unless_the_host_is_trusted() -> None:
    session = http.IndexSession(
        IndexConfig((), trusted_hosts=frozenset({"a.example", "b.example:8"}))
    )

    def mode(url: str) -> ssl.VerifyMode:
        carrier = session.carrier(url)
        adapter = carrier.get_adapter(url)
        assert isinstance(adapter, http.Adapter)
        assert adapter.context is not None
        assert (carrier.verify is False) == (adapter.context.verify_mode == ssl.CERT_NONE)
        return adapter.context.verify_mode

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

    said = str(http.network_error("https://me:pw@a.example/x", URLError(error), 5))

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

    assert is_whole(resolve("0.26.0"))
    with pytest.raises(PackageIndexError) as caught:
        resolve("0.99.0")
    assert "s3cr" not in str(caught.value)
    assert b"s3cr" not in archive_path("0.26.0").read_bytes()


def test_the_password_of_a_netrc_file_is_used(tmp_path: Path, index: FakeIndex) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hidden\n")
    index.add(fake_vllm.sdist(tmp_path))
    index.login = "me:hidden"

    assert is_whole(resolve("0.26.0"))


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

        assert is_whole(resolve("0.26.0"))

        assert other.authorizations == [None]
        assert set(index.authorizations) != {None}
