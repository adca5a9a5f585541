"""A hunk carried to another text: upstream, exact, merged, moved or a conflict, in that order."""

from __future__ import annotations

import pytest

from overlay._features.model import FILE_SCOPE
from overlay.authoring.carry import Carried, CarriedHunk, carry
from overlay.authoring.composing import compose, compose_file, whole_file
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
    assert (result.outcome, result.after) == (Outcome.CONFLICT, b"class Runner(:\n")
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


DATA = b"".join(b"key_%d = value %d\n" % (n, n) for n in range(12))
DATA_AFTER = DATA.replace(b"value 6", b"value six")


@pytest.mark.parametrize(
    ("target", "outcome", "after"),
    [
        (DATA, Outcome.EXACT, DATA_AFTER),
        (DATA_AFTER, Outcome.UPSTREAM, DATA_AFTER),
        (DATA.replace(b"key_1 ", b"KEY "), Outcome.EXACT, DATA_AFTER.replace(b"key_1 ", b"KEY ")),
        (DATA.replace(b"key_5", b"(key"), Outcome.CONFLICT, DATA.replace(b"key_5", b"(key")),
        (DATA.replace(b"key_4", b"(key"), Outcome.MERGED, DATA_AFTER.replace(b"key_4", b"(key")),
        (DATA.replace(b"value 6", b"6"), Outcome.CONFLICT, DATA.replace(b"value 6", b"6")),
        (None, Outcome.MISSING, None),
        (b"", Outcome.CONFLICT, b""),
    ],
)
def test_a_data_file_is_carried_by_its_lines_and_need_not_compile(
    target: bytes | None, outcome: Outcome, after: bytes | None
) -> None:
    hunks = compose_file("vllm/a.conf", DATA, DATA_AFTER)
    made = carry(DATA, hunks, target)
    assert (made.outcome, made.after, made.problem) == (outcome, after, None)
    assert not made.hunks[0].by_statement
    assert made.hunks[0].scope == FILE_SCOPE


@pytest.mark.parametrize("new", [b"\0\2", None])
def test_a_whole_file_is_carried_to_the_same_bytes_alone(new: bytes | None) -> None:
    hunk = whole_file(b"\0\1", new)
    for target, outcome, after in (
        (b"\0\1", Outcome.EXACT, new),
        (b"\0\1\2", Outcome.CONFLICT, b"\0\1\2"),
        (new, Outcome.UPSTREAM, new),
    ):
        made = carry(b"\0\1", [hunk], target)
        assert (made.outcome, made.after) == (outcome, after)
        assert made.hunks == (CarriedHunk(hunk, outcome, FILE_SCOPE),)
    if new is not None:
        assert carry(b"\0\1", [hunk], None).outcome is Outcome.MISSING


def test_where_each_hunk_went_is_told() -> None:
    above = b"import os\n\n\n"
    hunks = compose(BASE, PATCHED)
    assert [hunk.line for hunk in carried(above + BASE).hunks] == [hunks[0].source_line + 3]
    assert [hunk.line for hunk in carried(above + PATCHED).hunks] == [5]
    target = above + BASE.replace(b"        count = len(sizes)\n", b"        count = 1\n")
    (merged,) = carried(target).hunks
    assert (merged.line, merged.scope, merged.by_statement) == (5, "Runner.capture", False)
    assert merged.merge is not None
    (conflict,) = carried(target.replace(b"self.run(size)", b"self.run(1)")).hunks
    assert (conflict.line, conflict.by_statement, conflict.beside) == (5, False, False)


def test_what_is_not_python_is_not_merged_by_its_statements() -> None:
    base = DATA + b"x = f(a=1, b=2)\n" + DATA
    after, target = base.replace(b"a=1", b"a=3"), base.replace(b"b=2", b"b=4")
    made = carry(base, compose_file("vllm/a.conf", base, after), target)
    assert (made.outcome, made.hunks[0].by_statement) == (Outcome.CONFLICT, False)


@pytest.mark.parametrize(("number", "end"), [(6, b""), (11, b"\n")])
def test_a_port_lands_with_less_context_for_review(number: int, end: bytes) -> None:
    base = DATA[:-1]
    after = base.replace(b"value %d" % number, b"value new") + end
    beside = b"key_%d" % (number - 1)
    hunks, target = compose_file("vllm/a.conf", base, after), base.replace(beside, b"(key")
    assert carry(base, hunks, target).outcome is Outcome.CONFLICT
    made = carry(base, hunks, target, less=True)
    assert (made.outcome, made.after) == (Outcome.MERGED, after.replace(beside, b"(key"))
    (one,) = made.hunks
    assert (one.beside, one.outcome) == (True, Outcome.MERGED)
    assert len(one.hunk.pre) < len(hunks[0].pre)


