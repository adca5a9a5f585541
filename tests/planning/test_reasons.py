"""What a hunk that does not match says: where its lines are instead, and what is nearest."""

from __future__ import annotations

import pytest

from overlay._features.model import MODULE_SCOPE, Hunk
from overlay.planning import matching
from overlay.planning.matching import (
    holding_scopes,
    innermost_scope,
    match,
    misplaced,
    share_of,
)
from overlay.planning.scopes import find
from overlay.planning.text import SourceText
from overlay.results import HunkResult, State
from tests.support.patches import hunk

TEXT = """\
import os


class A:
    def f(self):
        x = 1
        return x

    def g(self):
        x = 1
        return x


def f():
    y = 2
    return y
"""


def judged(text: str, given: Hunk) -> HunkResult:
    source = SourceText.from_bytes(text.encode())
    return match(given, source.lines, find(source.lines), source.final_newline)


def reason(text: str, given: Hunk) -> str:
    result = judged(text, given)
    assert result.reason is not None
    return result.reason.text


def is_misplaced(text: str, given: Hunk) -> bool:
    source = SourceText.from_bytes(text.encode())
    return misplaced(given, source.lines, find(source.lines))


# Elsewhere


def test_lines_in_another_scope_are_misplaced_and_those_in_their_own_are_not() -> None:
    lines = ["     y = 2", "+    z = 3"]
    assert is_misplaced(TEXT, hunk(lines, "A.f"))
    assert is_misplaced(TEXT, hunk(lines, "no.such.scope"))
    assert not is_misplaced(TEXT, hunk(lines, "f"))
    assert not is_misplaced(TEXT, hunk(["     nowhere = 1", "+    z = 3"], "A.f"))
    # Once inside and once outside is not misplaced.
    assert not is_misplaced(TEXT, hunk(["         x = 1", "+        z = 3"], "A.f"))


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (1, "line 15, in f"),
        (3, "line 15, in f; line 16, in f; line 17, in f"),
        (4, "line 15, in f; line 16, in f; line 17, in f and 1 more"),
        (6, "line 15, in f; line 16, in f; line 17, in f and 3 more"),
    ],
)
def test_three_places_are_named_and_the_others_counted(times: int, said: str) -> None:
    text = TEXT.replace("    y = 2\n", "    y = 2\n" * times)
    given = hunk(["     y = 2", "+    z = 3"], "A.f")
    assert reason(text, given) == f"expected its lines in A.f, but its lines are at {said}"


def test_the_innermost_scope_holds_all_of_the_lines() -> None:
    scopes = {"a": (range(2, 10),), "a.b": (range(4, 6), range(7, 9)), "c": (range(20, 30),)}
    assert holding_scopes(4, 2, scopes) == ["a.b", "a"]
    assert holding_scopes(5, 2, scopes) == ["a"]
    assert holding_scopes(7, 2, scopes) == ["a.b", "a"]
    assert holding_scopes(8, 2, scopes) == ["a"]
    assert holding_scopes(2, 8, scopes) == ["a"]
    assert holding_scopes(1, 8, scopes) == []
    assert innermost_scope(5, 1, scopes) == "a.b"
    assert innermost_scope(11, 1, scopes) == MODULE_SCOPE


# A scope that is missing


def test_scopes_of_the_same_last_name_come_before_similar_names() -> None:
    text = "".join(
        f"class {name}:\n    def run(self):\n        pass\n    def runs(self):\n        pass\n"
        for name in ("One", "Two")
    )
    assert reason(text, hunk([" a", "+b"], "Old.run")) == (
        "expected the scope Old.run, found none of that name; similar ones are One.run, Two.run"
    )


def test_the_name_behind_the_last_dot_counts() -> None:
    text = "class A:\n    class B:\n        def run(self):\n            pass\n"
    assert "similar ones are A.B.run" in reason(text, hunk([" a", "+b"], "Xxxxx.Yyyyyy.run"))
    assert "similar ones are A.B.run" in reason(text, hunk([" a", "+b"], "run"))


def test_at_most_three_similar_names_and_none_that_is_unlike() -> None:
    text = "".join(f"def propose_{letter}():\n    pass\n" for letter in "abcde")
    said = reason(text, hunk([" a", "+b"], "propose_x"))
    assert said.count("propose_") == 4
    assert "similar" not in reason(text, hunk([" a", "+b"], "unlike_all"))
    # With half of its letters alike, a name is not similar.
    assert "similar" not in reason(text, hunk([" a", "+b"], "propxxxxx"))


# The end of the file


