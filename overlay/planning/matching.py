"""Match one hunk against one text: where it lands, or why it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile

from overlay._features.model import FILE_SCOPE, MODULE_SCOPE, Hunk, WholeFile, blob_id
from overlay.errors import close_names
from overlay.planning.code_lines import indentation, names_in, places_in, twins
from overlay.planning.scopes import Scopes
from overlay.planning.telling import (
    MIN_DISTINCTIVE,
    REVIEW,
    SHARE,
    Place,
    new_lines,
    partly,
    place_of,
    present,
    share_of,
)
from overlay.planning.text import Edit
from overlay.results import HunkResult, Reason, State

#: What telling lines are is ``telling``'s part; here they are a hunk's.
__all__ = (
    "MIN_DISTINCTIVE",
    "edits",
    "final_newline_after",
    "holding_scopes",
    "innermost_scope",
    "match",
    "match_whole",
    "misplaced",
    "new_lines",
    "places_of",
    "removed_by",
    "share_of",
)


def match(
    hunk: Hunk,
    lines: Sequence[str],
    scopes: Scopes,
    final_newline: bool = True,
    evidence: Sequence[Place] | None = None,
) -> HunkResult:
    """Match a hunk against a text.

    It matches where its whole pre-image is inside its scope, white space included, at any
    line.  A pre-image that lies inside a post-image is the applied hunk's own context and does
    not count, otherwise an insertion at the edge of a hunk would be applied again and again.  Nor
    does it match where most lines that it adds to its base are in the scope already: upstream has
    the change, or a part of it, with lines between, and it would be made twice; nor where it would
    define a name a second time in a block.

    :param lines: the lines of the text without their ends.
    :param scopes: the places of its scopes (``overlay.planning.scopes.find``).
    :param final_newline: whether the last line has an end.
    :param evidence: the lines of the hunk's scope, if they are known; default: taken from these.
    :returns: ``pristine`` (matches once), ``upstreamed`` (only the post-image is there),
        ``ambiguous`` with the candidates, ``drifted`` with the nearest place, or ``missing``
        with similar scopes.
    """
    ranges = scopes.get(hunk.scope)
    if not ranges:
        return HunkResult(hunk.scope, State.MISSING, reason=_why_missing(hunk, lines, scopes))
    pre, post = hunk.pre, hunk.post
    posts = [
        start
        for start in _places(hunk, post, hunk.post_unfinished, lines, ranges, final_newline)
        if _at_edge("-", hunk, post, start, lines, ranges) is None
    ]
    pres = [
        start
        for start in _places(hunk, pre, hunk.pre_unfinished, lines, ranges, final_newline)
        if not any(at <= start and start + len(pre) <= at + len(post) for at in posts)
    ]
    if len(pres) == 1:
        there = present(hunk, evidence or places_of(hunk.scope, lines, scopes))
        at = pres[0] + 1
        if there.share == 1.0:
            return HunkResult(hunk.scope, State.AMBIGUOUS, at, _already_merged(hunk), (at,))
        edge_line = _at_edge("+", hunk, pre, pres[0], lines, ranges) if there.share else None
        if there.share >= SHARE or (edge_line is not None and edge_line.strip() in new_lines(hunk)):
            return HunkResult(hunk.scope, State.DRIFTED, at, partly(hunk, there))
        if hunk.base_has is not None and (reason := _standing(hunk, lines, pres[0], ranges)):
            return HunkResult(hunk.scope, State.DRIFTED, at, reason)
        return HunkResult(hunk.scope, State.PRISTINE, line=at)
    if pres:
        candidates = tuple(start + 1 for start in pres)
        why = (
            f"expected its {len(pre)} lines before the change once in {hunk.scope}, found them "
            f"{len(pres)} times"
        )
        reason = Reason(f"{why}, at lines {', '.join(map(str, candidates))}", cause=why)
        return HunkResult(hunk.scope, State.AMBIGUOUS, candidates[0], reason, candidates)
    if posts and not _is_anchored(hunk):
        return HunkResult(hunk.scope, State.DRIFTED, posts[0] + 1, _not_anchored(posts[0] + 1))
    if posts:
        return HunkResult(hunk.scope, State.UPSTREAMED, line=posts[0] + 1)
    line, reason = _why_drifted(hunk, lines, scopes, final_newline)
    there = present(hunk, evidence or places_of(hunk.scope, lines, scopes))
    if there.share >= SHARE:
        reason = partly(hunk, there)
    return HunkResult(hunk.scope, State.DRIFTED, line=line, reason=reason)


def places_of(scope: str, lines: Sequence[str], scopes: Scopes) -> list[Place]:
    """The lines of each place of a scope, as evidence."""
    return [place_of(tuple(lines[place.start : place.stop])) for place in scopes.get(scope, ())]


def _already_merged(hunk: Hunk) -> Reason:
    """Why a hunk whose pre-image is there may be in the text already."""
    return Reason(
        f"its lines before the change are in {hunk.scope}, but so is every line that it adds, "
        f"such as {new_lines(hunk)[0]!r}: the change may be there already",
        "if upstream has the change, retire it there (`merged` or [[upstreamed]] in feature.toml); "
        "if its base had these lines too, name them in a Base-Has header",
    )


#: So many names are looked for in a line sooner than it is read.
_FEW = 8


@lru_cache(maxsize=4096)
def new_names(hunk: Hunk) -> frozenset[str]:
    """What a hunk defines or binds, and does not replace."""
    new, old = (names_in(text for op, text in hunk.lines if op == sign) for sign in "+-")
    return frozenset(new - old)


def definitions_beside(
    hunk: Hunk, lines: Sequence[str], start: int, places: Sequence[range]
) -> Iterator[tuple[str, int]]:
    """The lines of a text that define what a hunk defines in the same block, with where they are.

    :param start: where the pre-image begins, 0-based; :param places: those of the hunk's scope.
    """
    names = new_names(hunk)
    if not names:
        return
    own = places_in(text for op, text in hunk.lines if op == "+")
    own = {place for place in own if place[1] in names}
    scope = next((each for each in places if start in each), range(len(lines)))
    if any(margin <= indentation(lines[scope.start]) for margin, _ in own):
        scope = range(len(lines))  # it is in a block around the scope
    likely = lines[scope.start : scope.stop]
    if len(names) <= _FEW:
        text = "\n".join(likely)
        here = [name for name in names if name in text]
        likely = [line for name in here for line in likely if name in line]
    if own.isdisjoint(places_in(likely)):
        return  # as nearly always: to say in which block a line stands takes long
    origins: list[int] = []  # of each line of the post-image, in the text before
    added: set[int] = set()
    first, at = start - scope.start, start
    for op, _ in hunk.lines:
        if op == "+":
            added.add(first + len(origins))
        if op != "-":
            origins.append(at)
        at += op != "+"
    after = [*lines[scope.start : start], *hunk.post, *lines[at : scope.stop]]
    for _, row in twins(after, added):
        if names.isdisjoint(names_in([after[row]])):
            continue
        before = row - len(after) + scope.stop if row >= first + len(origins) else scope.start + row
        yield after[row], origins[row - first] if 0 <= row - first < len(origins) else before


def _standing(
    hunk: Hunk, lines: Sequence[str], start: int, places: Sequence[range]
) -> Reason | None:
    """Why a hunk is not put in: the text, unlike its base, defines a name of its own there."""
    rows = list(definitions_beside(hunk, lines, start, places))
    of_base = names_in(hunk.base_has or ()) if rows else ()
    text, at = next((row for row in rows if names_in(row[:1]).isdisjoint(of_base)), ("", 0))
    if not text:
        return None
    return _numbered(
        lambda line: (
            f"it adds what {hunk.scope} has at line {line(at + 1)}, {text.strip()!r}: that would "
            "be there twice"
        ),
        REVIEW,
    )


def _not_anchored(line: int) -> Reason:
    """Why a hunk whose post-image is there may still not be in the text."""
    return _numbered(
        lambda number: (
            f"its lines after the change are at line {number(line)}, but its context is made of "
            "lines that it changes itself, and of equal lines nothing tells which are the change"
        ),
        "give the hunk more context, up to a line that it does not change",
    )


def edits(hunk: Hunk, start: int) -> tuple[Edit, ...]:
    """The edits that apply a hunk to a text in which its pre-image begins at ``start`` (0-based).

    Lines of context are not touched, so that they keep their ends.
    """
    hunk_edits: list[Edit] = []
    at = begin = start
    added: list[str] = []
    for op, text in (*hunk.lines, (" ", "")):
        if op == "+":
            added.append(text)
        elif op == "-":
            at += 1
        else:
            if added or at > begin:
                hunk_edits.append(Edit(begin, at, tuple(added)))
            added = []
            at += 1
            begin = at
    return tuple(hunk_edits)


def final_newline_after(hunk: Hunk) -> bool | None:
    """Whether the file ends with a newline after the hunk; ``None``: as before."""
    if hunk.pre_unfinished or hunk.post_unfinished:
        return not hunk.post_unfinished
    return None


def _places(
    hunk: Hunk,
    image: Sequence[str],
    unfinished: bool,
    lines: Sequence[str],
    ranges: Sequence[range],
    final_newline: bool,
) -> list[int]:
    """Every 0-based line at which an image is inside one of the ranges, in order.

    A hunk that mentions the newline at the end of the file lands there or nowhere, with the
    newline as it says.
    """
    starts = {start for scope in ranges for start in _occurrences(image, lines, scope)}
    if hunk.pre_unfinished or hunk.post_unfinished:
        at_end = len(lines) - len(image)
        starts &= {at_end} if final_newline is not unfinished else set()
    return sorted(starts)


def _at_edge(
    op: str,
    hunk: Hunk,
    image: Sequence[str],
    start: int,
    lines: Sequence[str],
    ranges: Sequence[range],
) -> str | None:
    """The line beside an image in its scope, where the hunk removes or adds it at that edge.

    Where a hunk has no context behind its change, its post-image does not show that what it removes
    is gone, nor its pre-image that what it adds is not there.
    """
    place = next((each for each in ranges if start in each), range(0))
    before = range(start - 1, place.start - 1, -1)
    behind = range(start + len(image), place.stop)
    for ops, beside in ((hunk.lines, before), (hunk.lines[::-1], behind)):
        edge = {text for sign, text in takewhile(lambda line: line[0] != " ", ops) if sign == op}
        line = next((lines[at] for at in beside if lines[at].strip()), None)
        if line is not None and line in edge:
            return line
    return None


def _is_anchored(hunk: Hunk) -> bool:
    """Whether neither side of a hunk's context is one line again and again that it changes beside.

    Among equal lines nothing tells which of them were put in or taken out, and a post-image whose
    context is made of them stands in a text that lacks a part of the change, too.
    """
    for ops in (hunk.lines, hunk.lines[::-1]):
        context = [text for _, text in takewhile(lambda line: line[0] == " ", ops)]
        changed = {text for _, text in takewhile(lambda op: op[0] != " ", ops[len(context) :])}
        if len(set(context)) == 1 and context[0].strip() and context[0] in changed:
            return False
    return True


def _occurrences(image: Sequence[str], lines: Sequence[str], scope: range) -> Iterator[int]:
    size = len(image)
    if not size:
        return
    whole, start = list(image), scope.start
    with suppress(ValueError):  # it is nowhere behind
        while start <= scope.stop - size:
            start = lines.index(image[0], start, scope.stop - size + 1)
            if list(lines[start : start + size]) == whole:
                yield start
            start += 1


def innermost_scope(line: int, size: int, scopes: Scopes) -> str:
    """The innermost scope that holds ``size`` lines from the 0-based ``line`` on."""
    return next(iter(holding_scopes(line, size, scopes)), MODULE_SCOPE)


def holding_scopes(line: int, size: int, scopes: Scopes) -> list[str]:
    """The scopes that hold ``size`` lines from the 0-based ``line`` on, the innermost first."""
    holding = [
        (len(place), name)
        for name, places in scopes.items()
        for place in places
        if place.start <= line and line + size <= place.stop
    ]
    return [name for _, name in sorted(holding)]


def misplaced(hunk: Hunk, lines: Sequence[str], scopes: Scopes) -> bool:
    """Whether the pre-image of a hunk is in the file, but not in the hunk's scope."""
    inside = (
        start
        for scope in scopes.get(hunk.scope, ())
        for start in _occurrences(hunk.pre, lines, scope)
    )
    return next(inside, None) is None and _elsewhere(hunk, lines, scopes) is not None


