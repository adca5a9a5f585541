"""The texts of one conflict: base, yours, the release's, the merge, and views of the scopes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from overlay._features.model import FILE_SCOPE, MODULE_SCOPE, Hunk
from overlay.authoring.carry import CarriedHunk
from overlay.authoring.merge import Merge, Region, Side, merge, occurrences
from overlay.authoring.porting import TopicPort, base_name
from overlay.package import package_named
from overlay.planning.attempt import Texts
from overlay.planning.matching import edits, final_newline_after
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.text import Edit, SourceText, TextError
from overlay.results import Outcome, State

#: Lines that are shown around a change.
_CONTEXT = 3

#: A run of lines as ``difflib`` tells it: what became of it, and where it is in both texts.
_Opcode = tuple[str, int, int, int, int]

#: The most lines that a view of what upstream changed in a scope has, and one of a conflict.
_MOST = 40

#: What a marker of a conflict begins with; all have seven characters.
MARKERS = ("<<<<<<< ", "||||||| ", "=======", ">>>>>>> ")


@dataclass(frozen=True)
class Conflict:
    """The four texts of a topic that a person resolves or reviews.

    :ivar base: of the release that the variant was made on; :ivar yours: with the hunks applied.
    :ivar release: of the release, with every hunk that lands there.
    :ivar merged: what to edit; conflicts between markers.
    """

    base: bytes
    yours: bytes
    release: bytes
    merged: bytes

    @property
    def marked(self) -> bool:
        """Whether conflicts are left between markers."""
        return bool(marker_lines(self.merged))


def marker_lines(data: bytes) -> list[int]:
    """The 1-based lines that are markers of a conflict."""
    return [
        number
        for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1)
        if line.rstrip("\r") == "=======" or line.startswith(("<<<<<<< ", "||||||| ", ">>>>>>> "))
    ]


def conflict(port: TopicPort, release: str) -> Conflict | None:
    """The texts of a topic; ``None`` where the release, or the base, has no such file."""
    if port.origin is None or port.before is None or port.after is None:
        return None
    stuck = [each for each in port.hunks if each.outcome in (Outcome.CONFLICT, Outcome.MISSING)]
    yours = with_hunks(port.origin, [each.hunk for each in stuck])
    if yours is None:
        return None
    try:
        base, ours, theirs = (
            SourceText.from_bytes(data) for data in (port.origin, yours, port.after)
        )
    except TextError:
        return None
    title = package_named(port.path.partition("/")[0]).title
    origin = base_name(port.base)
    labels = (
        f"yours ({port.variant.patch.name if origin == port.base else port.topic})",
        origin if origin != port.base else f"{title} {origin}",
        f"{title} {release}",
    )
    whole = merge(base.lines, ours.lines, theirs.lines).marked(*labels)
    scoped = _in_scopes(stuck, theirs, labels) or whole
    spare = 0 if all(each.merge is not None for each in stuck) else _MOST
    lines = scoped if len(scoped) + spare < len(whole) else whole
    return Conflict(port.origin, yours, port.after, _text(lines, theirs))


def _in_scopes(
    stuck: Sequence[CarriedHunk], theirs: SourceText, labels: tuple[str, str, str]
) -> Sequence[str] | None:
    """The release's text with each conflict inside its scope; ``None`` where that is not told.

    What has no scope there stands at the end.  Where upstream moved a class, a merge of the whole
    file sets all of it against nothing.
    """
    splices = []
    for each in stuck:
        text = each.merge
        if text is None or each.line is None:
            alone = Region(Side.CONFLICT, tuple(each.hunk.pre), tuple(each.hunk.post), ())
            end = len(theirs.lines)
            splices.append(Edit(end, end, Merge((alone,)).marked(*labels)))
            continue
        there = tuple(line for region in text.regions for line in region.theirs)
        place = range(each.line - 1, each.line - 1 + len(there))
        if theirs.lines[place.start : place.stop] != there:
            return None
        splices.append(Edit(place.start, place.stop, text.marked(*labels)))
    try:
        return theirs.splice(splices).lines
    except TextError:  # two of one scope
        return None


def _text(lines: Sequence[str], like: SourceText) -> bytes:
    """A text of lines that ends them as another one does, in its encoding."""
    end = "\r\n" if like.ends and like.ends[0] == "\r\n" else "\n"
    text = end.join(lines) + (end if like.final_newline and lines else "")
    return text.encode(like.encoding, "replace")


def with_hunks(text: bytes, hunks: Sequence[Hunk]) -> bytes | None:
    """A text with hunks that are made on it; ``None`` where one is not."""
    texts = Texts(Syntax())
    splices: list[Edit] = []
    ending: bool | None = None
    for hunk in hunks:
        match = texts.match(hunk, text)
        if match.state is not State.PRISTINE or match.line is None:
            return None
        splices += edits(hunk, match.line - 1)
        ending = final_newline_after(hunk) if ending is None else ending
    try:
        return texts.source(text).splice(splices, ending).to_bytes()
    except TextError:
        return None


def placed_before(port: TopicPort, release: str) -> bytes | None:
    """The merge with each conflict settled in the plainest way: upstream's lines behind yours.

    It is a proposal: of the conflicts that people resolved 31 % came to that.
    """
    texts = conflict(port, release)
    if texts is None:
        return None
    sides = [SourceText.from_bytes(data) for data in (texts.base, texts.yours, texts.release)]
    result: Merge = merge(*(side.lines for side in sides))
    lines: list[str] = []
    for region in result.regions:
        if region.side is Side.CONFLICT:
            base_lines = set(region.base)
            lines += [line for line in region.ours if line not in base_lines]
        lines += region.lines
    return _text(lines, sides[2])


def hunk_view(hunk: Hunk) -> tuple[str, ...]:
    """A hunk's own lines, as its patch has them; of a whole file what becomes of it."""
    if hunk.whole is not None:
        after = hunk.whole.after
        return ("the file is removed" if after is None else f"{len(after)} bytes in its place",)
    return tuple(f"{op}{text}" for op, text in hunk.lines)


