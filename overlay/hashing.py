"""The hash by which files and texts are compared, apart from what reads and writes them."""

from __future__ import annotations

import hashlib


def sha256(data: bytes) -> str:
    """The hexadecimal sha256 of ``data``."""
    return hashlib.sha256(data).hexdigest()
