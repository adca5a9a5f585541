"""The text that a change was made on, and where in it the change lies."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from packaging.version import Version

from overlay._features.model import blob_id
from overlay.authoring import locating
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import IncomingFile, read_changes
from overlay.authoring.locating import (
    Base,
    ReadBy,
    ReleaseTexts,
    behind,
    doubts,
    files_of,
    following_bytes,
    having,
    locate,
    read_origin,
    release_before,
    replay,
    vague_hunk,
)
from overlay.errors import UsageError
from overlay.package import VLLM, package_named
from overlay.planning.diff import render
from overlay.planning.scopes import Syntax
from overlay.results import Change, State
from overlay.untrusted import UnfitFile
from tests.support.patches import MemoryTree, feature, hunk, topic

PATH = "vllm/a.py"
#: The body of functions that are alike.
BODY = (
    "    with lock:\n        x += 1\n    for a in x:\n        use(a)\n    y = 2\n    return x\n\n\n"
)


def diff(before: str, after: str, path: str = PATH, context: int = 3, heading: str = "") -> str:
    """A diff that names no blobs; each hunk quotes a line."""
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", n=context)
    made = ("" if line.endswith("\n") else "\n\\ No newline at end of file\n" for line in lines)
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", n=context)
    texts = (
        f"{line[:-1]} {heading}\n" if heading and line.startswith("@@") else line for line in lines
    )
    return "".join(text + end for text, end in zip(texts, made, strict=True))


def with_ids(text: str, before: str | bytes, path: str = PATH) -> str:
    """A diff as git writes it, with the id of the text that it was made on."""
    old = blob_id(before.encode() if isinstance(before, str) else before)
    return f"diff --git a/{path} b/{path}\nindex {old}..{'1' * 40} 100644\n{text}"


def files(text: str) -> list[IncomingFile]:
    """The changes of one file, one for each diff of it."""
    return [file for commit in read_changes(text.encode(), "x") for file in commit.files]


def releases(*texts: str | bytes | None, path: str = PATH) -> ReleaseTexts:
    """Releases from 0.20.0 on; ``None``: one without the file."""
    data = [text.encode() if isinstance(text, str) else text for text in texts]
    trees = {
        f"0.{20 + at}.0": MemoryTree({} if each is None else {path: each})
        for at, each in enumerate(data)
    }
    return ReleaseTexts(tuple(trees), trees.__getitem__)


def located(text: str, *texts: str | bytes | None, path: str = PATH) -> Base | None:
    """The base of the first file of a diff, with those behind it as further changes of it."""
    first, *following = files(text)
    return locate(first, releases(*texts, path=path), None, following)


# Which of places that are alike


TWINS = f"import os\n\n\ndef f(x):\n{BODY}def g(x):\n{BODY}def h(x):\n{BODY}"
IN_G = TWINS.replace(f"def g(x):\n{BODY}", f"def g(x):\n{BODY.replace('y = 2', 'y = 3')}")
LONG = f"def a_function_with_a_name_of_more_than_forty_letters(x): # {'-' * 60}"


@pytest.mark.parametrize("shift", [0, 3, 6, 9, 12, 18, 40])
@pytest.mark.parametrize(
    ("line", "heading"),
    [
        ("def g(x):", "def g(x):"),
        ("    def g(x):", "def g(x):"),  # where .gitattributes says that it is Python
        ("async def g(x):", "async def g(x):"),
        ("class G:", "class G:"),
        ("tables = [", "tables = ["),
        (LONG, LONG[:80]),
        (LONG, LONG[:39]),
    ],
)
def test_of_places_that_are_alike_a_hunk_lies_below_the_line_that_it_quotes(
    shift: int, line: str, heading: str
) -> None:
    """Upstream put lines above, so that its number is that of another place."""
    before, after = (text.replace("def g(x):", line) for text in (TWINS, IN_G))
    if line == "tables = [":  # makes the file data: Python cannot read it
        before, after = before.replace("def ", "[] "), after.replace("def ", "[] ")
    (file,) = files(diff(before, after, heading=heading))
    above = "k = 1\n" * shift
    assert replay((above + before).encode(), file.hunks) == (above + after).encode()


def test_a_change_in_a_function_is_no_change_of_its_twin() -> None:
    base = located(diff(TWINS, IN_G, heading="def g(x):"), "k = 1\n" * 9 + TWINS)
    assert base is not None
    assert base.after == ("k = 1\n" * 9 + IN_G).encode()


@pytest.mark.parametrize("heading", ["", "def elsewhere(x):", "def g", "g", "Holder.g"])
def test_where_no_place_is_below_that_line_the_nearest_one_is_it(heading: str) -> None:
    (file,) = files(diff(TWINS, IN_G, heading=heading))
    assert replay(TWINS.encode(), file.hunks) == IN_G.encode()
    near = "k = 1\n\n" + TWINS
    assert replay(near.encode(), file.hunks) == ("k = 1\n\n" + IN_G).encode()


def test_a_hunk_that_was_moved_to_one_of_several_places_is_to_be_looked_at() -> None:
    """Where nothing tells which place it is, a person has to."""
    moved = "k = 1\n" * 5 + TWINS
    change = diff(TWINS, IN_G)
    (file,) = files(change)
    base = located(change, moved)
    assert base is not None
    (text,) = doubts(base, file.hunks)
    assert text == (
        f"{PATH}: the hunk at line 3 was put at line 11 of 0.20.0, and fits at 11, 20 and 29: see "
        "that it is where it belongs, or make the diff with the ids of blobs (`git diff "
        "--full-index`)"
    )
    assert list(doubts(replace(base, by_id=True), file.hunks)) == []
    assert list(doubts(base, ())) == []
    own = located(change, TWINS)
    assert own is not None
    assert list(doubts(own, file.hunks)) == []  # it lies where its numbers say
    (quoting,) = files(diff(TWINS, IN_G, heading="def g(x):"))
    assert list(doubts(base, quoting.hunks)) == []
    (alone,) = files(diff(TWINS, IN_G, context=20))
    assert list(doubts(base, alone.hunks)) == []


def test_a_hunk_that_was_moved_as_far_as_the_one_before_is_where_it_belongs() -> None:
    """And it is as far from its number as that one, however near another place is to that."""
    head = "".join(f"m{number} = 1\n" for number in range(9))
    before, after = f"{head}first = 1\n\n\n{TWINS}", f"{head}first = 2\n\n\n{IN_G}"
    change = diff(before, after)
    (file,) = files(change)
    moved = "k = 1\n" * 9
    base = located(change, moved + before)
    assert base is not None
    assert base.after == (moved + after).encode()
    assert list(doubts(base, file.hunks)) == []
    between = before.replace("import os\n\n", "import os\n\n" + "k = 1\n" * 5)
    elsewhere = located(change, between)
    assert elsewhere is not None
    assert len(list(doubts(elsewhere, file.hunks))) == 1


def test_what_is_to_be_looked_at_is_a_warning_of_the_import() -> None:
    moved = ("k = 1\n" * 5 + TWINS).encode()
    commits = read_changes(diff(TWINS, IN_G).encode(), "x")
    texts = releases(moved)
    made = prepare(commits, "a", texts, source="x", verbatim=b"", today="2026-11-27")
    (warning,) = made.summary.warnings
    assert "see that it is where it belongs" in warning


def test_a_hunk_lies_behind_the_one_before_it() -> None:
    """Its own number is that of a place before that one."""
    first = hunk([" b = 1", "-b = 2", "+b = 3"])._replace(source_line=4)
    second = hunk(["-a = 1", "+a = 2"])._replace(source_line=6)
    text = b"x = 1\na = 1\nx = 1\nx = 2\nx = 3\nx = 4\nb = 1\nb = 2\na = 1\n"
    made = replay(text, [first, second])
    assert made == b"x = 1\na = 1\nx = 1\nx = 2\nx = 3\nx = 4\nb = 1\nb = 3\na = 2\n"
    text = b"x = 1\na = 1\nx = 1\nb = 1\nb = 2\n" + b"y = 1\n" * 9 + b"a = 1\n"
    made = replay(text, [first, second])
    assert made == text.replace(b"b = 2", b"b = 3")[:-6] + b"a = 2\n"
    overlapping = [hunk([" a = 1", "-a = 1", "+a = 2"]), hunk(["-a = 1", "+a = 3"])]
    in_order = [overlapping[0], overlapping[1]._replace(source_line=3)]
    assert replay(b"a = 1\na = 1\na = 1\n", in_order) == b"a = 1\na = 2\na = 3\n"


@pytest.mark.parametrize("context", [3, 4])
@pytest.mark.parametrize("head", ["", "import os\n"])
def test_the_line_right_above_a_hunk_may_be_the_quoted_one(context: int, head: str) -> None:
    """Also the first of the file; one that the hunk itself shows is none."""
    text = f"{head}def f(x):\n{BODY}def g(x):\n{BODY}"
    after = text.replace("y = 2", "y = 3", 1)
    (file,) = files(diff(text, after, context=context, heading="def f(x):"))
    other = "k = 1\n" * 9
    assert replay((other + text).encode(), file.hunks) == (other + after).encode()
    far = tuple(each._replace(source_line=40) for each in file.hunks)
    assert replay(text.encode(), far) == after.encode()


def test_of_equal_lines_in_a_row_one_below_another_is_taken() -> None:
    change = hunk(["-a = 1", "+a = 2"])._replace(source_line=2, heading="a = 1")
    assert replay(b"x = 0\na = 1\na = 1\na = 1\n", [change]) == b"x = 0\na = 1\na = 2\na = 1\n"


def test_without_a_quoted_line_the_nearest_place_is_taken() -> None:
    change = hunk([" [x]", "-[y]", "+[z]"])._replace(source_line=4)
    made = replay(b"[x]\n[y]\ndef head(): 1\n[x]\n[y]\n", [change])
    assert made == b"[x]\n[y]\ndef head(): 1\n[x]\n[z]\n"


def test_of_two_places_one_is_to_be_looked_at() -> None:
    """The first of which begins the file."""
    text = b"[x]\n[y]\n" + b"k = 1\n" * 8 + b"[x]\n[y]\n"
    change = hunk([" [x]", "-[y]", "+[z]"])._replace(source_line=9)
    base = Base(PATH, "0.20.0", text, text, by_id=False)
    (doubt,) = doubts(base, [change])
    assert "was put at line 11 of 0.20.0, and fits at 1 and 11: see" in doubt


def test_of_two_places_the_one_that_is_quoted_is_taken() -> None:
    before, after = (text.partition("def h")[0] for text in (TWINS, IN_G))
    (file,) = files(diff(before, after, heading="def g(x):"))
    moved = "k = 1\n" * 9
    assert replay((moved + before).encode(), file.hunks) == (moved + after).encode()


# The newline at the end


@pytest.mark.parametrize("more", ["", "d = 4\n"])
def test_a_change_of_the_newline_at_the_end_is_made_on_a_text_that_ends_as_it_says(
    more: str,
) -> None:
    ended, unended = "a = 1\nb = 2\nc = 3\n", "a = 1\nb = 2\nc = 3"
    for before, after in ((unended, ended + more), (ended, unended)):
        change = diff(before, after)
        base = located(change, before, after)
        assert base is not None
        assert (base.release, base.after) == ("0.20.0", after.encode())
        (file,) = files(change)
        assert replay(after.encode(), file.hunks) is None
        assert located(change, after, after) is None


def test_a_hunk_of_the_end_lies_at_the_end() -> None:
    (file,) = files(diff("a = 1\nb = 2", "a = 1\nb = 2\nc = 3"))
    assert replay(b"a = 1\nb = 2\na = 1", file.hunks) is None
    assert replay(b"first = 0\na = 1\nb = 2", file.hunks) == b"first = 0\na = 1\nb = 2\nc = 3"


def test_a_change_of_the_newline_between_releases_was_made_on_what_ends_otherwise() -> None:
    ended, unended = "a = 1\nb = 2\nc = 3\n", "a = 1\nb = 2\nc = 3"
    for before, after in ((unended, ended), (ended, unended)):
        base = located(diff(before, after), None, after)
        assert base is not None
        assert (base.before, base.after) == (before.encode(), after.encode())


# Several changes of one file

ONE = "def f(x):\n    start(x)\n    one = 1\n    return x\n\n\n"
TWO = "def g(x):\n    begin(x)\n    two = 2\n    return x\n"
MORE_ONE = ONE.replace("    return", "    first_new = work(1)\n    return")
MORE_TWO = TWO.replace("    return", "    second_new = work(2)\n    return")
SERIES = diff(ONE + TWO, MORE_ONE + TWO) + diff(MORE_ONE + TWO, MORE_ONE + MORE_TWO)


def test_a_series_is_made_on_a_text_that_takes_all_of_it() -> None:
    """The first change alone fits a newer release, too, whose lines are not those of the second."""
    other = TWO.replace("begin(x)", "start_other(x)").replace("two = 2", "two = 22")
    base = located(SERIES, ONE + TWO, ONE + other)
    assert base is not None
    assert base.release == "0.20.0"
    first = files(SERIES)[0]
    newer = locate(first, releases(ONE + TWO, ONE + other))
    assert newer is not None
    assert newer.release == "0.21.0"


def test_a_series_that_no_release_takes_has_the_base_of_its_first_change() -> None:
    """So that whoever lays the changes on each other can say which one does not fit."""
    base = located(SERIES, ONE + TWO.replace("two = 2", "two = 22"))
    assert base is not None
    assert base.release == "0.20.0"


def test_a_series_that_a_release_has_is_not_made_on_it() -> None:
    base = located(SERIES, ONE + TWO, MORE_ONE + MORE_TWO)
    assert base is not None
    assert base.release == "0.20.0"


# Between releases


def test_a_change_between_releases_was_made_on_what_has_it_without_it() -> None:
    """The oldest release lacks the file."""
    after = MORE_ONE + TWO
    base = located(diff(ONE + TWO, after), None, after, after + "k = 1\n")
    assert base is not None
    assert (base.release, base.before, base.by_id) == (None, (ONE + TWO).encode(), False)
    assert (base.origin, base.words) == ("0.21.0 without it", "0.21.0 without it")
    proved = located(with_ids(diff(ONE + TWO, after), ONE + TWO), None, after)
    assert proved is not None
    assert proved.by_id


def test_what_every_release_has_was_made_on_none() -> None:
    after = MORE_ONE + TWO
    assert located(diff(ONE + TWO, after), after, after) is None


def test_a_text_that_has_it_where_it_was_made_too_is_no_base() -> None:
    """Also where the oldest release lacks the file."""
    text = "".join(f'register(\n    "{name}",\n    lazily=True,\n)\n\n' for name in ("a", "b"))
    new = text.replace('"a"', '"c"').replace('"b"', '"d"')
    assert located(diff(text, text + new), None, text + new + text) is None


def test_a_series_between_releases_is_taken_back_from_its_end() -> None:
    after = MORE_ONE.replace("first_new = work(1)", "first_new = work(2)") + TWO
    series = diff(ONE + TWO, MORE_ONE + TWO) + diff(MORE_ONE + TWO, after)
    base = located(series, "nothing = 0\n", after)
    assert base is not None
    assert base.before == (ONE + TWO).encode()
    assert base.after == (MORE_ONE + TWO).encode()


# What is told by ids

#: The lines that a change adds to the second class stand in the first.
_CLASSES = "class A:\n    def f(self):\n        work(1)\n        return 1\n\n\n"
_CLASSES += "class B:\n    def f(self):\n        return 1\n"
_BOTH = _CLASSES[: _CLASSES.rindex("        return")] + "        work(1)\n        return 1\n"
_BOTH_DIFF = diff(_CLASSES, _BOTH, context=1)


def test_the_text_of_a_release_is_proved_by_its_id() -> None:
    texts = (_CLASSES, "k = 1\n" + _CLASSES, _BOTH)
    base = located(with_ids(_BOTH_DIFF, _CLASSES), *texts)
    assert base is not None
    assert (base.release, base.by_id, base.after) == ("0.20.0", True, _BOTH.encode())


class Repository:
    """A repository with some texts, in the place of one that git reads."""

    blobs: ClassVar[dict[str, bytes]] = {}

    def __init__(self, folder: Path) -> None:
        if not self.blobs:
            raise UsageError(f"{folder} is no repository")

    def blob(self, blob: str) -> bytes | None:
        return self.blobs.get(blob)


def test_a_folder_that_is_no_repository_is_proved_by_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unpacked build; no line has to show that it lacks the change."""
    monkeypatch.setattr(locating, "Checkout", Repository)
    (tmp_path / "vllm").mkdir()
    (tmp_path / PATH).write_text(_CLASSES)
    (file,) = files(with_ids(_BOTH_DIFF, _CLASSES))
    base = locate(file, releases("other = 1\n"), tmp_path)
    assert base == Base(PATH, None, _CLASSES.encode(), _BOTH.encode(), by_id=True)
    assert base.words == "a text that only --base has"
    assert locate(file, releases("other = 1\n"), MemoryTree({PATH: _CLASSES.encode()})) == base
    assert locate(file, releases("other = 1\n"), tmp_path / PATH) == base
    (unproved,) = files(_BOTH_DIFF)
    assert locate(unproved, releases("other = 1\n"), tmp_path) is None


