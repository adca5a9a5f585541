"""One hunk against one text."""

from __future__ import annotations

import pytest

from overlay._features.model import Hunk
from overlay.planning.matching import edits, final_newline_after, match
from overlay.planning.scopes import find
from overlay.planning.text import SourceText
from overlay.results import HunkResult, State
from tests.support.patches import hunk

TEXT = """\
import os


class A:
    def f(self):
        x = 1
        y = 2
        return x

    def g(self):
        x = 1
        y = 3
        return x


def f():
    x = 1
    y = 2
"""


def matched(text: str, given: Hunk) -> HunkResult:
    source = SourceText.from_bytes(text.encode())
    return match(given, source.lines, find(source.lines), source.final_newline)


def applied(text: str, given: Hunk) -> str:
    result = matched(text, given)
    assert result.state is State.PRISTINE
    assert result.line is not None
    source = SourceText.from_bytes(text.encode())
    return source.splice(edits(given, result.line - 1)).to_bytes().decode()


def test_a_hunk_lands_where_its_pre_image_occurs_once() -> None:
    assert matched(TEXT, hunk([" " * 9 + "y = 3", "+"], "A.g")) == HunkResult(
        "A.g", State.PRISTINE, 12
    )
    result = matched(TEXT, hunk([" " * 9 + "x = 1", "-        y = 2"], "A.f"))
    assert result == HunkResult("A.f", State.PRISTINE, 6)


def test_the_scope_decides_between_places() -> None:
    lines = ["         x = 1", "+        z = 0"]
    assert matched(TEXT, hunk(lines, "A.f")).line == 6
    assert matched(TEXT, hunk(lines, "A.g")).line == 11
    both = matched(TEXT, hunk(lines, "A"))
    assert (both.state, both.candidates, both.line) == (State.AMBIGUOUS, (6, 11), 6)
    assert both.reason is not None
    assert "2 times, at lines 6, 11" in both.reason.text


def test_the_whole_pre_image_lies_inside_the_scope() -> None:
    spanning = [" " * 9 + "return x", " ", " " * 5 + "def g(self):", "+"]
    assert matched(TEXT, hunk(spanning, "A.f")).state is State.DRIFTED
    assert matched(TEXT, hunk(spanning, "A")).state is State.PRISTINE


def test_a_scope_reaches_to_the_next_code() -> None:
    result = matched(TEXT, hunk([" " * 9 + "return x", "+        # end", " "], "A.f"))
    assert (result.state, result.line) == (State.PRISTINE, 8)


def test_a_post_image_that_stands_alone_is_upstreamed() -> None:
    result = matched(TEXT, hunk([" " * 9 + "x = 1", "-        y = 9", "+        y = 2"], "A.f"))
    assert result == HunkResult("A.f", State.UPSTREAMED, 6)


def test_an_insertion_without_context_behind_it_is_seen_once_it_stands() -> None:
    for lines in (["     y = 2", "+    z = 3"], ["+    z = 3", "     y = 2"]):
        after = applied(TEXT, hunk(lines, "f"))
        assert matched(after, hunk(lines, "f")).state is State.UPSTREAMED


def test_a_second_place_beside_a_post_image_still_matches() -> None:
    text = "a\nx\nb\na\nb\n"
    assert matched(text, hunk([" a", "-b", "+x", "+b"])) == HunkResult(
        "<module>", State.PRISTINE, 4
    )


def test_overlapping_places_are_all_counted() -> None:
    result = matched("a\na\na\n", hunk([" a", " a", "+b"]))
    assert (result.state, result.candidates) == (State.AMBIGUOUS, (1, 2))


def test_a_repeated_scope_is_searched_in_all_its_places() -> None:
    text = "if a:\n    def f():\n        x\nelse:\n    def f():\n        y\n"
    assert matched(text, hunk(["         y", "+        z"], "f")).line == 6
    assert matched(text, hunk(["         x", "+        z"], "f")).line == 3
    twice = matched(text.replace("y", "x"), hunk(["         x", "+        z"], "f"))
    assert twice.candidates == (3, 6)
    assert matched(text, hunk([" else:", "+    pass"], "f")).state is State.DRIFTED


def test_white_space_counts() -> None:
    result = matched(TEXT, hunk([" \tx = 1", "+"], "f"))
    assert result.state is State.DRIFTED
    assert matched(TEXT, hunk(["     x = 1 ", "+"], "f")).state is State.DRIFTED


def drift(text: str, given: Hunk) -> str:
    result = matched(text, given)
    assert result.state is State.DRIFTED
    assert result.reason is not None
    return result.reason.text


def test_drift_names_the_nearest_place_and_what_differs() -> None:
    lines = [" " * 5 + "def f(self):", " " * 9 + "x = 1", "-        y = 7", "         return x"]
    given = hunk(lines, "A.f")
    assert matched(TEXT, given).line == 5
    assert drift(TEXT, given) == (
        "the nearest place is line 5: 3 of 4 lines are there, the first 2 without a gap; "
        "expected '        y = 7' at line 7, found '        y = 2'"
    )
    spaced = drift(TEXT, hunk([" def f():", "-    x  = 1", "+"], "f"))
    assert (
        "expected '    x  = 1' at line 17, found '    x = 1' (only white space differs)" in spaced
    )


