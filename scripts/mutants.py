"""Mutate planning and on_disk and say which mutants no test beside them notices.

``python scripts/mutants.py [MODULE]... [--jobs N] [--work FOLDER]``; without MODULE all of them,
which takes an hour or two.  mutmut changes one operator, condition, value or call at a time in a
copy of the tree, and runs the tests that call the changed function: first those of the module's
own test files, then, for what these let pass, those of its room.
``tests/mutants.toml`` lists survivors with the reason why they change nothing.

Exit 0: every mutant is caught or listed, and every listed one survived.  1: some survive that are
not listed, or some are listed that were caught or no longer exist.  2: mutmut did not run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LISTED = ROOT / "tests" / "mutants.toml"
#: room -> its tests, but for those that take minutes or start an installer or a network.
ROOMS = {
    "planning": ("tests/planning", ("test_peers.py",)),
    "on_disk": (
        "tests/on_disk",
        ("test_concurrency.py", "test_faults.py", "test_transaction_pip.py"),
    ),
}
#: Exit statuses of pytest by which mutmut says that no test failed, or that none ran.
SURVIVED, UNTESTED = (0,), (5, 33)


class MutmutFailed(Exception):
    """mutmut did not come to its end."""


@dataclass(frozen=True, order=True)
class Mutant:
    """One change of one function that no test noticed.

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


def files_that_test(module: str, *, own: bool) -> list[str]:
    """The test files of a module's room, or of those its own; the latter may be none."""
    room, _, name = module.partition("/")
    tests, left_out = ROOMS[room]
    pattern = f"test_{name}*.py" if own else "test_*.py"
    return [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / tests).glob(pattern))
        if path.name not in left_out
    ]


def configure(tree: Path, folder: Path, module: str, selection: Sequence[str]) -> None:
    """Make a copy of a tree, and tell mutmut what to mutate there and which tests to run."""
    shutil.copytree(tree, folder, dirs_exist_ok=True)
    settings = {
        "source_paths": ["overlay"],
        "only_mutate": [f"overlay/{module}.py"],
        "also_copy": ["patches", "scripts", "bench", "setup.py", "README.md"],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "--hypothesis-profile=mutants"],
        "pytest_add_cli_args_test_selection": list(selection),
        "timeout_multiplier": 10.0,
    }
    text = (tree / "pyproject.toml").read_text(encoding="utf-8")
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    (folder / "pyproject.toml").write_text(
        f"{text}\n[tool.mutmut]\n" + "\n".join(lines) + "\n", encoding="utf-8"
    )