def upstream_view(port: TopicPort, hunk: Hunk) -> tuple[str, ...]:
    """What upstream changed in a hunk's scope since the base, as the lines of a diff.

    Of a whole module only what may have moved the hunk is shown: changes at the module's level, and
    those of the hunk's own lines.
    """
    if port.before is None:
        return ("the release has no such file",)
    if port.origin is None:
        return ()
    base, release = _scope(port.origin, hunk.scope), _scope(port.before, hunk.scope)
    if not release.lines:
        return (f"the release has no {hunk.scope}",)
    matcher = difflib.SequenceMatcher(None, base.lines, release.lines)
    groups = list(matcher.get_grouped_opcodes(_CONTEXT))
    own = _own_lines(hunk, base.lines)
    own_groups = [group for group in groups if _concerns(group, base, release, own)]
    near = _near(own_groups, own)
    lines = [line for group in near for line in _diff(group, base.lines, release.lines)]
    lines = list(_bounded(lines))
    if far_count := len(own_groups) - len(near):
        what = "change lies" if far_count == 1 else "changes lie"
        lines.append(f"({far_count} other {what} further away in {hunk.scope})")
    if inner_count := len(groups) - len(own_groups):
        what = "change lies" if inner_count == 1 else "changes lie"
        lines.append(f"({inner_count} other {what} inside functions and classes)")
    return tuple(lines)


def _near(groups: Sequence[Sequence[_Opcode]], own: range) -> list[Sequence[_Opcode]]:
    """The changes nearest to a hunk's own lines, in their order: so many as a view has room for."""

    def distance(group: Sequence[_Opcode]) -> int:
        return max(group[0][1] - own.stop, own.start - group[-1][2], 0)

    near: list[Sequence[_Opcode]] = []
    room = _MOST
    for group in sorted(groups, key=distance) if own else groups:
        room -= 1 + sum(
            i2 - i1 + j2 - j1 if tag != "equal" else i2 - i1 for tag, i1, i2, j1, j2 in group
        )
        if near and room < 0:
            break
        near.append(group)
    return [group for group in groups if any(group is each for each in near)]