def test_drift_at_the_edge_of_a_scope_says_so() -> None:
    why = drift(TEXT, hunk(["     y = 2", "-    z = 3", "+"], "f"))
    assert "expected '    z = 3' at line 19, where f has ended or not begun" in why
    why = drift(TEXT, hunk([" @decorated", " def f():", "-    x = 1", "+"], "f"))
    assert "expected '@decorated' at line 15, where f has ended or not begun" in why


def test_drift_to_another_scope_names_it() -> None:
    why = drift(TEXT, hunk(["         y = 3", "+        z"], "A.f"))
    assert why == "expected its lines in A.f, but its lines are at line 12, in A.g"


def test_drift_without_any_likeness_says_so() -> None:
    assert "none of them" in drift(TEXT, hunk([" ", " nothing()", "+z"], "f"))
    # A blank line does not count as likeness.
    assert "none of them" in drift(TEXT, hunk([" ", " nothing()", "+z"], "A"))


def test_a_missing_scope_names_similar_ones_and_where_the_lines_are() -> None:
    result = matched(TEXT, hunk(["         y = 3", "+        z"], "B.g"))
    assert result.state is State.MISSING
    assert str(result.reason) == (
        "expected the scope B.g, found none of that name; similar ones are A.g; "
        "its lines are at line 12, in A.g"
    )
    result = matched("def prepare_input(): pass\n", hunk([" z", "+y"], "prepare_inputs"))
    assert "similar ones are prepare_input" in str(result.reason)
    unlike = matched("x\n", hunk([" z", "+y"], "f"))
    assert str(unlike.reason) == "expected the scope f, found none of that name"


@pytest.mark.parametrize(
    ("text", "pre", "post", "state"),
    [
        ("a\nb", True, False, State.PRISTINE),
        ("a\nb\n", True, False, State.UPSTREAMED),
        ("a\nb\n", False, True, State.PRISTINE),
        ("a\nb", False, True, State.UPSTREAMED),
        ("b\na\n", False, True, State.DRIFTED),
    ],
)
def test_a_hunk_may_be_about_the_newline_at_the_end(
    text: str, pre: bool, post: bool, state: State
) -> None:
    given = hunk(["-b", "+b"], pre_unfinished=pre, post_unfinished=post)
    assert matched(text, given).state is state


def test_a_hunk_that_does_not_speak_of_the_newline_does_not_ask_for_it() -> None:
    given = hunk([" a", "-b", "+c"])
    assert applied("a\nb", given) == "a\nc"
    assert applied("a\nb\n", given) == "a\nc\n"
    marked = hunk([" a", "-b", "+c"], pre_unfinished=True, post_unfinished=True)
    assert matched("a\nb\n", marked).state is State.DRIFTED
    assert "expected a file that ends without a newline, found one that ends with one" in str(
        matched("a\nb\n", marked).reason
    )
    assert matched("a\nb", marked).state is State.PRISTINE
    assert matched("a\nb\na\nb", marked).line == 3
    assert matched("a\nb\na", marked).line == 1
    assert "before the end" in str(matched("a\nb\na", marked).reason)


@pytest.mark.parametrize(("pre", "post"), [(True, False), (False, True)])
def test_a_newline_on_one_side_only_is_said_of_the_end_of_the_file(pre: bool, post: bool) -> None:
    """The hunk finishes the last line, or takes its end away, and lands nowhere else."""
    given = hunk([" a", "-b", "+c"], pre_unfinished=pre, post_unfinished=post)
    end, other = ("", "\n") if pre else ("\n", "")
    fits, unlike = f"a\nb\nx\na\nb{end}", f"a\nb\nx\na\nb{other}"
    assert matched(fits, given).line == 4  # and not at line 1
    assert matched(unlike, given).state is State.DRIFTED
    assert f"expected a file that ends {'without' if pre else 'with'} a newline" in str(
        matched(unlike, given).reason
    )
    moved = f"a\nb\nx{end}"
    assert matched(moved, given).state is State.DRIFTED
    assert "before the end" in str(matched(moved, given).reason)
    assert final_newline_after(given) is pre
    after = SourceText.from_bytes(fits.encode()).splice(edits(given, 3), final_newline_after(given))
    assert after.to_bytes() == f"a\nb\nx\na\nc{other}".encode()
    assert matched(after.to_bytes().decode(), given).state is State.UPSTREAMED


def test_context_keeps_its_own_line_ends() -> None:
    given = hunk([" a", "-b", "+x", "+y", " c", "+z"])
    source = SourceText.from_bytes(b"a\nb\r\nc\r\n")
    assert source.splice(edits(given, 0)).to_bytes() == b"a\nx\r\ny\r\nc\r\nz\r\n"
