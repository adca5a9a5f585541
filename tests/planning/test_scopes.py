"""Qualified names and where they are."""

from __future__ import annotations

import ast
import contextlib
import gc
import textwrap
import warnings
from pathlib import Path

import pytest

from overlay.planning import parsing as module
from overlay.planning.parsing import UnparsableError, describe
from overlay.planning.scopes import Syntax, find
from overlay.planning.text import SourceText


def scopes(text: str) -> dict[str, list[tuple[int, int]]]:
    """1-based first and last line of every place."""
    lines = SourceText.from_bytes(textwrap.dedent(text).encode()).lines
    return {
        name: [(place.start + 1, place.stop) for place in places]
        for name, places in find(lines).items()
    }


def test_nested_decorated_and_repeated_names() -> None:
    # Over fifty lines: one source text and all of its scopes.
    found = scopes(
        """\
        import x
        class A:
            @x.first
            @x(
                1
            )
            async def f(self):
                def g():
                    return 1
                return g
                # f's own comment

            # of A, before h
            def h(self): ...

            @property
            def p(self): ...
            @p.setter
            def p(self, v): ...

        # module comment
        if x:
            def k(): pass
        else:
            def k(): return 2
        try:
            class B: pass
        except* E:
            class C:
                def c(self): pass
        match x:
            case 1:
                def m(): pass
        for _ in x:
            pass
        else:
            def o(): pass
        """.replace("except*", "except")
    )
    assert found == {
        "<module>": [(1, 37)],
        "A": [(2, 20)],
        "A.f": [(3, 12)],
        "A.f.g": [(8, 9)],
        "A.h": [(14, 15)],
        "A.p": [(16, 17), (18, 20)],
        "k": [(23, 23), (25, 25)],
        "B": [(27, 27)],
        "C": [(29, 30)],
        "C.c": [(30, 30)],
        "m": [(33, 33)],
        "o": [(37, 37)],
    }


def test_a_lone_carriage_return_does_not_shift_the_numbering() -> None:
    found = scopes("x = '''a\rb\rc'''\ny = 1\rz = 2\n@d\ndef f():\n    pass\n")
    assert found["f"] == [(3, 5)]
    assert scopes("x = 1\r\r\n\x0cdef f(): pass\n")["f"] == [(2, 2)]


def test_form_feeds_and_other_breaks_are_content() -> None:
    assert scopes("s = 'a\x0cb\x1cc\u2028d'\n\x0c\ndef f():\n    pass\n")["f"] == [(3, 4)]


def test_a_decorator_may_begin_above_its_expression() -> None:
    assert scopes("x = 1\n@(\n    d\n)\ndef f(): pass\n")["f"] == [(2, 5)]


@pytest.mark.parametrize("text", ["def f(:\n", "x = '\x00'\n", "(" * 500, "x = 08\n"])
def test_what_is_not_python_is_said(text: str) -> None:
    with pytest.raises(UnparsableError):
        find(text.split("\n"))
    assert Syntax().compile_error(text.encode(), "x.py")


def test_the_line_of_a_syntax_error_is_told() -> None:
    with pytest.raises(UnparsableError, match=r"^line 2: "):
        find(["x = 1", "def f(:"])
    assert str(Syntax().compile_error(b"x = 1\nreturn 2\n", "x.py")).startswith("line 2: 'return'")


def test_warnings_of_the_checked_code_are_kept_quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find(["x = '\\d'", "x is 1"])
        assert Syntax().compile_error(b"x = '\\d'\nx is 1\n", "x.py") is None


def test_checking_a_text_does_not_run_it(tmp_path: Path) -> None:
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    find([trap.strip()])
    assert Syntax().compile_error(trap.encode(), "x.py") is None
    assert not (tmp_path / "ran").exists()


def test_a_future_import_here_does_not_leak_into_the_checked_code() -> None:
    # overlay.planning.scopes imports annotations from the future, which forbids this one.
    assert Syntax().compile_error(b"def f(x: (y := 1)): pass\n", "x.py") is None


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("text", ["x = 1", "x ="])
def test_the_collector_is_left_as_it_was(text: str, running: bool) -> None:
    (gc.enable if running else gc.disable)()
    try:
        with contextlib.suppress(UnparsableError):
            find([text])
        assert gc.isenabled() is running
    finally:
        gc.enable()


def test_each_text_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    real = ast.parse
    monkeypatch.setattr(
        ast, "parse", lambda *args, **more: calls.append(args) or real(*args, **more)
    )
    syntax = Syntax()
    for _ in range(3):
        syntax.scopes(b"x = 1\n", ("x = 1",))
        with pytest.raises(UnparsableError):
            syntax.scopes(b"x =\n", ("x =",))
    assert len(calls) == 2


def test_every_scope_of_this_suite_is_where_ast_says() -> None:
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source = SourceText.from_bytes(path.read_bytes())
        found = find(source.lines)
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                ending = [n for n in found if n.split(".")[-1] == node.name]
                assert any(
                    place.start < node.lineno <= (node.end_lineno or 0) <= place.stop
                    for name in ending
                    for place in found[name]
                )


def test_which_nodes_hold_blocks_is_worked_out_from_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier text has filled the table of kinds: here it is empty."""
    monkeypatch.setattr(module, "_FIELDS", {})
    found = scopes("class A:\n    def f(self): pass\nif (lambda: 1):\n    def g(): pass\n")
    assert found == {"<module>": [(1, 4)], "A": [(1, 2)], "A.f": [(2, 2)], "g": [(4, 4)]}


def test_comments_deeper_than_a_header_are_its_own_whatever_is_above() -> None:
    found = scopes("def a():\n    pass\ndef b():\n    pass\n  # of b\nx = 1\n")
    assert found["b"] == [(3, 5)]


def test_a_decorator_is_looked_for_upwards_line_by_line() -> None:
    assert scopes("x = 1\ny = 2\nz = 3\n@(\n    # d\n    d\n)\ndef f(): pass\n")["f"] == [(4, 8)]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SyntaxError("bad", ("f", 3, 1, "  x = (\n")), "line 3: bad (x = ()"),
        (SyntaxError("bad", ("f", 3, 1, " \n")), "line 3: bad"),
        (SyntaxError("bad", ("f", 3, 1, None)), "line 3: bad"),
        (SyntaxError("bad"), "bad"),
        (RecursionError("too deep"), "too deep"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_an_error_is_described_in_one_line(error: BaseException, said: str) -> None:
    assert describe(error) == said
