"""What the tests of the private store keep in it."""

from __future__ import annotations

TEXTS: dict[str, tuple[bytes, str | None]] = {
    "vllm/a.py": (b"VALUE = 1\n", "0" * 64),
    "vllm/new/__init__.py": (b"def f():\n    return 2\n", None),
    "vllm/v1/spec_decode/b.py": (b"VALUE = 3\n", "1" * 64),
}