def test_a_repository_has_the_text_of_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / PATH).write_text("later = 1\n")
    blobs = {blob_id(_CLASSES.encode()): _CLASSES.encode()}
    monkeypatch.setattr(locating, "Checkout", Repository)
    monkeypatch.setattr(Repository, "blobs", blobs)
    (file,) = files(with_ids(_BOTH_DIFF, _CLASSES))
    base = locate(file, releases("other = 1\n"), tmp_path)
    assert base == Base(PATH, None, _CLASSES.encode(), _BOTH.encode(), by_id=True)
    size = len(_CLASSES)
    monkeypatch.setattr(locating, "_LIMIT", size)
    assert locate(file, releases("other = 1\n"), tmp_path) == base
    monkeypatch.setattr(locating, "_LIMIT", size - 1)
    assert locate(file, releases("other = 1\n"), tmp_path) is None


def test_the_text_of_a_folder_is_that_of_the_newest_release_that_has_it(tmp_path: Path) -> None:
    before, after = ONE + TWO, MORE_ONE + TWO
    (file,) = files(diff(before, after))
    build = MemoryTree({PATH: before.encode()})
    own = locate(file, releases("k = 1\n" + before), build)
    assert own == Base(PATH, None, before.encode(), after.encode(), by_id=False)
    base = locate(file, releases("k = 1\n" + before, before, after), build)
    assert base is not None
    assert (base.release, base.by_id) == ("0.21.0", False)
    later = locate(file, releases("k = 1\n" + before), MemoryTree({PATH: after.encode()}))
    assert later is not None  # that folder has the change, so a release was its base
    assert later.release == "0.20.0"


