"""Laws of the merge by statements: layout makes no difference, and no change of a side is lost."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import overlay
from overlay.authoring.carry import carry
from overlay.authoring.composing import compose
from overlay.authoring.merge import merge
from overlay.authoring.statements import (
    Statement,
    _begun_by,
    _side,
    _tokens,
    _units,
    merge_statements,
    statements,
)
from overlay.results import Outcome


@pytest.fixture(scope="module", autouse=True)
def nothing_kept() -> None:
    """What was read before would hide a mutant, which is tried in a fork of a process of tests."""
    _begun_by.cache_clear()
    _side.cache_clear()


#: The arguments of a call, by their names.
Call = dict[str, int]
NAMES = "abcdefgh"
CALLS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), max_size=6)


def written(call: Call, target: str, *, broken: bool) -> list[str]:
    """A call, on one line or as a formatter breaks it."""
    arguments = [f"{name}={call[name]}" for name in sorted(call)]
    if broken and arguments:
        return [f"    {target} = f(", *(f"        {each}," for each in arguments), "    )"]
    return [f"    {target} = f({', '.join(arguments)})"]


def program(calls: list[Call], layout: list[bool]) -> list[str]:
    """A function of one call after the other."""
    lines = ["def run():"]
    for number, (call, broken) in enumerate(zip(calls, layout, strict=True)):
        lines += written(call, f"x{number}", broken=broken)
    return [*lines, "    return 0"]


def read(lines: tuple[str, ...]) -> list[Call]:
    """The calls of a program."""
    (function,) = ast.parse("\n".join(lines)).body
    assert isinstance(function, ast.FunctionDef)
    made = []
    for statement in function.body[:-1]:
        assert isinstance(statement, ast.Assign)
        assert isinstance(statement.value, ast.Call)
        made.append({str(k.arg): ast.literal_eval(k.value) for k in statement.value.keywords})
    return made


@st.composite
def versions(draw: st.DrawFn) -> tuple[list[list[Call]], list[list[bool]]]:
    """The calls of a base and of two texts made of it, and how each of the three is laid out."""
    base = draw(st.lists(CALLS, min_size=1, max_size=3))
    sides = [base]
    for _ in range(2):
        side = [dict(call) for call in base]
        for _ in range(draw(st.integers(0, 2))):
            call = side[draw(st.integers(0, len(side) - 1))]
            name = draw(st.sampled_from(NAMES))
            if draw(st.booleans()):
                call[name] = draw(st.integers(0, 9))
            else:
                call.pop(name, None)
        sides.append(side)
    flags = st.lists(st.booleans(), min_size=len(base), max_size=len(base))
    return sides, [draw(flags) for _ in range(3)]


@given(versions())
def test_every_change_of_both_sides_is_in_a_clean_merge(
    made: tuple[list[list[Call]], list[list[bool]]],
) -> None:
    calls, layouts = made
    merged = merge_statements(*map(program, calls, layouts))
    if merged is None:
        return
    base, ours, theirs = calls
    for number, call in enumerate(read(merged)):
        for name in NAMES:
            was, mine, other = (side[number].get(name) for side in (base, ours, theirs))
            assert call.get(name) == (other if mine == was else mine)
            assert was in (mine, other) or mine == other


@given(versions())
def test_layout_decides_nothing(made: tuple[list[list[Call]], list[list[bool]]]) -> None:
    calls, layouts = made
    plain = [[False] * len(layout) for layout in layouts]
    one, other = (merge_statements(*map(program, calls, each)) for each in (layouts, plain))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert read(one) == read(other)
    back = merge_statements(*map(program, (calls[0], calls[2], calls[1]), plain))
    assert (one is None) == (back is None)


@given(versions())
def test_a_side_that_says_nothing_new_changes_nothing(
    made: tuple[list[list[Call]], list[list[bool]]],
) -> None:
    calls, layouts = made
    base, again, theirs = (
        program(side, layout)
        for side, layout in zip((calls[0], calls[0], calls[2]), layouts, strict=True)
    )
    assert merge_statements(base, again, theirs) == tuple(theirs)
    assert merge_statements(base, theirs, theirs) == tuple(theirs)


@pytest.mark.parametrize("path", sorted(Path(overlay.__file__).parent.rglob("s*.py")), ids=str)
def test_the_lines_of_the_statements_are_the_text(path: Path) -> None:
    lines = tuple(path.read_text(encoding="utf-8").split("\n")[:-1])
    units = list(statements(lines))
    assert tuple(line for unit in units for line in unit.lines) == lines
    for unit in units:
        written = "".join(word.gap + word.text for word in unit.words)
        assert "\n".join(unit.lines).startswith(written)


@pytest.mark.parametrize(
    ("base", "ours", "theirs"),
    [
        ("x = 1", "x = 2", "x = 3"),
        ("if a:", "if a or b:", "if a and c:"),
        ("f(a)", "f(a, ours=1)", "f(a, theirs=1)"),  # whose comes first?
        ("x = (1)", "x = (1,)", "x = (2)"),  # the comma makes a tuple
        ("f(a, b)", "# f(a, b)", "f(a, b, c)"),  # taken out by a comment
        ("a = 1\nb = 1", "a = 2\nb = 1", "b = 1"),  # gone
        ("f(a, b)", "f(a, b, c", "f(x, b)"),  # not Python
        ("a = 1", "a = 1\n  b = 2\n c = 3", "a = 2"),
        ("f(a)", "f(a, '''", "f(b)"),
        ("f(a)", "f(a)\rg(b)", "f(b)"),
        ("x = -a", "x = not a", "y = -a"),  # together they would be `y = nota`
        ("f(a, b, c)", "f(a,  # 1st\n b, c)", "f(a, b, d)"),  # b would be in the comment
        ("# a", "# b", "# c"),
        ("x = 1  # a", "# a", "x = 2  # a"),
    ],
)
def test_a_conflict_stays_one(base: str, ours: str, theirs: str) -> None:
    assert merge_statements(*(text.split("\n") for text in (base, ours, theirs))) is None


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("f(a, b)", "f(\n    a,\n    b,\n)", True),
        ("x = [1]", "x = [\n    1,\n]", False),  # it would do no harm; it is not told from x[1,]
        ("x = (1, 2)", "x = (\n    1,\n    2,\n)", True),
        ("x = (1)", "x = (1,)", False),
        ("for x in (1):", "for x in (1,):", False),
        ("x = y[0]", "x = y[0,]", False),
        ("x = 'a b'", "x = 'ab'", False),
        ("x = f'{a} b'", "x = f'{a}  b'", False),
        ("x = 1", "    x = 1", False),
        ("x = a + b", "x = a \\\n    + b", True),
        ("def f(a): return a", "def f(a,): return a", True),
        ("f(a)", "f(a,)", True),
        ("(a)", "(a,)", False),
        ("x = (a)", "x = (a,)", False),
        ("x = (f(a))", "x = (f(a),)", False),
        ("f(a)(b)", "f(a)(\n    b,\n)", True),
        ("x[0](b)", "x[0](b,)", True),
    ],
)
def test_layout_is_told_from_what_is_said(one: str, other: str, equal: bool) -> None:
    said = [[unit.tokens_key for unit in statements(text.split("\n"))] for text in (one, other)]
    assert (said[0] == said[1]) is equal


def test_empty_lines_among_statements_that_both_sides_changed_stay() -> None:
    sides = "f(a, b)\ng(c, d)", "f(a, b, x=1)\ng(c, d, y=1)", "\nf(\n  e, b)\n\ng(e, d)"
    merged = merge_statements(*(text.split("\n") for text in sides))
    assert merged == ("", "f(", "  e, b, x=1)", "", "g(e, d, y=1)")


def test_a_formatted_string_is_one_token_where_python_makes_several_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Python 3.12 does; here whichever runs the test."""
    line = """x = f'a {f"{b}"} c' + d"""
    names = {901: "FSTRING_START", 902: "FSTRING_MIDDLE", 903: "FSTRING_END"}
    kinds = [tokenize.NAME, tokenize.OP, 901, 902, tokenize.OP, 901, tokenize.OP, tokenize.NAME]
    kinds += [tokenize.OP, 903, tokenize.OP, 902, 903, tokenize.OP, tokenize.NAME, tokenize.NEWLINE]
    texts = ["x", "=", "f'", "a ", "{", 'f"', "{", "b", "}", '"', "}", " c", "'", "+", "d", ""]
    tokens, at = [], 0
    for kind, text in zip(kinds, texts, strict=True):
        at = line.index(text, at) if text else len(line)
        place = (1, at), (1, at + len(text))
        tokens.append(tokenize.TokenInfo(kind, text, *place, line))
        at += len(text)
    monkeypatch.setattr(tokenize, "tok_name", {**tokenize.tok_name, **names})
    monkeypatch.setattr(tokenize, "generate_tokens", lambda _: iter(tokens))
    (unit,) = _units([line])
    assert [word.text for word in unit.words] == ["x", "=", """f'a {f"{b}"} c'""", "+", "d"]
    (whole,) = (token for token in _tokens([line]) if token.string.startswith("f"))
    assert (whole.type, whole.start, whole.end) == (tokenize.STRING, (1, 4), (1, 19))


