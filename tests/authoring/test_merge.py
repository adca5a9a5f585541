"""Laws 3 and 9: the three-way merge."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from overlay.authoring.merge import Side, gaps, matches, merge, occurrences

LINES = st.lists(st.sampled_from("abcdefgh"), max_size=12)
#: Texts in which most lines are repeated, so that much can be aligned in several ways.
REPEATED = st.sampled_from([["a", "b"], ["a", "b", "c", "d", "e", ""]]).flatmap(
    lambda letters: st.lists(st.sampled_from(letters), max_size=12)
)


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[str], list[str], list[str]]:
    """A base and two texts that were made of it by a few edits each."""
    base = draw(LINES)
    sides = []
    for _ in range(2):
        text = list(base)
        for _ in range(draw(st.integers(0, 3))):
            start = draw(st.integers(0, len(text)))
            stop = draw(st.integers(start, min(len(text), start + 3)))
            text[start:stop] = draw(st.lists(st.sampled_from("abcdXYZ"), max_size=3))
        sides.append(text)
    return base, sides[0], sides[1]


@given(LINES, LINES)
def test_a_side_that_changed_nothing_gives_the_other(base: list[str], text: list[str]) -> None:
    """Law 3."""
    assert list(merge(base, text, base).lines) == text
    assert list(merge(base, base, text).lines) == text
    assert list(merge(base, text, text).lines) == text
    for merged in (merge(base, text, base), merge(base, base, text), merge(base, text, text)):
        assert merged.conflicts == ()


@given(edited())
def test_whether_there_is_a_conflict_does_not_depend_on_the_side(
    texts: tuple[list[str], list[str], list[str]],
) -> None:
    base, ours, theirs = texts
    one, other = merge(base, ours, theirs), merge(base, theirs, ours)
    assert len(one.conflicts) == len(other.conflicts)
    if not one.conflicts:
        assert one.lines == other.lines


@given(edited())
def test_the_regions_are_the_texts(texts: tuple[list[str], list[str], list[str]]) -> None:
    base, ours, theirs = texts
    regions = merge(base, ours, theirs).regions
    assert [line for one in regions for line in one.base] == base
    assert [line for one in regions for line in one.ours] == ours
    assert [line for one in regions for line in one.theirs] == theirs
    for one in regions:
        if one.side is Side.BASE:
            assert one.base == one.ours == one.theirs


@given(edited())
def test_a_clean_merge_has_each_new_line_of_both_sides(
    texts: tuple[list[str], list[str], list[str]],
) -> None:
    base, ours, theirs = texts
    merged = merge(base, ours, theirs)
    if merged.conflicts:
        return
    for line in {*ours, *theirs} - set(base):
        assert line in merged.lines


@given(REPEATED, REPEATED)
@example(list("babba"), list("cbaabbb"))
@example(list("bac"), list("abca"))
def test_matches_rise_in_both_texts(before: list[str], after: list[str]) -> None:
    found = sorted(matches(before, after).items())
    assert all(before[a] == after[b] for a, b in found)
    assert all(x[0] < y[0] and x[1] < y[1] for x, y in pairwise(found))


def test_lines_that_both_sides_put_in_are_put_in_once() -> None:
    """Equal lines around them let each side align them in its own way; found on real texts."""
    base = ["def a():", "    return 1", "", "def d():", "    return 4"]
    new = ["", "def b():", "    return 1"]
    ours = [*base[:2], *new, *base[2:]]
    theirs = [*base[:2], *new, *base[2:4], "    return 5"]
    result = merge(base, ours, theirs)
    assert not result.conflicts
    assert list(result.lines) == theirs


@given(REPEATED, REPEATED)
@example(list("bdd"), list("cbd"))
def test_a_run_of_changed_lines_lies_as_far_down_as_it_goes(
    before: list[str], after: list[str]
) -> None:
    kept = matches(before, after)
    ends = [(-1, -1), *sorted(kept.items()), (len(before), len(after))]
    for (a, b), (c, d) in pairwise(ends):
        if c == len(before) or d == len(after):
            continue
        if c == a + 1 and d > b + 1:
            assert after[b + 1] != before[c]
        if d == b + 1 and c > a + 1:
            assert before[a + 1] != after[d]


@given(REPEATED, REPEATED)
@example(list("cba"), list("bab"))
@example(list("bc"), list("dbbcdb"))
@example(list("dg"), list("cgdgac"))
def test_gaps_are_what_an_edit_changed_and_none_takes_out_a_line_that_it_puts_in(
    before: list[str], after: list[str]
) -> None:
    kept = matches(before, after)
    runs = list(gaps(kept, len(before), len(after)))
    for old, new in runs:
        assert old or new
        assert {before[at] for at in old}.isdisjoint(after[at] for at in new)
    assert len(before) - len(kept) == sum(len(old) for old, _ in runs)
    text = list(before)
    for old, new in reversed(runs):
        text[old.start : old.stop] = after[new.start : new.stop]
    assert text == after


@given(
    st.lists(st.sampled_from("ab"), max_size=9),
    st.lists(st.sampled_from("ab"), max_size=3),
    st.integers(0, 4),
)
def test_an_image_occurs_where_all_of_its_lines_are(
    lines: list[str], image: list[str], first: int
) -> None:
    places = range(first, len(lines) + 1)
    expected = [at for at in places if lines[at : at + len(image)] == image]
    assert occurrences(lines, image, first) == expected
    assert occurrences(lines, image) == occurrences(lines, image, 0)


def longest(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest row of lines that stand in both texts in one order."""
    best = [0] * (len(other) + 1)
    for line in one:
        before = list(best)
        for at, each in enumerate(other, 1):
            best[at] = before[at - 1] + 1 if line == each else max(best[at - 1], before[at])
    return best[-1]