def test_hunks_without_context_lie_where_their_lines_stand_once() -> None:
    text = "a = 1\nb = 2\nc = 3\n"
    bare = diff(text, text.replace("b = 2", "b = 4"), context=0)
    (file,) = files(bare)
    base = located(bare, "k = 1\n" + text)
    assert base is not None
    assert base.after == b"k = 1\na = 1\nb = 4\nc = 3\n"
    twice = "b = 2\n" + text
    assert located(bare, twice) is None
    assert vague_hunk(file, releases(twice)) == file.hunks[0]
    assert vague_hunk(file, releases("none = 0\n")) is None
    (full,) = files(diff(text, text.replace("b = 2", "b = 4")))
    assert vague_hunk(full, releases(text)) is None
    after = "b = 2\na = 1\nb = 4\nc = 3\n"
    known = located(with_ids(diff(twice, after, context=0), twice), twice)
    assert known is not None  # its number is that of a text that is known
    assert known.after == after.encode()


# Hunks that are not in order

OUT_OF_ORDER = (
    f"--- a/{PATH}\n+++ b/{PATH}\n@@ -3,2 +3,2 @@\n c = 3\n-d = 4\n+d = 5\n"
    "@@ -1,2 +1,2 @@\n a = 1\n-b = 2\n+b = 5\n"
)


