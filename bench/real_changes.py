"""Real changes: files that upstream changed from one release to the next.

A change is what happened to one file between two neighbouring releases.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlay._features.model import Hunk, blob_id
from overlay.authoring.composing import NotComposable, compose
from overlay.authoring.locating import ReleaseTexts
from overlay.package import KNOWN_RELEASES
from overlay.planning.scopes import UnparsableError
from overlay.planning.text import TextError
from overlay.targets.releases import CachedRelease
from overlay.targets.resolution import resolve

#: Larger changes and files take long, and say nothing else.
MOST_HUNKS = 8
MOST_LINES = 2500


def releases() -> ReleaseTexts:
    """The texts of every known release."""
    return ReleaseTexts(KNOWN_RELEASES, resolve)


def module_paths(texts: ReleaseTexts) -> list[list[str]]:
    """For each release the paths of its modules."""
    modules = []
    for name in texts.names:
        resolve(name)  # fetches it where it is not in the cache
        paths = CachedRelease.open(name).paths()
        modules.append(
            [path for path in paths if path.startswith("vllm/") and path.endswith(".py")]
        )
    return modules


@dataclass(frozen=True)
class RealChange:
    """What happened to one file from one release to the next.

    :ivar older: the release before; :ivar newer: the first release that has it.
    :ivar hunks: the change in the strict format.
    """

    path: str
    older: str
    newer: str
    before: bytes
    after: bytes
    hunks: tuple[Hunk, ...]

    @property
    def diff(self) -> bytes:
        """The change as git writes it."""
        old, new = (
            text.decode("utf-8").splitlines(keepends=True) for text in (self.before, self.after)
        )
        head = [
            f"diff --git a/{self.path} b/{self.path}\n",
            f"index {blob_id(self.before)[:12]}..{blob_id(self.after)[:12]} 100644\n",
        ]
        body = difflib.unified_diff(old, new, f"a/{self.path}", f"b/{self.path}")
        return "".join([*head, *body]).encode()

    @property
    def plain(self) -> bytes:
        """The change as a diff without the ids of blobs."""
        return plain_diff(self.path, self.before, self.after)


def plain_diff(path: str, before: bytes, after: bytes) -> bytes:
    """A diff without the ids of blobs."""
    old, new = (text.decode().splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")).encode()


def changes(texts: ReleaseTexts, paths: Sequence[Sequence[str]], each: int) -> Iterator[RealChange]:
    """A sample of the changes between neighbouring releases, always the same one.

    :param paths: for each release of ``texts`` the paths of its modules.
    :param each: how many for each step.
    """
    for number, (older, newer) in enumerate(zip(texts.names, texts.names[1:], strict=False)):
        shared = set(paths[number]) & set(paths[number + 1])
        taken = 0
        for path in sorted(shared, key=lambda path: hashlib.sha256(path.encode()).digest()):
            change = change_of(texts, path, older, newer)
            if change is not None:
                taken += 1
                yield change
            if taken == each:
                break


def change_of(texts: ReleaseTexts, path: str, older: str, newer: str) -> RealChange | None:
    """What happened to a file between two releases; ``None`` where it is no such change."""
    before, after = texts.read(older, path), texts.read(newer, path)
    if before is None or after is None or before == after or before.count(b"\n") > MOST_LINES:
        return None
    if path == "vllm/_version.py":  # the build writes it
        return None
    try:
        hunks = compose(before, after)
    except (NotComposable, TextError, UnparsableError):
        return None
    return (
        RealChange(path, older, newer, before, after, hunks) if len(hunks) <= MOST_HUNKS else None
    )


@dataclass(frozen=True)
class Tree:
    """One release."""

    texts: ReleaseTexts
    release: str

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; see ``overlay.package.Tree``."""
        return self.texts.read(self.release, path)


def write_figures(figures: Mapping[str, Any], place: Path | None) -> None:
    """Write what was measured as JSON: to a file, or to standard output where none is named."""
    text = json.dumps(figures, indent=1) + "\n"
    if place is None:
        sys.stdout.write(text)
    else:
        place.write_text(text, encoding="utf-8")
