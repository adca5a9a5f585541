"""Releases of vLLM and closed ranges of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

#: The releases that the shipped features are made and tested for, oldest first
#: (all of 0.20 to 0.33 on the package index on 2026-11-20).
KNOWN_RELEASES = tuple(
    "0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 "
    "0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0".split()
)

_RANGE = re.compile(r"^(?P<first>[^.\s][^\s]*?)\.\.(?P<last>[^.\s][^\s]*)$")


def parse_release(text: str) -> Version:
    """The release that a version string names, without its local label (``0.26.0+cpu``).

    :raises ValueError: if it is no version.
    """
    try:
        return Version(Version(text).public)
    except InvalidVersion as error:
        raise ValueError(f"{text!r} is no release number, such as 0.26.0") from error


@dataclass(frozen=True, order=True)
class ReleaseRange:
    """A range of releases, closed at both ends, written ``first..last``."""

    first: Version
    last: Version

    @classmethod
    def parse(cls, text: str) -> ReleaseRange:
        """Read ``0.20.0..0.23.0``.

        :raises ValueError: if an end is open or missing, is no release, or the ends are swapped.
        """
        match = _RANGE.match(text)
        if match is None:
            raise ValueError(f"{text!r} is no closed range of releases, such as 0.20.0..0.23.0")
        first, last = parse_release(match["first"]), parse_release(match["last"])
        if first.is_prerelease or last.is_prerelease:
            raise ValueError(f"{text!r} ends at a pre-release; a range holds releases only")
        if last < first:
            raise ValueError(f"{text!r} ends before it begins")
        return cls(first, last)

    def __contains__(self, release: object) -> bool:
        """Whether it is a release of the range; a pre- or dev-release never is."""
        return (
            isinstance(release, Version)
            and not release.is_prerelease
            and self.first <= release <= self.last
        )

    def overlaps(self, other: ReleaseRange) -> bool:
        """Whether some release could lie in both."""
        return self.first <= other.last and other.first <= self.last

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"
