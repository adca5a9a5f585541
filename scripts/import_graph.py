"""Print the floor plan of ``overlay/``: its rooms, their layers, and what imports what.

``python3 scripts/import_graph.py [--json]``.  A room is a module or package at the top of
``overlay/``.  Every import counts, also those inside functions and under ``TYPE_CHECKING``.  The
layer of a room is the longest chain of imports that leads down from it, so an import always points
to a lower layer unless rooms import each other in a circle, which is named.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGE = "overlay"
ROOT = Path(__file__).resolve().parent.parent

Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class FloorPlan:
    """The structure of a package.

    :ivar rooms: room -> layer, 0 for a room that imports no other.
    :ivar arrows: room -> the rooms that it imports.
    :ivar room_cycles: rooms that import each other, each circle once.
    :ivar file_cycles: modules that import each other, each circle once.
    :ivar upward: imports of a module into a room of the same or a higher layer.
    :ivar lines: module -> lines of its file.
    :ivar imports: module -> the modules of the package that it imports.
    """

    rooms: dict[str, int]
    arrows: dict[str, list[str]]
    room_cycles: list[list[str]]
    file_cycles: list[list[str]]
    upward: list[str]
    lines: dict[str, int]
    imports: dict[str, list[str]]

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return 1 + max(self.rooms.values(), default=-1)


def read(folder: Path = ROOT / PACKAGE) -> FloorPlan:
    """The floor plan of the package in ``folder``."""
    files = modules(folder)
    imports = {name: frozenset(_imports(name, file, files)) for name, file in files.items()}
    rooms: dict[str, set[str]] = {_room(name): set() for name in files if name != PACKAGE}
    for name, targets in imports.items():
        for target in targets - {PACKAGE}:
            if name != PACKAGE and _room(name) != _room(target):
                rooms[_room(name)].add(_room(target))
    graph = {room: frozenset(targets) for room, targets in rooms.items()}
    cycles = _cycles(graph)
    layers = {} if cycles else _layers(graph)
    upward = [
        f"{name} -> {target}"
        for name, targets in sorted(imports.items())
        for target in sorted(targets - {PACKAGE})
        if name != PACKAGE
        and _room(name) != _room(target)
        and layers.get(_room(target), 0) >= layers.get(_room(name), 1)
    ]
    lines = {
        name: len(file.read_text(encoding="utf-8").splitlines()) for name, file in files.items()
    }
    arrows = {room: sorted(targets) for room, targets in sorted(graph.items())}
    return FloorPlan(
        layers,
        arrows,
        cycles,
        _cycles(imports),
        upward,
        lines,
        {name: sorted(targets) for name, targets in imports.items()},
    )


def modules(folder: Path) -> dict[str, Path]:
    """The modules of the package in ``folder`` with their files, without patches it may hold."""
    files = {}
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        if "patches" not in parts:
            files[".".join((PACKAGE, *(part for part in parts if part != "__init__")))] = file
    return files


def _imports(name: str, file: Path, files: Mapping[str, Path]) -> Iterator[str]:
    """The modules of the package that a file imports anywhere in it; absolute imports only."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            found = [one if one in files else node.module for one in inner]
        else:
            continue
        yield from (one for one in found if one in files and one != name)


def _room(module: str) -> str:
    return module.split(".")[1]


def _layers(graph: Graph) -> dict[str, int]:
    found: dict[str, int] = {}

    def layer(room: str) -> int:
        if room not in found:
            found[room] = 1 + max((layer(below) for below in graph.get(room, ())), default=-1)
        return found[room]

    for room in graph:
        layer(room)
    return found


def _cycles(graph: Graph) -> list[list[str]]:
    """The strongly connected parts of a graph with more than one member (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            members, stack[at:] = stack[at:], []
            if len(members) > 1:
                cycles.append(sorted(members))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return cycles


def show(plan: FloorPlan) -> Iterator[str]:
    """The floor plan as lines for people, the highest layer first."""
    for layer in reversed(range(plan.layers)):
        for room in sorted(name for name, at in plan.rooms.items() if at == layer):
            yield f"{layer}  {room:<12} -> {', '.join(plan.arrows[room]) or 'nothing'}"
    for kind, cycles in (("rooms", plan.room_cycles), ("modules", plan.file_cycles)):
        for members in cycles:
            yield f"circle of {kind}: {', '.join(members)}"
    yield from (f"points upward: {one}" for one in plan.upward)
    arrows = sum(map(len, plan.arrows.values()))
    yield (
        f"{len(plan.arrows)} rooms, {plan.layers} layers, {arrows} arrows, "
        f"{len(plan.room_cycles)} circles of rooms, {len(plan.file_cycles)} of modules"
    )
    sizes = list(plan.lines.values())
    yield (
        f"{len(sizes)} modules, {sum(sizes)} lines, median {statistics.median(sizes):g}, "
        f"largest {max(sizes)}"
    )


def main() -> int:
    """Print the floor plan; 1 where there is a circle or an import that points upward."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / PACKAGE)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    asked = parser.parse_args()
    plan = read(asked.folder)
    text = json.dumps(asdict(plan), indent=1) if asked.json else "\n".join(show(plan))
    print(text)
    return 1 if plan.room_cycles or plan.file_cycles or plan.upward else 0


if __name__ == "__main__":
    sys.exit(main())
