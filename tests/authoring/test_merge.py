"""Laws 3 and 9: the three-way merge, and its agreement with ``git merge-file``."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.authoring.merge import Side, matches, merge

LINES = st.lists(st.sampled_from("abcdefgh"), max_size=12)


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


@given(LINES, LINES)
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


@given(LINES, LINES)
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


def test_a_conflict_is_marked_with_what_differs() -> None:
    merged = merge("abc", "aXYc", "aXZc")
    assert merged.marked("mine", "0.20.0", "0.21.0") == (
        *("a", "X", "<<<<<<< mine", "Y", "||||||| 0.20.0", "b", "=======", "Z"),
        *(">>>>>>> 0.21.0", "c"),
    )


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


@pytest.mark.skipif(shutil.which("git") is None, reason="the peer is git's own merge")
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=distinct())
def test_it_agrees_with_git_on_texts_without_repeated_lines(
    tmp_path: Path, texts: tuple[list[str], list[str], list[str]]
) -> None:
    """Law 9: both find a conflict, or both make the same text."""
    base, ours, theirs = texts
    files = [tmp_path / name for name in ("ours", "base", "theirs")]
    for file, text in zip(files, (ours, base, theirs), strict=True):
        file.write_text("".join(f"{line}\n" for line in text))
    done = subprocess.run(
        ["git", "merge-file", "-p", *map(str, files)], capture_output=True, check=False
    )
    merged = merge(base, ours, theirs)
    assert bool(merged.conflicts) is (done.returncode > 0)
    if not merged.conflicts:
        assert done.stdout.decode().splitlines() == list(merged.lines)