def test_hunks_that_are_not_in_order_lie_where_their_lines_stand_once() -> None:
    (file,) = files(OUT_OF_ORDER)
    assert replay(b"a = 1\nb = 2\nc = 3\nd = 4\n", file.hunks) == b"a = 1\nb = 5\nc = 3\nd = 5\n"
    assert replay(b"a = 1\nb = 2\nc = 3\nd = 4\na = 1\nb = 2\n", file.hunks) is None
    assert replay(b"a = 1\nc = 3\nd = 4\n", file.hunks) is None
    first = file.hunks[0]
    overlapping = hunk([" d = 4", "-a = 1", "+a = 2"])._replace(source_line=2)
    text = b"a = 1\nb = 2\nc = 3\nd = 4\na = 1\n"
    assert replay(text, (first, overlapping)) is None
    assert replay(text, (first, hunk(["+new = 1"]))) is None


def test_a_hunk_that_ends_where_the_next_one_begins_is_before_it() -> None:
    lines = [hunk(["-a = 1", "+a = 2"]), hunk(["-a = 1", "+a = 3"])._replace(source_line=2)]
    assert replay(b"a = 1\na = 1\n", lines) == b"a = 2\na = 3\n"
    swapped = [hunk(["-b = 1", "+b = 2"])._replace(source_line=9), hunk(["-a = 1", "+a = 2"])]
    assert replay(b"a = 1\nb = 1\n", swapped) == b"a = 2\nb = 2\n"


