"""Changes of several features to one text: what is apart goes on together, in any order."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from overlay._features.model import FILE_SCOPE, Feature
from overlay.authoring.composing import NotComposable, compose
from overlay.planning.scopes import UnparsableError
from overlay.planning.text import Edit, SourceText
from overlay.results import Clash, FeatureResult, Plan, State
from tests.support.patches import feature, hunk
from tests.support.plans import A, planned

laws = settings(max_examples=200, deadline=None)


def source(text: str) -> SourceText:
    return SourceText.from_bytes(text.encode())


@dataclass(frozen=True)
class Change:
    """The edits of one feature to a text, and the feature."""

    edits: tuple[Edit, ...]
    feature: Feature


def change(number: int, text: SourceText, edits: Sequence[Edit]) -> Change:
    after = text.splice(edits).to_bytes()
    hunks = compose(text.to_bytes(), after)
    return Change(tuple(edits), feature((A, hunks), id=f"f{number}"))


def apart(first: Edit, other: Edit) -> bool:
    """Whether a line stands between two edits that neither of them touches."""
    return first.stop < other.start or other.stop < first.start


def all_apart(changes: Sequence[Change]) -> bool:
    return all(
        apart(a, b)
        for number, first in enumerate(changes)
        for other in changes[:number]
        for a in first.edits
        for b in other.edits
    )


@st.composite
def edited(draw: st.DrawFn, size: int, name: str) -> tuple[Edit, ...]:
    """One or two edits of a text of two functions, whose first lines stay."""
    edits: list[Edit] = []
    for number in range(draw(st.integers(1, 2))):
        start = draw(st.integers(1, size))
        stop = min(size, start + draw(st.integers(0, 2)))
        lines = tuple(f"    {name}{number}{k} = 0" for k in range(draw(st.integers(0, 2))))
        new = Edit(start, stop, lines)
        middle = size // 2
        heads = {0, middle} & set(range(start, stop)) or start == middle
        if (start < stop or lines) and not heads and all(apart(new, each) for each in edits):
            edits.append(new)
    return tuple(edits)


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[SourceText, list[Change]]:
    """A text and two or three changes of it, each made on the text alone."""
    each = draw(st.integers(4, 9))
    bodies = [f"    v{name}{n} = 0" for name in "fg" for n in range(each)]
    lines = ["def f(x):", *bodies[:each], "def g(x):", *bodies[each:]]
    end = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    text = source(end.join(lines) + end)
    changes: list[Change] = []
    for number in range(draw(st.integers(2, 3))):
        edits = draw(edited(len(lines), "abc"[number]))
        try:
            changes += [change(number, text, edits)] if edits else []
        except (NotComposable, UnparsableError):
            continue
    return text, changes


def reasons(plan: Plan) -> list[Clash]:
    files = [file for result in plan.features for file in result.files]
    all_ = [file.reason for file in files] + [h.reason for file in files for h in file.hunks]
    return [reason for reason in all_ if isinstance(reason, Clash)]


@laws
@given(neighbours())
def test_order_does_not_matter_where_lines_are_apart(
    world: tuple[SourceText, list[Change]],
) -> None:
    text, changes = world
    files = {A: text.to_bytes()}
    together = all_apart(changes)
    event(f"{len(changes)} apart" if together else f"{len(changes)} on the same lines")
    expected = text.splice(edit for each in changes for edit in each.edits) if together else None
    for order in permutations(changes):
        plan = planned(*(each.feature for each in order), files=files)
        if expected is not None:
            assert plan.state in (State.PRISTINE, State.INAPPLICABLE), reasons(plan)
            assert [c.after for c in plan.changes] == [expected.to_bytes()] * bool(changes)
        elif plan.state is State.PRISTINE:  # the one before is not in the way of the one behind
            (made,) = plan.changes
            assert made.after is not None
            new = {line for each in changes for edit in each.edits for line in edit.lines}
            assert new <= set(SourceText.from_bytes(made.after).lines)
        else:
            assert reasons(plan)


@laws
@given(neighbours())
def test_a_feature_that_is_left_out_makes_no_other_drift(
    world: tuple[SourceText, list[Change]],
) -> None:
    text, changes = world
    files = {A: text.to_bytes()}
    whole = planned(*(each.feature for each in changes), files=files)
    if whole.state is not State.PRISTINE or not all_apart(changes):
        return
    for number in range(len(changes)):
        rest = [each for at, each in enumerate(changes) if at != number]
        plan = planned(*(each.feature for each in rest), files=files)
        assert plan.state in (State.PRISTINE, State.INAPPLICABLE)
        expected = text.splice(edit for each in rest for edit in each.edits).to_bytes()
        assert [c.after for c in plan.changes] == [expected] * bool(rest)
        gone = replace(changes[number].feature, malformed=("broken",))
        plan = planned(gone, *(each.feature for each in rest), files=files)
        assert [result.state for result in plan.features[1:]] == [State.PRISTINE] * len(rest)


TEXT = """\
import os
import re


