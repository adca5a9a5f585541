"""Foreign files are opened by overlay/untrusted.py; every other call that opens one has a reason.

A pipe in the place of a file makes a plain ``open`` wait for ever, and a link to a device fills the
memory; ``untrusted.read_regular`` does neither.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

#: module -> how many calls it has that open a file, and why they are safe.
ALLOWED = {
    "overlay/untrusted.py": "the functions that everything else goes through",
    "overlay/on_disk/files.py": "writes, in folders that were opened without following a link",
    "overlay/on_disk/journal.py": "opens the folder vllm/ itself, as a folder; reads /proc",
    "overlay/cache.py": "opens files of private folders, if they are regular; makes lock files",
    "overlay/in_memory/module_cache.py": "opens a private folder, and writes new files in one",
    "overlay/in_memory/import_hook.py": "reads modules that Python itself reads",
    "overlay/_processes/live.py": "reads /proc",
    "overlay/_processes/__init__.py": "reads /proc, and a part of a process's shared memory",
    "overlay/authoring/disk.py": "opens folders to sync and to lock them, and makes new files",
    "overlay/commands/output.py": "writes where the user says, and follows no link of others",
    "overlay/_features/vllm_defaults.py": "reads a table of the overlay's own",
    "overlay/commands/parallel.py": "opens the null device for workers",
    "overlay/commands/diagnosis.py": "reads /proc, /sys and torch's metadata",
    "overlay/cli/run.py": "opens the null device for writing",
}

#: Rooms that run models on the user's own machine, from files that they wrote themselves.
OWN_FILES = ("overlay/proof/",)

_METHODS = frozenset(("read_bytes", "read_text"))

_MODULES = frozenset(("os", "io", "codecs"))


def opening_calls(source: str) -> Iterator[ast.Call]:
    """The calls in a module that open a file by its path."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            yield node
        elif isinstance(called, ast.Attribute):
            of_module = isinstance(called.value, ast.Name) and called.value.id in _MODULES
            path = isinstance(called.value, ast.Call) and _is_path(called.value)
            if called.attr in _METHODS or (called.attr == "open" and (of_module or path)):
                yield node


def _is_path(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "Path"


def counted() -> Counter[str]:
    """How many of those calls each module of the overlay has."""
    calls: Counter[str] = Counter()
    for path in sorted((REPOSITORY / "overlay").rglob("*.py")):
        name = path.relative_to(REPOSITORY).as_posix()
        if not name.startswith(OWN_FILES):
            calls[name] += sum(1 for _ in opening_calls(path.read_text(encoding="utf-8")))
    return +calls


def test_no_module_opens_a_foreign_file_by_itself() -> None:
    strange = sorted(set(counted()) - set(ALLOWED))
    assert not strange, f"{strange}: use overlay.untrusted.read_regular, or say here why not"


def test_every_exception_is_still_needed() -> None:
    assert sorted(set(ALLOWED) - set(counted())) == []


def test_the_scan_sees_every_way_to_open_a_file() -> None:
    source = """
import io, os
open("a"); os.open("a", 0); io.open("a"); Path("a").open(); path.read_bytes(); p.read_text()
archive.open("member"); session.open("url"); read_regular("a")
"""
    assert len(list(opening_calls(source))) == 6
