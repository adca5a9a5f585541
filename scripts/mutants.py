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
import random
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.mutmut_runs import (
    ROOT,
    Mutant,
    MutmutFailed,
    configure,
    copy_tree,
    generate,
    outcomes,
    run_mutmut,
)

LISTED = ROOT / "tests" / "mutants.toml"
ROOMS = ("planning", "on_disk")


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


def _document(path: Path = LISTED) -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return document


def judges_of(module: str, path: Path = LISTED) -> list[str]:
    """The test files, or single tests, that are run for the mutants of a module."""
    named: dict[str, list[str]] = _document(path)["tests"]
    return [f"tests/{test}" for test in named[module]]


def judged() -> list[str]:
    """Every module that has tests named; those of other rooms are tried where they are named."""
    return sorted(_document()["tests"])


def bounded() -> dict[str, frozenset[str]]:
    """Module -> its functions of which ``--bounded`` tries every mutant."""
    named: dict[str, list[str]] = _document()["bounded"]
    return {module: frozenset(functions) for module, functions in named.items()}


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
        configure(tree, folder, module, judges_of(module, tree / LISTED.relative_to(ROOT)))
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
        if module not in judged():
            raise ValueError(f"expected {', '.join(judged())}; found {module}")
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