def run_mutmut(folder: Path, jobs: int, names: Sequence[str] = ()) -> None:
    """Let mutmut run in a configured copy of the tree.

    :param names: the mutants to try; none: all.
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


def outcomes(folder: Path, module: str, names: Sequence[str] = ()) -> tuple[int, list[str]]:
    """How many mutants a module has, and the names that mutmut gave to the survivors.

    :param names: the mutants that were to be tried; none: all.
    :raises MutmutFailed: if one of them has not been tried.
    """
    meta = folder / "mutants" / "overlay" / f"{module}.py.meta"
    codes: dict[str, int | None] = json.loads(meta.read_text("utf-8"))["exit_code_by_key"]
    wanted = names or list(codes)
    untried = [name for name in wanted if codes.get(name) is None]
    if untried:
        raise MutmutFailed(f"{len(untried)} mutants of {module} were not tried")
    return len(codes), [name for name in wanted if codes[name] in SURVIVED + UNTESTED]


def describe(folder: Path, module: str, name: str) -> Mutant:
    """A mutant by what it changes, which a change elsewhere in the file does not alter."""
    shown = subprocess.run(
        [sys.executable, "-m", "mutmut", "show", name],
        cwd=folder,
        env=_environment(),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    old, new = (
        " ".join(
            line[1:].strip()
            for line in shown.splitlines()
            if line.startswith(sign) and not line.startswith(sign * 3)
        )
        for sign in "-+"
    )
    # overlay.room.module.x_function__mutmut_3, or xǁClassǁmethod__mutmut_3
    mangled = name.rpartition("__mutmut_")[0].rpartition(".")[2]
    function = ".".join(mangled[2:].split("ǁ")) if mangled.startswith("xǁ") else mangled[2:]
    return Mutant(module, function, old, new)


def listed(path: Path = LISTED) -> dict[Mutant, str]:
    """The survivors that change nothing, with the reason of each.

    :raises ValueError: if an entry has no reason, or is there twice.
    """
    found: dict[Mutant, str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("survivor", []):
        reason = entry.pop("reason", "").strip()
        mutant = Mutant(**entry)
        if not reason:
            raise ValueError(f"{path}: expected a reason, found none for\n{mutant}")
        if mutant in found:
            raise ValueError(f"{path}: listed twice:\n{mutant}")
        found[mutant] = reason
    return found


def report(
    tried: Mapping[str, int], survivors: Iterable[Mutant], known: Mapping[Mutant, str]
) -> tuple[list[str], int]:
    """The lines to print, and the exit status.

    :param tried: module -> how many mutants it has.
    :param known: the listed survivors, of any module.
    """
    alive = sorted(set(survivors))
    unlisted = [mutant for mutant in alive if mutant not in known]
    stale = [mutant for mutant in sorted(known) if mutant.module in tried and mutant not in alive]
    lines = []
    for module, count in tried.items():
        own = [mutant for mutant in alive if mutant.module == module]
        new = [mutant for mutant in own if mutant in unlisted]
        lines.append(
            f"{module}: {count} mutants, {count - len(own)} caught, "
            f"{len(own) - len(new)} listed as changing nothing, {len(new)} not noticed"
        )
    lines += [f"not noticed: {mutant}" for mutant in unlisted]
    lines += [f"listed, but caught or gone: {mutant}" for mutant in stale]
    total = sum(tried.values())
    lines.append(
        f"{total} mutants: every one is caught, or listed with a reason"
        if not unlisted and not stale
        else f"{total} mutants: {len(unlisted)} not noticed, {len(stale)} listed for nothing"
    )
    return lines, 1 if unlisted or stale else 0


def mutate(work: Path, chosen: Sequence[str], jobs: int) -> tuple[dict[str, int], list[Mutant]]:
    """Try all mutants of the chosen modules.

    :returns: module -> how many it has; and the survivors.
    :raises MutmutFailed: if mutmut did not try them all.
    """
    tried: dict[str, int] = {}
    survivors: list[Mutant] = []
    tree = work / "tree"  # one state of the repository for all runs, whatever changes meanwhile
    copy_tree(tree)
    for number, module in enumerate(chosen, 1):
        place = f"{module}, {number} of {len(chosen)}"
        names: list[str] = []
        folder = work / module.replace("/", "-")
        own = files_that_test(module, own=True)
        if own:
            print(f"[mutants] {place}: its own tests", flush=True)
            configure(tree, folder, module, own)
            run_mutmut(folder, jobs)
            tried[module], names = outcomes(folder, module)
        if names or not own:
            print(f"[mutants] {place}: its room's tests, {len(names) or 'all'} mutants", flush=True)
            folder = work / f"{module.replace('/', '-')}-room"
            configure(tree, folder, module, files_that_test(module, own=False))
            run_mutmut(folder, jobs, names)
            tried[module], names = outcomes(folder, module, names)
        survivors += [describe(folder, module, name) for name in names]
    return tried, survivors


def main() -> int:
    """Run, compare with the list, print; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("module", nargs="*", help=f"such as {modules()[0]}; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="tests beside each other")
    parser.add_argument("--work", type=Path, help="keep the copies there, for `mutmut browse`")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.module) - set(modules()))
    if unknown:
        parser.error(f"expected {', '.join(modules())}; found {', '.join(unknown)}")
    chosen = arguments.module or modules()
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        work = arguments.work or Path(temporary)
        try:
            known = listed()
            tried, survivors = mutate(work, chosen, arguments.jobs)
        except (MutmutFailed, ValueError) as error:
            print(error)
            return 2
    lines, status = report(tried, survivors, known)
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
