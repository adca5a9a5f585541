"""The context that a hunk keeps: enough for its place, and no more."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from overlay._features.model import Hunk, Patch
from overlay.authoring.composing import NotComposable, compose
from overlay.authoring.context import FittedHunks, needed, with_sides
from overlay.planning.attempt import Texts, attempt
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.telling import context_of, narrowed
from overlay.planning.text import TextError
from tests.authoring.test_composing import changes

SLOW = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])

BASE = b"""\
FIRST: int = 1
SECOND: int = 2
KEEP_ALIVE: int = 5
FOURTH: int = 4
FIFTH: int = 5


def run(value):
    prepare(value)
    return value
"""
AFTER = BASE.replace(b"KEEP_ALIVE: int = 5", b"KEEP_ALIVE: int = 75")


def fitted(before: bytes, after: bytes, *others: bytes) -> FittedHunks:
    """What hunks keep where releases have these texts; the first one is the base."""
    texts = {f"0.{20 + at}.0": text for at, text in enumerate((before, *others))}
    return needed(before, compose(before, after), texts, Syntax())


def landed(hunks: tuple[Hunk, ...] | list[Hunk], text: bytes) -> bytes | None:
    """What hunks make of a text; ``None`` where they do not land."""
    patch = Patch("x.patch", "vllm/a.py", {}, tuple(hunks))
    return attempt(patch, text, Texts(Syntax())).after


def test_one_line_on_each_side_is_enough_where_nothing_asks_for_less() -> None:
    """Of forms that land on as many releases the one with a line that git needs is taken."""
    far = BASE.replace(b"FIRST: int = 1", b"FIRST: int = 11")
    result = fitted(BASE, AFTER, far)
    assert result.sides == (1, 1)
    assert not result.more or result.more == ("0.21.0",)
    assert landed(result.hunks, far) == far.replace(b"ALIVE: int = 5", b"ALIVE: int = 75")


def test_a_line_right_beside_the_change_takes_its_context_away() -> None:
    near = BASE.replace(b"FOURTH: int = 4", b"FOURTH: int = 44")
    both = near.replace(b"SECOND: int = 2", b"SECOND: int = 22")
    result = fitted(BASE, AFTER, near, both)
    assert result.sides == (0, 0)
    assert result.more == ("0.21.0", "0.22.0")
    for text in (near, both):
        assert landed(result.hunks, text) == text.replace(b"ALIVE: int = 5", b"ALIVE: int = 75")


def test_less_is_not_taken_where_it_would_land_elsewhere() -> None:
    """Upstream moved the line into another branch: there the same words are another change."""
    base = (
        b"def f(x):\n    if x:\n        first(x)\n        send(x, 1)\n        last(x)\n    end(x)\n"
    )
    after = base.replace(b"send(x, 1)", b"send(x, 2)")
    away = (
        b"def f(x):\n    if x:\n        first(x)\n        other(x, 3)\n        last(x)\n"
        b"    end(x)\n    if not x:\n        send(x, 1)\n        close(x)\n"
    )
    result = fitted(base, after, away)
    assert landed(result.hunks, away) is None
    # Its change alone would land there.
    assert landed([narrowed(compose(base, after)[0], 0, 0)], away) is not None


def test_what_is_put_in_keeps_a_line_on_each_side() -> None:
    """Where upstream puts a line in there too, nobody can say which comes first."""
    after = BASE.replace(b"FOURTH", b"OURS: int = 9\nFOURTH")
    theirs = BASE.replace(b"FOURTH", b"THEIRS: int = 8\nFOURTH")
    result = fitted(BASE, after, theirs)
    assert result.sides == (1, 1)
    assert landed(result.hunks, theirs) is None


def test_a_new_line_that_the_scope_has_elsewhere_keeps_the_line_beside_it() -> None:
    """Otherwise the equal line could be taken for it, and what is one's own would be lost."""
    base = BASE + b"LAST: int = 9\n"
    after = base.replace(b"KEEP_ALIVE: int = 5\n", b"KEEP_ALIVE: int = 75\nLAST: int = 9\n")
    near = base.replace(b"FOURTH: int = 4", b"FOURTH: int = 44")
    assert landed(fitted(base, after, near).hunks, near) is None


@pytest.mark.parametrize("number", [0, 1, 2, 5, 100])
def test_a_number_of_lines_is_kept_as_far_as_the_scope_goes(number: int) -> None:
    (form,) = with_sides(BASE, compose(BASE, AFTER), number, Syntax())
    assert context_of(form) == (min(number, 2), min(number, 7))
    assert landed([form], BASE) == AFTER


@SLOW
@given(changes(), st.lists(changes(), max_size=2), st.integers(0, 4))
def test_where_both_land_it_is_the_same_place(
    texts: tuple[bytes, bytes], others: list[tuple[bytes, bytes]], number: int
) -> None:
    """The law: less context never moves a hunk, and costs no release on which it landed."""
    before, after = texts
    assume(before != after)
    try:
        hunks = compose(before, after)
        every = {f"0.{20 + at}.0": each[0] for at, each in enumerate((texts, *others))}
        result = needed(before, hunks, every, Syntax())
        forms = with_sides(before, hunks, number, Syntax())
    except (NotComposable, TextError, UnparsableError):
        assume(False)
    assert landed(result.hunks, before) == after
    assert landed(forms, before) == after
    for text in every.values():
        full = landed(hunks, text)
        if full is not None:
            assert landed(result.hunks, text) == full