def f(x):
    a = x
    b = a
    c = b
    d = c
    e = d
    return e


def g(x):
    return x
"""


def edit_of(number: int, *lines: tuple[str, str], text: str = TEXT) -> Feature:
    """A feature that puts texts in the place of others, made on a text alone."""
    after = text
    for old, new in lines:
        assert after.count(old) == 1
        after = after.replace(old, new)
    return feature((A, compose(text.encode(), after.encode())), id=f"f{number}")


def made(*features: Feature, text: str = TEXT) -> str | None:
    """What features make of a text; ``None`` where they are not applied together."""
    plan = planned(*features, files={A: text.encode()})
    if plan.state is not State.PRISTINE:
        return None
    after = plan.changes[0].after
    assert after is not None
    return after.decode()


B_CHANGED = edit_of(0, ("    b = a\n", "    b = a + 1\n"))


@pytest.mark.parametrize(
    ("old", "new", "together"),
    [
        ("    d = c\n", "    d = c + 2\n", True),
        ("    c = b\n", "    c = b + 2\n", False),  # the next line
        ("    a = x\n", "    a = x + 2\n", False),
        ("    c = b\n", "    c = b\n    new = 2\n", True),
        ("    c = b\n", "    new = 2\n    c = b\n", False),  # right behind the changed line
        ("    a = x\n", "    a = x\n    new = 2\n", False),  # right before it
        ("    a = x\n", "    new = 2\n    a = x\n", True),
        ("    c = b\n", "", False),
        ("    d = c\n", "", True),
        ("    b = a\n", "    b = a + 2\n", False),
        ("    b = a\n", "    b = a + 1\n", False),  # the same change belongs to one of them
    ],
)
def test_a_line_has_to_stand_between_two_changes(old: str, new: str, together: bool) -> None:
    other = edit_of(1, (old, new))
    expected = TEXT.replace(old, new).replace("    b = a\n", "    b = a + 1\n")
    for order in ((B_CHANGED, other), (other, B_CHANGED)):
        assert made(*order) == (expected if together else None)
    if not together:
        plan = planned(B_CHANGED, other, files={A: TEXT.encode()})
        assert [result.state for result in plan.features] == [State.DRIFTED] * 2
        for reason in reasons(plan):
            assert "f0 (" in reason.text
            assert "f1 (" in reason.text
            assert "--without f0" in str(reason.next_step)
            assert "--without f1" in str(reason.next_step)


def test_a_stack_stays_one_beside_a_neighbour() -> None:
    """The second is made on the first; a third changes what lies around both, wherever it is."""
    with_first = TEXT.replace("    b = a\n", "    b = a + 1\n")
    second = edit_of(1, ("    b = a + 1\n", "    b = a + 1\n    new = b\n"), text=with_first)
    neighbour = edit_of(2, ("    d = c\n", "    d = c + 2\n"))
    expected = with_first.replace("a + 1\n", "a + 1\n    new = b\n").replace("= c\n", "= c + 2\n")
    for order in ((0, 1, 2), (0, 2, 1), (2, 0, 1)):
        chosen = [(B_CHANGED, second, neighbour)[number] for number in order]
        assert made(*chosen) == expected, order
    alone = planned(second, files={A: TEXT.encode()})
    assert alone.state is State.DRIFTED


def test_a_neighbour_that_meets_the_top_of_a_stack_clashes_with_it() -> None:
    with_first = TEXT.replace("    b = a\n", "    b = a + 1\n")
    second = edit_of(1, ("    c = b\n", "    c = b + 1\n"), text=with_first)
    rival = edit_of(2, ("    d = c\n", "    d = c + 2\n"))
    plan = planned(B_CHANGED, second, rival, files={A: TEXT.encode()})
    assert [result.state for result in plan.features] == [
        State.PRISTINE,
        State.DRIFTED,
        State.DRIFTED,
    ]
    assert {reason.common for reason in reasons(plan)} == {"f1 and f2 touch the same lines"}


def test_neighbours_in_a_module_that_a_feature_adds() -> None:
    module = feature(added={A: TEXT.encode()}, id="module")
    first, second = B_CHANGED, edit_of(1, ("    d = c\n", "    d = c + 2\n"))
    plan = planned(module, first, second, files={})
    expected = TEXT.replace("b = a", "b = a + 1").replace("d = c", "d = c + 2").encode()
    assert [c.after for c in plan.changes] == [expected]


def test_several_patches_of_one_feature_stay_together() -> None:
    with_first = TEXT.replace("    b = a\n", "    b = a + 1\n")
    one = B_CHANGED.topics[0].variants[0].patch.hunks
    two = compose(with_first.encode(), with_first.replace("+ 1\n", "+ 1\n    n = b\n").encode())
    series = feature((A, one), (A, two), id="series")
    neighbour = edit_of(2, ("    d = c\n", "    d = c + 2\n"))
    expected = made(series, neighbour)
    assert expected is not None
    assert expected.count("n = b") == expected.count("c + 2") == 1
    assert made(neighbour, series) == expected


@pytest.mark.parametrize("finished", [True, False])
def test_the_end_of_the_file_belongs_to_whoever_changes_it(finished: bool) -> None:
    text = "\n".join(f"v{n} = 0" for n in range(6)) + ("\n" if finished else "")
    last = text.replace("v5 = 0", "v5 = 1").rstrip("\n") + ("" if finished else "\n")
    ends = feature((A, compose(text.encode(), last.encode())), id="ends")
    near = feature((A, compose(text.encode(), text.replace("v3 = 0", "v3 = 9").encode())), id="n")
    expected = last.replace("v3 = 0", "v3 = 9")
    for order in ((ends, near), (near, ends)):
        assert made(*order, text=text) == expected


def test_code_that_a_neighbour_brings_is_not_put_in_twice() -> None:
    """Both bring the same lines to one scope, at places that are apart."""
    new = "    measured = overlay_measured(x)\n"
    first = edit_of(0, ("    b = a\n", new + "    b = a\n"))
    second = edit_of(1, ("    d = c\n", new + "    d = c\n"))
    there = [known(each) for each in (first, second)]
    assert made(there[0]) is not None
    for order in ((0, 1), (1, 0)):
        plan = planned(*(there[number] for number in order), files={A: TEXT.encode()})
        assert plan.state is State.DRIFTED
        assert reasons(plan)


IN_BLOCKS = """\
def f(x):
    a = first(
        x,
        bias=True,
        name="a",
    )
    b = second(
        x,
        bias=True,
        name="b",
    )
    if a:
        use(a)
        go(a)
    elif b:
        use(b)
        go(b)
    else:
        use(x)
        go(x)
    return a, b