@given(st.permutations("abcdefg"), st.permutations("abcdefg"), st.data())
def test_as_many_lines_that_stand_once_are_kept_as_can_be(
    before: list[str], after: list[str], data: st.DataObject
) -> None:
    """Whatever else could be kept in their place, in texts that begin and end differently."""
    for text in (before, after):
        for line in data.draw(st.lists(st.sampled_from(["a", "b", "x", "y", ""]), max_size=8)):
            text.insert(data.draw(st.integers(0, len(text))), line)
    once = {line for line in before if line and before.count(line) == after.count(line) == 1}
    kept = matches(["<", *before, ">"], ["(", *after, ")"])
    rows = ([line for line in text if line in once] for text in (before, after))
    assert sum(before[at - 1] in once for at in kept) == longest(*rows)


def test_lines_that_stand_often_are_kept_in_long_texts_too() -> None:
    """``difflib`` calls them junk from 200 lines on."""
    often = ["first", "second"] * 100
    kept = matches(["a", *often, "b"], ["c", *often, "d"])
    assert kept == {at: at for at in range(1, 201)}


@given(edited())
def test_a_marked_merge_has_both_sides_of_each_conflict_and_its_base(
    texts: tuple[list[str], list[str], list[str]],
) -> None:
    merged = merge(*texts)
    parts: list[tuple[str, list[str]]] = [("", [])]
    for line in merged.marked("ours", "base", "theirs"):
        if len(line) == 1:
            parts[-1][1].append(line)
        else:
            parts.append((line, []))
    marks = ["<<<<<<< ours", "||||||| base", "=======", ">>>>>>> theirs"]
    assert [mark for mark, _ in parts] == ["", *marks * len(merged.conflicts)]
    outside = ("", marks[3])
    theirs = [line for mark, run in parts for line in run if mark in (*outside, marks[2])]
    ours = [line for mark, run in parts for line in run if mark in (*outside, marks[0])]
    assert tuple(theirs) == merged.lines
    assert ours == [
        line
        for region in merged.regions
        for line in (region.ours if region.side is Side.CONFLICT else region.lines)
    ]
    for number, region in enumerate(merged.conflicts):
        (_, mine), (_, base), (_, other) = parts[1 + 4 * number : 4 + 4 * number]
        assert tuple(base) == region.base
        if mine and other:  # what both begin or end with is outside
            assert mine[0] != other[0]
            assert mine[-1] != other[-1]


@st.composite
def distinct(draw: st.DrawFn) -> tuple[list[str], list[str], list[str]]:
    """A base and two sides in which no line is repeated: repeated ones align in several ways."""
    base = [f"line {number}" for number in range(draw(st.integers(0, 30)))]
    sides = []
    for name in ("ours", "theirs"):
        text = list(base)
        for number in range(draw(st.integers(0, 3))):
            at = draw(st.integers(0, len(text)))
            gone = draw(st.integers(0, min(2, len(text) - at)))
            text[at : at + gone] = [f"{name} {number}"] * draw(st.integers(0, 1))
        sides.append(text)
    return base, sides[0], sides[1]


@given(distinct())
def test_no_line_is_lost(texts: tuple[list[str], list[str], list[str]]) -> None:
    """Law 9: what both sides keep of the base, or one side adds, is in a clean merge."""
    base, ours, theirs = texts
    merged = merge(base, ours, theirs)
    if merged.conflicts:
        return
    kept = set(base) & set(ours) & set(theirs)
    assert set(merged.lines) == kept | (set(ours) - set(base)) | (set(theirs) - set(base))
    assert len(merged.lines) == len(set(merged.lines))
