"""Read what ``overlay import`` is given: files, standard input, URLs, and ranges of a checkout."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from overlay.authoring.git import Checkout
from overlay.authoring.incoming import MAX_BYTES, Commit, read_changes
from overlay.authoring.urls import fetch, is_url, page_of
from overlay.errors import UsageError, without_secrets
from overlay.settings import in_home
from overlay.untrusted import read_regular


@dataclass(frozen=True)
class ChangeSource:
    """One source of an import.

    :ivar name: what errors and headers call it.
    :ivar data: the bytes that ``commits`` were read from, which ``origin/`` keeps.
    :ivar upstream: the page of the pull request or commit that it is; empty for any other source.
    """

    name: str
    data: bytes
    commits: tuple[Commit, ...]
    upstream: str = ""


def read_source(text: str, *, each: bool = False) -> ChangeSource:
    """The change that a SOURCE of the command line names.

    :param text: a file, ``-``, the URL of a pull request or commit, or ``CHECKOUT@A..B``.
    :param each: keep commits apart where a source can be had as one diff or as several mails.
    """
    if text == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        return ChangeSource("standard input", data, read_changes(data, "standard input"))
    if is_url(text):
        return _from_url(text, each)
    if os.path.isdir(text):
        raise UsageError(
            f"{text}: expected a diff or mails of `git format-patch`, found a folder; name the "
            f"commits of a checkout as {text}@A..B, or the file in it"
        )
    data_of_file = read_regular(text, MAX_BYTES)
    if data_of_file is not None:
        return ChangeSource(text, data_of_file, read_changes(data_of_file, text))
    if (place := _range(text)) is not None:
        return _from_checkout(text, *place, each)
    raise UsageError(
        f"{without_secrets(text)}: expected a diff or mails of `git format-patch`, the URL of a "
        "pull request or commit, or CHECKOUT@A..B; found no such file"
    )


# URLs


def _from_url(url: str, each: bool) -> ChangeSource:
    """A pull request as one change: of several commits the sum, with the words of the first."""
    page = page_of(url)
    if page.mails is None:
        assert page.diff is not None, "a page has mails, a diff, or both"
        data = fetch(page.diff, MAX_BYTES)
        return ChangeSource(page.name, data, read_changes(data, page.name), page.name)
    data = fetch(page.mails, MAX_BYTES)
    commits = read_changes(data, page.name)
    if len(commits) > 1 and not each and page.diff is not None:
        # Merges into the branch are in no mail, so that the mails need not follow each other.
        data = fetch(page.diff, MAX_BYTES)
        commits = _summed(commits, data, page.name)
    return ChangeSource(page.name, data, commits, page.name)


def _summed(mails: tuple[Commit, ...], diff: bytes, name: str) -> tuple[Commit, ...]:
    """One commit with the words of the first mail and the files of a diff."""
    (whole,) = read_changes(diff, name)
    return (replace(mails[0], files=whole.files),)


# Checkouts


def _range(text: str) -> tuple[Path, str, str] | None:
    """Folder, ``A`` and ``B`` of ``CHECKOUT@A..B``; ``None`` where it has another form."""
    at = text.find("@")
    while at > 0:
        folder, revisions = in_home(text[:at]), text[at + 1 :]
        if ".." in revisions and folder.is_dir():
            first, _, last = revisions.partition("..")
            if not first or last.startswith("."):
                raise UsageError(
                    f"{text}: expected CHECKOUT@A..B, the commits behind A up to B (by default up "
                    f"to HEAD), found {revisions!r}"
                )
            return folder, first, last or "HEAD"
        at = text.find("@", at + 1)
    return None


def _from_checkout(text: str, folder: Path, first: str, last: str, each: bool) -> ChangeSource:
    checkout = Checkout(folder)
    begins, ends = checkout.commit(first), checkout.commit(last)
    name = f"{folder.resolve().name}@{first}..{last}"
    mails = checkout.mails(begins, ends)
    if not mails.strip():
        raise UsageError(f"{text}: expected commits behind {first} up to {last}, found none")
    commits = read_changes(mails, name)
    merges = checkout.merges(begins, ends)
    if not merges:
        return ChangeSource(name, mails, commits)
    if each:
        raise UsageError(
            f"{text}: expected commits that follow each other, found {merges} merges among them; "
            "import the sum without --each"
        )
    diff = checkout.diff(begins, ends)
    return ChangeSource(name, diff, _summed(commits, diff, name))
