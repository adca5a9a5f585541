"""``scripts/mutants.py``: its list is sound, and what it reports decides its exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.mutants import LISTED, Mutant, files_that_test, listed, modules, report

ONE = Mutant("planning/text", "read", "a < b", "a <= b")
TWO = Mutant("on_disk/files", "write", "1", "2")


def test_every_module_has_tests() -> None:
    assert {"planning/matching", "on_disk/changes"} <= set(modules())
    for module in modules():
        own = files_that_test(module, own=True)
        assert set(own) < set(files_that_test(module, own=False))


def test_the_list_is_read_and_names_modules_and_functions_that_exist() -> None:
    for mutant in listed():
        assert mutant.module in modules()
        source = (LISTED.parents[1] / "overlay" / f"{mutant.module}.py").read_text(encoding="utf-8")
        name = mutant.function.rpartition(".")[2]
        assert f"def {name}(" in source, mutant
        assert mutant.old != mutant.new


@pytest.mark.parametrize(
    ("survivors", "known", "status", "says"),
    [
        ([], {}, 0, "every one is caught, or listed"),
        ([ONE], {ONE: "why"}, 0, "every one is caught, or listed"),
        ([ONE], {}, 1, "1 not noticed, 0 listed for nothing"),
        ([], {ONE: "why"}, 1, "0 not noticed, 1 listed for nothing"),
        ([], {TWO: "of a module that was not tried"}, 0, "every one is caught, or listed"),
    ],
)
def test_survivors_decide(
    survivors: list[Mutant], known: dict[Mutant, str], status: int, says: str
) -> None:
    lines, code = report({"planning/text": 7}, survivors, known)
    assert code == status
    assert lines[-1].startswith("7 mutants: ")
    assert says in lines[-1]
    assert any(str(ONE) in line for line in lines) is bool(status)


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
