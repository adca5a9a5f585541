"""A file's lines with who brought and who took each, beside edits made on the release alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.planning import weave as module
from overlay.planning.text import Edit
from overlay.planning.weave import Carriage, Weave

LINES = tuple("abcdefgh")
laws = settings(max_examples=200, deadline=None)


def spliced(lines: Sequence[str], edits: Collection[Edit]) -> list[str]:
    result: list[str] = []
    position = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.stop)):
        result += [*lines[position : edit.start], *edit.lines]
        position = edit.stop
    return [*result, *lines[position:]]


def apart(first: Edit, other: Edit) -> bool:
    return first.stop < other.start or other.stop < first.start


@st.composite
def changes(draw: st.DrawFn) -> list[Edit]:
    """Edits of ``LINES``, one of each owner, all apart."""
    edits: list[Edit] = []
    for owner in range(4):
        start = draw(st.integers(0, len(LINES)))
        stop = min(len(LINES), start + draw(st.integers(0, 2)))
        new = tuple(f"{owner}{n}" for n in range(draw(st.integers(0, 2))))
        edit = Edit(start, stop, new)
        if (start < stop or new) and all(apart(edit, each) for each in edits):
            edits.append(edit)
    return edits


@laws
@given(changes(), st.sets(st.integers(0, 3)), st.randoms(use_true_random=False))
def test_what_is_apart_is_carried_there_and_back(
    edits: list[Edit], chosen: set[int], random: object
) -> None:
    order = list(range(len(edits)))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis' own
    weave, text = Weave(LINES), list(LINES)
    for number in order:
        absent = frozenset(order[: order.index(number)])
        carried = weave.carry([edits[number]], absent)
        assert carried.met == ()
        assert weave.near(carried.edits) == ()
        assert weave.needed_by(carried.edits) == frozenset()
        assert weave.taken_back(carried.edits, absent) == (edits[number],)
        weave.add(number, carried.edits)
        text = spliced(text, carried.edits)
    assert text == spliced(LINES, edits)
    assert set(weave.owners) == set(order)
    absent = frozenset(chosen & set(order))
    assert weave.with_dependents(absent) == absent
    some = [edit for number, edit in enumerate(edits) if number not in absent]
    without = spliced(LINES, some)
    assert spliced(LINES, weave.edits_without(absent)) == without
    for number in order:
        assert weave.all_but(number) == frozenset(order) - {number}
    for at, line in enumerate(without):
        if line in text:
            assert text[weave.line(at, absent)] == line


@laws
@given(changes(), st.integers(0, 8), st.integers(0, 2))
def test_what_is_not_apart_meets_its_neighbours(edits: list[Edit], start: int, size: int) -> None:
    weave = Weave(LINES)
    for number, edit in enumerate(edits):
        weave.add(number, weave.carry([edit], frozenset(range(number))).edits)
    mine = Edit(start, min(len(LINES), start + size), ("new",))
    absent = frozenset(range(len(edits)))
    carried = weave.carry([mine], absent)
    near = {number for number, edit in enumerate(edits) if not apart(mine, edit)}
    assert set(carried.met) == near
    assert bool(carried.edits) is not bool(near)
    if near:
        assert carried == Carriage(met=carried.met)


def test_the_line_behind_the_last_one_is_the_end() -> None:
    weave = Weave(LINES)
    weave.add(0, [Edit(8, 8, ("i", "j"))])
    assert weave.line(8, {0}) == 10
    assert weave.line(7, {0}) == 7


def stacked() -> Weave:
    """The second edits what the first brings, the third is apart from both."""
    weave = Weave(LINES)
    weave.add(0, [Edit(2, 3, ("C", "CC"))])
    weave.add(1, [Edit(3, 4, ("DD",))])
    weave.add(2, [Edit(6, 7, ("F",))])
    return weave


def test_a_stack_is_taken_out_from_its_top() -> None:
    weave = stacked()
    assert weave.with_dependents({0}) == {0, 1}
    assert weave.with_dependents({1}) == {1}
    assert weave.all_but(1) == {2}
    assert weave.all_but(0) == {1, 2}
    assert weave.needed_by([Edit(3, 4, ("X",))]) == {0, 1}
    assert weave.near([Edit(7, 7, ("X",))]) == (2,)
    texts = {
        frozenset[int](): "a b C DD d e F g h",
        frozenset({1}): "a b C CC d e F g h",
        frozenset({2}): "a b C DD d e f g h",
        frozenset({0, 1}): "a b c d e F g h",
        frozenset({0, 1, 2}): "a b c d e f g h",
    }
    for absent, text in texts.items():
        assert spliced(LINES, weave.edits_without(absent)) == text.split()
    assert weave.edits_without({0, 1, 2}) == ()


@pytest.mark.parametrize(
    ("image", "own", "expected"),
    [
        ("d e f", 9, [{2}]),
        ("C CC d", 9, [{1}]),
        ("C CC d e f", 9, [{1, 2}]),
        ("b c d", 9, [{0, 1}]),
        ("b c d e f", 9, [{0, 1, 2}]),
        ("C DD d e F", 9, [set()]),
        ("e f g", 2, []),  # its own change stays
        ("c d", 1, []),  # what its own change was made on stays
        ("c DD", 9, []),
        ("g h", 9, [set()]),
        ("h a", 9, []),
        ("g h i", 9, []),
        ("", 9, []),
    ],
)
def test_who_has_to_go_for_an_image_to_stand(
    image: str, own: int, expected: list[set[int]]
) -> None:
    assert stacked().sets_without_which(image.split(), own) == expected


def test_a_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of lines that thirty features add at one place any half may stay."""
    monkeypatch.setattr(module, "MOST_STEPS", 1000)
    weave = Weave(["begin", "end"])
    for owner in range(30):
        weave.add(owner, [Edit(1, 1, ("same",))])
    assert len(weave.sets_without_which(["begin", *["same"] * 15, "end"], 99)) <= module.MOST_SETS


def woven(lines: str, *edits: Edit) -> Weave:
    """Lines of a letter each, with an edit of each owner in turn."""
    weave = Weave(tuple(lines))
    for owner, edit in enumerate(edits):
        weave.add(owner, [edit])
    return weave


@pytest.mark.parametrize(
    ("weave", "image", "sets"),
    [
        # Both lines between are in the way at the first place, one is at the second.
        (
            woven("acbacb", Edit(1, 1, ("x",)), Edit(3, 3, ("y",)), Edit(6, 6, ("z",))),
            "acb",
            [{2}, {0, 1}],
        ),
        (woven("abab", Edit(1, 1, ("x",)), Edit(4, 4, ("y",))), "ab", [{0}, {1}]),
        # The line that a feature brought is one of the image, or in its way.
        (woven("ab", Edit(1, 1, ("b",))), "ab", [set(), {0}]),
        (woven("abc", Edit(1, 1, ("b",))), "abc", [{0}]),
        (woven("abc", Edit(1, 2, ("x",))), "abc", [{0}]),
        (woven("abc", Edit(1, 2, ("x",))), "axc", [set()]),
        (woven("abc", Edit(1, 2, ("x",))), "acb", []),
        (woven("abc"), "", []),
    ],
)
def test_the_smallest_sets_without_which_an_image_stands_come_first(
    weave: Weave, image: str, sets: list[set[int]]
) -> None:
    assert weave.sets_without_which(tuple(image), own=9) == sets