def test_a_removal_that_upstream_made_as_well_is_upstreams() -> None:
    patched = BASE.replace(b"        self.done = True\n", b"")
    target = patched.replace(b"sizes = [1, 2, 4]", b"sizes = [1, 2]").replace(b"count)", b"count )")
    target = target.replace(b"        for size in sizes:", b"        for size in list(sizes):")
    made = carried(target, patched)
    assert (made.outcome, made.after) == (Outcome.UPSTREAM, target)
    (same,) = carried(b"import os\n" + patched, patched).hunks
    assert (same.outcome, same.line) == (Outcome.UPSTREAM, same.hunk.source_line + 1)


def test_a_merge_keeps_the_end_that_a_hunk_gives() -> None:
    base = b"a = 1\nb = 2\nc = 3\nd = 4\ne = f(x)"
    after = base.replace(b"f(x)", b"g(x, a)\n")
    made = carry(base, compose(base, after), base.replace(b"b = 2", b"b = 20"))
    assert (made.outcome, made.after) == (Outcome.MERGED, after.replace(b"b = 2", b"b = 20"))


def test_a_line_that_the_encoding_of_the_file_lacks_is_a_conflict() -> None:
    base = b"# one\na = 1\nb = 2\nc = 3\nd = 4\ne = f('x')\ng = 5\n"
    after = base.replace(b"f('x')", "f('€')".encode())
    for more in (b"b = 2", b"b = 20"):
        target = base.replace(b"# one", b"# coding: latin-1").replace(b"b = 2", more)
        made = carry(base, compose(base, after), target)
        assert (made.outcome, made.after) == (Outcome.CONFLICT, target)


def test_hunks_that_are_python_only_together_are_not_said_to_be_upstreams() -> None:
    """One of two hunks alone would leave a file that cannot be read, so neither is carried."""
    items = b"".join(b"        item(%d),\n" % number for number in range(12))
    base = (
        b"def f():\n    a = (\n" + items + b"    )\n    b = make(a)\n    c = 1\n    return b\n\n\n"
    )
    base += b"def g():\n    c = make(1)\n    return c\n"
    there = base.replace(b"make(1)", b"make(1, more(x))")
    after = there.replace(b"a = (", b"a = [").replace(b"    )\n", b"    ]\n")
    target = there.replace(b"return b", b"return b, 1")
    made = carry(base, compose(base, after), target)
    assert [each.outcome for each in made.hunks] == [
        *(Outcome.CONFLICT, Outcome.CONFLICT, Outcome.UPSTREAM)
    ]
    assert (made.after, made.problem, made.hunks[2].merge) == (target, None, None)


def test_a_line_that_a_change_adds_twice_is_not_there_by_one() -> None:
    """Two lines before the same call, of which upstream has one before a third such call."""
    signs, texts = b"gmt34v6o8mabtdvm", []
    names = {b"m"[0]: b"make(a, b)", b"t"[0]: b"call_two(x)", b"v"[0]: b"value = f(x)"}
    for places in ((), (0, 15), (9,)):
        lines = [b"def f(x):"]
        for at, sign in enumerate(signs):
            lines += [b"    new(x, b)"] * (at in places)
            lines.append(b"    " + names.get(sign, b"step_%c(x)" % sign))
        texts.append(b"\n".join([*lines, b"    return x\n"]))
    made = carry(texts[0], compose(*texts[:2]), texts[2])
    assert [each.outcome for each in made.hunks] == [Outcome.MERGED, Outcome.MERGED]


def test_each_merge_is_made_on_the_one_before_it() -> None:
    patched = PATCHED.replace(b"third = second - 3", b"third = second - 30")
    target = BASE.replace(b"count = len(sizes)", b"count = len(sizes) + 1")
    target = target.replace(b"first = value + 1", b"first = value + 10")
    made = carried(target, patched)
    assert [each.outcome for each in made.hunks] == [Outcome.MERGED, Outcome.MERGED]
    assert made.after == target.replace(
        b"self.run(size)", b"self.replay(size, warm=True)", 1
    ).replace(b"second - 3", b"second - 30")


