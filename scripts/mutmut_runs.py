"""Run mutmut on one module in a copy of the repository, and describe the mutants."""

from __future__ import annotations

import ast
import difflib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Exit statuses by which mutmut says that no test failed, or that none ran.
SURVIVED, UNTESTED = (0,), (5, 33)
#: The exit status that it gives a mutant in which mypy found an error.
TYPE_ERROR = 37
#: Prints what mutmut makes of a module: its text with every mutant in it.
GENERATE = """
import json, sys
from mutmut.mutation.file_mutation import mutate_file_contents
made = mutate_file_contents(sys.argv[1], open(sys.argv[1], encoding="utf-8").read())
print(json.dumps({"code": made.code, "names": list(made.mutant_names)}))
"""


class MutmutFailed(Exception):
    """mutmut did not come to its end."""


@dataclass(frozen=True, order=True)
class Mutant:
    """One change of one function.

    :ivar module: such as ``planning/matching``.
    :ivar function: such as ``match`` or ``Site.read``.
    :ivar old: the changed lines as they are, without their indentation.
    :ivar new: the same, changed.
    """

    module: str
    function: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.module}: {self.function}\n  - {self.old}\n  + {self.new}"


def copy_tree(folder: Path) -> None:
    """Copy the repository as it is, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        original, copy = ROOT / name, folder / name
        if original.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(original, copy)


def configure(tree: Path, folder: Path, module: str, tests: Sequence[str]) -> None:
    """Make a copy of a tree, and tell mutmut what to mutate there and how to judge it.

    :param tests: test files, or single tests, that a mutant must fail.
    """
    shutil.copytree(tree, folder, dirs_exist_ok=True)
    types = [sys.executable, "-m", "mypy", "--strict", "--output", "json"]
    # mutmut's own lines have comments for mypy that it does not always need.
    types += ["--no-warn-unused-ignores", "--follow-imports=silent", f"overlay/{module}.py"]
    settings = {
        "source_paths": ["overlay"],
        "only_mutate": [f"overlay/{module}.py"],
        "also_copy": ["patches", "scripts", "bench", "README.md"],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "--hypothesis-profile=mutants"],
        "pytest_add_cli_args_test_selection": list(tests),
        "type_check_command": [*types, f"--cache-dir={folder.parent / 'types'}"],
        "timeout_multiplier": 10.0,
    }
    text = (tree / "pyproject.toml").read_text(encoding="utf-8")
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    (folder / "pyproject.toml").write_text(
        f"{text}\n[tool.mutmut]\n" + "\n".join(lines) + "\n", encoding="utf-8"
    )


def run_mutmut(folder: Path, jobs: int, names: Sequence[str]) -> None:
    """Let mutmut try mutants in a configured copy of the tree.

    :raises MutmutFailed: if it ends before it has tried the mutants.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs), *names],
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if ended.returncode != 0:
        said = ended.stdout.decode("utf-8", "replace").replace("\r", "\n")
        raise MutmutFailed(f"mutmut ended with status {ended.returncode}:\n{said[-4000:]}")


def _environment() -> dict[str, str]:
    """This process's variables without those that steer the overlay."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}


def outcomes(folder: Path, module: str, names: Sequence[str]) -> tuple[int, list[str]]:
    """How many of the mutants mypy caught, and the names of the survivors.

    :raises MutmutFailed: if one of them has not been tried.
    """
    meta = folder / "mutants" / "overlay" / f"{module}.py.meta"
    codes: dict[str, int | None] = json.loads(meta.read_text("utf-8"))["exit_code_by_key"]
    untried = [name for name in names if codes.get(name) is None]
    if untried:
        raise MutmutFailed(f"{len(untried)} mutants of {module} were not tried")
    typed = sum(codes[name] == TYPE_ERROR for name in names)
    return typed, [name for name in names if codes[name] in SURVIVED + UNTESTED]


def generate(folder: Path, module: str) -> tuple[dict[str, Mutant], int]:
    """The mutants of a module in a configured copy, by the names that mutmut gives them.

    :returns: those that change more than words; and how many change only words.
    """
    path = f"overlay/{module}.py"
    made = subprocess.run(
        [sys.executable, "-c", GENERATE, path],
        cwd=folder,
        env=_environment(),
        check=True,
        capture_output=True,
    ).stdout
    document = json.loads(made)
    return told_apart(module, document["code"], document["names"])


def told_apart(module: str, code: str, names: Iterable[str]) -> tuple[dict[str, Mutant], int]:
    """Describe mutants by what they change, which a change elsewhere in the file does not alter.

    :param code: the text that mutmut made: ``x_f__mutmut_orig`` is the function ``f`` as it is,
        ``x_f__mutmut_1`` its first mutant, ``xǁClassǁf__mutmut_1`` that of a method.
    :returns: as ``generate``.
    """
    nodes = {
        node.name: node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "__mutmut_" in node.name
    }
    lines = code.splitlines()
    mutants, wording = {}, 0
    for name in names:
        stem = name.rpartition("__mutmut_")[0]
        original, mutant = nodes[f"{stem}__mutmut_orig"], nodes[name]
        if _without_words(original) == _without_words(mutant):
            wording += 1
            continue
        old, new = _changed(_source(original, lines), _source(mutant, lines))
        function = ".".join(stem[2:].split("ǁ")) if stem.startswith("xǁ") else stem[2:]
        full = f"overlay.{module.replace('/', '.')}.{name}"
        mutants[full] = Mutant(module, function, old, new)
    return mutants, wording


def _source(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: Sequence[str]) -> list[str]:
    """The lines of a function, called the same in each mutant."""
    own = lines[node.lineno - 1 : node.end_lineno]
    return [line.replace(node.name, "function") for line in own]


def _changed(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    """The lines that differ, each side as one text without indentation."""
    differing = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    before, after = (
        " ".join(line[1:].strip() for line in differing if line.startswith(sign)) for sign in "-+"
    )
    return before, after


class _Words(ast.NodeTransformer):
    """Replaces the words of messages, which are texts with a blank in them or in f-strings."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.generic_visit(node)
        node.values = [part for part in node.values if not isinstance(part, ast.Constant)]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        worded = isinstance(node.value, str) and " " in node.value
        return ast.Constant("words") if worded else node


def _without_words(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    copy = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(copy, ast.FunctionDef | ast.AsyncFunctionDef)
    copy.name = "function"
    return ast.dump(_Words().visit(copy))
