"""One patch on one file, and what texts say about their bytes."""

from __future__ import annotations

import pytest

from overlay._features.model import Hunk, Patch
from overlay.planning.attempt import Attempt, Texts, attempt
from overlay.planning.scopes import Syntax
from overlay.planning.text import Edit, SourceText
from overlay.results import FileResult, HunkResult, Reason, State
from tests.support.patches import hunk
from tests.support.plans import HUNK, TEXT, A

NAME = "demo/01-topic/0.20.0..0.33.0.patch"


def tried(data: bytes | None, *hunks: Hunk, step: str | None = None) -> Attempt:
    return attempt(Patch(NAME, A, {}, hunks), data, Texts(Syntax()), missing_step=step)


def after(data: bytes, *hunks: Hunk) -> bytes:
    result = tried(data, *hunks)
    assert result.result.state is State.PRISTINE
    assert result.after is not None
    return result.after


def test_a_missing_file_is_told_with_what_to_do() -> None:
    reason = Reason(f"expected the file {A}, found none", "move it")
    hunks = (HunkResult("f", State.MISSING, reason=reason),)
    expected = FileResult(A, State.MISSING, NAME, hunks, reason)
    assert tried(None, HUNK, step="move it") == Attempt(expected)


def test_hunks_that_touch_are_made_in_the_order_of_the_text() -> None:
    """Whatever the order of the hunks, and of the names of their scopes."""
    data = b"def z():\n    x = 1\n    return x\n\ndef a():\n    y = 1\n    return y\n"
    first = hunk(["     return x", "+    # z ends"], "z")
    second = hunk(["+    # a begins", "     y = 1"], "a")
    expected = data.replace(b"return x\n", b"return x\n    # z ends\n").replace(
        b"    y = 1\n", b"    # a begins\n    y = 1\n"
    )
    assert after(data, first, second) == after(data, second, first) == expected
    # Two insertions at one place: one ends there, the other begins there.
    together = b"def z():\n    x = 1\n    return x\n"
    ends = hunk(["     x = 1", "+    # one"], "z")
    begins = hunk(["+    # two", "     return x"], "<module>")
    expected = together.replace(b"x = 1\n", b"x = 1\n    # one\n    # two\n")
    assert after(together, ends, begins) == after(together, begins, ends) == expected


def test_the_newline_at_the_end_is_as_the_hunk_says() -> None:
    bare = hunk([" x = 1", "-y = 2", "+y = 3"], pre_unfinished=True, post_unfinished=True)
    assert after(b"x = 1\ny = 2", bare) == b"x = 1\ny = 3"
    gone = hunk([" x = 1", "-y = 2", "+y = 3"], post_unfinished=True)
    before = b"w = 0\nv = 0\nx = 1\ny = 2\n"
    other = hunk(["-w = 0", "+w = 1", " v = 0"])
    expected = b"w = 1\nv = 0\nx = 1\ny = 3"
    assert after(before, gone, other) == after(before, other, gone) == expected
    assert tried(b"x = 1\ny = 2\n", bare).result.state is State.DRIFTED


def test_hunks_on_lines_beside_each_other_do_not_overlap() -> None:
    data = b"a = 1\nb = 2\nc = 3\nd = 4\n"
    upper, lower = hunk([" a = 1", "-b = 2", "+b = 3"]), hunk(["-c = 3", "+c = 4", " d = 4"])
    assert after(data, upper, lower) == after(data, lower, upper) == b"a = 1\nb = 3\nc = 4\nd = 4\n"
    shared = hunk([" b = 2", "-c = 3", "+c = 4"])
    assert tried(data, upper, shared).result.state is State.DRIFTED


def test_a_result_that_is_not_python_names_the_patch() -> None:
    result = tried(TEXT, hunk(["     y = x", "+    y = (", "     z = y"], "f"))
    assert result.after is None
    assert result.result.reason is not None
    assert result.result.reason.next_step == f"correct {NAME}"


def test_a_hunk_that_could_be_applied_twice_gives_no_bytes() -> None:
    """Each hunk is looked at: also one behind a hunk with which all is well."""
    data = b"def f():\n    a = 1\n    b = 2\n\n\ndef g():\n    c = 3\n"
    good = hunk(["-    c = 3", "+    c = 4"], "g")
    again = hunk(["     a = 1", "-    b = 2"], "f")  # nothing tells that it was applied
    leaves = hunk(["-def f():", "+def h():", "     a = 1"], "f")  # its scope is gone afterwards
    result = tried(data, good, leaves)
    assert result.after is None
    assert [each.state for each in result.result.hunks] == [State.PRISTINE, State.DRIFTED]
    reason = result.result.hunks[1].reason
    assert reason is not None
    assert reason.text.startswith(
        "once it is applied, its lines after the change cannot be found in its scope"
    )
    assert tried(data, again).after == data.replace(b"    b = 2\n", b"")


@pytest.mark.parametrize("data", [b"# coding: nonsense\n", b"\xff\n", b"def f(:\n"])
def test_what_cannot_be_read_holds_no_pre_image(data: bytes) -> None:
    texts = Texts(Syntax())
    assert texts.match(HUNK, data).state is State.DRIFTED
    assert texts.misplaced(HUNK, data) is False


@pytest.mark.parametrize("new", ["    z = 1", "    z = 1\r"])
def test_an_edited_text_is_read_as_its_bytes_are(new: str) -> None:
    texts = Texts(Syntax())
    spliced = texts.source(TEXT).splice([Edit(5, 6, (new,))])
    data = texts.keep(spliced)
    assert texts.source(data) == SourceText.from_bytes(data)
    assert (texts.source(data) is spliced) == (not new.endswith("\r"))
