"""Of the releases that take every hunk, the base is the one in which they are nearest."""

from __future__ import annotations

import pytest

from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts, locate, replay
from tests.support.patches import MemoryTree

PATH = "vllm/a.py"

#: An edit of the first line of a file.
EDIT = f"--- a/{PATH}\n+++ b/{PATH}\n@@ -1,2 +1,2 @@\n-first = 1\n+first = 2\n second = 2\n"


@pytest.mark.parametrize("above", [1, 3])
def test_a_hunk_at_the_first_line_is_nearest_where_it_is_first(above: int) -> None:
    text = b"first = 1\nsecond = 2\nthird = 3\n"
    trees = {
        "0.20.0": MemoryTree({PATH: text}),
        "0.21.0": MemoryTree({PATH: b"import os\n" * above + text}),
    }
    ((file,),) = (commit.files for commit in read_changes(EDIT.encode(), "x"))
    base = locate(file, ReleaseTexts(tuple(trees), trees.__getitem__))
    assert base is not None
    assert base.release == "0.20.0"


def test_hunks_of_a_known_base_lie_at_their_own_lines_among_lines_that_are_alike() -> None:
    diff = f"--- a/{PATH}\n+++ b/{PATH}\n@@ -1 +1 @@\n-a = 1\n+a = 2\n@@ -4 +4 @@\n-b = 1\n+b = 2\n"
    ((file,),) = (commit.files for commit in read_changes(diff.encode(), "x"))
    made = replay(b"a = 1\na = 1\nb = 1\nb = 1\nb = 1\n", file.hunks)
    assert made == b"a = 2\na = 1\nb = 1\nb = 2\nb = 1\n"
