"""The hash by which texts are compared, apart from the store, which not every process needs."""

from __future__ import annotations

import hashlib


def sha256(data: bytes) -> str:
    """The hexadecimal sha256 of ``data``."""
    return hashlib.sha256(data).hexdigest()
