"""Law 1: the hunks that are composed from two texts make the second of the first, byte for byte."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, example, given, reject, settings
from hypothesis import strategies as st

from overlay._features.model import FILE_SCOPE, MODULE_SCOPE, Hunk, WholeFile
from overlay.authoring.carry import carry
from overlay.authoring.composing import (
    CONTEXT,
    NotComposable,
    ScopedText,
    compose,
    compose_file,
    contexts_from,
    with_base,
)
from overlay.planning.matching import edits, final_newline_after, match
from overlay.planning.scopes import UnparsableError, find
from overlay.planning.text import Edit, SourceText
from overlay.results import Outcome, State
from tests.support.generated import modules

SLOW = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


def applied(before: bytes, hunks: tuple[Hunk, ...]) -> bytes:
    """What the planner makes of a text: each hunk matched against it, all of them at once."""
    source = SourceText.from_bytes(before)
    scopes = find(source.lines)
    made: list[Edit] = []
    for hunk in hunks:
        result = match(hunk, source.lines, scopes, source.final_newline)
        assert result.state is State.PRISTINE, result
        assert result.line is not None
        made += edits(hunk, result.line - 1)
    ends = (end for hunk in hunks if (end := final_newline_after(hunk)) is not None)
    return source.splice(made, next(ends, None)).to_bytes()


@st.composite
def changes(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A module, and what a person makes of it in a few places."""
    before = list(draw(modules(distinct=draw(st.booleans()))))
    after = list(before)
    for number in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(after)))
        indent = ""
        if at < len(after):
            indent = after[at][: len(after[at]) - len(after[at].lstrip())]
        stop = min(len(after), at + draw(st.integers(0, 2)))
        after[at:stop] = [f"{indent}new{number} = {number}"] * draw(st.integers(0, 2))
    ends = draw(st.tuples(st.booleans(), st.booleans()))
    texts = (
        "\n".join(lines) + ("\n" if end else "")
        for lines, end in zip((before, after), ends, strict=True)
    )
    old, new = texts
    return old.encode(), new.encode()


def composed(texts: tuple[bytes, bytes]) -> tuple[Hunk, ...]:
    """The hunks of a change that can be said; where it cannot, that is for want of context."""
    try:
        return compose(*texts)
    except UnparsableError:
        reject()
    except NotComposable as error:
        if "no amount of context" not in str(error):
            raise
        reject()


@SLOW
@given(changes())
def test_composed_hunks_make_the_second_text(texts: tuple[bytes, bytes]) -> None:
    before, after = texts
    hunks = composed(texts)
    assert applied(before, hunks) == after
    ends = [hunk.source_line + len(hunk.pre) for hunk in hunks]
    starts = [hunk.source_line for hunk in hunks]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


@SLOW
@given(changes())
def test_what_is_carried_to_its_own_base_lands_exactly(texts: tuple[bytes, bytes]) -> None:
    before, after = texts
    hunks = composed(texts)
    carried = carry(before, hunks, before)
    # A new line that the scope holds elsewhere already tells nothing, and no line may be left.
    assert {one.outcome for one in carried.hunks} <= {Outcome.EXACT}
    assert carried.after == after
    again = carry(before, hunks, after)
    assert {one.outcome for one in again.hunks} <= {Outcome.UPSTREAM}
    assert again.after == after


MODULE = b"""\
import os


class Runner:
    def capture(self):
        sizes = [1, 2, 4]
        for size in sizes:
            self.run(size)
        return sizes

    def run(self, size):
        return size
"""


def test_a_hunk_is_named_after_the_function_that_holds_it() -> None:
    (hunk,) = compose(MODULE, MODULE.replace(b"[1, 2, 4]", b"[1, 2, 4, 8]"))
    assert hunk.scope == "Runner.capture"
    assert hunk.pre[0] == "    def capture(self):"


def test_a_new_method_belongs_to_the_class() -> None:
    new = MODULE + b"\n    def stop(self):\n        return None\n"
    (hunk,) = compose(MODULE, new)
    assert hunk.scope == "Runner"


def test_a_changed_import_belongs_to_the_module() -> None:
    (hunk,) = compose(MODULE, MODULE.replace(b"import os\n", b"import os\nimport sys\n"))
    assert hunk.scope == MODULE_SCOPE


TEXTS = (b"a = 1\nb = 2", b"a = 1\nmake(a)", b"a = 1\nmake(c)\nb = 2", b"a = 1\nb = 2\nc = f(a)")
ENDS = [text + end for text in TEXTS for end in (b"", b"\n")]


@pytest.mark.parametrize("before", ENDS)
@pytest.mark.parametrize("after", ENDS)
def test_a_final_newline_that_comes_or_goes_is_said(before: bytes, after: bytes) -> None:
    short, long = sorted((before, after), key=len)
    if short.endswith(b"\n") is long.endswith(b"\n") and long.startswith(short.rstrip()):
        return  # nothing shows that lines behind the last one came or went
    hunks = compose(before, after)
    assert applied(before, hunks) == after
    for hunk in hunks:  # what has another end is not the same line
        ends = {"-": hunk.pre_unfinished, "+": hunk.post_unfinished}
        for op in (op for op, is_unfinished in ends.items() if is_unfinished):
            assert [each for each, _ in hunk.lines if each in (" ", op)][-1] == op
        assert {text for op, text in hunk.lines if op == " "} >= {"a = 1"}


