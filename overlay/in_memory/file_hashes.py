"""The files that a plan looks at, by their hashes: whether a plan of a moment ago still holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from overlay.errors import TargetError
from overlay.untrusted import sha256

if TYPE_CHECKING:
    from overlay.package import Tree
    from overlay.targets.target import Target


class ReferencedPaths:
    """The paths of a package that features name, read off their files without parsing them.

    A path in an unusual form is not seen; ``Recording`` sees it when the plan reads the file.

    :param package: its import name.
    """

    def __init__(self, package: str) -> None:
        self.paths: set[str] = set()
        # No data classes, and nothing compiled ahead: a process without features pays for it, too.
        self._patched = rf"(?m)^\+\+\+ (?:b/)?({package}/[^\t\r\n]+)".encode()
        self._tested = rf"""["']({package}/[^"'\r\n]+)["']""".encode()
        self._added = rf"(?:^|/)files/({package}/.+)$"

    def scan(self, name: str, data: bytes) -> None:
        """Look at one file of a patches folder."""
        if name.endswith(".patch"):
            self._add(re.findall(self._patched, data))
        elif name.endswith("feature.toml"):
            self._add(re.findall(self._tested, data))
        elif added := re.search(self._added, name):
            self.paths.add(added[1])

    def _add(self, paths: Iterable[bytes]) -> None:
        self.paths.update(path.decode(errors="replace") for path in paths)

    def hashes(self, target: Target) -> dict[str, str | None]:
        """The sha256 of each of those files as it is now, ``None`` where there is none."""
        return {path: _hash(target, path) for path in sorted(self.paths)}


def _hash(target: Target, path: str) -> str | None:
    try:
        data = target.read(path)
    except TargetError as error:  # a plan that needs the file raises it again
        return f"cannot be read: {error}"
    return None if data is None else sha256(data)


class Recording:
    """A tree that remembers the sha256 of what was read of it, ``None`` for what is not there."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.read_so_far: dict[str, str | None] = {}

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``, as the tree has them."""
        data = self._tree.read(path)
        self.read_so_far[path] = None if data is None else sha256(data)
        return data


def as_it_stands(
    recorded: Mapping[str, str | None], recent: Mapping[str, str | None], target: Target
) -> bool:
    """Whether the files that a plan has read are still what they were.

    :param recent: hashes of a moment ago; of a path that is not among them the file is read.
    """
    for path, expected in recorded.items():
        if (recent[path] if path in recent else _hash(target, path)) != expected:
            return False
    return True
