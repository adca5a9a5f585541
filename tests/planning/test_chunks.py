"""What is read in chunks is what reading all of a text says, to the order of the names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from overlay.planning import parsing, scopes
from overlay.planning.scopes import (
    UnparsableError,
    _in_chunks,
    _of_function,
    compiles_in_chunks,
)

#: Lines that suit where they stand, and those that end, open or bend something.
PLAIN = ["x = 1", "pass", "# c", "", "  # deeper", "if x: pass", "def g(): pass", "return 1"]
ODD = [
    "global x",
    "nonlocal x",
    "if x: global x",
    "x = 1; global x",
    "x = 'a global x'  # of the global x",
    "class A:",
    "@d",
    "@d(",
    ")",
    "'''",
    "x = '''",
    "(",
    "else:",
    "x = \\",
    "# \\",
    "\\",
    "\x0cx",
    "\ty",
    "x\ry",
    "from __future__ import annotations",
    "from __future__ import barry_as_FLUFL",
    "def f(x: (yield)): pass",
    "await x",
    "import a as __a",
]


@st.composite
def blocks(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """Statements of one depth that are Python, with definitions and other blocks below them."""
    indent = "    " * depth
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 4 - depth))):
        kind = draw(st.sampled_from(["def", "def", "class", "class", "if", "string", "plain"]))
        name = draw(st.sampled_from("fgA"))
        headers = {"def": f"def {name}(self):", "class": f"class {name}:", "if": "if x:"}
        if kind in headers and depth < 3:
            if kind != "if":
                lines += draw(
                    st.sampled_from([[], [], [f"{indent}@d"], [f"{indent}@d(", "1", ")"]])
                )
            lines += [indent + headers[kind], *draw(blocks(depth + 1))]
            lines += draw(st.sampled_from([[], [""], [f"{indent}     # deep", ""], ["#"]]))
        elif kind == "string":
            lines += [f"{indent}x = '''", "  # no comment", "def f():", "    def g():", "'''"]
        else:
            lines.append(f"{indent}x = 1")
    return lines


@st.composite
def modules(draw: st.DrawFn) -> list[str]:
    """The lines of a module, into some of which other lines are put."""
    lines = draw(blocks())
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(lines)))
        depth = draw(st.sampled_from(["", "    ", "        ", "  "]))
        lines.insert(at, depth + draw(st.sampled_from(PLAIN + ODD)))
    return lines


@given(modules())
def test_definitions_and_errors_are_those_of_the_whole_text(lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    in_chunks = _in_chunks(lines)
    event("in chunks" if in_chunks else "as a whole")
    if in_chunks:
        assert in_chunks == parsing.definitions(lines)
    if compiles_in_chunks(text.encode()):
        assert parsing.compile_error(text.encode(), "x.py") is None


CLASS = """\
@d
class A(B):
    '''Text.'''
    x = 1

    @e
    def f(self):
        def g(): pass
        return g
    # of no method

    async def h(self):
        pass

    y = 2
    # the last line