@pytest.mark.parametrize("at", [3, 4, 7, 11, 19])
def test_context_grows_until_the_place_is_clear(at: int) -> None:
    block = b"    a = 1\n    b = 2\n    c = 3\n    d = 4\n"
    repeated = b"def f():\n" + block * 5 + b"    return a\n"
    lines = repeated.split(b"\n")
    lines[at] = b"    c = 30"
    (hunk,) = compose(repeated, b"\n".join(lines))
    assert applied(repeated, (hunk,)) == b"\n".join(lines)


NUMBERS = [b"%d" % number for number in range(40)]


def changed(*places: int) -> bytes:
    """A text of numbers with another line at some places."""
    return b"\n".join([b"new" if at in places else line for at, line in enumerate(NUMBERS)])


@pytest.mark.parametrize("path", ["vllm/a.txt", "vllm/a.py"])
@pytest.mark.parametrize(
    ("places", "starts"),
    [((10, 17), [8]), ((10, 18), [8, 16]), ((2, 3, 39), [1, 37]), ((0, 20), [1, 18])],
)
def test_changes_between_which_few_lines_stay_are_one_hunk(
    places: tuple[int, ...], starts: list[int], path: str
) -> None:
    hunks = compose_file(path, changed(), changed(*places))
    assert [(hunk.source_line, hunk.patch_line) for hunk in hunks] == [(at, 1) for at in starts]
    (one, *_) = compose_file(path, changed(), changed(*places), (1,))
    assert one.pre[0] == str(max(0, places[0] - 1))


def test_changes_in_two_functions_are_two_hunks_however_near() -> None:
    after = MODULE.replace(b"return sizes", b"return 1").replace(b"return size\n", b"return 2\n")
    assert [hunk.scope for hunk in compose(MODULE, after)] == ["Runner.capture", "Runner.run"]


def test_the_context_of_a_hunk_ends_where_the_next_change_begins() -> None:
    """Lines that occur twice ask for more context than there is room for: one hunk holds both."""
    block = [b"a = 1", b"b = 2", b"c = 3", b"d = 4"]
    lines = [b"x = 0", *block * 4, b"y = 0"]
    after = [*lines]
    after[6], after[14] = b"new = 1", b"new = 2"
    before, now = (b"\n".join([*each, b""]) for each in (lines, after))
    (hunk,) = compose(before, now)
    assert applied(before, (hunk,)) == now


P, Q = "1234567", "89cdefg"


@pytest.mark.parametrize(
    ("text", "contexts", "images"),
    [
        # A hunk may take the lines up to the change before it, and as far as the next one.
        ("xA" + P + "Xz", (0, 100), ["A", P + "Xz"]),
        ("zX" + P + "Ax", (0, 100), ["zX" + P, "A"]),
        ("zX" + P + "Ax" + Q + "B", (0, 100), ["zX" + P, "A", "B"]),
        # One that is not clear by itself is one with the next, or with that before it.
        ("X" + P + "Az" + Q + "Bx", (0,), ["X" + P + "A", "B"]),
        ("X" + P + "Ax", (0,), ["X" + P + "A"]),
        ("A" + P + "Xz" + Q + "Bx", (0,), ["A" + P + "X", "B"]),
    ],
)
def test_changes_that_need_each_other_are_one_hunk(
    text: str, contexts: tuple[int, ...], images: list[str]
) -> None:
    """A sign a line; capitals are what is changed."""
    before = "\n".join(text.lower()).encode() + b"\n"
    after = "\n".join(re.sub("[A-Z]", r"\g<0>\g<0>", sign) for sign in text).encode() + b"\n"
    hunks = compose_file("vllm/a.txt", before, after, contexts)
    assert ["".join(hunk.pre) for hunk in hunks] == [image.lower() for image in images]


@pytest.mark.parametrize(
    ("asked", "tried"), [(None, CONTEXT), (0, (0, *CONTEXT)), (3, CONTEXT), (6, (6, *CONTEXT[2:]))]
)
def test_more_context_is_tried_than_was_asked_for(asked: int | None, tried: tuple[int]) -> None:
    assert contexts_from(asked) == tried


DATA = st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf"]))


