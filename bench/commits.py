"""Draw commits of upstream's history at random, where a checkout of it is given.

A commit that changes one or a few modules gives a change for each of them, as a mail with its date
and message.  Which release has it first is told by the releases' texts alone: a checkout needs no
tags.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.real_changes import RealChange
from overlay.authoring.composing import NotComposable, compose
from overlay.authoring.git import Checkout
from overlay.authoring.locating import ReleaseTexts
from overlay.planning.scopes import UnparsableError
from overlay.planning.text import TextError

#: The most modules that a drawn commit changes, and the most hunks and new lines in one of them.
FILES, HUNKS, NEW_LINES = 3, 4, 60

_INDEX = re.compile(rb"^index [0-9a-f]+\.\.[0-9a-f]+.*\n", re.MULTILINE)
_FILE = re.compile(rb"^diff --git ", re.MULTILINE)


@dataclass(frozen=True)
class CommitChange(RealChange):
    """What a commit does to one module.

    :ivar mail: its headers and message, and the diff of this module.
    """

    mail: bytes = b""

    @property
    def diff(self) -> bytes:
        """The change as a mail of git with the ids of blobs."""
        return self.mail

    @property
    def plain(self) -> bytes:
        """The same without the ids."""
        return _INDEX.sub(b"", self.mail)


def draw_commits(
    texts: ReleaseTexts, checkout: Path, number: int, seed: int, package: str = "vllm"
) -> list[CommitChange]:
    """Changes of commits at random that lie between two of the releases.

    :raises UsageError: if it is not a checkout that git can read.
    """
    repository = Checkout(checkout)
    commits = [entry.commit for entry in repository.history(package)]
    random.Random(seed).shuffle(commits)
    drawn: list[CommitChange] = []
    for commit in commits:
        if len(drawn) >= number:
            break
        drawn += _changes(repository, commit, texts, package)
    return drawn[:number]


def _changes(
    repository: Checkout, commit: str, texts: ReleaseTexts, package: str
) -> Iterator[CommitChange]:
    """The modules that a commit edits, each as a change between two releases."""
    head, *parts = _split(repository.mail(commit))
    edited = [part for part in parts if _path(part).startswith(f"{package}/")]
    if not 0 < len(edited) <= FILES or not all(_path(part).endswith(".py") for part in edited):
        return
    for part in edited:
        ids = re.search(rb"^index ([0-9a-f]+)\.\.([0-9a-f]+) \d+$", part, re.MULTILINE)
        before, after = (
            (repository.blob(each.decode()) for each in ids.groups()) if ids else (b"", b"")
        )
        if not before or not after:
            continue  # added, removed or renamed
        try:
            hunks = compose(before, after)
        except (NotComposable, TextError, UnparsableError):
            continue
        added = {text.strip() for hunk in hunks for op, text in hunk.lines if op == "+"}
        between = _between(_path(part), before, added, texts)
        if len(hunks) <= HUNKS and len(added) <= NEW_LINES and between is not None:
            yield CommitChange(_path(part), *between, before, after, hunks, head + part)


def _split(mail: bytes) -> list[bytes]:
    """The headers and message of a mail, and the diff of each file."""
    starts = [match.start() for match in _FILE.finditer(mail)]
    return [mail[a:b] for a, b in zip([0, *starts], [*starts, len(mail)], strict=True)]


def _path(part: bytes) -> str:
    """The path that a diff leaves; empty where it removes the file."""
    match = re.search(rb"^\+\+\+ b/(.+)$", part, re.MULTILINE)
    return match[1].decode("utf-8", "replace") if match else ""


def _between(
    path: str, before: bytes, added: set[str], texts: ReleaseTexts
) -> tuple[str, str] | None:
    """The last release without a change's new lines, and the next, which has all of them."""
    new = added - {line.strip() for line in before.decode("utf-8", "replace").splitlines()}
    lines = [
        {
            line.strip()
            for line in (texts.read(name, path) or b"").decode("utf-8", "replace").splitlines()
        }
        for name in texts.names
    ]
    steps: Sequence[int] = range(1, len(lines))
    for at in steps:
        if new and new <= lines[at] and not new & lines[at - 1] and lines[at - 1]:
            return texts.names[at - 1], texts.names[at]
    return None