def _numbered(words: Callable[[Callable[[int], str]], str], next_step: str | None = None) -> Reason:
    """The reason that ``words`` gives with line numbers, and without them for its cause.

    :param words: makes the text; it is given what writes a line number.
    """
    return Reason(words(str), next_step, cause=words(lambda _: "..."))


def _elsewhere(hunk: Hunk, lines: Sequence[str], scopes: Scopes) -> Reason | None:
    """The places of the pre-image outside the scope, in words."""
    places = list(_occurrences(hunk.pre, lines, range(len(lines))))
    if not places:
        return None
    first_places = [(at, innermost_scope(at, len(hunk.pre), scopes)) for at in places[:3]]
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return _numbered(
        lambda line: (
            "its lines are at "
            + "; ".join(f"line {line(at + 1)}, in {scope}" for at, scope in first_places)
            + more
        )
    )


def _why_missing(hunk: Hunk, lines: Sequence[str], scopes: Scopes) -> Reason:
    """Why a scope is missing, with the names that it may have now."""
    last = hunk.scope.rpartition(".")[2]
    same_last = [name for name in scopes if name.rpartition(".")[2] == last]
    close = close_names(hunk.scope, list(scopes), most=3, cutoff=0.7)
    similar = list(dict.fromkeys([*same_last, *close]))[:3]
    why = f"expected the scope {hunk.scope}, found none of that name"
    if similar:
        why += f"; similar ones are {', '.join(similar)}"
    elsewhere = _elsewhere(hunk, lines, scopes)
    if elsewhere is None:
        return Reason(why)
    return Reason(f"{why}; {elsewhere.text}", cause=f"{why}; {elsewhere.common}")


