"""What is patched: the releases of vLLM, ranges of them, and the paths that a patch may reach."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from packaging.version import InvalidVersion, Version

from overlay.errors import TargetError


class Tree(Protocol):
    """The files of a target, as far as planning needs them."""

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``, or ``None`` if the file does not exist."""


#: The releases that the shipped features are made and tested for, oldest first
#: (all of 0.20 to 0.33 on the package index on 2026-11-20).
KNOWN_RELEASES = tuple(
    "0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 "
    "0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0".split()
)


def parse_release(text: str) -> Version:
    """The release that a version string names, without its local label (``0.26.0+cpu``).

    :raises ValueError: if it is not a version.
    """
    try:
        return Version(Version(text).public)
    except InvalidVersion as error:
        raise ValueError(f"{text!r} is not a release number, such as 0.26.0") from error


def same_release(version: Version) -> Version:
    """The one spelling of a version: at least three numbers, no needless zero behind them.

    >>> str(same_release(Version("0.26"))), str(same_release(Version("v0.26.0.0+cpu")))
    ('0.26.0', '0.26.0+cpu')
    """
    numbers = list(version.release) + [0] * (3 - len(version.release))
    while len(numbers) > 3 and numbers[-1] == 0:
        numbers.pop()
    epoch = f"{version.epoch}!" if version.epoch else ""
    behind = str(version).removeprefix(version.base_version)
    return Version(f"{epoch}{'.'.join(map(str, numbers))}{behind}")


_RANGE = re.compile(r"^(?P<first>[^.\s][^\s]*?)\.\.(?P<last>[^.\s][^\s]*)$")


class ReleaseRange(NamedTuple):
    """A range of releases, closed at both ends, written ``first..last``."""

    first: Version
    last: Version

    @classmethod
    def parse(cls, text: str) -> ReleaseRange:
        """Read ``0.20.0..0.23.0``.

        :raises ValueError: if an end is open or missing, is not a release, or the ends are swapped.
        """
        match = _RANGE.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not a closed range of releases, such as 0.20.0..0.23.0")
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


def path_problem(path: str) -> str | None:
    """Why a path may not be patched or added, or ``None`` if it may.

    A patch reaches Python modules inside ``vllm/`` and nothing else.
    """
    parts = path.split("/")
    if not path or path.startswith("/") or re.match(r"^[A-Za-z]:", path):
        return f"{path!r} is not relative to the folder that holds vllm/"
    if ".." in parts or "." in parts or "" in parts:
        return f"{path!r} has an empty part, '.' or '..' in it"
    if "\\" in path or not path.isprintable():
        return f"{path!r} has a backslash or a control character in it"
    if parts[0] != "vllm" or len(parts) < 2:
        return f"{path!r} lies outside vllm/"
    if not path.endswith(".py"):
        return f"{path!r} is no Python module (.py)"
    return None


def folder_problem(path: str) -> str | None:
    """Why a feature could not have added the folder ``path``, or ``None`` if it could."""
    return path_problem(f"{path}/__init__.py") or (
        f"{path!r} is not a folder inside vllm/" if path == "vllm" else None
    )


def check_path(path: str) -> None:
    """Refuse a path that is not plainly inside ``vllm/``.

    :raises TargetError: if it is absolute, has ``..`` or lies elsewhere.
    """
    parts = path.split("/")
    if parts[0] != "vllm" or len(parts) < 2 or "\\" in path or "\0" in path:
        raise TargetError(f"{path!r}: expected a path inside vllm/, such as vllm/v1/utils.py")
    if any(part in ("", ".", "..") for part in parts):
        raise TargetError(f"{path!r}: expected a plain path inside vllm/, without '.' and '..'")


STATE_FOLDER = ".vllm-overlay"

LEDGER_PATH = f"{STATE_FOLDER}/ledger.json"


def inside(path: object) -> str:
    """``path`` itself, if it is plainly inside the target.

    :raises ValueError: if it is absolute, has ``..`` or ``.`` parts, or is not text.
    """
    text = require_text(path)
    if "\\" in text or "\0" in text or any(part in ("", ".", "..") for part in text.split("/")):
        raise ValueError(f"path {text!r} leaves the target")
    return text


def require_text(value: object) -> str:
    """``value`` itself, if it is a text.

    :raises TypeError: if it is something else.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value
