"""What goes wrong while something is fetched, told as errors that name the URL and what to do.

No message holds a secret: each is shown by ``overlay.errors.without_secrets``.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import requests

from overlay.errors import PackageIndexError, causes_of, without_secrets

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
