"""Print what is larger or smaller in ``overlay/`` than its budget; ``--write`` takes today's.

``python3 scripts/budgets.py [--write]``.  ``tests/scripts/budgets.json`` says how many lines each
room has (a wing with its commands and reports below it), how many modules and imports inside
functions ``overlay/`` has, which imports still break a law of the floor plan, and how many names
are vague.  Each figure may only fall: a test fails where one has grown, and where one has fallen by
more than ``SLACK`` and nobody has written it down.  ``--write`` takes today's figures, also grown
ones, which it names; an import that breaks a law it takes out of the table, but never in.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts import import_graph
from scripts.import_graph import PACKAGE, ROOT

BUDGETS = ROOT / "tests" / "scripts" / "budgets.json"
#: Parts of ``overlay/`` that import the core; the core imports none of them.
WINGS = ("authoring", "proof")
#: What the proof may import of the core: its errors and reports, and what reads strangers' data.
ROOMS_OF_PROOF = ("errors", "report", "results", "untrusted")
#: What a figure may fall, as a share of it or in all, before the table has to say so.
SLACK, LEAST_SLACK = 0.02, 5
#: Names that leave open what a thing is.  What it is would be a noun: `matches`, `expected_lines`.
VAGUE = frozenset(
    "asked begun brought chosen come done found given gone got had heard held kept known laid "
    "left looked made meant named one others planned put said seen shown spoken taken told "
    "wanted".split()
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Budgets:
    """The figures of ``overlay/`` that may only fall.

    :ivar lines: of each room. core: of all rooms that are not a wing.  patches: of
        the shipped features.
    :ivar modules: how many there are in all rooms.
    :ivar imports_in_functions: imports of ``overlay`` that stand inside functions.
    :ivar leaks: imports of a wing by a module of the core.
    :ivar reach: imports of other rooms than ``ROOMS_OF_PROOF`` by the proof.
    :ivar vague_names: variables, parameters, fields and functions of each room named in ``VAGUE``.
    :ivar shared_class_names: names of classes that are defined more than once.
    """

    lines: dict[str, int]
    core: int
    patches: int
    modules: int
    imports_in_functions: int
    leaks: list[str]
    reach: list[str]
    vague_names: dict[str, int]
    shared_class_names: list[str]


@dataclass(frozen=True)
class Change:
    """A figure that is not what its budget says.

    :ivar text: which one, what it is, and what it may be.  grown: it is more than that.
    """

    text: str
    grown: bool


def measure(folder: Path = ROOT / PACKAGE) -> Budgets:
    """Count what is in the package in ``folder``."""
    plan = import_graph.read(folder)
    trees = {
        name: ast.parse(file.read_bytes()) for name, file in import_graph.modules(folder).items()
    }
    lines = Counter[str]()
    for name, count in plan.lines.items():
        lines[room_of(name)] += count
    vague, classes = Counter[str](), Counter[str]()
    for name, tree in trees.items():
        vague[room_of(name)] += sum(word.strip("_") in VAGUE for word in names(tree))
        classes.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return Budgets(
        lines=dict(sorted(lines.items())),
        core=sum(count for room, count in lines.items() if room not in WINGS),
        patches=sum(map(_line_count, folder.parent.glob("patches/**/*.py"))),
        modules=len(trees),
        imports_in_functions=sum(map(imports_in_functions, trees.values())),
        leaks=_arrows(plan, lambda one, other: one not in WINGS and other in WINGS),
        reach=_arrows(
            plan, lambda one, other: one == "proof" and other not in ("proof", *ROOMS_OF_PROOF)
        ),
        vague_names={room: count for room, count in sorted(vague.items()) if count},
        shared_class_names=sorted(name for name, count in classes.items() if count > 1),
    )


def _line_count(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def room_of(module: str) -> str:
    """The module or package at the top of ``overlay/`` that a module is in."""
    return module.split(".")[1] if "." in module else module


def _arrows(plan: import_graph.FloorPlan, breaks: Callable[[str, str], bool]) -> list[str]:
    """The imports of a module by another whose rooms break a law, as ``overlay.a -> overlay.b``."""
    return [
        f"{module} -> {target}"
        for module, targets in sorted(plan.imports.items())
        for target in targets
        if target != PACKAGE and breaks(room_of(module), room_of(target))
    ]


def imports_in_functions(node: ast.AST, inside: bool = False) -> int:
    """Count the imports that stand inside functions, below a node.

    :param inside: whether the node itself stands in one.
    """
    inside = inside or isinstance(node, _FUNCTIONS)
    count = int(inside and isinstance(node, (ast.Import, ast.ImportFrom)))
    # No import stands inside an expression.
    below = (each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr))
    return count + sum(imports_in_functions(each, inside) for each in below)


def names(tree: ast.Module) -> Iterator[str]:
    """The names that a module gives: of variables, parameters, attributes and functions."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name


def changes(budgets: Budgets, today: Budgets) -> list[Change]:
    """The figures of today that are not as the budgets say, slack aside."""
    described = {
        "core": "lines of the core",
        "patches": "lines of patches/",
        "modules": "modules",
        "imports_in_functions": "imports inside functions",
    }
    differences: list[Change] = []
    for name, unit in described.items():
        differences += _change(unit, getattr(budgets, name), getattr(today, name))
    for name, unit in (("lines", "lines"), ("vague_names", "vague names")):
        before, after = getattr(budgets, name), getattr(today, name)
        for room in sorted({*before, *after}):
            differences += _change(f"{unit} of {room}", before.get(room, 0), after.get(room, 0))
    for name, unit in (
        ("leaks", "import of a wing by the core"),
        ("reach", "import of the core by the proof"),
        ("shared_class_names", "name of several classes"),
    ):
        before, after = set(getattr(budgets, name)), set(getattr(today, name))
        for entry in sorted(before ^ after):
            new = entry in after
            differences.append(Change(f"{unit}: {entry} is {'new' if new else 'gone'}", new))
    return differences


def _change(unit: str, budget: int, count: int) -> Iterator[Change]:
    if count > budget:
        yield Change(f"{unit}: {count}, budget {budget}", True)
    elif count < budget - max(LEAST_SLACK, budget * SLACK) or (count == 0 < budget):
        yield Change(f"{unit}: {count}, budget {budget}: write {count}", False)


def read(file: Path = BUDGETS) -> Budgets:
    """The budgets that a file holds."""
    return Budgets(**json.loads(file.read_text(encoding="utf-8")))


def write(budgets: Budgets, file: Path = BUDGETS) -> None:
    """Write budgets to a file."""
    file.write_text(json.dumps(asdict(budgets), indent=1) + "\n", encoding="utf-8")


def lowered(budgets: Budgets, today: Budgets) -> Budgets:
    """Today's figures, with the imports that break a law of those only that are listed already."""
    return replace(
        today,
        leaks=sorted({*budgets.leaks} & {*today.leaks}),
        reach=sorted({*budgets.reach} & {*today.reach}),
    )


def main(arguments: Sequence[str]) -> int:
    """Print what is not as the budgets say, or write them; 1 where something has grown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write today's figures")
    asked = parser.parse_args(arguments)
    budgets, today = read(), measure()
    differences = changes(budgets, today)
    for change in differences:
        print(f"{'GREW' if change.grown else 'fell'}  {change.text}")
    if asked.write:
        write(lowered(budgets, today))
    return 1 if any(change.grown for change in differences) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
