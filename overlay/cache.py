"""The folder of everything that the overlay caches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def cache_folder() -> Path:
    """The folder of everything that the overlay caches: ``OVERLAY_CACHE``, or the user's cache."""
    if chosen := os.environ.get("OVERLAY_CACHE"):
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    import platformdirs

    return Path(platformdirs.user_cache_path("vllm-overlay", appauthor=False))
