"""``overlay import``: a foreign change becomes a feature in a folder of patches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import UsageError
from overlay.package import KNOWN_RELEASES
from overlay.report.imported import ImportedFile, ImportReport, concluded

if TYPE_CHECKING:
    from overlay.authoring.importing import Summary
    from overlay.targets.target import Progress


def import_change(
    sources: Sequence[str],
    id_: str,
    patches: Path,
    *,
    releases: str | None = None,
    checkout: Path | None = None,
    partial: bool = False,
    update: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Make a feature of diffs or mails, and write it below ``patches``.

    :param sources: files, ``-`` for standard input; laid on each other in their order.
    :param releases: as ``--releases`` takes them; default: every known release.
    :param checkout: a checkout of vLLM with the text that the change was made on.
    :param partial: leave out what Python alone cannot carry, instead of refusing it.
    :param update: replace a feature of that id.
    :raises UsageError: if a source is not a diff, or holds what no feature can carry.
    :raises OverlayError: if a release cannot be read, or the folder cannot be written.
    """
    from overlay.authoring.importing import prepare
    from overlay.authoring.incoming import read_changes
    from overlay.authoring.locating import ReleaseTexts
    from overlay.authoring.writing import write_folder
    from overlay.planning.scope_cache import Memo
    from overlay.targets.resolution import releases as named
    from overlay.targets.resolution import resolve

    texts = [(_name(source), _read(source)) for source in sources]
    commits = [commit for name, data in texts for commit in read_changes(data, name)]
    names = KNOWN_RELEASES if releases is None else named(releases)
    prepared = prepare(
        commits,
        id_,
        ReleaseTexts(names, lambda release: resolve(release, progress=progress)),
        source=texts[0][0],
        verbatim=b"".join(data for _, data in texts),
        today=datetime.now().astimezone().date().isoformat(),
        checkout=checkout,
        partial=partial,
        syntax=Memo(),
    )
    folder = prepared.folder
    written = None if folder is None else write_folder(folder, patches, update=update)
    return _report(prepared.summary, written)


def _report(summary: Summary, folder: Path | None) -> ImportReport:
    span = None if summary.releases is None or folder is None else str(summary.releases)
    problems = len(summary.problems)
    return ImportReport(
        concluded(summary.id, folder, span, summary.review, problems),
        feature=summary.id,
        title=summary.title,
        commits=summary.commits,
        files=tuple(
            ImportedFile(entry.path, entry.fate.value, entry.base, entry.hunks, entry.problem)
            for entry in summary.files
        ),
        outcomes=tuple(summary.outcomes.items()),
        releases=span,
        merged=summary.merged,
        folder=folder,
    )


def _name(source: str) -> str:
    return "standard input" if source == "-" else source


def _read(source: str) -> bytes:
    """The bytes of a source.

    :raises UsageError: if it is not a file that can be read.
    """
    from overlay.authoring.incoming import MAX_BYTES
    from overlay.untrusted import read_regular

    if source == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    data = read_regular(source, MAX_BYTES)
    if data is None:
        raise UsageError(
            f"{source}: expected a diff or mails of `git format-patch`, found no such file"
        )
    return data
