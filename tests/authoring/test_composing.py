"""Law 1: the hunks that are composed from two texts make the second of the first, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from overlay._features.model import MODULE_SCOPE, Hunk
from overlay.authoring.carry import carry
from overlay.authoring.composing import NotComposable, compose
from overlay.planning.matching import edits, final_newline_after, match
from overlay.planning.scopes import UnparsableError, find
from overlay.planning.text import SourceText
from overlay.results import Outcome, State
from tests.support.generated import modules

SLOW = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


def applied(before: bytes, hunks: tuple[Hunk, ...]) -> bytes:
    """What the planner makes of a text: each hunk matched against it, all of them at once."""
    source = SourceText.from_bytes(before)
    scopes = find(source.lines)
    made = []
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


@SLOW
@given(changes())
def test_composed_hunks_make_the_second_text(texts: tuple[bytes, bytes]) -> None:
    before, after = texts
    try:
        hunks = compose(before, after)
    except (UnparsableError, NotComposable):
        assume(False)
        return
    assert applied(before, hunks) == after
    ends = [hunk.source_line + len(hunk.pre) for hunk in hunks]
    starts = [hunk.source_line for hunk in hunks]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


@SLOW
@given(changes())
def test_what_is_carried_to_its_own_base_lands_exactly(texts: tuple[bytes, bytes]) -> None:
    before, after = texts
    try:
        hunks = compose(before, after)
    except (UnparsableError, NotComposable):
        assume(False)
        return
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


def test_context_grows_until_the_place_is_clear() -> None:
    block = b"    a = 1\n    b = 2\n    c = 3\n    d = 4\n"
    repeated = b"def f():\n" + block * 5 + b"    return a\n"
    lines = repeated.split(b"\n")
    lines[11] = b"    c = 30"
    (hunk,) = compose(repeated, b"\n".join(lines))
    assert len(hunk.pre) > 7
    assert applied(repeated, (hunk,)) == b"\n".join(lines)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a = 1\nb = 2\n", b"a = 1\r\nb = 2\r\n"),
        (b"a = 1\n", b"\xef\xbb\xbfa = 1\n"),
        (b"a = 1\nb = 2\n", b"a = 1\n"),
        (b"", b"a = 1\n"),
    ],
)
def test_what_no_hunk_can_say_is_refused(before: bytes, after: bytes) -> None:
    with pytest.raises(NotComposable):
        compose(before, after)