BODY = b"".join(b"    v%d = value + %d\n" % (n, n) for n in range(12)) + b"    return v3\n\n\n"
HELPER = b"def helper(value):\n" + BODY
WITH_HELPER = BASE[: BASE.index(b"def helper")] + HELPER + b"LAST = 1\n"
ASSIST, AID = (b"def assist(value):\n" + BODY, b"def zoom(value):\n" + BODY)
MORE = AID.replace(b"    v1 =", b"    v0 += 1\n    v1 =")
#: 16 lines of which 12 are among 14: just alike enough, and not with another one that differs.
LIKE = ASSIST.replace(b"    v8 = value + 8\n    v9 = value + 9\n", b"").replace(b"v7 =", b"v7  =")


@pytest.mark.parametrize(
    ("theirs", "scope"),
    [
        ([ASSIST], "assist"),
        ([ASSIST, AID], None),  # which of them?
        ([ASSIST, ASSIST], None),
        ([MORE, ASSIST], "assist"),
        ([ASSIST, MORE], "assist"),
        ([LIKE], "assist"),
        ([LIKE.replace(b"v6 =", b"v6  =")], None),
        ([], None),
    ],
)
def test_a_scope_that_is_gone_is_the_one_that_is_most_like_it(
    theirs: list[bytes], scope: str | None
) -> None:
    patched = WITH_HELPER.replace(b"v3 = value", b"v3 = 2 * value")
    target = WITH_HELPER.replace(HELPER, b"".join(theirs))
    made = carry(WITH_HELPER, compose(WITH_HELPER, patched), target)
    assert made.outcome is (Outcome.MISSING if scope is None else Outcome.MOVED)
    assert made.hunks[0].scope == (scope or "helper")
    if scope is not None:
        now = target.replace(ASSIST, ASSIST.replace(b"v3 = value", b"v3 = 2 * value"))
        now = now.replace(LIKE, LIKE.replace(b"v3 = value", b"v3 = 2 * value"))
        assert made.after == now
        assert made.hunks[0].line == target[: target.index(b"def assist")].count(b"\n") + 1


def test_a_long_scope_of_few_different_lines_is_found_as_well() -> None:
    head = b"def helper(a):\n    first(a)\n    x = 1\n    y = 2\n    z = 3\n"
    base = head + b"    one(a)\n    two(a)\n" * 110 + b"    return a\n"
    target = base.replace(b"def helper", b"def assist").replace(b"    z = 3", b"    z = 30")
    target = target.replace(b"    return", b"    last(a)\n    return")
    made = carry(base, compose(base, base.replace(b"first(a)", b"first(b)")), target)
    assert (made.outcome, made.hunks[0].scope) == (Outcome.MOVED, "assist")


def test_a_scope_that_is_there_twice_and_not_alike_is_a_conflict() -> None:
    patched = WITH_HELPER.replace(b"v3 = value", b"v3 = 2 * value")
    target = WITH_HELPER.replace(HELPER, b"def helper(value):\n    return 1\n\n\n" * 2)
    made = carry(WITH_HELPER, compose(WITH_HELPER, patched), target)
    assert (made.outcome, made.hunks[0].scope) == (Outcome.CONFLICT, "helper")


@pytest.mark.parametrize("target", [b"a = 1\nb = 2", b"a = 1\nb = 2\n", b"a = 1\nb = 2\nc = 3\n"])
def test_the_end_of_a_file_is_carried(target: bytes) -> None:
    base, after = b"a = 1\nb = 2", b"a = 1\nb = 2\nb = 3\n"
    made = carry(base, compose(base, after), target)
    if target == base:
        assert (made.outcome, made.after) == (Outcome.EXACT, after)
    elif made.outcome is not Outcome.CONFLICT:
        assert made.after == target.replace(b"b = 2\n", b"b = 2\nb = 3\n")


def test_a_result_that_does_not_compile_says_so() -> None:
    base = (
        b"async def f():\n    a = 1\n    b = 2\n    c = 3\n    d = 4\n    await g()\n    return\n"
    )
    patched = base.replace(b"    d = 4\n", b"    d = 4\n    yield d\n")
    target = base.replace(b"    a = 1\n", b"    if b:\n        return 1\n")
    made = carry(base, compose(base, patched), target)
    assert made.outcome is Outcome.CONFLICT
    assert made.problem is not None
    assert b"yield d" in (made.after or b"")