def test_what_is_no_text_takes_no_hunk_and_stays_without_one() -> None:
    (file,) = files(OUT_OF_ORDER)
    assert replay(b"\xff\n", file.hunks) is None
    assert replay(b"\xff\n", ()) == b"\xff\n"
    assert located(OUT_OF_ORDER, b"\xff\n", "a = 1\nb = 2\nc = 3\nd = 4\n") is not None
    assert replay(b"# coding: latin-1\na = 1\n", [hunk(["-a = 1", "+a = '\u20ac'"])]) is None


def test_what_one_change_makes_is_nothing_where_it_does_not_fit() -> None:
    (file,) = files(diff("a = 1\n", "a = 2\n"))
    assert following_bytes(b"a = 1\n", file) == b"a = 2\n"
    assert following_bytes(b"b = 1\n", file) is None


def test_a_text_that_is_named_is_asked_as_one_of_a_release() -> None:
    """Without an id, hunks without context have to be told by their lines there, too."""
    twice = "b = 2\na = 1\nb = 2\nc = 3\n"
    after = "b = 2\na = 1\nb = 4\nc = 3\n"
    bare = diff(twice, after, context=0)
    build = MemoryTree({PATH: twice.encode()})
    (file,) = files(bare)
    assert locate(file, releases("other = 1\n"), build) is None
    (proved,) = files(with_ids(bare, twice))
    base = locate(proved, releases("other = 1\n"), build)
    assert base is not None
    assert base.after == after.encode()


# Which release of several


def spaced(above: int, *lines: str, new: Sequence[str] = ()) -> str:
    """A function with some lines above it, and new lines in it."""
    body = ["def f(x):", "    start(x)", "    one = first(x)", *new, "    return x", *lines]
    return "\n".join(["import os", *["k = 1"] * above, "", *body]) + "\n"


NEW = ["    first_new = work(1)", "    second_new = work(2)", "    third_new = work(3)"]
CHANGE = diff(spaced(4), spaced(4, new=NEW))
NARROW = diff(spaced(4), spaced(4, new=NEW), context=2)


@pytest.mark.parametrize(
    ("others", "expected"), [((9, 3), 1), ((3, 9), 0), ((0, 5), 1), ((5, 0), 0), ((4, 3), 0)]
)
def test_the_base_is_the_release_whose_lines_are_nearest_to_the_numbers(
    others: tuple[int, int], expected: int
) -> None:
    """One line away is nearer than four or five, on either side."""
    base = located(CHANGE, *(spaced(above) for above in others))
    assert base is not None
    assert base.release == f"0.{20 + expected}.0"


