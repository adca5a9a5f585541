"""Fetch a change by the URL of a pull request or a commit, over http(s), bounded in size and time.

GitHub serves each of these as mails (``.patch``) and as a plain diff (``.diff``).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit, urlunsplit

from overlay.errors import PackageIndexError, UsageError

if TYPE_CHECKING:
    import requests

#: Seconds for the whole of an answer, and without any byte of it.
SECONDS, SILENCE = 120.0, 30.0

_PULL = re.compile(r"^(?P<page>.*/(pull|merge_requests)/\d+)(/(files|commits|changes|diffs)?)?$")
_COMMIT = re.compile(r"^(?P<root>.*?)(/pull/\d+/commits?|/commits?)/(?P<id>[0-9a-f]{7,64})/?$")
_COMPARE = re.compile(r"^.*/compare/[^/].*$")
_TEXT_BYTES = 1 << 16


class FetchError(PackageIndexError):
    """A change cannot be fetched: no network, no such page, or an answer that is not a diff."""


@dataclass(frozen=True)
class Page:
    """The addresses at which a change is served.

    :ivar shown: the page that people read, without a password.
    :ivar mails: the URL of its mails; ``None`` where only a diff was named.
    :ivar diff: the URL of its plain diff; ``None`` where only mails were named.
    """

    shown: str
    mails: str | None
    diff: str | None
    is_pull: bool = False


def is_url(text: str) -> bool:
    """Whether a source is a URL, of whatever scheme."""
    return re.match(r"^[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def page_of(url: str) -> Page:
    """The addresses of the change of a pull request, a commit, a comparison or a plain file.

    :raises UsageError: if it is none of these, or not http(s).
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise UsageError(f"{url}: expected the URL of a pull request or commit: {error}") from error
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise UsageError(f"{url}: expected an http or https URL of a pull request or commit")
    path = parts.path
    if match := re.match(r"^(?P<page>.+)\.(?P<form>patch|diff)$", path):
        shown = _without_password(parts._replace(path=match["page"], query="", fragment=""))
        pull = _PULL.match(match["page"]) is not None
        return (
            Page(shown, url, None, pull)
            if match["form"] == "patch"
            else Page(shown, None, url, pull)
        )
    if match := _COMMIT.match(path):
        page = f"{match['root']}/commit/{match['id']}"
    elif (match := _PULL.match(path)) or (match := _COMPARE.match(path)):
        page = match.groupdict().get("page") or path
    else:
        raise UsageError(
            f"{_without_password(parts)}: expected the URL of a pull request (.../pull/49391), of "
            "a commit (.../commit/4f3ab2c), or one that ends in .patch or .diff"
        )
    plain = parts._replace(query="", fragment="")
    shown = _without_password(plain._replace(path=page))
    mails, diff = (urlunsplit(plain._replace(path=f"{page}.{form}")) for form in ("patch", "diff"))
    return Page(shown, mails, diff, _PULL.match(page) is not None)


def fetch(url: str, limit: int) -> bytes:
    """The bytes that a URL serves.

    :raises FetchError: if there is no network, no such page, an answer of more than ``limit``
        bytes or ``SECONDS`` seconds, or one that is a web page.
    """
    import requests
    from urllib3.exceptions import HTTPError

    shown = _without_password(urlsplit(url))
    began = time.monotonic()
    try:
        with requests.get(
            url,
            headers={"Accept-Encoding": "identity", "User-Agent": "vllm-overlay"},
            timeout=SILENCE,
            stream=True,
        ) as answer:
            _require_diff(answer, shown)
            parts: list[bytes] = []
            size = 0
            while chunk := answer.raw.read1(_TEXT_BYTES, decode_content=False):
                parts.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise FetchError(
                        f"{shown}: expected a diff of at most {limit} bytes, the server sends more"
                    )
                if time.monotonic() - began > SECONDS:
                    raise FetchError(
                        f"{shown}: expected the whole diff within {SECONDS:g} seconds, found "
                        f"{size} bytes; save it to a file and import that"
                    )
            promised = answer.headers.get("Content-Length", "")
            if promised.isdecimal() and int(promised) != size:
                raise FetchError(
                    f"{shown}: expected {promised} bytes, the connection ended after {size}; try "
                    "again"
                )
            return b"".join(parts)
    except (requests.RequestException, HTTPError, OSError, ValueError) as error:
        raise FetchError(
            f"{shown}: cannot be fetched: {_why(error)}; where there is no network, save the diff "
            "to a file elsewhere and import that"
        ) from error


def _require_diff(answer: requests.Response, shown: str) -> None:
    """Refuse an answer that is an error or a web page.

    :raises FetchError: naming the status, and what may help.
    """
    status = answer.status_code
    if status in (401, 403, 404, 410):
        raise FetchError(
            f"{shown}: the server answers {status} {answer.reason}: check the URL; of a private "
            "repository, import `git format-patch --stdout` of a checkout instead"
        )
    if status != 200:
        raise FetchError(f"{shown}: the server answers {status} {answer.reason}: try again later")
    kind = answer.headers.get("Content-Type", "").lower()
    if "html" in kind:
        raise FetchError(f"{shown}: expected a diff, the server answers a web page ({kind})")


def _why(error: BaseException) -> str:
    """The innermost cause in words, without the objects that libraries put around it."""
    text = str(getattr(error, "reason", None) or error)
    while (cause := error.__context__ or error.__cause__) is not None and isinstance(
        cause, OSError
    ):
        error = cause
        text = error.strerror or str(error)
    return re.sub(r"<[^>]*>:?\s*", "", text) or type(error).__name__


def _without_password(parts: SplitResult) -> str:
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
