"""RECORD: the files and hashes of a distribution, and the overlay's own rows in it."""

from __future__ import annotations

import base64
import binascii
import csv
import io
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
    for row in csv.reader(io.StringIO(text, newline="")):
        if len(row) < 2 or not row[0].startswith("vllm/") or not row[1].startswith("sha256="):
            continue
        encoded = row[1][len("sha256=") :]
        try:
            digest = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        except (binascii.Error, ValueError):
            continue
        if len(digest) == 32:
            yield row[0], digest.hex()


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
