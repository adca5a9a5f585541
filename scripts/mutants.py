"""Mutate planning and on_disk and say which mutants neither mypy nor the tests notice.

``python scripts/mutants.py [MODULE | MODULE:FUNCTION]...``; without one of them all modules, which
takes hours.  mutmut changes one operator, condition, value or call at a time in a copy of the tree.
A mutant is caught where mypy, as CI calls it, has an error in it, or else where one of the module's
tests fails.  Mutants that change nothing but the words of a message are not tried.

``tests/mutants.toml`` names the tests of each module (quick ones, so that a mutant costs a second
or two), the functions of which ``--bounded`` tries every mutant, and the survivors that change
nothing, each with the reason.

Exit 0: every mutant that was tried is caught or listed, and every listed one survived.  1: some
survive that are not listed, or some are listed that were caught or no longer exist.  2: mutmut did
not run.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LISTED = ROOT / "tests" / "mutants.toml"
ROOMS = ("planning", "on_disk")
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


@dataclass(frozen=True)
class Figures:
    """What became of the mutants of one module.

    :ivar all: how many it has; :ivar wording: how many of them change only words of a message.
    :ivar tried: how many were tried; :ivar typed: how many of those mypy caught.
    :ivar whole: whether every mutant was tried that is not of wording.
    """

    all: int
    wording: int
    tried: int
    typed: int
    whole: bool


@dataclass(frozen=True)
class Choice:
    """The mutants of a module that are to be tried.

    :ivar functions: only those of these functions; none: of all.
    :ivar share: of the other functions, the share that is drawn at random (0 to 1).
    """

    module: str
    functions: frozenset[str] = frozenset()
    share: float = 0.0

    def draw(self, mutants: Mapping[str, Mutant], seed: int) -> list[str]:
        """The names of the chosen mutants.

        :param mutants: by the names that mutmut gives them.
        """
        if not self.functions and self.share == 0.0:
            return list(mutants)
        chance = random.Random(f"{seed} {self.module}")
        return [
            name
            for name, mutant in mutants.items()
            if mutant.function in self.functions or chance.random() < self.share
        ]


def modules() -> list[str]:
    """All modules that are mutated."""
    return [
        f"{room}/{path.stem}"
        for room in ROOMS
        for path in sorted((ROOT / "overlay" / room).glob("*.py"))
        if path.stem != "__init__"
    ]


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


def _document(path: Path = LISTED) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def tests_of(module: str) -> list[str]:
    """The test files, or single tests, that are run for the mutants of a module."""
    named: dict[str, list[str]] = _document()["tests"]
    return [f"tests/{test}" for test in named[module]]


def bounded() -> dict[str, frozenset[str]]:
    """Module -> its functions of which ``--bounded`` tries every mutant."""
    named: dict[str, list[str]] = _document()["bounded"]
    return {module: frozenset(functions) for module, functions in named.items()}


def configure(tree: Path, folder: Path, module: str) -> None:
    """Make a copy of a tree, and tell mutmut what to mutate there and how to judge it."""
    shutil.copytree(tree, folder, dirs_exist_ok=True)
    types = [sys.executable, "-m", "mypy", "--strict", "--output", "json"]
    # mutmut's own lines have comments for mypy that it does not always need.
    types += ["--no-warn-unused-ignores", "--follow-imports=silent", f"overlay/{module}.py"]
    settings = {
        "source_paths": ["overlay"],
        "only_mutate": [f"overlay/{module}.py"],
        "also_copy": ["patches", "scripts", "bench", "setup.py", "README.md"],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "--hypothesis-profile=mutants"],
        "pytest_add_cli_args_test_selection": tests_of(module),
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


def listed(path: Path = LISTED) -> dict[Mutant, str]:
    """The survivors that change nothing, with the reason of each.

    :raises ValueError: if an entry has no reason, or is there twice.
    """
    reasons: dict[Mutant, str] = {}
    for entry in _document(path).get("survivor", []):
        reason = entry.pop("reason", "").strip()
        mutant = Mutant(**entry)
        if not reason:
            raise ValueError(f"{path}: expected a reason, found none for\n{mutant}")
        if mutant in reasons:
            raise ValueError(f"{path}: listed twice:\n{mutant}")
        reasons[mutant] = reason
    return reasons


def report(
    figures: Mapping[str, Figures],
    tried: Iterable[Mutant],
    survivors: Iterable[Mutant],
    known: Mapping[Mutant, str],
) -> tuple[list[str], int]:
    """The lines to print, and the exit status.

    :param tried: the mutants that were tried; :param known: the listed survivors, of any module.
    """
    alive = sorted(set(survivors))
    unlisted = [mutant for mutant in alive if mutant not in known]
    whole = {module for module, figure in figures.items() if figure.whole}
    looked_at = {mutant for mutant in known if mutant.module in whole} | (set(tried) & set(known))
    stale = sorted(looked_at - set(alive))
    lines = []
    for module, figure in figures.items():
        own = [mutant for mutant in alive if mutant.module == module]
        new = [mutant for mutant in own if mutant in unlisted]
        lines.append(
            f"{module}: {figure.all} mutants, {figure.wording} of wording, {figure.tried} tried: "
            f"{figure.typed} caught by mypy, {figure.tried - figure.typed - len(own)} by tests, "
            f"{len(own) - len(new)} listed as changing nothing, {len(new)} not noticed"
        )
    lines += [f"not noticed: {mutant}" for mutant in unlisted]
    lines += [f"listed, but caught or gone: {mutant}" for mutant in stale]
    total = sum(figure.tried for figure in figures.values())
    lines.append(
        f"{total} mutants: every one is caught, or listed with a reason"
        if not unlisted and not stale
        else f"{total} mutants: {len(unlisted)} not noticed, {len(stale)} listed for nothing"
    )
    return lines, 1 if unlisted or stale else 0


@dataclass
class Results:
    """What was tried so far: figures by module, the mutants tried, and those that survived."""

    figures: dict[str, Figures]
    tried: list[Mutant]
    survivors: list[Mutant]


def mutate(work: Path, choices: Sequence[Choice], jobs: int, seed: int) -> Results:
    """Try the chosen mutants.

    :raises MutmutFailed: if mutmut did not try them all.
    """
    results = Results({}, [], [])
    tree = work / "tree"  # one state of the repository for all runs, whatever changes meanwhile
    copy_tree(tree)
    for number, choice in enumerate(choices, 1):
        module = choice.module
        folder = work / module.replace("/", "-")
        configure(tree, folder, module)
        mutants, wording = generate(folder, module)
        names = choice.draw(mutants, seed)
        place = f"{module}, {number} of {len(choices)}"
        print(f"[mutants] {place}: {len(names)} of {len(mutants)} mutants", flush=True)
        typed, survived = 0, list[str]()
        if names:
            run_mutmut(folder, jobs, names)
            typed, survived = outcomes(folder, module, names)
        whole = len(names) == len(mutants)
        figures = Figures(len(mutants) + wording, wording, len(names), typed, whole)
        results.figures[module] = figures
        results.tried += [mutants[name] for name in names]
        results.survivors += [mutants[name] for name in survived]
        for name in survived:
            print(f"[mutants] survived: {mutants[name]}", flush=True)
    return results


def choose(arguments: argparse.Namespace) -> list[Choice]:
    """What to try, by the arguments.

    :raises ValueError: naming what is not a module.
    """
    share = 1.0 if arguments.share is None else arguments.share
    if arguments.bounded:
        return [Choice(module, functions) for module, functions in bounded().items()]
    functions: dict[str, set[str]] = {}
    for place in arguments.module or modules():
        module, _, function = place.partition(":")
        if module not in modules():
            raise ValueError(f"expected {', '.join(modules())}; found {module}")
        functions.setdefault(module, set()).update({function} if function else ())
    if arguments.share is None:
        return [Choice(module, frozenset(named)) for module, named in functions.items()]
    whole = bounded()
    return [
        Choice(module, frozenset(named) | whole.get(module, frozenset()), share)
        for module, named in functions.items()
    ]


def main() -> int:
    """Run, compare with the list, print; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("module", nargs="*", help=f"such as {modules()[0]}; default: all")
    parser.add_argument("--bounded", action="store_true", help="what tests/mutants.toml names")
    parser.add_argument("--share", type=float, help="of the other functions, the share to draw")
    parser.add_argument("--seed", type=int, default=1, help="for --share")
    parser.add_argument("--jobs", type=int, default=2, help="tests beside each other")
    parser.add_argument("--work", type=Path, help="keep the copies there, for `mutmut browse`")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        work = arguments.work or Path(temporary)
        try:
            known = listed()
            results = mutate(work, choose(arguments), arguments.jobs, arguments.seed)
        except (MutmutFailed, ValueError) as error:
            print(error)
            return 2
    lines, status = report(results.figures, results.tried, results.survivors, known)
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