def test_where_a_later_release_has_the_change_the_newest_before_it_is_the_base() -> None:
    """The nearest by its numbers is older; one that had the change once tells nothing."""
    has = spaced(7, new=NEW)
    texts = [spaced(9, new=NEW), spaced(4), spaced(7), has, spaced(5)]
    base = located(CHANGE, *texts)
    assert base is not None
    assert base.release == "0.22.0"
    assert located(CHANGE, spaced(4), has) == located(CHANGE, spaced(4))
    again = located(CHANGE, spaced(7), has, spaced(4))  # upstream took it back
    assert again is not None
    assert again.release == "0.20.0"
    most = spaced(7, new=[*NEW[:2], "    third_other = work(4)"])
    base = located(CHANGE, spaced(4), spaced(7), most)
    assert base is not None
    assert base.release == "0.21.0"


@pytest.mark.parametrize("later", [None, "def f(x:\n", b"\xff\n", "def f(x):\n    return 1\n"])
def test_a_release_that_tells_nothing_does_not_have_it(later: str | bytes | None) -> None:
    base = located(CHANGE, spaced(4), spaced(7), later)
    assert base is not None
    assert base.release == "0.20.0"


def test_of_a_change_that_adds_nothing_the_nearest_is_the_base() -> None:
    removal = diff(spaced(4, new=NEW), spaced(4))
    base = located(removal, spaced(4, new=NEW), spaced(7, new=NEW), spaced(7))
    assert base is not None
    assert base.release == "0.20.0"


def test_a_release_that_moved_the_new_lines_has_the_change() -> None:
    """Its function is as it was before; what the change adds stands in another one."""
    moved = spaced(4, "", "", "def g(x):", *NEW, "    return f(x)")
    base = located(CHANGE, spaced(5), moved)
    assert base is not None
    assert base.release == "0.20.0"


def test_a_line_that_is_appended_is_not_appended_behind_itself() -> None:
    """Whether one line of context is shown, or none of the file is left to show."""
    text = "a = 1\nb = 2\n"
    for old, new in ((text, text + "third = measure(3)\n"), (text, "third = measure(3)\n" + text)):
        later = new + "a = 1\nb = 2\n" if new.startswith("a") else "a = 1\nb = 2\n" + new
        for context in (1, 3):
            change = diff(old, new, context=context)
            assert located(change, later) is None
            base = located(change, old, later)
            assert base is not None
            assert base.release == "0.20.0"


@pytest.mark.parametrize("context", [1, 3])
def test_a_line_at_an_end_that_upstream_has_behind_others_is_not_put_in_again(context: int) -> None:
    """Its context is found, and not at the end any more; of one line nothing else tells."""
    text, line = "a = 1\nb = 2\n", "third = measure(3)\n"
    appended = diff(text, text + line, context=context)
    assert located(appended, f"{text}other = 1\n{line}") is None
    begun = diff(text, line + text, context=context)
    assert located(begun, f"{line}other = 1\n{text}") is None


def test_lines_that_stand_together_are_not_put_in_again() -> None:
    """Short ones, of which none tells by itself, and those that are around elsewhere there."""
    text, lines = "x = 1\ny = 2\n", "a = 1\nb = 2\n"
    assert located(diff(text, text + lines), text + lines + "c = 3\n" + text) is None
    short = ["    a = 1", "    b = 2"]
    moved = spaced(4, "", "", "def g(x):", *short, "    return x")
    assert located(diff(spaced(4), spaced(4, new=short)), moved) is None
    above = spaced(4).replace("start(x)\n", "\n".join(["begin(x)", *NEW, "    stop(x)\n"]))
    assert located(CHANGE.replace("start(x)", "stop(x)"), above) is None


def test_a_release_that_has_most_lines_of_a_change_in_its_function_is_no_base() -> None:
    """Though its hunk fits there at its own line; a person has to look at that release."""
    most = "\n".join([*NEW[:2], "    begin(x)", "    start(x)\n"])
    there = spaced(1).replace("    start(x)\n", most)
    (file,) = files(NARROW)
    assert replay(there.encode(), file.hunks) is not None
    for texts, expected in (((spaced(9), there), "0.20.0"), ((there, spaced(9)), "0.21.0")):
        base = located(NARROW, *texts)
        assert base is not None
        assert base.release == expected


def test_lines_that_a_function_has_one_by_one_and_another_together_are_there() -> None:
    apart = "\n    middle(x)\n".join([*NEW, "    start(x)\n"])
    both = spaced(4, "", "", "def g(x):", *NEW, "    return x")
    text = both.replace("    start(x)\n", apart)
    (file,) = files(NARROW)
    assert replay(text.encode(), file.hunks) is not None
    assert located(NARROW, text) is None


def test_a_line_that_is_added_twice_is_wanted_twice() -> None:
    """A release that has it once does not have the change."""
    rows = "".join(f"    row_{number} = {number}\n" for number in range(12))
    line = "    check_all_of(x)\n"
    text = f"def f(x):\n{rows}    return x\n"
    once = text.replace("    row_1 = 1\n", f"    row_1 = 1\n{line}")
    twice = once.replace("    row_10 = 10\n", f"    row_10 = 10\n{line}")
    base = located(diff(text, twice), text, "k = 1\n" + text, "k = 1\n" + once)
    assert base is not None
    assert base.release == "0.20.0"
    base = located(diff(text, twice), text, "k = 1\n" + text, "k = 1\n" + twice)
    assert base is not None
    assert base.release == "0.21.0"