BASE = b"""\
def run(a, b):
    launch(a, b, block=1, warps=2)
    return a
"""


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome", "merged"),
    [
        (  # upstream's formatter broke the line
            b"launch(a, b, block=1, warps=4)",
            b"launch(\n        a,\n        b,\n        block=1,\n        warps=2,\n    )",
            Outcome.MERGED,
            b"launch(a, b, block=1, warps=4)",
        ),
        (  # upstream made the same change, and wrote it otherwise
            b"launch(a, b, block=1, warps=4)",
            b"launch(\n        a, b, block=1, warps=4,\n    )",
            Outcome.UPSTREAM,
            b"launch(\n        a, b, block=1, warps=4,\n    )",
        ),
        (  # both changed the statement, in different places
            b"launch(a, b, block=1, warps=2, m=a)",
            b"launch(\n        a[0],  # 1st\n        b,\n        block=1,\n        warps=2)",
            Outcome.MERGED,
            b"launch(\n        a[0],  # 1st\n        b,\n        block=1,\n        warps=2, m=a)",
        ),
        (  # both changed the same place
            b"launch(a, b, block=1, warps=4)",
            b"launch(a, b, block=1, warps=8)",
            Outcome.CONFLICT,
            b"launch(a, b, block=1, warps=8)",
        ),
    ],
)
def test_what_lines_refuse_is_carried_by_statements(
    ours: bytes, theirs: bytes, outcome: Outcome, merged: bytes
) -> None:
    patched, target = (
        BASE.replace(b"launch(a, b, block=1, warps=2)", text) for text in (ours, theirs)
    )
    sides = [text.decode().splitlines() for text in (BASE, patched, target)]
    assert merge(*sides).conflicts
    result = carry(BASE, compose(BASE, patched), target)
    assert result.outcome is outcome
    assert result.problem is None
    assert result.after == BASE.replace(b"launch(a, b, block=1, warps=2)", merged)
    assert [hunk.by_statement for hunk in result.hunks] == [outcome is not Outcome.CONFLICT]


@pytest.mark.parametrize("name", ["carry.py", "statements.py", "merge.py", "../cli/options.py"])
def test_statements_that_are_kept_are_those_of_the_whole_text(name: str) -> None:
    """A line alone, and a statement that stood in another text, say what the whole text says."""
    file = Path(overlay.__file__).parent / "authoring" / name
    lines = file.read_text(encoding="utf-8").splitlines()
    expected = list(_units(lines))
    assert list(statements(lines)) == expected
    assert list(statements([*lines, "", "x = 1"])) == [*expected, *_units(["", "x = 1"])]


@given(st.lists(st.sampled_from(["if a:", "    b", "        c", "  d", "# e", "f = (", ")", ""])))
def test_a_text_that_python_does_not_take_has_no_statements(lines: list[str]) -> None:
    def read(what: Callable[[list[str]], Iterable[Statement]]) -> list[Statement] | None:
        try:
            return list(what(lines))
        except (tokenize.TokenError, SyntaxError):
            return None

    assert read(statements) == read(_units)
