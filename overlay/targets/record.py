"""RECORD: the files and hashes of a distribution, and the overlay's own rows in it."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from overlay.package import LEDGER_PATH
from overlay.untrusted import sha256

_OWNED = b"vllm/__init__.py,"


def owns_vllm(raw: bytes) -> bool:
    """Whether the distribution with this RECORD brought the package ``vllm``."""
    return raw.startswith(_OWNED) or b"\n" + _OWNED in raw


class Record(Mapping[str, str]):
    """Path to sha256 (hex) for the rows under ``vllm/``; read on first use, for it is long.

    Rows without a sha256, such as those of bytecode, are left out: nothing can be compared.  So
    are the overlay's own rows, for they tell nothing about the release.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._rows: dict[str, str] | None = None

    def _read(self) -> dict[str, str]:
        if self._rows is None:
            raw = release_part(self._raw)
            self._rows = dict(_rows(raw.decode("utf-8", "surrogateescape")))
        return self._rows

    def __getitem__(self, path: str) -> str:
        return self._read()[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def _rows(text: str) -> Iterator[tuple[str, str]]:
    for row in _fields(io.StringIO(text, newline="")):
        if len(row) < 2 or not row[0].startswith("vllm/"):
            continue
        digest = _digest(row[1])
        if digest is not None:
            yield row[0], digest


def _fields(lines: Iterable[str]) -> Iterator[list[str]]:
    """The rows of a RECORD; what is not CSV is left out, for RECORD is a stranger's data."""
    reader = csv.reader(lines)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            continue
        if row:
            yield row


def _digest(code: str) -> str | None:
    """The hexadecimal sha256 of a row's second field, ``None`` where it holds none."""
    algorithm, _, encoded = code.partition("=")
    try:
        digest = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except (binascii.Error, ValueError):
        return None
    return digest.hex() if algorithm == "sha256" and len(digest) == 32 else None


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
    for fields in _fields(record[start:].decode("utf-8", "surrogateescape").splitlines()):
        path, code, size = (*fields, "", "", "")[:3]
        # Only ASCII digits, and no more than Python turns into a number without complaint.
        counted = re.fullmatch("[0-9]{1,18}", size) is not None
        rows.append(Row(path, _digest(code), int(size) if counted else None))
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
        if next(_fields([line]), [""])[0] not in ours
    ]
    return "".join(kept).encode("utf-8", "surrogateescape")


def _block(record: bytes) -> int | None:
    """Where our block begins, or ``None``."""
    if record.startswith(_MARK):
        return 0
    found = record.find(b"\n" + _MARK)
    return None if found < 0 else found + 1
