"""Read the DEP-3 headers of a ``.patch`` file and check their values."""

from __future__ import annotations

import re
from datetime import date

from overlay.features.model import Way
from overlay.features.patch_source import Source, diff_begins
from overlay.package import parse_release

REQUIRED_HEADERS = ("Description", "Origin", "Last-Update")

KNOWN_HEADERS = (
    *REQUIRED_HEADERS,
    *("Bug", "Forwarded", "Applied-Upstream", "Author", "Reviewed-by", "Acked-by"),
    *("Base", "Base-Has", "Ported-From", "Signed-off-by"),
)

#: Headers that may be repeated, with a value each.
_REPEATED = ("Bug", "Author", "Reviewed-by", "Acked-by", "Base-Has", "Signed-off-by")

_HEADER = re.compile(r"^(?P<name>[A-Za-z][A-Za-z0-9-]*):[ \t]*(?P<value>.*)$")


def read_headers(source: Source) -> dict[str, str]:
    """The DEP-3 fields, up to the diff."""
    headers: dict[str, str] = {}
    misspelt: set[str] = set()
    current: str | None = None
    while not source.ended and not diff_begins(source.line):
        line, number = source.take()
        match = _HEADER.match(line)
        if line[:1] in (" ", "\t") and line.strip() and current is not None:
            headers[current] += "\n" + line.strip()
        elif match is not None:
            current = match["name"]
            proper = _check_header(source, current, number)
            if proper is not None:
                misspelt.add(proper)
            _add_header(source, headers, current, match["value"].strip(), number)
        elif line.strip() not in ("", "---"):
            source.error(
                number,
                f"{line!r} is neither a header (Name: value), the continuation of one "
                "(indented), nor the beginning of the diff (--- a/vllm/...)",
            )
        else:
            current = None
    for required in REQUIRED_HEADERS:
        missing = required not in headers and required not in misspelt
        if missing or not headers.get(required, "-").strip():
            source.error(1, f"the header {required} is missing or empty")
    _check_date(source, headers.get("Last-Update"))
    _check_base(source, headers.get("Base"))
    _checkway(source, headers.get("Ported-From"))
    return headers


def _check_header(source: Source, name: str, number: int) -> str | None:
    """The known header that ``name`` misspells, after an error; ``None`` for any other."""
    proper = {known.lower(): known for known in KNOWN_HEADERS}.get(name.lower())
    if proper is None and not name.startswith("Bug-"):
        source.error(number, f"unknown header {name}; known are {', '.join(KNOWN_HEADERS)}")
    if proper is None or proper == name:
        return None
    source.error(number, f"the header {name} is spelt otherwise: write {proper}:")
    return proper


def _add_header(
    source: Source, headers: dict[str, str], name: str, value: str, number: int
) -> None:
    if name not in headers:
        headers[name] = value
    elif name in _REPEATED:
        headers[name] += "\n" + value
    else:
        source.error(number, f"the header {name} is there twice")


def _check_date(source: Source, value: str | None) -> None:
    if not value:
        return
    try:
        well_formed = date.fromisoformat(value).isoformat() == value
    except ValueError:
        well_formed = False
    if not well_formed:
        number = next(
            index for index, line in enumerate(source.lines, 1) if line.startswith("Last-Update:")
        )
        source.error(number, f"Last-Update is {value!r}, which is not a date (YYYY-MM-DD)")


def _check_base(source: Source, value: str | None) -> None:
    """A base is a release, so that its text can be had again."""
    if value is None:
        return
    try:
        parse_release(value)
    except ValueError as error:
        lines = enumerate(source.lines, 1)
        source.error(next(n for n, line in lines if line.startswith("Base:")), f"Base: {error}")


def way(value: str | None) -> Way | None:
    """How a variant was ported: the last word of its header."""
    word = (value or "").split()[-1:]
    return next((known for known in Way if [known.value] == word), None)


def _checkway(source: Source, value: str | None) -> None:
    """The last word decides whether the patch is applied, so it must be a known one."""
    if value is not None and way(value) is None:
        ways = ", ".join(known.value for known in Way)
        number = next(
            index for index, line in enumerate(source.lines, 1) if line.startswith("Ported-From:")
        )
        source.error(number, f"Ported-From: expected a release and one of {ways}, found {value!r}")