def k(): pass
"""


def test_a_class_is_read_method_by_method(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    real, compiled = parsing.definitions, parsing.compile_error

    def watched(lines: list[str]) -> list[parsing.Definition]:
        texts.append("\n".join(lines))
        return real(lines)

    def compiles(source: str, *given: Any) -> str | None:
        texts.append(source)
        return compiled(source, *given)

    monkeypatch.setattr(parsing, "definitions", watched)
    monkeypatch.setattr(parsing, "compile_error", compiles)
    before = CLASS.replace("A(B)", "Once(B)")  # a text that no other test has read
    expected = {
        "<module>": [range(17)],
        "Once": [range(16)],
        "Once.f": [range(5, 9)],
        "Once.f.g": [range(7, 8)],
        "Once.h": [range(11, 14)],
        "k": [range(16, 17)],
    }
    assert scopes.find(before.split("\n")[:-1]) == expected
    assert len(texts) == 4  # the head, two methods, and what stands behind the class
    texts.clear()
    after = before.replace("return g", "return g()")
    assert scopes.find(after.split("\n")[:-1]) == expected
    (only,) = texts
    assert "return g()" in only
    assert "async" not in only


@pytest.mark.parametrize(
    "text",
    [
        "import a\n\nx = 1\n",  # nothing to cut
        f"{CLASS}x = '''\ndef f(): pass\n'''\n",
        f"{CLASS}x = \\\n",
        f"{CLASS}def f(:\n",
        f"{CLASS}x = 'a\rb'\n",
        f"\x0c{CLASS}",
    ],
)
def test_what_is_not_certain_is_asked_of_the_whole_text(text: str) -> None:
    assert not _in_chunks(text.split("\n")[:-1])
    assert not compiles_in_chunks(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        f"{CLASS}return 1\n",
        f"{CLASS}from __future__ import annotations\n",
        f"x = 1\n{CLASS}if y:\n    global x\n",
        f"{CLASS}    global z\n",
        "class A:\n    x = 1\n    def f(): pass\n    def g(): pass\n    global x\ndef f(): pass\n",
        f"# coding: latin-1\n{CLASS}",
        f"\ufeff{CLASS}",
    ],
)
def test_what_chunks_cannot_tell_is_left_to_the_compiler(text: str) -> None:
    assert not compiles_in_chunks(text.encode())


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n\n"])
def test_a_statement_for_all_of_a_module_is_known_in_each_chunk(future: str) -> None:
    """An annotation is not evaluated behind that import, and then must not give a name."""
    text = f"{future}{CLASS}def m(x: (y := 1)): pass\n"
    whole = parsing.compile_error(text.encode(), "x.py")
    assert compiles_in_chunks(text.encode()) == (whole is None) == (not future)
    assert compiles_in_chunks(f"{future}{CLASS}def m():\n    global x\n".encode())


def test_every_text_of_this_suite_is_read_alike() -> None:
    certain = 0
    for path in sorted(Path(__file__).parent.glob("*.py")):
        data = path.read_bytes()
        lines = data.decode().split("\n")[:-1]
        try:
            assert _in_chunks(lines) in ([], parsing.definitions(lines))
        except UnparsableError:
            raise AssertionError(path) from None
        certain += compiles_in_chunks(data)
    assert certain > 20


@pytest.mark.parametrize("word", ["global", "nonlocal"])
def test_a_word_of_a_comment_declares_nothing(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """A class of which one method changes is compiled method by method all the same."""
    sizes: list[int] = []
    real = parsing.compile_error

    def watched(source: str, path: str, flags: int = 0) -> str | None:
        sizes.append(len(source))
        return real(source, path, flags)

    monkeypatch.setattr(parsing, "compile_error", watched)
    text = CLASS.replace("x = 1", f"x = 1  # of the {word} x").replace("A(B)", f"Own(B.{word}s)")
    assert compiles_in_chunks(text.encode())
    assert max(sizes) < len(text) / 2


@pytest.mark.parametrize("outer", ["", "class A:\n"])
@pytest.mark.parametrize(
    ("text", "by_lines"),
    [
        (
            "@d(\n    1,\n)\nasync def f(\n    a,\n) -> int:\n    pass\n\n    # in\n# out\n",
            True,
        ),
        ('def f():\n    """\n    # the end of a text"""\n', False),
        ("def f():\n    x = 1  # c\n    # it's behind\n", False),
        ("def f():\n    def g(): pass\n", False),
        ("def f(): pass\nx = 1\n", False),
        ("def f(): pass\ndef g(): pass\n", False),
        ("@d\nclass B:\n    x = 1\n", False),
        ("def f():\n    nonlocal x\n", False),
        ("def f():\n\tpass\n", False),
        ("def f():\n    x = \\\n1\n", False),
    ],
)
def test_a_function_is_told_by_its_lines(outer: str, text: str, by_lines: bool) -> None:
    lines = text.split("\n")[:-1]
    if outer:
        lines = [outer[:-1], *(f"    {line}" if line else line for line in lines)]
    answer = _of_function(tuple(lines))
    assert bool(answer) is by_lines
    assert answer in ((), tuple(parsing.definitions(lines)))