def test_a_change_that_no_hunk_can_say_keeps_its_base() -> None:
    """Whoever composes it says why."""
    alike = "a = 1\n" * 9
    base = located(diff(alike, alike + "a = 1\n"), alike)
    assert base is not None
    assert base.release == "0.20.0"


def test_what_is_renamed_alone_may_be_no_text() -> None:
    head = "diff --git a/vllm/a.txt b/vllm/b.txt\nsimilarity index 100%\n"
    renamed = f"{head}rename from vllm/a.txt\nrename to vllm/b.txt\n"
    (file,) = files(renamed)
    old = replace(file, path="vllm/a.txt")
    base = locate(old, releases(b"\xff\n", b"\xfe\n", path="vllm/a.txt"))
    assert base is not None
    assert (base.release, base.after) == ("0.21.0", b"\xfe\n")


# Data files

DATA = "vllm/table.txt"


def test_a_data_file_has_the_newest_release_before_its_change_as_its_base() -> None:
    """As a module has; line numbers alone would choose an older one."""
    rows = "".join(f"row-of-table {number}: (\n" for number in range(9))
    after = rows.replace("row-of-table 5", "first-new-row: 1\nsecond-new-row: 2\nrow-of-table 5")
    change = diff(rows, after, DATA)
    base = located(change, rows, "head-of-it (\n" + rows, "head-of-it (\n" + after, path=DATA)
    assert base is not None
    assert base.release == "0.21.0"


def test_bytes_are_told_by_their_id_alone() -> None:
    old, new = b"\0old", b"\0new"
    data = render([Change("vllm/x.bin", old, new)])
    ((file,),) = (commit.files for commit in read_changes(data, "x"))
    other = releases(b"\0other", path="vllm/x.bin")
    base = locate(file, other, MemoryTree({"vllm/x.bin": old}))
    assert base == Base("vllm/x.bin", None, old, new, by_id=True)
    assert locate(file, other, MemoryTree({"vllm/x.bin": b"\0older"})) is None
    assert locate(file, other) is None


# Who has a change


def test_releases_that_have_a_change_are_named_oldest_first() -> None:
    """What is appended fits behind what was appended, too."""
    text = "".join(f'register(\n    "{name}",\n    lazily=True,\n)\n\n' for name in ("a", "b"))
    change = diff(text, text + text.replace('"a"', '"c"').replace('"b"', '"d"'))
    after = text + text.replace('"a"', '"c"').replace('"b"', '"d"')
    (file,) = files(change)
    texts = releases(text, after + text, None, after + text)
    assert having(file, texts) == ("0.21.0", "0.23.0")


# Releases


def test_files_of_releases_are_read_once_and_planned_on() -> None:
    opened: list[str] = []
    trees: dict[str, MemoryTree | ReadBy] = {
        "0.20.0": MemoryTree({PATH: b"a = 1\n"}),
        "0.21.0": ReadBy({PATH: b"a = 1\nc = 1\n"}.get),
        "0.9.0": MemoryTree({}),
    }

    def opener(name: str) -> MemoryTree | ReadBy:
        opened.append(name)
        return trees[name]

    texts = ReleaseTexts(("0.20.0", "0.21.0"), opener, lambda: ("0.8.0",))
    assert texts.with_name("0.20.0") is texts
    more = texts.with_name("0.9.0")
    assert (more.names, more.beside()) == (("0.9.0", "0.20.0", "0.21.0"), ("0.8.0",))
    assert more.read("0.9.0", PATH) is None
    assert more.read("0.21.0", PATH) == b"a = 1\nc = 1\n"
    made = feature((PATH, [hunk(["-a = 1", "+a = 2"])]), releases="0.20.0..0.20.0")
    other = (PATH, [hunk(["-a = 1", "+a = 3"])])
    variants = {"0.20.0..0.20.0": (PATH, [hunk(["-a = 1", "+a = 2"])]), "0.21.0..0.21.0": other}
    two = replace(made, topics=(topic("01-topic", variants),))
    (planned,) = more.plan([made], "0.20.0", Syntax()).features
    assert (planned.state, planned.untested) == (State.PRISTINE, False)
    assert more.lay([two], "0.20.0", Syntax()).tree.current(PATH) == b"a = 2\n"
    assert more.lay([two], "0.21.0", Syntax()).tree.current(PATH) == b"a = 3\nc = 1\n"
    assert opened == ["0.9.0", "0.21.0", "0.20.0"]


