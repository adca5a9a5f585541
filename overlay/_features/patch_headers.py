"""Read the headers of a ``.patch`` file: DEP-3 fields, or the head of a ``git format-patch`` mail.

DEP-3 takes ``Subject`` for ``Description`` and ``From`` for ``Author``, so that a mail is a valid
patch.  Its message becomes the further lines of ``Subject``: nothing of it is lost where a patch
is written again.  What git writes between ``---`` and the diff (the sizes of changes) is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date

from overlay._features.model import PortedWay
from overlay._features.patch_hunks import Source, diff_begins
from overlay.package import parse_release

REQUIRED_HEADERS = ("Description", "Origin", "Last-Update")

#: What may be written in the place of a header.
ALIASES = {"Description": "Subject", "Author": "From", "Last-Update": "Date"}

KNOWN_HEADERS = (
    *REQUIRED_HEADERS,
    *("Bug", "Forwarded", "Applied-Upstream", "Author", "Reviewed-by", "Acked-by"),
    *("Base", "Base-Has", "Tells-Nothing", "Ported-From", "Signed-off-by"),
    *ALIASES.values(),
)

#: Headers of a mail that say nothing about the patch, and are kept.
_OF_MAILS = (
    *("MIME-Version", "Content-Type", "Content-Transfer-Encoding", "Message-Id", "Message-ID"),
    *("In-Reply-To", "References", "To", "Cc", "Reply-To", "X-Mailer", "List-Id"),
)

#: Headers that may be repeated, with a value each.
REPEATED = (
    "Bug",
    "Author",
    "Reviewed-by",
    "Acked-by",
    "Base-Has",
    "Tells-Nothing",
    "Signed-off-by",
)

#: The lines of each header while they are read.
_Values = dict[str, list[str]]

_HEADER = re.compile(r"^(?P<name>[A-Za-z][A-Za-z0-9-]*):[ \t]*(?P<value>.*)$")

#: The line that opens a mail of ``git format-patch``.
_MAIL = re.compile(r"^From [0-9a-f]{7,64} ")

#: The most characters of a header that is shown to people; decoding takes longer with each.
_MAX_SHOWN = 2000


def field(headers: Mapping[str, str], name: str) -> str:
    """The value of a header or of what is written in its place; empty where there is neither."""
    return headers.get(name) or headers.get(ALIASES.get(name, name), "")


def author(headers: Mapping[str, str]) -> str:
    """The author of a patch, as text for people; empty where it does not say."""
    first = field(headers, "Author").partition("\n")[0]
    return _decoded(first)


def last_update(headers: Mapping[str, str]) -> str:
    """The day of a patch, ``YYYY-MM-DD``; empty where it does not say."""
    return headers.get("Last-Update") or _day(headers.get("Date", "")) or ""


def _decoded(text: str) -> str:
    """A header of a mail with its encoded words (RFC 2047) in clear, as far as one is read."""
    text = text[:_MAX_SHOWN]
    from email.header import decode_header, make_header  # not in every process of vLLM

    try:
        return str(make_header(decode_header(text)))
    except (LookupError, ValueError, RecursionError):
        return text


def _day(text: str) -> str | None:
    from email.utils import parsedate_to_datetime

    if len(text) > _MAX_SHOWN:
        return None
    try:
        return parsedate_to_datetime(text).date().isoformat()
    except (TypeError, ValueError, OverflowError, RecursionError, IndexError):
        return None


def read_headers(source: Source) -> dict[str, str]:
    """The headers, up to the diff; the source's errors take what is malformed."""
    read: _Values = {}
    misspelt: set[str] = set()
    current: str | None = None
    if not source.ended and _MAIL.match(source.line):
        source.take()
    while not source.ended and not diff_begins(source.line):
        line, number = source.take()
        match = _HEADER.match(line)
        if line[:1] in (" ", "\t") and line.strip() and current is not None:
            read[current].append(line.strip())
        elif match is not None:
            current = match["name"]
            proper = _check_header(source, current, number)
            if proper is not None:
                misspelt.add(proper)
            _add_header(source, read, current, match["value"].strip(), number)
        elif not line.strip() and _is_mail(read):
            _read_message(source, read)
            break
        elif line.strip() not in ("", "---"):
            source.error(
                number,
                f"{line!r} is neither a header (Name: value), the continuation of one "
                "(indented), nor the beginning of the diff (--- a/vllm/...)",
            )
        else:
            current = None
    headers = {name: "\n".join(lines) for name, lines in read.items()}
    _check_required(source, headers, misspelt)
    _check_date(source, headers)
    _check_transport(source, headers)
    _check_base(source, headers.get("Base"))
    _check_way(source, headers.get("Ported-From"))
    return headers


def _is_mail(headers: _Values) -> bool:
    """Whether the headers so far are those of a mail, behind which a message follows."""
    return "Subject" in headers and "From" in headers


