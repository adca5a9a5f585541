"""What is derived for an edited text is what parsing all of it says, to the order of the names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from overlay.planning import rescope as module
from overlay.planning.rescope import _stands_alone, rescope
from overlay.planning.scopes import Scopes, UnparsableError, find
from overlay.planning.text import Edit

#: What edits put in: mostly what suits, and what ends, opens or bends something.
PLAIN = ["x = 1", "pass", "# c", "", "  # deeper", "if x: pass", "def g(): pass", "@d", "def f():"]
ODD = [
    "class A:",
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
]


@st.composite
def blocks(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """Statements of one depth that are Python, with definitions and other blocks below them."""
    indent = "    " * depth
    made: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["def", "def", "class", "if", "string", "plain"]))
        name = draw(st.sampled_from("fgA"))
        headers = {"def": f"def {name}(self):", "class": f"class {name}:", "if": "if x:"}
        if kind in headers and depth < 3:
            if kind != "if":
                made += draw(st.sampled_from([[], [], [f"{indent}@d"], [f"{indent}@d(", "1", ")"]]))
            made += [indent + headers[kind], *draw(blocks(depth + 1))]
            made += draw(st.sampled_from([[], [""], [f"{indent}     # deep", ""], [f"{indent}#"]]))
        elif kind == "string":
            made += [f"{indent}x = '''", "  # no comment", "def f():", "'''"]
        else:
            made.append(f"{indent}x = 1")
    return made


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[str], list[Edit]]:
    """A text and some edits of it, most of which suit the depth where they are made."""
    before = draw(blocks())
    edits: list[Edit] = []
    done = 0
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(done, max(done, len(before))))
        stop = draw(st.integers(start, min(start + draw(st.integers(0, 2)), len(before))))
        beside = before[min(start, len(before) - 1)]
        usual = beside[: len(beside) - len(beside.lstrip())]
        depths = st.sampled_from([usual] * 6 + ["", "    ", "        ", "  ", "\t"])
        texts = st.sampled_from(PLAIN * 4 + ODD)
        new = draw(st.lists(st.builds(str.__add__, depths, texts), max_size=3))
        edits.append(Edit(start, stop, tuple(new)))
        done = stop
    return before, draw(st.permutations(edits))


def apply(before: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    after = list(before)
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.stop), reverse=True):
        after[edit.start : edit.stop] = edit.lines
    return after


@settings(max_examples=250)
@given(edited())
def test_what_is_derived_is_what_parsing_says(case: tuple[list[str], list[Edit]]) -> None:
    before, edits = case
    known, after = find(before), apply(before, edits)
    derived = rescope(before, known, edits, after)
    event("derived" if derived is not None else "left to find")
    if derived is not None:
        assert list(derived.items()) == list(find(after).items())


TEXT = """\
import a

class A:
    @a.b
    def f(self):
        def g():
            return 1
        return g

    # of A
    def h(self):
        return '''
    # no comment
    '''

def k():
    return 2
""".split("\n")


def derived(text: Sequence[str], *edits: Edit) -> Scopes | None:
    return rescope(text, find(text), edits, apply(text, edits))


def test_only_the_definitions_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[list[str]] = []

    def watched(text: Sequence[str]) -> dict[str, list[range]]:
        parsed.append(list(text))
        return find(text)

    monkeypatch.setattr(module, "find", watched)
    grown = Edit(7, 7, ("        def later():", "            pass"))
    other = Edit(16, 17, ("    x = 1", "    return 3"))
    after = apply(TEXT, [grown, other])
    assert derived(TEXT, other, grown) == find(after)
    assert parsed == [["if 1:", *after[3:11]], after[17:21]]


@pytest.mark.parametrize(
    "edit",
    [
        Edit(0, 0, ("import b",)),  # outside every definition
        Edit(2, 3, ("class B:",)),  # a first line
        Edit(15, 16, ("def m():",)),
        Edit(16, 17, ("    return (",)),  # no Python
        Edit(16, 17, ("    return '''",)),
        Edit(16, 17, ("    pass", "x = 1")),  # it ends early
        Edit(16, 17, ("    pass", "def k(): pass")),
        Edit(
            16, 17, ("    pass\r",)
        ),  # a line of two, and an indentation that counts from the start
        Edit(16, 17, ("    \x0cpass",)),
    ],
)
def test_what_is_not_certain_is_left_to_the_parser(edit: Edit) -> None:
    assert derived(TEXT, edit) is None


def test_an_indentation_that_goes_on_from_another_line_is_left_to_the_parser() -> None:
    text = ["class A:", "    \\", "  def f(self):", "        x = 1", "        return x"]
    try:
        find(text)
    except UnparsableError:
        pytest.skip("this Python does not take such an indentation")
    assert derived(text, Edit(3, 4, ("        y = 1",))) is None


def test_a_text_that_the_edits_do_not_give_is_left_to_the_parser() -> None:
    edit = Edit(16, 17, ("    return 3",))
    assert rescope(TEXT, find(TEXT), [edit], TEXT) is None
    both = [edit, Edit(15, 17, ("    return 4",))]
    assert rescope(TEXT, find(TEXT), both, TEXT) is None


def test_the_functions_of_this_suite_may_each_be_edited() -> None:
    checked = 0
    for path in sorted(Path(__file__).parent.parent.glob("[op][nl]*/*.py")):  # on_disk, planning
        before = path.read_text(encoding="utf-8").split("\n")
        known = find(before)
        for name, places in list(known.items())[1::7]:
            (at, header) = places[0].stop - 1, before[places[0].start]
            indent = header[: len(header) - len(header.lstrip())] + "    "
            inner = (f"{indent}def inner():", f"{indent}    return {name!r}")
            found = derived(before, Edit(at, at, inner))
            after = apply(before, [Edit(at, at, inner)])
            assert found is None or found == find(after)
            checked += found is not None
    assert checked > 50


def test_edits_may_adjoin() -> None:
    """Also where a definition is indented by a single blank."""
    text = ["class A:", " def f(self):", "  x = 1", "  y = 2", "  return x", "", "z = 1"]
    edits = [Edit(2, 3, ("  x = 3", "  w = 4")), Edit(3, 4, ("  y = 5",))]
    after = ["class A:", " def f(self):", "  x = 3", "  w = 4", "  y = 5", *text[4:]]
    assert rescope(text, find(text), edits, after) == find(after)
    both = [Edit(3, 3, ("  b = 1",)), Edit(3, 3, ("  a = 1",))]  # in this order
    after = [*text[:3], "  b = 1", "  a = 1", *text[3:]]
    assert rescope(text, find(text), both, after) == find(after)


def test_places_beside_an_edit_are_passed_over_and_the_others_looked_at() -> None:
    """The class may not be parsed alone: its indentation goes on from the line before."""
    text = ["def z(): pass", "x = \\", "  1", "class A:", "    def f(self):", "        x = 1"]
    text += ["        return x"]
    places = [("z", range(1)), ("A", range(2, 7)), ("A.f", range(4, 7))]
    assert not _stands_alone(text, range(4, 7), places)
    assert _stands_alone(text, range(4, 7), [places[0], ("A", range(3, 7)), places[2]])