"""


@pytest.mark.parametrize(
    ("ours", "theirs", "together"),
    [
        (
            ('        name="a",\n', "        tp=x,\n"),
            ('        name="b",\n', "        tp=x,\n"),
            True,
        ),
        (("        go(a)\n", "        see(x)\n"), ("        go(b)\n", "        see(x)\n"), True),
        (("        go(b)\n", "        see(x)\n"), ("        go(x)\n", "        see(x)\n"), True),
        (("    a = first(\n", "    see(x)\n"), ("    return a, b\n", "    see(x)\n"), False),
        (
            ("        use(b)\n", "        see(x)\n"),
            ("    else:\n", "        y = 1\n        see(x)\n"),
            True,  # more than the same
        ),
    ],
)
def test_equal_lines_in_other_blocks_are_other_code(
    ours: tuple[str, str], theirs: tuple[str, str], together: bool
) -> None:
    """An argument of another call, a line of another branch: git makes both, and so is it here."""
    pair = [
        known(edit_of(number, (old, new + old), text=IN_BLOCKS))
        for number, (old, new) in enumerate((ours, theirs))
    ]
    expected = IN_BLOCKS
    for old, new in (ours, theirs):
        expected = expected.replace(old, new + old)
    results = {made(*order, text=IN_BLOCKS) for order in (pair, pair[::-1])}
    assert results == {expected if together else None}


def known(given: Feature) -> Feature:
    """A feature whose hunks know that their base had none of the lines that they add."""
    (topic,) = given.topics
    (variant,) = topic.variants
    hunks = tuple(each._replace(base_has=()) for each in variant.patch.hunks)
    patch = variant.patch._replace(hunks=hunks)
    return replace(given, topics=(topic._replace(variants=(variant._replace(patch=patch),)),))


def test_a_method_that_a_neighbour_defines_is_not_defined_again() -> None:
    """The one that stands last would be the only one that runs."""
    text = "class A:\n    x = 1\n\n    def f(self):\n        return x\n\n    y = 2\n\n    z = 3\n"
    first = [
        "     x = 1",
        " ",
        "+    def new(self):",
        "+        return 3",
        "+",
        "     def f(self):",
    ]
    other = ["     z = 3", "+", "+    def new(self, value):", "+        return value"]
    for name, state in (("new", State.DRIFTED), ("other", State.PRISTINE)):
        own = [line.replace("new", name) for line in other]
        features = [
            feature((A, [hunk(lines, "A", base_has=())]), id=f"f{number}")
            for number, lines in enumerate((first, own))
        ]
        for order in permutations(features):
            results = planned(*order, files={A: text.encode()}).features
            assert {result.state for result in results} == {state}
            assert state is State.PRISTINE or isinstance(results[1].files[0].hunks[0].reason, Clash)


def test_a_hunk_with_two_places_is_not_guessed() -> None:
    """The first brings the second's lines to another place, and edits what lies around its own."""
    text = "def f(x):\n    y = 1\n    m = 0\n    z = 2\n    use(y)\n    use(z)\n    return x\n"
    lines = ["     z = 2", "-    use(y)", "+    used(y)", "     use(z)"]
    copy = ["+    y = 1", "+    m = 0", "+    z = 2", "+    use(y)", "     return x"]
    second = feature(
        (A, [hunk(["     y = 1", "-    m = 0", "+    m = 9", "     z = 2", "     use(y)"], "f")]),
        id="second",
    )
    assert made(feature((A, [hunk(lines, "f")])), second, text=text) is not None
    first = feature((A, [hunk([*lines, *copy], "f")]), id="first")
    for order in ((first, second), (second, first)):
        assert made(order[0], text=text) is not None
    plan = planned(first, second, files={A: text.encode()})
    assert [result.state for result in plan.features] == [State.DRIFTED] * 2
    (reason,) = {str(reason) for reason in reasons(plan)}
    assert "second (second/01-topic/0.20.0..0.33.0.patch:1) lands at one place" in reason
    assert "first (first/01-topic/0.20.0..0.33.0.patch)" in reason
    assert "--without first" in reason
    assert "--without second" in reason


