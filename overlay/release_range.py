"""Closed ranges of releases.

Apart from releases, because a process of vLLM that has nothing to plan does without the data class.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import Version

from overlay.releases import parse_release

_RANGE = re.compile(r"^(?P<first>[^.\s][^\s]*?)\.\.(?P<last>[^.\s][^\s]*)$")


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
