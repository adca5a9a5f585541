"""The context of a hunk: how much there is, the hunk with less, and whether that tells a place."""

from __future__ import annotations

import pytest

from overlay.planning.attempt import Texts
from overlay.planning.scopes import Syntax
from overlay.planning.telling import anchored, context_of, narrowed
from tests.support.patches import hunk

LINES = [" first_line = 1", " second_line = 2", "-old_line = 2", "+new_line = 2", " last_line = 3"]


@pytest.mark.parametrize(
    ("lines", "tells"),
    [
        ([" first_line = 1", "+new_line = 2", " last_line = 3"], True),
        ([" first_line = 1", "+new_line = 2"], False),  # nothing behind what is put in
        ([" first_line = 1", "-old_line = 2", " last_line = 3"], True),
        (["-old_line = 2", " last_line = 3"], False),  # nor before what is taken out
        (["-old_line = 2", "+new_line = 2"], True),
        (["-pass", "+new_line = 2"], False),  # a line that stands everywhere
        ([" )", "-pass", "+new_line = 2", " )"], False),
        (["-old_line = 2", "+new_line = 2", " )"], True),
    ],
)
def test_which_lines_tell_a_place(lines: list[str], tells: bool) -> None:
    assert anchored(hunk(lines)) is tells


@pytest.mark.parametrize(
    ("above", "below", "sides", "line"),
    [(0, 0, (0, 0), 9), (1, 0, (1, 0), 8), (1, 1, (1, 1), 8), (9, 9, (2, 1), 7)],
)
def test_a_hunk_with_less_context_begins_where_its_lines_do(
    above: int, below: int, sides: tuple[int, int], line: int
) -> None:
    form = narrowed(hunk(LINES)._replace(source_line=7), above, below)
    assert context_of(form) == sides
    assert form.source_line == line
    assert [text for op, text in form.lines if op != " "] == ["old_line = 2", "new_line = 2"]


def test_a_hunk_that_speaks_of_the_end_of_the_file_keeps_what_is_behind_its_change() -> None:
    for end in ("pre_unfinished", "post_unfinished"):
        assert context_of(narrowed(hunk(LINES, **{end: True}), 0, 0)) == (0, 1)


@pytest.mark.parametrize(
    ("text", "less"),
    [
        ("first_line = 9\nsecond_line = 2\nold_line = 2\nlast_line = 3\n", 1),
        ("first_line = 1\nsecond_line = 9\nold_line = 2\nlast_line = 3\n", 0),
        ("first_line = 1\nsecond_line = 2\nold_line = 9\nlast_line = 3\n", None),
        ("old_line = 2\nother_line = 2\nold_line = 2\n", None),  # twice
        ("def broken(:\nold_line = 2\n", None),
    ],
)
def test_how_much_less_would_land(text: str, less: int | None) -> None:
    assert Texts(Syntax()).less(hunk(LINES), text.encode()) == less