def _why_drifted(
    hunk: Hunk, lines: Sequence[str], scopes: Scopes, final_newline: bool
) -> tuple[int | None, Reason]:
    """The nearest place (1-based line) and what differs there."""
    if hunk.pre_unfinished or hunk.post_unfinished:
        ends = "with" if final_newline else "without"
        expected = "without" if hunk.pre_unfinished else "with"
        if tuple(lines[-len(hunk.pre) :]) == hunk.pre:
            why = f"expected a file that ends {expected} a newline, found one that ends {ends} one"
            return len(lines), Reason(why)
        early = next(_occurrences(hunk.pre, lines, range(len(lines))), None)
        if early is not None:
            place = early + 1
            return place, _numbered(
                lambda line: (
                    "expected its lines at the end of the file, because it says whether that has "
                    f"a newline; found them at line {line(place)}, before the end"
                )
            )
    elsewhere = _elsewhere(hunk, lines, scopes)
    if elsewhere is not None and hunk.scope != MODULE_SCOPE:
        why = f"expected its lines in {hunk.scope}, but "
        return None, Reason(f"{why}{elsewhere.text}", cause=f"{why}{elsewhere.common}")
    return _nearest(hunk, lines, scopes[hunk.scope])


def _nearest(
    hunk: Hunk, lines: Sequence[str], ranges: Sequence[range]
) -> tuple[int | None, Reason]:
    """The alignment of the pre-image that shares most lines with a scope, and where it breaks."""
    pre = hunk.pre
    positions: dict[str, list[int]] = {}
    for scope in ranges:
        for at in scope:
            positions.setdefault(lines[at], []).append(at)
    hits: dict[int, set[int]] = {}
    for index, text in enumerate(pre):
        for at in positions.get(text, ()):
            hits.setdefault(at - index, set()).add(index)

    def value(start: int) -> tuple[int, int, int]:
        # Blank lines match everywhere and show nothing.
        telling = sum(1 for index in hits[start] if pre[index].strip())
        return telling, _leading(hits[start]), -start

    start = max(hits, key=value, default=None)
    if start is None or value(start)[0] == 0:
        return None, Reason(
            f"expected {len(pre)} lines, such as {_first_telling(pre)!r}, in {hunk.scope}, found "
            "none of them there: the code was rewritten or moved"
        )
    _, leading, _ = value(start)
    place = start + leading
    if not any(place in scope for scope in ranges):
        finding = f"where {hunk.scope} has ended or not begun"
    else:
        finding = f"found {lines[place]!r}"
        if "".join(lines[place].split()) == "".join(pre[leading].split()):
            finding += " (only white space differs)"
    first = next(start + index for index in sorted(hits[start])) + 1
    there = len(hits[start])
    return first, _numbered(
        lambda line: (
            f"the nearest place is line {line(first)}: {there} of {len(pre)} lines are there, "
            f"the first {leading} without a gap; expected {pre[leading]!r} at line "
            f"{line(place + 1)}, {finding}"
        )
    )