def test_a_hunk_that_lands_at_two_places_without_different_features_lands_at_none() -> None:
    """Without both it stands at the release's lines, without the second at those of the first."""
    copy = "    e = 0\n    a = x\n    b = a\n    f = b\n    return e\n"
    first = edit_of(0, ("    a = x\n", "    a = x + 9\n"), ("    return e\n", copy))
    text = made(first)
    assert text is not None
    second = edit_of(1, ("    e = 0\n    a = x\n", "    e = 0\n    a = x + 8\n"), text=text)
    third = feature((A, [hunk(["     a = x", "     b = a", "+    new = 1"], "f")]), id="f2")
    assert made(third) is not None
    assert made(first, second) is not None
    assert made(first, second, third) is None


def result_of(plan: Plan, id_: str) -> FeatureResult:
    return next(result for result in plan.features if result.feature == id_)


def test_a_hunk_that_lands_beside_another_names_its_line_there() -> None:
    first = edit_of(0, ("    b = a\n", "    b = a + 1\n    more = b\n"))
    second = edit_of(1, ("    d = c\n", "    d = c + 2\n"))
    plan = planned(first, second, files={A: TEXT.encode()})
    (found,) = result_of(plan, "f1").files[0].hunks
    assert (found.state, found.scope, found.reason) == (State.PRISTINE, "f", None)
    lines = TEXT.splitlines()
    at = found.line
    assert at is not None
    after = plan.changes[0].after
    assert after is not None
    assert after.decode().splitlines()[at - 1] in lines


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(neighbours())
def test_what_git_merges_is_applied_with_the_same_bytes(
    world: tuple[SourceText, list[Change]],
) -> None:
    """``git merge-file`` of each feature's own text, one after the other, in every order.

    But for a change that two of them make: it belongs to one of them, and git makes it once.
    """
    text, changes = world
    base = text.to_bytes()
    every = [edit for each in changes for edit in each.edits]
    assume(len(set(every)) == len(every))
    for order in permutations(changes):
        expected: bytes | None = base
        for each in order:
            theirs = text.splice(each.edits).to_bytes()
            expected = None if expected is None else merged(expected, base, theirs)
        event("a conflict" if expected is None else "clean")
        if expected is not None:
            plan = planned(*(each.feature for each in order), files={A: base})
            assert plan.state in (State.PRISTINE, State.INAPPLICABLE), reasons(plan)
            assert [change.after for change in plan.changes] == [expected] * bool(changes)