@pytest.mark.parametrize("final", [True, False])
def test_a_final_newline_on_one_side_only_is_told_as_it_is(final: bool) -> None:
    end = "\n" if final else ""
    given = hunk([" b", "-c", "+d"], pre_unfinished=final, post_unfinished=not final)
    words = ("with", "without") if final else ("without", "with")
    assert reason(f"a\nb\nc{end}", given) == (
        f"expected a file that ends {words[1]} a newline, found one that ends {words[0]} one"
    )
    assert judged(f"a\nb\nc{end}", given).line == 3
    assert reason(f"a\nb\nc\nx{end}", given).endswith("found them at line 2, before the end")
    assert judged(f"a\nb\nc\nx{end}", given).line == 2
    other = "" if final else "\n"
    assert judged(f"a\nb\nc{other}", given).state is State.PRISTINE


# The nearest place


def test_the_nearest_place_shares_most_lines_that_tell_something() -> None:
    text = "def f():\n    a = 1\n    b = 2\n\n    c = 3\n    d = 4\n    e = 5\n"
    given = hunk(["     b = 2", " ", "     c = 3", "-    d = 9", "+    d = 8", "     e = 5"], "f")
    assert judged(text, given).line == 3
    assert reason(text, given) == (
        "the nearest place is line 3: 4 of 5 lines are there, the first 3 without a gap; "
        "expected '    d = 9' at line 6, found '    d = 4'"
    )


def test_of_two_places_alike_the_first_is_named() -> None:
    text = "def f():\n    a = 1\n    b = 2\n    x = 0\n    a = 1\n    b = 2\n"
    given = hunk(["     a = 1", "     b = 2", "-    c = 3", "+    c = 4"], "f")
    assert judged(text, given).line == 2
    assert "expected '    c = 3' at line 4, found '    x = 0'" in reason(text, given)


def test_of_two_places_the_one_with_fewer_gaps_at_its_beginning_is_named() -> None:
    text = "def f():\n    b = 2\n    c = 3\n    x = 0\n    a = 1\n    b = 2\n"
    given = hunk(["     a = 1", "     b = 2", "     c = 3", "+    d = 4"], "f")
    assert judged(text, given).line == 5


def test_a_place_whose_first_lines_are_missing_begins_where_a_line_is_found() -> None:
    text = "def f():\n    x = 0\n    b = 2\n    c = 3\n"
    given = hunk(["     a = 1", "     b = 2", "     c = 3", "+    d = 4"], "f")
    assert judged(text, given).line == 3
    assert "the first 0 without a gap; expected '    a = 1' at line 2" in reason(text, given)


def test_lines_that_are_all_blank_tell_nothing() -> None:
    given = hunk([" ", "-  ", "+x = 1"], "f")
    said = reason("def f():\n    a = 1\n\n    b = 2\n", given)
    assert said == (
        "expected 2 lines, such as '', in f, found none of them there: the code was rewritten or "
        "moved"
    )


# Lines that are there already


def test_a_hunk_that_is_torn_apart_names_the_place_of_its_pre_image() -> None:
    text = "def f():\n    value = compute(1)\n    other = 1\n    return value\n"
    given = hunk(
        ["     other = 1", "+    value = compute(1)", "     return value"], "f", base_has=()
    )
    result = judged(text, given)
    assert result.state is State.AMBIGUOUS
    assert (result.line, result.candidates) == (3, (3,))


def test_a_hunk_without_telling_lines_is_not_torn_apart() -> None:
    text = "def f():\n    x\n    other = 1\n    return value\n"
    given = hunk(["     other = 1", "+    x", "     return value"], "f", base_has=())
    assert judged(text, given).state is State.PRISTINE
    assert share_of((), ["a"]) == 0.0
    assert share_of(("a", "b"), ["  a"]) == 0.5


def test_a_text_ends_with_a_newline_unless_it_is_said_not_to() -> None:
    lines = ["a", "b"]
    given = hunk([" a", "-b", "+c"], pre_unfinished=True)
    assert match(given, lines, find(lines)).state is State.DRIFTED
    assert match(given, lines, find(lines), final_newline=False).state is State.PRISTINE


def test_no_edit_is_made_of_context_alone() -> None:
    assert matching.edits(hunk([" a", " b"]), 0) == ()
    (edit,) = matching.edits(hunk([" a", "-b", "+c", " d"]), 4)
    assert (edit.start, edit.stop) == (5, 6)


def test_the_cause_of_several_places_leaves_their_lines_out() -> None:
    """So that one cause in many files is told once."""
    result = judged("a\nb\na\n", hunk([" a", "+c"]))
    assert result.reason is not None
    cause = "expected its 1 lines before the change once in <module>, found them 2 times"
    assert (result.reason.text, result.reason.cause) == (f"{cause}, at lines 1, 3", cause)
