"""Files of a target that may be missing.

Apart from what writes, because each process of vLLM reads a ledger.
"""

from __future__ import annotations

from pathlib import Path

from overlay.hashing import sha256


def read(path: Path) -> bytes | None:
    """The bytes of a file, or ``None`` where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def digest(path: Path) -> str | None:
    """The sha256 of a file, or ``None`` where there is none."""
    data = read(path)
    return None if data is None else sha256(data)
