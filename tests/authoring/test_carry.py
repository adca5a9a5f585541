"""A hunk carried to another text: upstream, exact, merged, moved or a conflict, in that order."""

from __future__ import annotations

import pytest

from overlay.authoring.carry import Carried, carry
from overlay.authoring.composing import compose
from overlay.planning.matching import new_lines, share_of
from overlay.results import Outcome

BASE = b"""\
class Runner:
    def capture(self):
        sizes = [1, 2, 4]
        count = len(sizes)
        for size in sizes:
            self.run(size)
        self.done = True
        return count

    def run(self, size):
        return size


def helper(value):
    first = value + 1
    second = first * 2
    third = second - 3
    return third
"""
PATCHED = BASE.replace(
    b"            self.run(size)\n", b"            self.replay(size, warm=True)\n"
)


def carried(target: bytes | None, patched: bytes = PATCHED) -> Carried:
    return carry(BASE, compose(BASE, patched), target)


def test_the_base_itself_is_exact() -> None:
    assert carried(BASE).outcome is Outcome.EXACT
    assert carried(BASE).after == PATCHED


def test_a_text_that_has_the_change_is_upstream_whatever_stands_around_it() -> None:
    target = PATCHED.replace(b"        self.done = True\n", b"        self.ready = 1\n")
    result = carried(target)
    assert result.outcome is Outcome.UPSTREAM
    assert result.after == target


def test_a_change_that_upstream_tore_apart_is_never_made_twice() -> None:
    """Lines between the new ones and the old context: the pre-image is there once more."""
    new = b"\n\nclass Second:\n    backend = 'second'\n    frames = 30\n"
    base = b"class First:\n    backend = 'first'\n\n\nclass Last:\n    backend = 'last'\n"
    patched = base.replace(b"\n\nclass Last", new + b"\n\nclass Last")
    between = b"\n\nclass Between:\n    backend = 'between'\n"
    target = base.replace(b"\n\nclass Last", new + between + b"\n\nclass Last")
    result = carry(base, compose(base, patched), target)
    assert result.outcome is Outcome.UPSTREAM
    assert result.after == target


def test_context_that_changed_is_merged_for_review() -> None:
    target = BASE.replace(
        b"        for size in sizes:\n", b"        for size in reversed(sizes):\n"
    )
    result = carried(target)
    assert result.hunks[0].by_statement  # the changed lines touch
    assert result.outcome is Outcome.MERGED
    assert result.after == target.replace(b"self.run(size)\n", b"self.replay(size, warm=True)\n", 1)
    target = BASE.replace(b"            self.run(size)\n", b"            self.run(size, 1)\n")
    assert carried(target).outcome is Outcome.CONFLICT
    target = BASE.replace(b"        count = len(sizes)\n", b"        count = len(sizes) + 1\n")
    result = carried(target)
    assert result.outcome is Outcome.MERGED
    assert result.outcome.wants_review
    assert result.after == target.replace(b"self.run(size)\n", b"self.replay(size, warm=True)\n", 1)


def test_a_renamed_scope_is_found_by_its_text() -> None:
    patched = BASE.replace(b"second = first * 2", b"second = first * 20")
    target = BASE.replace(b"def helper(value)", b"def assist(value)")
    result = carried(target, patched)
    assert result.outcome is Outcome.MOVED
    assert result.hunks[0].scope == "assist"
    assert b"first * 20" in (result.after or b"")


def test_a_scope_that_is_gone_is_missing() -> None:
    result = carried(b"def other():\n    return 1\n")
    assert result.outcome is Outcome.MISSING
    assert carried(None).outcome is Outcome.MISSING
    assert carried(None).after is None


def test_a_text_that_is_not_python_is_a_conflict_and_says_why() -> None:
    result = carried(b"class Runner(:\n")
    assert result.outcome is Outcome.CONFLICT
    assert "cannot be read" in (result.problem or "")


def test_each_hunk_is_judged_by_itself() -> None:
    patched = PATCHED.replace(b"third = second - 3", b"third = second - 30")
    target = BASE.replace(b"third = second - 3", b"third = second - 30")
    outcomes = [one.outcome for one in carried(target, patched).hunks]
    assert outcomes == [Outcome.EXACT, Outcome.UPSTREAM]


@pytest.mark.parametrize(
    ("added", "there", "expected"),
    [
        (["    pass"], [], ()),
        (["    x = 1"], [], ()),
        (["    value = 1"], ["value = 1"], ()),
        (["    value = 1", "    value = 1"], [], ("value = 1",)),
    ],
)
def test_only_telling_lines_tell(
    added: list[str], there: list[str], expected: tuple[str, ...]
) -> None:
    (hunk,) = compose(BASE, PATCHED)
    lines = (*((" ", text) for text in hunk.pre), *(("+", text) for text in added))
    assert new_lines(hunk._replace(lines=tuple(lines)), there) == expected


def test_a_share_counts_lines_that_stand_in_the_scope() -> None:
    assert share_of(("a", "b"), ("    a", "c")) == 0.5
    assert share_of((), ("a",)) == 0.0
