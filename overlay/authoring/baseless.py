"""Say why a foreign change has no base: no text among the releases that all its hunks fit."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

from overlay._features.model import Hunk
from overlay.authoring.incoming import IncomingFile
from overlay.authoring.locating import ReleaseTexts, having, replay, vague_hunk
from overlay.planning.text import SourceText, TextError
from overlay.untrusted import printable

#: The share of a hunk's lines that a text must have to be called near.
_NEAR = 0.6
#: The most letters of a line that a sentence shows.
_WIDTH = 60
_SWAPPED = {"+": "-", "-": "+"}


class _Misfit(NamedTuple):
    """Where a hunk that does not fit a text comes nearest to it.

    :ivar alike: how many lines of its pre-image are there; :ivar line: 1-based, in the text, the
        first that differs; :ivar expected: what the hunk has there; :ivar present: what is there.
    """

    hunk: Hunk
    alike: int
    line: int
    expected: str
    present: str


def why(
    file: IncomingFile,
    texts: ReleaseTexts,
    following: Sequence[IncomingFile] = (),
    *,
    checkout: bool,
) -> str:
    """Why an edited file has no base, and what to do, in a sentence.

    :param following: further changes of the file, on top of the first.
    :param checkout: whether a checkout was looked at as well.
    :raises OverlayError: if a release cannot be read.
    """
    path = file.path
    if (vague := vague_hunk(file, texts)) is not None:
        return (
            f"the hunk at line {vague.patch_line} has no lines around its change, and what it "
            f"changes in {path} is not at one place alone in a release: make the diff with "
            "context, or with the ids of blobs (`git diff --full-index`)"
        )
    if (pair := _overlapping(file.hunks)) is not None:
        return (
            f"the hunk at line {pair[1].patch_line} is of lines that the hunk at line "
            f"{pair[0].patch_line} changes too, by their numbers in {path}, and their own lines "
            "do not tell one place for each: correct the numbers, or make two changes of them"
        )
    if having_it := having(file, texts, following):
        return (
            f"each release in which its lines of {path} are found ({', '.join(having_it)}) has its "
            "new lines already, so that upstream has the change there: for another release give "
            "the text that it was made on with --base, a checkout, or make the diff with the ids "
            "of blobs (`git diff --full-index`)"
        )
    span = "..".join(dict.fromkeys((texts.names[0], texts.names[-1])))
    present = {name: data for name in texts.names if (data := texts.read(name, path)) is not None}
    beside = ", nor in the checkout" if checkout else ""
    if not present:
        return (
            f"{path} is not in {span}{beside}: if the change adds it, write `--- /dev/null` in the "
            "place of its old name; if an earlier change does, import both in one command; if it "
            "was made on another release, name that with --releases"
        )
    elsewhere = "if it was made on another release, name that with --releases"
    if file.old_blob is not None and not checkout:
        elsewhere += (
            "; if it was made between releases, give upstream's text with --base, a checkout that "
            "has the commit"
        )
    if (release := _with_it(file, present)) is not None:
        return (
            f"{path} of {release} reads as this change leaves it: the release has the change, or "
            f"the diff is the wrong way round; {elsewhere}"
        )
    near = _nearest(file, present)
    if near is None:
        return f"the lines that it changes in {path} are not in {span}{beside}: {elsewhere}"
    release, misfit = near
    return (
        f"the hunk at line {misfit.hunk.patch_line} does not fit {path} in {span}{beside}; "
        f"the nearest text is that of {release}, whose line {misfit.line} is "
        f"{_quote(misfit.present)} and not {_quote(misfit.expected)}: correct the diff, or "
        f"edit a copy of the release and run `overlay new ID --from-edits`; {elsewhere}"
    )


def _overlapping(hunks: Sequence[Hunk]) -> tuple[Hunk, Hunk] | None:
    """Two hunks that change the same lines by their numbers; ``None`` where there are none."""
    return next(
        (
            (before, hunk)
            for before, hunk in pairwise(hunks)
            if before.source_line <= hunk.source_line < before.source_line + len(before.pre)
        ),
        None,
    )


def _with_it(file: IncomingFile, present: dict[str, bytes]) -> str | None:
    """The first release that has the text after the change; ``None`` where none has."""
    if not all(hunk.post for hunk in file.hunks):
        return None  # what is nowhere would be everywhere
    undone = [
        hunk._replace(
            lines=tuple((_SWAPPED.get(op, op), text) for op, text in hunk.lines),
            pre_unfinished=hunk.post_unfinished,
            post_unfinished=hunk.pre_unfinished,
        )
        for hunk in file.hunks
    ]
    return next((name for name, data in present.items() if replay(data, undone) is not None), None)


def _nearest(file: IncomingFile, present: dict[str, bytes]) -> tuple[str, _Misfit] | None:
    """The release whose text is nearest to the change, the newest first, and where it differs."""
    best: tuple[str, _Misfit] | None = None
    texts_seen: set[bytes] = set()
    for name in reversed(present):
        data = present[name]
        if data in texts_seen:
            continue
        texts_seen.add(data)
        try:
            lines = SourceText.from_bytes(data).lines
        except TextError:
            continue
        misfits = [each for hunk in file.hunks if (each := _misfit(hunk, lines)) is not None]
        if not misfits:
            continue
        worst = min(misfits, key=_nearness)
        if _nearness(worst)[0] >= _NEAR and (best is None or _nearness(worst) > _nearness(best[1])):
            best = name, worst
    return best


def _nearness(misfit: _Misfit) -> tuple[float, float]:
    """The share of a hunk's lines that are there, and how like the first other line is."""
    like = SequenceMatcher(None, misfit.expected, misfit.present, autojunk=False)
    return misfit.alike / len(misfit.hunk.pre), like.quick_ratio()


def _misfit(hunk: Hunk, lines: Sequence[str]) -> _Misfit | None:
    """How a hunk differs from a text where they come nearest; ``None`` where it fits."""
    pre = hunk.pre
    nearest: _Misfit | None = None
    for at in range(max(1, len(lines) - len(pre) + 1)):
        window = list(lines[at : at + len(pre)])
        alike = sum(expected == other for expected, other in zip(pre, window, strict=False))
        if alike == len(pre):
            return None
        if nearest is None or alike > nearest.alike:
            first = next(n for n, text in enumerate(pre) if window[n : n + 1] != [text])
            there = window[first] if first < len(window) else "the end of the file"
            nearest = _Misfit(hunk, alike, at + first + 1, pre[first], there)
    return nearest


def _quote(line: str) -> str:
    """A line of a text in a sentence."""
    text = printable(line)
    return repr(text if len(text) <= _WIDTH else f"{text[:_WIDTH]}...")
