"""Where the features lie that come with the overlay; apart, because each process of vLLM asks."""

from __future__ import annotations

from pathlib import Path

from overlay.errors import OverlayError


def shipped_folder() -> Path:
    """The folder of the features that come with the overlay.

    :raises OverlayError: if this installation lacks it.
    """
    here = Path(__file__).resolve().parent
    packaged = here / "patches"
    if packaged.is_dir():
        return packaged
    checkout = here.parent / "patches"
    if checkout.is_dir() and (here.parent / "setup.py").is_file():
        return checkout
    raise OverlayError(
        f"expected the shipped patches at {packaged}, found none; reinstall vllm-overlay"
    )