def test_what_a_release_says_of_its_files_is_asked_of_it() -> None:
    """A file that is not the release's own is told by its RECORD."""

    class Recorded(MemoryTree):
        record: Mapping[str, str] = {PATH: "0" * 64, "vllm/b.py": "0" * 64}

    texts = ReleaseTexts(("0.20.0",), lambda _: Recorded({PATH: b"a = 2\n"}))
    assert texts.record("0.20.0") == Recorded.record
    assert releases("a = 1\n").record("0.20.0") is None
    made = feature((PATH, [hunk(["-a = 1", "+a = 2"])]))
    (planned,) = texts.plan([made], "0.20.0", Syntax()).features
    assert planned.state is State.DRIFTED
    (planned,) = releases("a = 2\n").plan([made], "0.20.0", Syntax()).features
    assert planned.state is State.UPSTREAMED
    other = replace(made, obsolete_without=("vllm/b.py",))  # there it is missing, and not gone
    texts = ReleaseTexts(("0.20.0",), lambda _: Recorded({PATH: b"a = 1\n"}))
    assert texts.lay([other], "0.20.0", Syntax()).tree.current(PATH) == b"a = 2\n"
    assert releases("a = 1\n").lay([other], "0.20.0", Syntax()).tree.current(PATH) == b"a = 1\n"


# What --base names


def test_one_file_is_the_file_of_its_name_alone(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / PATH).write_text("a = 1\n")
    for origin in (tmp_path, MemoryTree({PATH: b"a = 1\n"}), tmp_path / PATH):
        assert files_of(origin).read(PATH) == b"a = 1\n"
        assert files_of(origin).read("vllm/b.py") is None
        assert read_origin(origin, PATH) == b"a = 1\n"
    assert read_origin(tmp_path / PATH, "vllm/b.py") == b"a = 1\n"


def test_a_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    monkeypatch.setattr(locating, "_LIMIT", 5)
    with pytest.raises(UnfitFile, match="expected a file of at most 5 bytes, found 6"):
        read_origin(tmp_path, "a.py")
    monkeypatch.setattr(locating, "_LIMIT", 6)
    assert read_origin(tmp_path, "a.py") == b"a = 1\n"


NAMES = ("0.20.0", "0.21.0", "0.22.0rc1", "0.22.0rc2", "0.22.0", "0.22.0.post1", "0.23.0")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.21.1.dev12+gabc", "0.21.0"),
        ("0.21.0+cpu", "0.21.0"),
        ("0.21.0", "0.21.0"),
        ("0.22.0.dev3", "0.21.0"),
        ("0.22.0rc1", "0.22.0rc1"),
        ("0.22.0rc2.dev1", "0.22.0rc1"),
        ("0.22.0.post1", "0.22.0.post1"),
        ("0.22.0.post1.dev3", "0.22.0"),
        ("0.22.0.post2", "0.22.0.post1"),
        ("0.24.0rc1", "0.23.0"),
        ("0.19.3", None),
    ],
)
@pytest.mark.parametrize("line", ["__version__ = version = '{}'", 'version = "{}"'])
def test_the_last_release_before_a_build_is_told_by_its_version(
    version: str, expected: str | None, line: str
) -> None:
    text = f"# of setuptools\n__version__: str\nversion: str\n{line.format(version)}\nother = '1'\n"
    build = MemoryTree({"vllm/_version.py": text.encode()})
    texts = ReleaseTexts(NAMES, lambda _: MemoryTree({}))
    assert release_before(build, [], texts, VLLM) == expected


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.22.0", "0.22.0.post1"),
        ("0.22.0rc2", "0.22.0rc2.post1"),
        ("0.22.0.post1", "0.22.0.post2"),
        ("0.22.0rc2.post9", "0.22.0rc2.post10"),
    ],
)
def test_a_build_is_behind_its_release_and_before_the_next_one(release: str, expected: str) -> None:
    assert behind(release, ("0.20.0", release)) == expected
    names = [*NAMES[:5], NAMES[-1]]  # without a post-release of the newest
    assert not [name for name in names if Version(release) < Version(name) <= Version(expected)]


def test_a_build_is_not_called_as_a_release() -> None:
    assert behind("0.23.0", ("0.23.0", "0.23.0.post1", "0.24.0")) == "0.23.0.post2"


def test_the_version_is_that_of_the_package() -> None:
    build = MemoryTree({"vllm_other/_version.py": b"version = '0.21.0'\n"})
    texts = ReleaseTexts(NAMES, lambda _: MemoryTree({}))
    assert release_before(build, [], texts, package_named("vllm_other")) == "0.21.0"


@pytest.mark.parametrize("written", [b"", b"version = 'of nobody'\n", b"version = '1\xff'\n"])
def test_without_a_version_it_is_the_newest_release_that_is_most_alike(written: bytes) -> None:
    text = "a = 1\nb = 2\nc = 3\n"
    texts = releases("a = 1\n", text + "d = 4\n", text + "e = 5\n", "z = 1\n", None)
    build = MemoryTree({PATH: text.encode(), "vllm/_version.py": written})
    assert release_before(build, [PATH, "vllm/b.py"], texts, VLLM) == "0.22.0"
    assert release_before(build, [PATH], ReleaseTexts((), lambda _: MemoryTree({})), VLLM) is None
