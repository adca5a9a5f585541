"""What the series of a plan knows of a file: its scopes as evidence, and which hunk lies where."""

from __future__ import annotations

import pytest

from overlay.planning.patched_tree import Layer, PatchedTree
from overlay.planning.scopes import Syntax
from tests.support.patches import MemoryTree, feature, hunk

PATH = "vllm/a.py"
TEXT = b"one = 1\ntwo = 2\nthree = 3\nfour = 4\nfive = 5\nsix = 6\n"


def series(text: bytes = TEXT) -> PatchedTree:
    return PatchedTree(MemoryTree({PATH: text}), Syntax())


def test_a_scope_is_evidence_where_it_stands_and_nothing_where_it_does_not() -> None:
    known = series(b"def f():\n    return work(1)\n")
    (place,) = known.places(PATH, "f")
    assert list(known.texts.places(known.pristine(PATH) or b"", "f")) == [place]
    assert not known.places(PATH, "g")
    assert not known.places("vllm/other.py", "f")
    assert not series(b"def f(:\n").places(PATH, "f")


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (range(1, 3), False),
        (range(1, 4), True),
        (range(4, 6), True),
        (range(5, 7), False),
    ],
)
def test_a_step_is_called_by_the_hunk_that_touches_the_lines(lines: range, named: bool) -> None:
    own = feature((PATH, [hunk([" three = 3", "-four = 4", "+four = 5"])]))
    label = own.topics[0].variants[0].patch.name
    called = f"{label}:1" if named else label
    assert series().place(Layer(0, 0, label, b""), own, PATH, lines) == called
    assert series().place(Layer(0, 0, "another", b""), own, PATH, lines) == "another"
