"""RECORD, the list of files and hashes that an installer leaves beside a distribution."""

from __future__ import annotations

import base64
import binascii
import csv
import io
from collections.abc import Iterator, Mapping

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
            from overlay.transaction.record_rows import release_part

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
