"""Bytes of a source file as lines, and back."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.planning.text import Edit, SourceText, TextError

PLAIN = [b"a", b"def f():", b"\t", b"\n", b"\r\n", b"\r", b"\x0c", b"\x0b", b"\x1c", b"\xc2\x85"]
ENCODED = [b"\xe2\x80\xa8", b"\xe9", b"# coding: latin-1", b"# -*- coding: cp1252 -*-", b"\x00"]
DECLARED = [codecs.BOM_UTF8, b"# coding: utf-8", b"# coding: shift_jis", b"\x83\x5c"]
PIECES = st.sampled_from([*PLAIN, *ENCODED, *DECLARED])
FILES = st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=20).map(b"".join))


@given(FILES)
def test_whatever_is_accepted_comes_back(data: bytes) -> None:
    try:
        source = SourceText.from_bytes(data)
    except TextError:
        return
    assert source.to_bytes() == data
    assert source.splice([]).to_bytes() == data
    # And without the bytes that it was read from.
    again = SourceText(source.lines, source.ends, source.encoding, source.bom)
    assert again.to_bytes() == data
    assert len(source.lines) == data.count(b"\n") + (data[-1:] not in (b"\n", b"")) - (
        data == codecs.BOM_UTF8
    )


@given(st.text(alphabet="ab\n\r\x0c\t\u2028é", max_size=60))
def test_only_a_line_feed_ends_a_line(text: str) -> None:
    source = SourceText.from_bytes(text.encode())
    expected = text.split("\n")
    if expected[-1] == "":
        expected.pop()
        assert source.final_newline
        assert list(source.lines) == [line.removesuffix("\r") for line in expected]
    else:
        assert not source.final_newline
        *finished, last = expected
        assert list(source.lines) == [*(line.removesuffix("\r") for line in finished), last]


@pytest.mark.parametrize(
    ("data", "lines", "encoding", "bom"),
    [
        (b"", (), "utf-8", False),
        (b"\n", ("",), "utf-8", False),
        (b"a\r\nb\nc", ("a", "b", "c"), "utf-8", False),
        (b"a\rb\x0cc\n", ("a\rb\x0cc",), "utf-8", False),
        (b"a\r\r\n", ("a\r",), "utf-8", False),
        (b"\xef\xbb\xbfa\n", ("a",), "utf-8", True),
        (b"# coding: latin-1\n\xe9\n", ("# coding: latin-1", "é"), "iso-8859-1", False),
        (b"#!x\n# -*- coding: cp1252 -*-\n\x80\n", None, "cp1252", False),
        (b"\n\n# coding: latin-1\n", ("", "", "# coding: latin-1"), "utf-8", False),
        (b"\xef\xbb\xbf# coding: utf-8\n", ("# coding: utf-8",), "utf-8", True),
    ],
)
def test_reading(data: bytes, lines: tuple[str, ...] | None, encoding: str, bom: bool) -> None:
    source = SourceText.from_bytes(data)
    assert lines is None or source.lines == lines
    assert (source.encoding, source.bom) == (encoding, bom)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"ok\n\xe9\n", "line 2 is not utf-8 text"),
        (b"\n\xe9\n", "line 2 is not utf-8 text"),
        (b"# coding: nonsense\n", "unknown encoding"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "encoding"),
        (b"# coding: rot13\n", "not a text encoding"),
        (b"# coding: utf-7\n+AGE-\n", "does not give the same bytes back"),
        (b"# coding: idna\n" + b"a" * 70 + b"\n", "does not give the same bytes back"),
    ],
)
def test_what_cannot_be_written_back_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(TextError, match=reason):
        SourceText.from_bytes(data)


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        (b"a\r\nb\nc\r\n", Edit(0, 1, ("x",)), b"x\r\nb\nc\r\n"),
        (b"a\r\nb\nc\r\n", Edit(1, 2, ("x", "y")), b"a\r\nx\ny\nc\r\n"),
        (b"a\r\nb\n", Edit(1, 1, ("x",)), b"a\r\nx\r\nb\n"),
        (b"a\r\nb\n", Edit(0, 0, ("x",)), b"x\r\na\r\nb\n"),
        (b"a\r\nb", Edit(1, 2, ("x",)), b"a\r\nx"),
        (b"a\r\nb", Edit(2, 2, ("x",)), b"a\r\nb\r\nx"),
        (b"a\nb", Edit(0, 1, ()), b"b"),
        (b"a\nb", Edit(1, 2, ()), b"a"),
        (b"a\n", Edit(0, 1, ()), b""),
        (b"", Edit(0, 0, ("x",)), b"x\n"),
        (b"a\r\n\r\nb", Edit(2, 3, ()), b"a\r\n\r\n"),
        (b"\xef\xbb\xbfa\n", Edit(0, 1, ("é",)), "\ufeffé\n".encode()),
        (b"# coding: latin-1\na\n", Edit(1, 2, ("é",)), b"# coding: latin-1\n\xe9\n"),
    ],
)
def test_new_lines_take_the_ends_around_them(before: bytes, edit: Edit, after: bytes) -> None:
    assert SourceText.from_bytes(before).splice([edit]).to_bytes() == after


def test_the_newline_at_the_end_can_be_given_and_taken() -> None:
    assert SourceText.from_bytes(b"a\r\nb").splice([], True).to_bytes() == b"a\r\nb\r\n"
    assert SourceText.from_bytes(b"a\r\nb\r\n").splice([], False).to_bytes() == b"a\r\nb"


def test_new_lines_take_the_ends_of_the_lines_that_they_replace_one_by_one() -> None:
    source = SourceText.from_bytes(b"a\r\nb\nc\r\n")
    assert source.splice([Edit(0, 2, ("x", "y", "z"))]).to_bytes() == b"x\r\ny\nz\nc\r\n"


@pytest.mark.parametrize(
    ("data", "edits", "reason"),
    [
        (b"a\nb\n", [Edit(0, 2, ()), Edit(1, 2, ())], "lines 2 to 2 overlaps"),
        (b"a\n", [Edit(1, 3, ())], "outside"),
        (b"# coding: ascii\na\n", [Edit(1, 2, ("é",))], "'é', which the file's encoding, ascii"),
        (b"a\nb\n", [Edit(0, 0, ("# coding: latin-1",))], "read differently"),
        (b"# coding: latin-1\n\xe9\n", [Edit(0, 1, ("# none",))], "line 2 is not utf-8"),
        (b"a\nb\nc\nd\n", [Edit(3, 3, ("x\ny",))], "read differently"),
    ],
)
def test_bad_edits_are_refused(data: bytes, edits: list[Edit], reason: str) -> None:
    with pytest.raises(TextError, match=reason):
        SourceText.from_bytes(data).splice(edits)


@st.composite
def texts_with_edits(draw: st.DrawFn) -> tuple[SourceText, list[Edit]]:
    lines = draw(st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=12))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    text = end.join(lines) + (end if draw(st.booleans()) else "")
    source = SourceText.from_bytes(text.encode())
    size, edits, at = len(source.lines), [], 0
    while at < size and draw(st.booleans()):
        start = draw(st.integers(at, size))
        stop = draw(st.integers(start, size))
        new = draw(st.lists(st.sampled_from(["x", "y", ""]), max_size=3))
        edits.append(Edit(start, stop, tuple(new)))
        at = stop + 1
    return source, edits


@given(texts_with_edits())
def test_an_edit_undone_gives_the_bytes_back(case: tuple[SourceText, list[Edit]]) -> None:
    source, edits = case
    after = source.splice(edits)
    moved, undo = 0, []
    for edit in edits:
        start = edit.start + moved
        undo.append(Edit(start, start + len(edit.lines), source.lines[edit.start : edit.stop]))
        moved += len(edit.lines) - (edit.stop - edit.start)
    expected = list(source.lines)
    for edit in reversed(edits):
        expected[edit.start : edit.stop] = edit.lines
    assert list(after.lines) == expected
    assert SourceText.from_bytes(after.to_bytes()).lines == after.lines
    if after.lines and not after.lines[-1]:
        assert after.final_newline
    elif after.lines:
        assert after.final_newline == source.final_newline
    if any(after.ends):  # otherwise the text has forgotten its line ends
        undone = after.splice(undo, source.final_newline)
        assert undone.to_bytes() == source.to_bytes()
        if after.final_newline == source.final_newline:
            assert after.splice(undo) == undone


@given(FILES, st.data())
def test_what_is_not_read_again_would_be_read_alike(before: bytes, data: st.DataObject) -> None:
    """An edited text stands for its bytes only where reading them gives that text."""
    try:
        source = SourceText.from_bytes(before)
    except TextError:
        return
    start = data.draw(st.integers(0, len(source.lines)), "start")
    stop = data.draw(st.integers(start, len(source.lines)), "stop")
    line = st.text(alphabet="a#\r\x0c\ufeffé\n", max_size=4)
    new = data.draw(st.lists(line, max_size=3), "lines")
    try:
        after = source.splice([Edit(start, stop, tuple(new))], data.draw(st.none() | st.booleans()))
    except TextError:
        return
    if after.read_alike:
        assert SourceText.from_bytes(after.to_bytes()) == after


def test_what_may_be_read_differently_is_read_again() -> None:
    assert not SourceText.from_bytes(b"# coding: latin-1\na\n").read_alike
    assert SourceText.from_bytes(b"a\nb\nc\n").read_alike
    assert not SourceText.from_bytes(b"a\nb\nc\n").splice([Edit(2, 3, ("c\r",))]).read_alike


def test_two_insertions_at_one_place_come_in_the_order_given() -> None:
    source = SourceText.from_bytes(b"a\nd\n")
    both = [Edit(1, 1, ("c",)), Edit(1, 1, ("b",))]
    assert source.splice(both).to_bytes() == b"a\nc\nb\nd\n"


def test_the_line_of_what_cannot_be_decoded_is_counted_from_the_first() -> None:
    with pytest.raises(TextError, match=r"^line 3 is not utf-8 text"):
        SourceText.from_bytes(b"a\nb\n\xff")