def _leading(indices: set[int]) -> int:
    return next(index for index in range(len(indices) + 1) if index not in indices)


def _first_telling(image: Sequence[str]) -> str:
    return next((text for text in image if text.strip()), image[0])


#: How much of an id messages show, as git does.
_SHOWN = 12


def match_whole(whole: WholeFile, data: bytes | None) -> HunkResult:
    """The state of the change of a whole file in these bytes.

    A file that is to be removed and is not there was removed by the release itself.
    """
    if data == whole.after:
        return HunkResult(FILE_SCOPE, State.UPSTREAMED)
    if data is None:
        reason = Reason(f"expected the file {_identity(whole)}, found none")
        return HunkResult(FILE_SCOPE, State.MISSING, reason=reason)
    if blob_id(data) == whole.before:
        return HunkResult(FILE_SCOPE, State.PRISTINE)
    what = "remove" if whole.after is None else "replace"
    reason = Reason(
        f"expected the file {_identity(whole)}, the only text that it may {what}, found "
        f"{blob_id(data)[:_SHOWN]}"
    )
    return HunkResult(FILE_SCOPE, State.DRIFTED, reason=reason)


def removed_by(hunks: tuple[Hunk, ...]) -> bool:
    """Whether the hunks of a patch remove its file."""
    return any(hunk.whole is not None and hunk.whole.after is None for hunk in hunks)


def _identity(whole: WholeFile) -> str:
    return f"with git's id {whole.before[:_SHOWN]}"
