"""Say why a foreign change has no base: no text among the releases that all its hunks fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

from overlay._features.model import Hunk
from overlay.authoring.incoming import IncomingFile
from overlay.authoring.locating import ReleaseTexts, before_it, having, replay, vague_hunk
from overlay.authoring.merge import occurrences
from overlay.errors import OverlayError
from overlay.planning.diff import common_ends
from overlay.planning.text import SourceText, TextError
from overlay.untrusted import printable

#: The share of a hunk's lines that a text must have to be called near.
_NEAR = 0.6
#: The most letters of a line that a sentence shows.
_WIDTH = 60


#: Bytes that are not UTF-8.
_FOREIGN = re.compile("[\udc80-\udcff]")

#: How to place a change by hand on the release that it is given, as a part of a sentence.
ByHand = Callable[[str], str]


class _Misfit(NamedTuple):
    """Where a hunk that does not fit a text comes nearest to it.

    :ivar alike: how many lines of its pre-image are there; :ivar line: 1-based, in the text, the
        first that differs.
    :ivar around: whether all that differs are lines around the change.
    """

    hunk: Hunk
    alike: int
    line: int
    expected: str
    present: str
    around: bool


def why(
    file: IncomingFile,
    texts: ReleaseTexts,
    following: Sequence[IncomingFile] = (),
    *,
    checkout: bool,
    by_hand: ByHand,
) -> str:
    """Why an edited file has no base, and what to do, in a sentence."""
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
    beside = ", nor in what --base names" if checkout else ""
    older = _older(file, texts)
    elsewhere = f"if it was made on a release before {texts.names[0]}, name that with --releases"
    if older is not None:
        return (
            f"{path} is not in {span} as the change has it, and {older} has it so: name that "
            f"release, --releases {older}"
        )
    if not present:
        return (
            f"{path} is not in {span}{beside}: if the change adds it, write `--- /dev/null` in the "
            "place of its old name; if an earlier change does, import both in one command; "
            f"{elsewhere}"
        )
    text = _foreign(file) or _with_it(file, present) or _spelt_otherwise(file, present)
    if text is not None:
        return text
    if file.old_blob is not None and not checkout:
        elsewhere = (
            "the text that it names by its id is in no release, so that it was made between two: "
            "give upstream's text with --base, a checkout that has the commit"
        )
    near = _nearest(file, present)
    if near is None:
        step = by_hand(next(reversed(present)))
        main = "" if checkout else "; if on upstream's main or a nightly, give its text with --base"
        return (
            f"the lines that it changes in {path} are not in {span}{beside}: {elsewhere}{main}; "
            f"{step}"
        )
    release, misfit = near
    around = (
        ", a line around the change, which `patch` passes over as fuzz" if misfit.around else ""
    )
    text, expected = _quote_both(misfit.present, misfit.expected)
    return (
        f"the hunk at line {misfit.hunk.patch_line} does not fit {path} in {span}{beside}; "
        f"the nearest text is that of {release}, whose line {misfit.line} is "
        f"{text} and not {expected}{around}: correct the diff, or {by_hand(release)}; "
        f"{elsewhere}"
    )


def _foreign(file: IncomingFile) -> str | None:
    """Why a change cannot be written whose new lines are not UTF-8; ``None`` where they are."""
    new = (text for hunk in file.hunks for op, text in hunk.lines if op == "+")
    foreign = next(filter(_FOREIGN.search, new), None)
    return foreign and (
        f"its new line {_quote(foreign)} is not UTF-8: it was saved in another encoding: save it "
        "as UTF-8, or get the mail itself"
    )


def _older(file: IncomingFile, texts: ReleaseTexts) -> str | None:
    """The newest release in the cache, of those that were not asked, that takes a change."""
    for name in reversed(texts.beside()):
        try:
            data = texts.read(name, file.path)
        except OverlayError:
            continue  # nobody asked for it
        if data is not None and replay(data, file.hunks) is not None:
            return name
    return None


def _spelt_otherwise(file: IncomingFile, present: dict[str, bytes]) -> str | None:
    """Why a change fits no text although its words do: white space, or another encoding."""
    for sense, form in (
        ("only by its white space", _words),
        ("only by its letters outside of ASCII", _ascii),
    ):
        release = next(
            (name for name in reversed(present) if _alike(file, present[name], form)), None
        )
        if release is None:
            continue
        lines = SourceText.from_bytes(present[release]).lines
        pres = (text for hunk in file.hunks for text in hunk.pre if text not in lines)
        expected = next(pres, None)
        if expected is None:
            continue  # its lines are there: it is the new ones that cannot be written there
        there = next(text for text in lines if form(text) == form(expected))
        how = (
            "its tabs or blanks were changed on the way: get it again as a file"
            if form is _words
            else "it was saved in another encoding: save it as UTF-8, or get the mail itself"
        )
        own, other = _quote_both(there, expected)
        return (
            f"{file.path} of {release} differs from the diff {sense}: it has {own} where the diff "
            f"has {other}; {how}"
        )
    return None


def _words(text: str) -> str:
    return " ".join(text.split())


def _ascii(text: str) -> str:
    return re.sub(r"[^\x00-\x7f]+", "?", text)


def _alike(file: IncomingFile, data: bytes, form: Callable[[str], str]) -> bool:
    """Whether a text has the lines of every hunk, read in some form."""
    try:
        lines = [form(text) for text in SourceText.from_bytes(data).lines]
    except TextError:
        return False
    return all(occurrences(lines, [form(text) for text in hunk.pre]) for hunk in file.hunks)


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
    """Why a change fits no text although the first has what it makes; ``None`` where it has not."""
    first, data = next(iter(present.items()))
    if before_it(data, [file]) is None:
        return None
    by_id = "; or give the text that it names by its id with --base" if file.old_blob else ""
    return (
        f"{file.path} of {first} reads as this change leaves it: the release has the "
        "change, or the diff is the wrong way round; to take the change back, turn the diff round "
        f"(`git diff -R`, `interdiff`){by_id}"
    )


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
            ops = [op for op, _ in hunk.lines if op != "+"]
            around = all(
                op == " " or window[n : n + 1] == [text]
                for n, (op, text) in enumerate(zip(ops, pre, strict=True))
            )
            nearest = _Misfit(hunk, alike, at + first + 1, pre[first], there, around)
    return nearest


def _quote(line: str, begin: int = 0) -> str:
    """A line of a text in a sentence, from one of its letters on."""
    text = printable(line)
    cut = text[begin : begin + _WIDTH]
    return repr(f"{'...' if begin else ''}{cut}{'...' if len(text) > begin + _WIDTH else ''}")


def _quote_both(line: str, other: str) -> tuple[str, str]:
    """Two lines in a sentence that shows where they differ."""
    alike, _ = common_ends(printable(line), printable(other))
    begin = 0 if alike < _WIDTH else alike - _WIDTH // 2
    return _quote(line, begin), _quote(other, begin)
