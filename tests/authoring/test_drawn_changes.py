"""Changes of upstream at random, as diffs that prove no base, and with a line of one's own.

The figures over more of them are in ``bench/results``; the draw here is another one.
"""

from __future__ import annotations

import ast
import random

import pytest

from bench.drawn_changes import OWN, Truth, draw, judge, judge_own, owns, with_own_line
from bench.real_changes import RealChange, releases
from overlay.authoring.composing import compose
from overlay.authoring.locating import ReleaseTexts
from tests.support.patches import MemoryTree

SEED, FEW = 1201, 8

BEFORE = b"def f(x):\n    y = first(x)\n    return y\n"
AFTER = b"def f(x):\n    y = first(x)\n    z = second(y)\n    return z\n"
PATH = "vllm/v1/a.py"


def change() -> RealChange:
    """A change of a made-up file."""
    return RealChange(PATH, "0.21.0", "0.22.0", BEFORE, AFTER, compose(BEFORE, AFTER))


def test_the_truth_is_told_by_whole_lines() -> None:
    edited = AFTER.replace(b"def f(x):", b"def f(x, more):")
    texts = {
        "0.20.0": edited,
        "0.21.0": BEFORE,
        "0.22.0": AFTER,
        "0.23.0": edited,
        "0.24.0": BEFORE,
    }
    truth = Truth(
        change(), ReleaseTexts(tuple(texts), lambda name: MemoryTree({PATH: texts[name]}))
    )
    assert [truth.has(name) for name in texts] == [None, False, True, True, False]


@pytest.mark.parametrize("kind", OWN)
def test_an_own_line_is_another_program(kind: str) -> None:
    own = with_own_line(change(), kind, random.Random(1))
    assert own is not None
    assert len(own.after.splitlines()) == len(AFTER.splitlines()) + 1
    assert own.line in own.after.decode()
    assert ast.dump(ast.parse(own.after)) != ast.dump(ast.parse(AFTER))


@pytest.mark.network
@pytest.mark.slow
def test_what_is_claimed_of_changes_at_random_is_so() -> None:
    texts = releases()
    sample = draw(texts, FEW, SEED)
    assert len(sample) == FEW
    plain = judge(sample, texts, ids=False)
    assert plain["counts"]["imported"] >= FEW - 1
    assert not [key for key in plain["counts"] if key.startswith("wrong")], plain["named"]
    for kind in OWN:
        own = judge_own(owns(sample, kind, 3, SEED), texts)
        assert not [key for key in own["counts"] if key.startswith("wrong")], own["named"]
