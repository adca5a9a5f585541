"""``scripts/mutants.py``: its list is sound, and what it reports decides its exit status."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from scripts.mutants import (
    LISTED,
    Choice,
    Figures,
    bounded,
    choose,
    judged,
    judges_of,
    listed,
    modules,
    report,
)
from scripts.mutmut_runs import Mutant, told_apart

ROOT = LISTED.parents[1]
ONE = Mutant("planning/text", "read", "a < b", "a <= b")
TWO = Mutant("on_disk/files", "write", "1", "2")


def defined(module: str, function: str) -> bool:
    source = (ROOT / "overlay" / f"{module}.py").read_text(encoding="utf-8")
    return f"def {function.rpartition('.')[2]}(" in source


def test_every_module_has_tests_that_exist() -> None:
    assert {"planning/matching", "on_disk/changes"} <= set(modules()) <= set(judged())
    for module in judged():
        assert judges_of(module)
        for test in judges_of(module):
            assert (ROOT / test.partition("::")[0]).is_file(), test


def test_the_bounded_run_names_functions_that_exist() -> None:
    assert {"on_disk/disk_state", "on_disk/changes", "on_disk/recovery"} <= set(bounded())
    for module, functions in bounded().items():
        assert functions
        assert all(defined(module, function) for function in functions), (module, functions)


def test_the_list_is_read_and_names_modules_and_functions_that_exist() -> None:
    for mutant in listed():
        assert mutant.module in judged()
        assert defined(mutant.module, mutant.function), mutant
        assert mutant.old != mutant.new


@pytest.mark.parametrize(
    ("survivors", "known", "whole", "status", "says"),
    [
        ([], {}, True, 0, "every one is caught, or listed"),
        ([ONE], {ONE: "why"}, True, 0, "every one is caught, or listed"),
        ([ONE], {}, True, 1, "1 not noticed, 0 listed for nothing"),
        ([ONE], {}, False, 1, "1 not noticed, 0 listed for nothing"),
        ([], {ONE: "why"}, True, 1, "0 not noticed, 1 listed for nothing"),
        ([], {ONE: "not among those that were tried"}, False, 0, "every one is caught, or listed"),
        ([], {TWO: "of a module that was not tried"}, True, 0, "every one is caught, or listed"),
    ],
)
def test_survivors_decide(
    survivors: list[Mutant], known: dict[Mutant, str], whole: bool, status: int, says: str
) -> None:
    figures = {"planning/text": Figures(9, 2, 7, 3, whole)}
    lines, code = report(figures, survivors, survivors, known)
    assert code == status
    assert "9 mutants, 2 of wording, 7 tried: 3 caught by mypy" in lines[0]
    assert lines[-1].startswith("7 mutants: ")
    assert says in lines[-1]
    assert any(str(ONE) in line for line in lines) is bool(status)


def test_a_listed_mutant_that_was_tried_and_caught_is_told() -> None:
    lines, code = report({"planning/text": Figures(9, 0, 1, 0, False)}, [ONE], [], {ONE: "why"})
    assert (code, "listed, but caught or gone" in lines[1]) == (1, True)


@pytest.mark.parametrize(
    ("entries", "says"),
    [(("",), "expected a reason"), (("equal", "equal"), "listed twice")],
)
def test_an_entry_needs_a_reason_and_is_there_once(
    tmp_path: Path, entries: tuple[str, ...], says: str
) -> None:
    path = tmp_path / "mutants.toml"
    text = "[[survivor]]\nmodule = 'a/b'\nfunction = 'f'\nold = '1'\nnew = '2'\nreason = '{}'\n"
    path.write_text("".join(text.format(reason) for reason in entries), encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        listed(path)


MADE = """
def x_f__mutmut_orig(a):
    if a < 1:
        raise ValueError(f"expected {a} at least", "one")
def x_f__mutmut_1(a):
    if a <= 1:
        raise ValueError(f"expected {a} at least", "one")
def x_f__mutmut_2(a):
    if a < 1:
        raise ValueError(f"XXexpected {a} at leastXX", "one")
def x_f__mutmut_3(a):
    if a < 1:
        raise ValueError(f"expected {a} at least", "ONE")
class C:
    def xǁCǁm__mutmut_orig(self):
        return 1
    def xǁCǁm__mutmut_1(self):
        return 2
"""


def test_mutants_are_described_by_what_they_change_and_words_are_left_out() -> None:
    names = ["x_f__mutmut_1", "x_f__mutmut_2", "x_f__mutmut_3", "xǁCǁm__mutmut_1"]
    mutants, wording = told_apart("planning/text", MADE, names)
    assert wording == 1
    assert mutants == {
        "overlay.planning.text.x_f__mutmut_1": Mutant(
            "planning/text", "f", "if a < 1:", "if a <= 1:"
        ),
        "overlay.planning.text.x_f__mutmut_3": Mutant(
            "planning/text",
            "f",
            'raise ValueError(f"expected {a} at least", "one")',
            'raise ValueError(f"expected {a} at least", "ONE")',
        ),
        "overlay.planning.text.xǁCǁm__mutmut_1": Mutant(
            "planning/text", "C.m", "return 1", "return 2"
        ),
    }


def _arguments(*module: str, share: float | None = None, **others: bool) -> argparse.Namespace:
    return argparse.Namespace(module=list(module), share=share, bounded=others.get("bounded"))


def test_what_is_chosen() -> None:
    mutants = {f"m{n}": Mutant("a/b", "f" if n % 2 else "g", str(n), "") for n in range(200)}
    assert len(Choice("a/b").draw(mutants, 1)) == 200
    assert len(Choice("a/b", frozenset({"f"})).draw(mutants, 1)) == 100
    drawn = Choice("a/b", frozenset({"f"}), 0.3).draw(mutants, 1)
    assert 110 < len(drawn) < 150
    assert drawn == Choice("a/b", frozenset({"f"}), 0.3).draw(mutants, 1)
    assert drawn != Choice("a/b", frozenset({"f"}), 0.3).draw(mutants, 2)
    assert [choice.module for choice in choose(_arguments())] == modules()
    assert choose(_arguments("planning/text:f", "planning/text:g")) == [
        Choice("planning/text", frozenset({"f", "g"}))
    ]
    assert {choice.module for choice in choose(_arguments(bounded=True))} == set(bounded())
    (sampled,) = choose(_arguments("on_disk/disk_state", share=0.1))
    assert sampled == Choice("on_disk/disk_state", bounded()["on_disk/disk_state"], 0.1)
    with pytest.raises(ValueError, match="found planning/nothing"):
        choose(_arguments("planning/nothing"))