def merged(ours: bytes, base: bytes, theirs: bytes) -> bytes | None:
    """The merge of two texts by git; ``None`` at a conflict."""
    with tempfile.TemporaryDirectory() as folder:
        names = [Path(folder) / name for name in ("ours", "base", "theirs")]
        for name, data in zip(names, (ours, base, theirs), strict=True):
            name.write_bytes(data)
        answer = subprocess.run(
            ["git", "merge-file", "-p", *map(str, names)], capture_output=True, check=False
        )
    return answer.stdout if answer.returncode == 0 else None


def test_a_hunk_that_lands_beside_another_says_its_line_in_the_text_with_both() -> None:
    text = "import a\n\n\ndef f(x):\n" + "".join(f"    v{n} = 0\n" for n in range(4))
    into = [" import a", "+import b", " "]
    above = hunk([" def f(x):", "+    a = 0", "     v0 = 0"], "f")
    one = feature((A, [hunk(into, FILE_SCOPE), above]), id="one")
    context = [" def f(x):", "     v0 = 0", "     v1 = 0"]
    other = feature((A, [hunk([*context, "+    b = 0", "     v2 = 0"], "f")]), id="other")
    plan = planned(one, other, files={A: text.encode()})
    assert plan.state is State.PRISTINE
    (file,) = plan.features[1].files
    assert [each.line for each in file.hunks] == [5]
    changed = plan.changes[0].after or b""
    assert changed.splitlines()[4:] == [
        *(b"def f(x):", b"    a = 0", b"    v0 = 0", b"    v1 = 0", b"    b = 0"),
        *(b"    v2 = 0", b"    v3 = 0"),
    ]
