"""The budgets of ``overlay/``: what it has may only become less, and the table says it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import budgets

TELL = "python3 scripts/budgets.py --write takes the figures of today"


def test_nothing_has_grown_and_what_became_less_is_written_down() -> None:
    differences = budgets.changes(budgets.read(), budgets.measure())
    assert not differences, "\n".join([*(change.text for change in differences), TELL])


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "overlay"
    for name, text in {
        "__init__.py": "",
        "errors.py": "class Way:\n    found: int = 0\n",
        "commands/check.py": "from overlay import errors\ndef f():\n    import os\n",
        "authoring/edit.py": "from overlay.commands import check\nclass Way:\n    pass\n",
        "proof/verify.py": "from overlay import errors\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    (tmp_path / "patches/one").mkdir(parents=True)
    (tmp_path / "patches/one/added.py").write_text("a = 1\n")
    return folder


def test_what_is_counted(package: Path) -> None:
    assert budgets.measure(package) == budgets.Budgets(
        lines={"authoring": 3, "commands": 3, "errors": 2, "overlay": 0, "proof": 1},
        core=5,
        patches=1,
        modules=5,
        imports_in_functions=1,
        leaks=[],
        reach=[],
        vague_names={"errors": 1},
        shared_class_names=["Way"],
    )


@pytest.mark.parametrize(
    ("file", "text", "change"),
    [
        (
            "commands/check.py",
            "def f():\n    from overlay.authoring import edit\n",
            "import of a wing by the core: overlay.commands.check -> overlay.authoring.edit is new",
        ),
        (
            "proof/verify.py",
            "from overlay.commands.check import f\n",
            "by the proof: overlay.proof.verify -> overlay.commands.check is new",
        ),
        ("errors.py", "class Edit:\n    told = 1\n    seen = 2\n", "lines of errors: 3, budget 2"),
        ("errors.py", "told = seen = 2\n", "vague names of errors: 2, budget 1"),
        ("new.py", "", "modules: 6, budget 5"),
        (
            "errors.py",
            "def f():\n    import a, b; import c\n",
            "imports inside functions: 3, budget 1",
        ),
        ("proof/verify.py", "class Way: pass\nclass Edit: pass\nclass Edit: pass\n", "Edit is new"),
    ],
)
def test_what_grows_is_named(package: Path, file: str, text: str, change: str) -> None:
    before = budgets.measure(package)
    assert budgets.changes(before, before) == []
    (package / file).write_text(text)
    today = budgets.measure(package)
    grown = [entry.text for entry in budgets.changes(before, today) if entry.grown]
    assert any(change in entry for entry in grown), grown
    # The table takes grown figures, which a reader of its change sees, but no new breach of a law.
    left = [entry.text for entry in budgets.changes(budgets.lowered(before, today), today)]
    assert left == [entry for entry in grown if entry.startswith("import of")]


def test_what_falls_by_more_than_the_slack_has_to_be_written_down(package: Path) -> None:
    today = budgets.measure(package)
    figures = {"core": 1000, "modules": 1000, "leaks": ["overlay.a -> overlay.proof.b"]}
    before = replace(today, **figures)
    said = [(change.text, change.grown) for change in budgets.changes(before, today)]
    assert said == [
        ("lines of the core: 5, budget 1000: write 5", False),
        ("modules: 5, budget 1000: write 5", False),
        ("import of a wing by the core: overlay.a -> overlay.proof.b is gone", False),
    ]
    assert budgets.changes(replace(before, leaks=[]), replace(before, core=981, leaks=[])) == []


def test_the_table_is_read_as_it_was_written(package: Path, tmp_path: Path) -> None:
    today = budgets.measure(package)
    budgets.write(today, tmp_path / "table.json")
    assert budgets.read(tmp_path / "table.json") == today


def test_every_way_to_name_something_counts() -> None:
    text = """
def known(told, *said, seen=1, **held):
    made = [kept for kept in told]
    with open(shown) as given, (taken := left):
        for asked, (gone, _laid) in meant: pass
    import named
class found: heard: int
"""
    counted = {"known", "told", "said", "seen", "held", "made", "kept", "given", "taken"}
    counted |= {"asked", "gone", "_laid", "heard"}
    assert set(budgets.names(ast.parse(text))) == counted
    assert {name.strip("_") for name in counted} <= budgets.VAGUE