@given(DATA.map(b"".join), DATA.map(b"".join))
@example(b"a\nb\n", b"a\nc\n")
@example(b"a\n\0", b"a\nb")
@example(b"a", b"a\n\0")
@example(b"\xff\n", b"\xff\nb\n")
@example(b"\0", b"\0")
@example(b"a\n", b"a\nb\r")
@example(b"a\r\nb\r\n", b"a\r\nc\r\n")
def test_a_data_file_is_changed_by_hunks_or_as_a_whole(before: bytes, after: bytes) -> None:
    hunks = compose_file("vllm/a.json", before, after)
    assert {hunk.scope for hunk in hunks} <= {FILE_SCOPE}
    if (whole := next((hunk.whole for hunk in hunks), None)) is not None:
        assert (len(hunks), whole) == (1, WholeFile.of(before, after))
        assert (hunks[0].source_line, hunks[0].patch_line, hunks[0].lines) == (1, 1, ())
        return
    assert bool(hunks) is (before != after)
    assert not any(text.endswith("\r") for hunk in hunks for _, text in hunk.lines)
    if not hunks:
        return
    source = SourceText.from_bytes(before)
    assert b"\0" not in before + after
    made = [
        edit
        for hunk in hunks
        for edit in edits(hunk, (ScopedText.read(before, is_data=True).match(hunk).line or 0) - 1)
    ]
    ends = (end for hunk in hunks if (end := final_newline_after(hunk)) is not None)
    assert source.splice(made, next(ends, None)).to_bytes() == after


TWICE = b"""\
class A:
    def f(self):
        a = 1


class B:
    def f(self):
        b = 1
    def f(self):
        a = 1
        b = 1
"""


def test_the_place_of_a_hunk_is_told_where_its_scope_is_there_twice() -> None:
    text = ScopedText.read(TWICE)
    lines = ((" ", "        a = 1"), (" ", "        b = 1"), ("+", "        c = 1"))
    at_end = Hunk("B.f", lines, 1, 1)
    assert text.home(at_end._replace(lines=((" ", "    def f(self):"), *lines))) == range(8, 11)
    nowhere = at_end._replace(lines=((" ", "        x = 1"),))
    assert text.home(nowhere) is None
    assert text.home(at_end) == range(8, 11)
    assert text.home(at_end._replace(scope="B")) == range(5, 11)
    assert text.home(at_end._replace(scope="A.f")) == range(1, 5)
    assert text.home(nowhere._replace(scope="A.f")) == range(1, 5)
    assert text.home(at_end._replace(scope="C")) is None
    based = with_base(at_end, text)
    assert based == at_end._replace(base_has=("def f(self):", "a = 1", "b = 1"))
    assert with_base(based._replace(base_has=("a",)), text).base_has == ("a",)
    assert with_base(nowhere, text).base_has == ()


def test_of_two_scopes_of_one_name_the_one_that_is_changed_gives_the_context() -> None:
    text = TWICE.replace(
        b"        a = 1\n        b", b"        c()\n        d()\n        a = 1\n        b"
    )
    (hunk,) = compose(text, text.replace(b"a = 1\n        b", b"a = 2\n        b"), (1,))
    assert (hunk.scope, hunk.pre) == ("B.f", ("        d()", "        a = 1", "        b = 1"))


def test_what_a_hunk_defines_once_more_is_named() -> None:
    text = ScopedText.read(TWICE)
    hunk = Hunk("A", ((" ", "        a = 1"), ("+", "    def f(self, b):")), 1, 1)
    assert text.twins(hunk) == ["def f(self):"]
    first = Hunk(MODULE_SCOPE, ((" ", "class A:"), ("+", "class B:")), 1, 1)
    assert text.twins(first) == ["class B:"]
    near = ScopedText.read(
        TWICE.replace(b"\n\n\n", b"\n").replace(b"class B:\n", b"class B:\n    c = 1\n")
    )
    assert near.twins(hunk._replace(scope=MODULE_SCOPE)) == ["def f(self):"]
    assert text.twins(hunk._replace(lines=(hunk.lines[0], ("+", "    def g(self):")))) == []
    assert text.twins(hunk._replace(lines=(hunk.lines[0], ("+", "    g(self)")))) == []
    assert text.twins(hunk._replace(lines=((" ", "        x = 1"), hunk.lines[1]))) == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (b"a = 1\nb = 2\n", b"a = 1\r\nb = 2\r\n", "changes line ends alone"),
        (b"a = 1\r\nb = 2\r\n", b"a = 1\r\nb = 3\n", "line 2 ends with '\\n', and was expected to"),
        (b"a = 1\n", b"\xef\xbb\xbfa = 1\n", "the encoding of the file"),
        (b"# coding: latin-1\n", b"# coding: utf-8\n", "the encoding of the file"),
        (b"a = 1\nb = 2\n", b"a = 1\n", "the change at line 2: no amount"),
        (b"", b"a = 1\n", "the change at line 1: no amount"),
        (b"a = 1\n", b"a = 2\r", "ends with a carriage return too many"),
        (b"a = 1\r\r\nb = 1\r\n", b"a = 1\r\r\nb = 2\r\n", "ends with a carriage return too many"),
        (b"a = 1\n", b"a = (\n", "is not Python that can be read"),
        (b"a = 1\n", b"a = '\xff'\n", "is not Python that can be read"),
    ],
)
def test_what_no_hunk_can_say_is_refused(before: bytes, after: bytes, words: str) -> None:
    with pytest.raises(NotComposable, match=r"^vllm/a\.py ") as caught:
        compose_file("vllm/a.py", before, after)
    assert words in str(caught.value)
