"""What the proof asks of the core."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import overlay

WING = Path(overlay.__file__).parent / "proof"
#: What a finding is, how a report is made of it, and how a stranger's data is read.
ROOMS = {"errors", "results", "report", "untrusted"}
#: The doors: where the wing's commands join the others, and where the installation is asked for.
DOORS = {
    "cli.py": {"cli", "commands"},
    "commands/installation.py": {"commands", "on_disk"},
}
MODULES = sorted(path.relative_to(WING).as_posix() for path in WING.rglob("*.py"))


def rooms_of(module: Path) -> set[str]:
    """The rooms of the core that a module imports, anywhere in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("overlay.")} - {"proof"}


@pytest.mark.parametrize("module", MODULES)
def test_the_proof_imports_three_rooms_and_what_reads_strangers_data(module: str) -> None:
    assert rooms_of(WING / module) <= ROOMS | DOORS.get(module, set())


def test_the_doors_are_used() -> None:
    for module, rooms in DOORS.items():
        assert rooms <= rooms_of(WING / module)
