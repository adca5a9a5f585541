"""Releases of vLLM."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

#: The releases that the shipped features are made and tested for, oldest first
#: (all of 0.20 to 0.33 on the package index on 2026-11-20).
KNOWN_RELEASES = tuple(
    "0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 "
    "0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0".split()
)


def parse_release(text: str) -> Version:
    """The release that a version string names, without its local label (``0.26.0+cpu``).

    :raises ValueError: if it is no version.
    """
    try:
        return Version(Version(text).public)
    except InvalidVersion as error:
        raise ValueError(f"{text!r} is no release number, such as 0.26.0") from error