def _read_message(source: Source, headers: _Values) -> None:
    """Read the message of a mail, up to the diff: fields in it are headers, the rest is kept."""
    message: list[str] = []
    while not source.ended:
        if source.line.startswith("diff --git ") or _file_begins(source):
            break
        line, number = source.take()
        match = _HEADER.match(line)
        if line.rstrip() == "---":
            _skip_sizes(source)
            break
        if match is not None and match["name"] in KNOWN_HEADERS:
            _add_header(source, headers, match["name"], match["value"].strip(), number)
        else:
            message.append(line.strip())
    text = "\n".join(message).strip("\n")
    if text:
        headers["Subject"].append(re.sub(r"(?m)^$", ".", text))


def _skip_sizes(source: Source) -> None:
    """Pass over what git writes between ``---`` and the diff."""
    while not (source.ended or source.line.startswith("diff --git ") or _file_begins(source)):
        source.take()


def _file_begins(source: Source) -> bool:
    """Whether the next lines are the header of a diff's file, or a hunk."""
    following = source.lines[source.at + 1 : source.at + 2]
    return source.line.startswith("@@ ") or (
        source.line.startswith("--- ") and (following or [""])[0].startswith("+++ ")
    )


def _check_header(source: Source, name: str, number: int) -> str | None:
    """The known header that ``name`` misspells, after an error; ``None`` for any other."""
    proper = {header.lower(): header for header in KNOWN_HEADERS}.get(name.lower())
    if proper is None and not name.startswith(("Bug-", "X-")) and name not in _OF_MAILS:
        source.error(number, f"unknown header {name}; known are {', '.join(KNOWN_HEADERS)}")
    if proper is None or proper == name:
        return None
    source.error(number, f"the header {name} is spelt otherwise: write {proper}:")
    return proper


def _add_header(source: Source, headers: _Values, name: str, value: str, number: int) -> None:
    if name not in headers:
        headers[name] = [value]
    elif name in REPEATED:
        headers[name].append(value)
    elif len(headers[name]) == 1:
        headers[name].append(value)  # no more is said of a third
        source.error(number, f"the header {name} is there twice")


def _check_required(source: Source, headers: Mapping[str, str], misspelt: set[str]) -> None:
    """Require the headers that say what a patch does, where it comes from and when it changed.

    As DEP-3 has it, an author may stand for the origin.
    """
    for required in REQUIRED_HEADERS:
        missing = not field(headers, required).strip() and required not in misspelt
        if required == "Origin" and field(headers, "Author").strip() and required not in headers:
            missing = False
        if missing:
            source.error(1, f"the header {required} is missing or empty")


def _check_date(source: Source, headers: Mapping[str, str]) -> None:
    value = headers.get("Last-Update")
    if not value:
        sent = headers.get("Date")
        if sent and _day(sent) is None:
            source.error(_line_of(source, "Date"), f"Date is {sent!r}, which is not that of a mail")
        return
    try:
        well_formed = date.fromisoformat(value).isoformat() == value
    except ValueError:
        well_formed = False
    if not well_formed:
        number = _line_of(source, "Last-Update")
        source.error(number, f"Last-Update is {value!r}, which is not a date (YYYY-MM-DD)")


def _check_transport(source: Source, headers: Mapping[str, str]) -> None:
    """Refuse a mail whose body is encoded for transport: it holds another diff than it shows."""
    encoding = headers.get("Content-Transfer-Encoding", "8bit").lower()
    if encoding not in ("7bit", "8bit", "binary"):
        source.error(
            _line_of(source, "Content-Transfer-Encoding"),
            f"the mail is encoded for transport ({encoding}): save it decoded, or use "
            "`overlay import`, which decodes it",
        )


def _check_base(source: Source, value: str | None) -> None:
    """Require a base that is a release, so that its text can be fetched again."""
    if value is None:
        return
    try:
        parse_release(value)
    except ValueError as error:
        source.error(_line_of(source, "Base"), f"Base: {error}")


def way(value: str | None) -> PortedWay | None:
    """How a variant was ported: the last word of its header ``Ported-From``."""
    word = (value or "").split()[-1:]
    return next((each for each in PortedWay if [each.value] == word), None)


def _check_way(source: Source, value: str | None) -> None:
    """Require a known last word: it decides whether the patch is applied."""
    if value is not None and way(value) is None:
        ways = ", ".join(each.value for each in PortedWay)
        source.error(
            _line_of(source, "Ported-From"),
            f"Ported-From: expected a release and one of {ways}, found {value!r}",
        )


def _line_of(source: Source, name: str) -> int:
    """The 1-based line of a header."""
    lines = enumerate(source.lines, 1)
    return next(number for number, line in lines if line.startswith(f"{name}:"))
