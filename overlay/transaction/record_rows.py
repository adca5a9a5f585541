"""Our rows in RECORD, by which pip and uv take our files away together with vLLM.  Pure.

They stand at the end as one block, which the ledger's row opens.  The rows of the files that we
change keep the release's hash: it is what tells the release's own file from another.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass

from overlay.hashing import sha256
from overlay.transaction.ledger import LEDGER_PATH

_MARK = LEDGER_PATH.encode() + b","


@dataclass(frozen=True)
class Row:
    """One file of ours; ``sha256`` is ``None`` where the row cannot know it, as the ledger's."""

    path: str
    sha256: str | None = None
    size: int | None = None


def release_part(record: bytes) -> bytes:
    """RECORD without our block: what the installer wrote about the release."""
    start = _block(record)
    return record if start is None else record[:start]


def our_rows(record: bytes) -> tuple[Row, ...]:
    """The rows of our block, the ledger's first; none where there is no block."""
    start = _block(record)
    if start is None:
        return ()
    rows = []
    for fields in csv.reader(record[start:].decode("utf-8", "surrogateescape").splitlines()):
        if not fields:
            continue
        path, code, size = (*fields, "", "", "")[:3]
        digest = None
        if code.startswith("sha256="):
            code = code[len("sha256=") :]
            digest = base64.urlsafe_b64decode(code + "=" * (-len(code) % 4)).hex()
        rows.append(Row(path, digest, int(size) if size.isdigit() else None))
    return tuple(rows)


def with_rows(record: bytes, rows: Iterable[Row]) -> bytes:
    """RECORD with our block in its place; ``rows`` come after the ledger's, which has no hash."""
    base = release_part(record)
    end = "\r\n" if base.endswith(b"\r\n") else "\n"
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=end)
    for row in (Row(LEDGER_PATH), *rows):
        code, size = "", ""
        if row.sha256 is not None:
            raw = base64.urlsafe_b64encode(bytes.fromhex(row.sha256)).rstrip(b"=")
            code = "sha256=" + raw.decode()
        if row.size is not None:
            size = str(row.size)
        writer.writerow([row.path, code, size])
    block = out.getvalue().encode("utf-8", "surrogateescape")
    gap = end.encode() if base and not base.endswith(b"\n") else b""
    return base + gap + block


def without_rows(record: bytes, before: str | None, paths: Iterable[str]) -> bytes:
    """RECORD as it was before us.

    :param before: sha256 of RECORD before us; the result has it where nobody else wrote since.
    :param paths: the paths of our rows; where somebody did, just their rows are taken out.
    """
    ours = {LEDGER_PATH, *paths}
    base = release_part(record)
    if {row.path for row in our_rows(record)} <= ours:
        for candidate in (base, base.removesuffix(b"\n"), base.removesuffix(b"\r\n")):
            if sha256(candidate) == before:
                return candidate
    kept = [
        line
        for line in record.decode("utf-8", "surrogateescape").splitlines(keepends=True)
        if next(csv.reader([line]), [""])[0] not in ours
    ]
    return "".join(kept).encode("utf-8", "surrogateescape")


def _block(record: bytes) -> int | None:
    """Where our block begins, or ``None``."""
    if record.startswith(_MARK):
        return 0
    found = record.find(b"\n" + _MARK)
    return None if found < 0 else found + 1