def _bounded(lines: Sequence[str]) -> Iterator[str]:
    """The lines; of more than a view has room for the first and last, and how many are between."""
    half = _MOST // 2
    if len(lines) <= _MOST + 1:
        yield from lines
        return
    yield from lines[:half]
    yield f"({len(lines) - 2 * half} lines between)"
    yield from lines[-half:]


class _Lines(NamedTuple):
    """The lines of a scope.

    :ivar inner: the numbers of those that are inside its functions and classes, headers aside; only
        of a whole module.
    """

    lines: Sequence[str]
    inner: frozenset[int] = frozenset()


def _scope(data: bytes, scope: str) -> _Lines:
    """The lines of every place of a scope; none where the text has none, or is not Python."""
    texts = Texts(Syntax())
    try:
        lines = texts.source(data).lines
        if scope == FILE_SCOPE:
            return _Lines(lines)
        scopes = texts.scopes(data)
    except (TextError, UnparsableError):
        return _Lines(())
    if scope != MODULE_SCOPE:
        places = scopes.get(scope, ())
        return _Lines([line for place in places for line in lines[place.start : place.stop]])
    inner = {
        number
        for name, places in scopes.items()
        if name != MODULE_SCOPE
        for place in places
        for number in range(_body(lines, place), place.stop)
        if lines[number].strip()
    }
    return _Lines(lines, frozenset(inner))


def _body(lines: Sequence[str], place: range) -> int:
    """Where the lines below the header of a function or class begin."""
    start = lines[place.start]
    indent = len(start) - len(start.lstrip())
    for number in place:
        line = lines[number]
        if line.strip() and len(line) - len(line.lstrip()) > indent:
            return number
    return place.stop


def _own_lines(hunk: Hunk, lines: Sequence[str]) -> range:
    """The lines that a hunk was made on; none where they occur several times or never."""
    starts = occurrences(lines, hunk.pre)
    return range(starts[0], starts[0] + len(hunk.pre)) if len(starts) == 1 else range(0)


def _concerns(group: Sequence[_Opcode], base: _Lines, release: _Lines, own: range) -> bool:
    """Whether a change touches lines that are not inside functions, or those of the hunk."""
    for tag, i1, i2, j1, j2 in group:
        if tag == "equal":
            continue
        if i1 <= own.stop and own.start <= i2 and own:
            return True
        outer = {number for number in range(i1, i2) if base.lines[number].strip()} - base.inner
        new = {number for number in range(j1, j2) if release.lines[number].strip()}
        if outer or new - release.inner:
            return True
    return False


def _diff(group: Sequence[_Opcode], base: Sequence[str], release: Sequence[str]) -> Iterator[str]:
    """A group of changes as a hunk of a unified diff."""
    (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
    yield f"@@ -{i1 + 1},{i2 - i1} +{j1 + 1},{j2 - j1} @@"
    for tag, i1, i2, j1, j2 in group:
        if tag == "equal":
            yield from (f" {line}" for line in base[i1:i2])
            continue
        yield from (f"-{line}" for line in base[i1:i2])
        yield from (f"+{line}" for line in release[j1:j2])


def merge_view(data: bytes) -> tuple[str, ...]:
    """The regions of a text between markers, each with some lines around it and its place."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").removesuffix("\n")
    return tuple(_regions(text.split("\n")))


def _regions(lines: Sequence[str]) -> Iterator[str]:
    """Regions whose lines meet are shown as one."""
    spans: list[tuple[int, int, int]] = []
    start = None
    for index, line in enumerate(lines):
        if line.startswith(MARKERS[0]):
            start = index
        elif line.startswith(MARKERS[3]) and start is not None:
            first, last = max(0, start - _CONTEXT), min(len(lines), index + 1 + _CONTEXT)
            if spans and first <= spans[-1][2]:
                spans[-1] = (*spans[-1][:2], last)
            else:
                spans.append((start, first, last))
            start = None
    for start, first, last in spans:
        yield f"line {start + 1}:"
        yield from _bounded(lines[first:last])
