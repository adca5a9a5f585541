"""Read what ``overlay import`` is given: files, standard input, URLs, and ranges of a checkout.

GitHub serves a pull request or a commit as mails (``.patch``) and as a plain diff (``.diff``); they
are fetched over http(s), bounded in size and time.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from overlay.authoring.git import Checkout
from overlay.authoring.incoming import MAX_BYTES, Commit, read_changes
from overlay.errors import PackageIndexError, UsageError, causes_of, is_offline, without_secrets
from overlay.settings import in_home
from overlay.untrusted import read_regular

if TYPE_CHECKING:
    import requests


@dataclass(frozen=True)
class ChangeSource:
    """One source of an import.

    :ivar data: the bytes that ``commits`` were read from, which ``origin/`` keeps.
    :ivar upstream: the page of the pull request or commit that it is; empty for any other source.
    """

    name: str
    data: bytes
    commits: tuple[Commit, ...]
    upstream: str = ""


def joined(sources: Sequence[ChangeSource]) -> ChangeSource:
    """Several sources as one, whose commits are laid on each other in their order."""
    pages = list(dict.fromkeys(source.upstream for source in sources if source.upstream))
    commits = tuple(commit for source in sources for commit in source.commits)
    data = b"".join(source.data for source in sources)
    return ChangeSource(sources[0].name, data, commits, pages[0] if len(pages) == 1 else "")


def read_source(text: str, *, each: bool = False) -> ChangeSource:
    """The change that a SOURCE of the command line names.

    :param text: a file, ``-``, the URL of a pull request or commit, or ``CHECKOUT@A..B``.
    :param each: keep commits apart where a source can be had as one diff or as several mails.
    """
    if text == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        return ChangeSource("standard input", data, read_changes(data, "standard input"))
    if is_url(text):
        return _from_url(text, each)
    if os.path.isdir(text):
        raise UsageError(
            f"{text}: expected a diff or mails of `git format-patch`, found a folder; name the "
            f"commits of a checkout as {text}@A..B, or the file in it"
        )
    data_of_file = read_regular(text, MAX_BYTES)
    if data_of_file is not None:
        return ChangeSource(text, data_of_file, read_changes(data_of_file, text))
    if (place := _range(text)) is not None:
        return _from_checkout(text, *place, each)
    raise UsageError(
        f"{without_secrets(text)}: expected a diff or mails of `git format-patch`, the URL of a "
        "pull request or commit, or CHECKOUT@A..B; found no such file"
    )


# URLs


def _from_url(url: str, each: bool) -> ChangeSource:
    """A pull request as one change: of several commits the sum, with the words of the first."""
    page = page_of(url)
    if page.mails is None:
        assert page.diff is not None, "a page has mails, a diff, or both"
        data = fetch(page.diff, MAX_BYTES)
        return ChangeSource(page.name, data, read_changes(data, page.name), page.name)
    data = fetch(page.mails, MAX_BYTES)
    commits = read_changes(data, page.name)
    if len(commits) > 1 and not each and page.diff is not None:
        # Merges into the branch are in no mail, so that the mails need not follow each other.
        data = fetch(page.diff, MAX_BYTES)
        commits = _summed(commits, data, page.name)
    return ChangeSource(page.name, data, commits, page.name)


def _summed(mails: tuple[Commit, ...], diff: bytes, name: str) -> tuple[Commit, ...]:
    """One commit with the words of the first mail and the files of a diff."""
    (whole,) = read_changes(diff, name)
    return (replace(mails[0], files=whole.files),)


# Checkouts


def _range(text: str) -> tuple[Path, str, str] | None:
    """Folder, ``A`` and ``B`` of ``CHECKOUT@A..B``; ``None`` where it has another form."""
    at = text.find("@")
    while at > 0:
        folder, revisions = in_home(text[:at]), text[at + 1 :]
        if ".." in revisions and folder.is_dir():
            first, _, last = revisions.partition("..")
            if not first or last.startswith("."):
                raise UsageError(
                    f"{text}: expected CHECKOUT@A..B, the commits behind A up to B (by default up "
                    f"to HEAD), found {revisions!r}"
                )
            return folder, first, last or "HEAD"
        at = text.find("@", at + 1)
    return None


def _from_checkout(text: str, folder: Path, first: str, last: str, each: bool) -> ChangeSource:
    checkout = Checkout(folder)
    begins, ends = checkout.commit(first), checkout.commit(last)
    name = f"{folder.resolve().name}@{first}..{last}"
    mails = checkout.mails(f"{begins}..{ends}")
    if not mails.strip():
        raise UsageError(f"{text}: expected commits behind {first} up to {last}, found none")
    commits = read_changes(mails, name)
    merges = checkout.merges(begins, ends)
    if not merges:
        return ChangeSource(name, mails, commits)
    if each:
        raise UsageError(
            f"{text}: expected commits that follow each other, found {merges} merges among them; "
            "import the sum without --each"
        )
    diff = checkout.diff(begins, ends)
    return ChangeSource(name, diff, _summed(commits, diff, name))


# Addresses


#: Seconds for the whole of an answer, and without any byte of it.
SECONDS, SILENCE = 120.0, 30.0

_PULL = re.compile(r"^(?P<page>.*/(pull|merge_requests)/\d+)(/(files|commits|changes|diffs)?)?$")
_COMMIT = re.compile(r"^(?P<root>.*?)(/pull/\d+/commits?|/commits?)/(?P<id>[0-9a-f]{7,64})/?$")
_COMPARE = re.compile(r"^.*/compare/[^/].*$")
_TEXT_BYTES = 1 << 16


class FetchError(PackageIndexError):
    """A change cannot be fetched: no network, no such page, or an answer that is not a diff."""


@dataclass(frozen=True)
class WebPage:
    """The addresses at which a change is served.

    :ivar name: the page that people read, without a secret.
    """

    name: str
    mails: str | None
    diff: str | None


def is_url(text: str) -> bool:
    """Whether a source is a URL, of whatever scheme."""
    return re.match(r"^[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def page_of(url: str) -> WebPage:
    """The addresses of the change of a pull request, a commit, a comparison or a plain file."""
    if len(words := url.split()) != 1:  # a login could go on behind a space, and be shown
        raise UsageError(f"{without_secrets(''.join(words))}: expected a URL without white space")
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise UsageError(
            f"{without_secrets(url)}: expected the URL of a pull request or commit"
        ) from error
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise UsageError(
            f"{without_secrets(url)}: expected an http or https URL of a pull request or commit"
        )
    path = parts.path
    if match := re.match(r"^(?P<page>.+)\.(?P<form>patch|diff)$", path):
        name = without_secrets(urlunsplit(parts._replace(path=match["page"], query="")))
        return WebPage(name, url, None) if match["form"] == "patch" else WebPage(name, None, url)
    if match := _COMMIT.match(path):
        page = f"{match['root']}/commit/{match['id']}"
    elif (match := _PULL.match(path)) or (match := _COMPARE.match(path)):
        page = match.groupdict().get("page") or path
    else:
        raise UsageError(
            f"{without_secrets(url)}: expected the URL of a pull request (.../pull/49391), of "
            "a commit (.../commit/4f3ab2c), or one that ends in .patch or .diff"
        )
    plain = parts._replace(query="", fragment="")
    name = without_secrets(urlunsplit(plain._replace(path=page)))
    mails, diff = (urlunsplit(plain._replace(path=f"{page}.{form}")) for form in ("patch", "diff"))
    return WebPage(name, mails, diff)


def fetch(url: str, limit: int) -> bytes:
    """The bytes that a URL serves.

    :raises FetchError: if there is no network, or ``--offline``, no such page, an answer of more
        than ``limit`` bytes or ``SECONDS`` seconds, headers and redirects included, or one that is
        a web page.
    """
    from urllib3.exceptions import HTTPError

    from overlay.targets.http import Adapter, Carrier, Clock

    name, clock = without_secrets(url), Clock(SECONDS)
    if is_offline():
        raise FetchError(
            f"{name}: --offline forbids the network: omit it, or save the diff to a file and "
            "import that"
        )
    parts: list[bytes] = []
    try:
        with clock.running(SECONDS), Carrier() as carrier:
            for scheme in ("https://", "http://"):
                carrier.mount(scheme, Adapter(None, clock))
            headers = {"Accept-Encoding": "identity", "User-Agent": "vllm-overlay"}
            with carrier.get(url, headers=headers, timeout=SILENCE, stream=True) as answer:
                _require_diff(answer, name)
                _read_into(parts, answer, limit, name)
    except (FetchError, ValueError, OSError, HTTPError) as error:  # those of requests are OSErrors
        if isinstance(error, FetchError) and not clock.over:
            raise
        if not clock.over:
            raise FetchError(
                f"{name}: cannot be fetched: {without_secrets(_why(error))}; where there is no "
                "network, save the diff to a file elsewhere and import that"
            ) from error
    if clock.over:  # also an answer without a length, which ends where it was cut off
        raise FetchError(
            f"{name}: expected the whole diff within {SECONDS:g} seconds, found "
            f"{sum(map(len, parts))} bytes; save it to a file and import that"
        )
    return b"".join(parts)


def _read_into(parts: list[bytes], answer: requests.Response, limit: int, name: str) -> None:
    size = 0
    while chunk := answer.raw.read1(_TEXT_BYTES, decode_content=False):
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            raise FetchError(
                f"{name}: expected a diff of at most {limit} bytes, the server sends more"
            )
    promised = answer.headers.get("Content-Length", "")
    if promised.isdecimal() and int(promised) != size:
        raise FetchError(
            f"{name}: expected {promised} bytes, the connection ended after {size}; try again"
        )


def _require_diff(answer: requests.Response, name: str) -> None:
    """Refuse an answer that is an error or a web page."""
    status, reason = answer.status_code, without_secrets(answer.reason or "")
    if status in (401, 403, 404, 410):
        raise FetchError(
            f"{name}: the server answers {status} {reason}: check the URL; of a private "
            "repository, import `git format-patch --stdout` of a checkout instead"
        )
    if status != 200:
        raise FetchError(f"{name}: the server answers {status} {reason}: try again later")
    kind = answer.headers.get("Content-Type", "").lower()
    if "html" in kind:
        raise FetchError(f"{name}: expected a diff, the server answers a web page ({kind})")


def _why(error: BaseException) -> str:
    """The innermost cause in words, without the objects that libraries put around it."""
    *_, error = causes_of(error)
    text = getattr(error, "strerror", None) or str(error)
    return re.sub(r"<[^>]*>:?\s*", "", text) or type(error).__name__
