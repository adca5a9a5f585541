"""Write features as mails that ``git am`` takes, and read what such a mail says of its feature.

A mail is one feature on one release: its author, day, title and reason, the places that it comes
from as trailers, and the change with git's ids of each text, which prove the base when it is
imported.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from email.header import Header
from email.utils import formataddr, parseaddr
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

from packaging.version import Version

from overlay import __version__
from overlay._features.model import Feature, blob_id
from overlay._features.patch_headers import author, last_update
from overlay.authoring.variants import serving
from overlay.errors import UsageError
from overlay.planning.diff import is_binary, render
from overlay.results import Change

#: The trailer by which a mail is known for one of a feature.
_OWN = "Overlay-Feature"

#: The trailer of a key of its feature.toml: the key, and its value as JSON.
_KEY = "Overlay-Key"

#: The keys of a feature.toml that a mail carries beside those that an import makes.
KEYS = ("reason", "needs", "required", "model_runner", "situational", "group", "fault", "switches")

#: How deep the value of a key may be nested; a table of switches is three deep.
_DEEPEST = 8

#: Headers of a patch that are trailers of its mail.
_KEPT = ("Bug", "Forwarded", "Reviewed-by", "Acked-by", "Signed-off-by")

#: Who is named where no patch says who wrote it.
_NOBODY = ("Unknown", "unknown@invalid")

_TRAILER = re.compile(r"^([A-Za-z][A-Za-z-]*): (.*)$")

#: Lines at which git takes a message for ended, or for a header of the mail.
_ENDS = re.compile(r"^(?=---|diff -|Index: |(?:From|Date|Subject|Author): |>?From )", re.MULTILINE)

#: A git id of as many digits as ``git format-patch`` writes of long ones.
_DIGITS = 12


def mail(
    feature: Feature,
    release: Version,
    changes: Sequence[Change],
    number: int,
    total: int,
    keys: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """One feature as a mail.

    :param changes: what it makes of the texts that the mails before leave.
    """
    headers = _headers(feature, release)
    of = f" {number}/{total}" if total > 1 else ""
    sender = parseaddr(author(headers))
    if "@" not in sender[1] or not sender[1].isascii():  # no mail has it as its address
        sender = (author(headers) or _NOBODY[0], _NOBODY[1])
    body = b"%s---\n%s-- \nvllm-overlay %s\n" % (
        _message(feature, headers, keys).encode("utf-8", "surrogateescape"),
        b"".join(map(_diff, changes)),
        __version__.encode(),
    )
    encoding, title = "8bit", " ".join(feature.title.split())  # another line is another header
    is_utf8 = body.decode(errors="ignore").encode() == body
    if b"\r" in body or re.search(rb"^From ", body, re.MULTILINE) or not is_utf8:
        encoding, body = "base64", base64.encodebytes(body)
    if not title.isascii():
        title = Header(title, "utf-8", maxlinelen=900).encode()
    head = (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n"
        f"From: {formataddr(sender)}\n"
        f"Date: {_day(last_update(headers))}\n"
        f"Subject: [PATCH{of}] {title}\n"
        "MIME-Version: 1.0\n"
        "Content-Type: text/plain; charset=UTF-8\n"
        f"Content-Transfer-Encoding: {encoding}\n\n"
    )
    return head.encode("utf-8", "surrogateescape") + body + b"\n"


class Described(NamedTuple):
    """What the message of a mail says.

    :ivar why: the message without the trailers of a feature; :ivar upstream: its page.
    :ivar keys: of its feature.toml, as a stranger wrote them; ``None`` where it was of none.
    :ivar headers: those of its patches that stand in no other field.
    """

    why: str
    upstream: str = ""
    keys: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = MappingProxyType({})


def described(message: str) -> Described:
    """What the message of an imported mail says of the feature that it was once written of."""
    why, _, last = message.rpartition("\n\n")
    trailers: dict[str, list[str]] = {}
    for match in filter(None, map(_TRAILER.match, last.splitlines())):
        trailers.setdefault(match[1], []).append(match[2])
    if _OWN not in trailers:
        return Described(message)
    keys = dict(map(_key, trailers.get(_KEY, ())))
    headers = {name: "\n".join(trailers[name]) for name in _KEPT if name in trailers}
    return Described(why.strip(), trailers.get("Upstream", [""])[-1], keys, headers)


def author_of(sender: str) -> str:
    """Who wrote a change that a mail is from, as far as it is known."""
    name, address = parseaddr(sender)
    if address != _NOBODY[1]:
        return sender
    return "" if name == _NOBODY[0] else name


def _key(text: str) -> tuple[str, Any]:
    """A key of a feature.toml and its value; the reader of features judges what it is."""
    name, _, value = text.partition(" ")
    levels = accumulate((char in "[{") - (char in "]}") for char in value)
    try:
        if name in KEYS and max(levels, default=0) <= _DEEPEST:
            return name, json.loads(value)
    except (ValueError, RecursionError):
        pass
    raise UsageError(
        f"{_KEY}: expected one of {', '.join(KEYS)} and its value as JSON, found {text[:60]!r}: "
        "correct that line of the mail, or leave it out"
    )


def _headers(feature: Feature, release: Version) -> Mapping[str, str]:
    """The headers of the newest patch that serves a release, or else of the newest."""
    every = [variant for topic in feature.topics for variant in topic.variants]
    own = [variant for _, variant in serving(feature, release)]
    newest = max(own or every, key=lambda each: each.releases, default=None)
    return {} if newest is None else newest.patch.headers


def _message(feature: Feature, headers: Mapping[str, str], keys: Mapping[str, Any]) -> str:
    why = feature.why.strip()
    why = "" if why == feature.title else f"{_ENDS.sub(' ', why)}\n\n"
    trailers = [f"Upstream: {feature.upstream}"] if feature.upstream else []
    trailers += [
        f"{name}: {line}" for name in _KEPT for line in headers.get(name, "").splitlines() if line
    ]
    trailers += [f"{_KEY}: {name} {json.dumps(keys[name])}" for name in KEYS if name in keys]
    return f"{why}{chr(10).join([*trailers, f'{_OWN}: {feature.id}'])}\n"


def _diff(change: Change) -> bytes:
    """A change as git writes it, with the ids of both texts."""
    data = render([change])
    if is_binary(change):
        return data  # it has them
    mode = b" 100644" if change.before is not None else b""
    ids = b"index %s..%s%s\n" % (_id(change.before), _id(change.after), mode)
    lines = 1 if change.before is not None and change.after is not None else 2
    head = re.match(rb"(?:.*\n){%d}" % lines, data)
    return data if head is None else head[0] + ids + data[head.end() :]


def _id(data: bytes | None) -> bytes:
    return (blob_id(data) if data is not None else "0" * 40)[:_DIGITS].encode()


def _day(text: str) -> str:
    """``YYYY-MM-DD`` as mails write it; of nothing, the first day that they know."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = date(1970, 1, 1)
    names = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
    weekday = "Mon Tue Wed Thu Fri Sat Sun".split()[day.weekday()]
    return f"{weekday}, {day.day} {names[day.month - 1]} {day.year:04d} 00:00:00 +0000"
