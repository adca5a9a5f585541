"""Run everything that CI runs: style, types, and all tests, those with a real engine included.

A plain ``pytest`` runs the fast lane only (``tests/support/lane.py``).

``python3 scripts/test.py [--thorough] [PYTEST ARGUMENTS]`` needs Python 3.11 or 3.12 and pip, and
makes the environments it needs below ``.cache/``.  What is set up and fetched is kept, so an
interrupted call goes on there; the checks and the tests themselves always run.  ``--checks ruff``
and ``--checks mypy`` run these alone, as the hooks of ``.pre-commit-config.yaml`` do.

Modules that import vLLM themselves run in the engines' environment, also where they or their folder
are named (``tests/engine/engine_fixtures.py``).

Without pytest's arguments all tests run, in four processes that take one file after the other: two
cores are busy then also while two tests wait.  The environment of the engines is made beside
that of the tools, the checks and the first tests, which need none; mypy runs beside these tests and
stops them where it fails.  The ten tests that cost most are printed at the end.
With ``--thorough`` also those that repeat a proof, with new random examples, and then
``scripts/mutants.py --bounded``: that takes hours.

Exit 0: everything passed.  1: a check or a test failed, and nothing behind it was run.  2: an
environment could not be made, or pytest did not run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts import environment
from scripts.environment import ROOT, say

TYPED = (
    *("overlay", "scripts", "bench"),
    *("tests/ascend", "tests/engine", "tests/draft_graphs", "tests/fuzz", "tests/gpu"),
)
#: Four processes: while ranks, servers or Ray wait in two of them, the others have the cores.  A
#: file's tests stay together, and files start in the order that conftest.py gives.
IN_FOUR = ("--numprocesses=4", "--dist=loadfile", "--no-loadscope-reorder")
WRITES_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
#: Seconds that tests have to end once they are stopped.
PATIENCE = 60


@dataclass(frozen=True)
class Check:
    """One command that must end with 0 in ``folder``.

    :ivar beside: folders where mypy looks for modules first.
    """

    name: str
    folder: Path
    arguments: tuple[str, ...]
    beside: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A check or a run of tests that did not end with 0.

    :ivar status: its exit status; 1 where a check or a test failed.
    """

    name: str
    status: int


def checks() -> list[Check]:
    """List what must pass before the tests are worth their time."""
    settings = ("--config-file", str(ROOT / "pyproject.toml"))
    strict = ("mypy", "--strict", *settings, "--cache-dir", str(ROOT / ".mypy_cache"))
    commands = [
        Check("ruff check", ROOT, ("ruff", "check", ".")),
        Check("ruff format --check", ROOT, ("ruff", "format", "--check", ".")),
        Check(f"mypy --strict {' '.join(TYPED)}", ROOT, (*strict, *TYPED)),
    ]
    shared = ROOT / "patches/shared/files"
    for added in sorted((ROOT / "patches").glob("*/files")):
        # Seen from there, as from site-packages, its modules and shared ones are parts of the
        # package.
        name = f"mypy --strict {added.relative_to(ROOT)}"
        package = next(folder.name for folder in added.iterdir() if folder.is_dir())
        shares = (shared / package).is_dir()
        whole = (*strict, "--explicit-package-bases", "-p", package)
        commands.append(Check(name, added, whole, (added, shared) if shares else ()))
    return commands


def main(arguments: Sequence[str]) -> int:
    """Set up, check, test; the exit status."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="All other arguments are pytest's; with any of them the tests run in one process.",
    )
    parser.add_argument("--thorough", action="store_true", help="also what repeats a proof")
    parser.add_argument("--checks", metavar="TOOL", help="no tests: what ruff, or mypy, says alone")
    asked, others = parser.parse_known_args(arguments)
    environment.with_supported_python()
    began = time.monotonic()
    if asked.checks is not None:
        failure = first_failed_check(environment.dev_python(), checks_of(asked.checks))
        return 0 if failure is None else ended(failure, began)
    with ThreadPoolExecutor(1) as beside:
        engine = beside.submit(engine_environment)
        python = environment.dev_python()
        compile_sources(python)
        failure = first_failure(python, others, began, thorough=asked.thorough)
    status = 0 if failure is None else ended(failure, began)
    engine.result()  # what went wrong there is told, whatever the tests said
    if failure is None:
        say(f"[tests] all passed, {time.monotonic() - began:.0f} s after the start")
    return status


def compile_sources(python: Path) -> None:
    """Write the bytecode of what the tests' processes import, hundreds of them each time.

    Many of them write none themselves, because a test or the environment says so
    (``PYTHONDONTWRITEBYTECODE``).  Without it they are slower, and nothing else.
    """
    modules = ("overlay", "scripts", "bench", "tests")
    write_bytecode([str(python), "-m", "compileall", "-qq", *modules])


def compile_tests(python: Path, *, every: bool) -> None:
    """Write what pytest makes of its plugins, all of hypothesis among them, and of the tests.

    Four processes collect them, which otherwise takes each of them twice as long.

    :param every: of all tests; else of the plugins alone, which every start of pytest imports.
    """
    chosen = ("--whole",) if every else ("tests/test_errors.py",)
    write_bytecode([str(python), "-m", "pytest", "--collect-only", "-q", *chosen])


def write_bytecode(command: Sequence[str]) -> None:
    """Run a command that may write bytecode, whatever the environment says of that."""
    writing = {name: value for name, value in clean().items() if name != WRITES_NO_BYTECODE}
    subprocess.run(command, cwd=ROOT, env=writing, check=False, stdout=subprocess.DEVNULL)


def engine_environment() -> None:
    """Make the environment of the engines; a test that needs it waits until it is there.

    :raises environment.EnvironmentFailed: where it cannot be made, except for want of PyTorch.
    """
    try:
        environment.engine_python()
    except environment.TorchUnavailable:
        say("[engine] pip finds no CPU build of PyTorch: the engine tests will be skipped")


def first_failure(
    python: Path, arguments: Sequence[str], began: float, *, thorough: bool
) -> Failure | None:
    """Run the checks and the tests up to the first that fails; None if none does.

    :param arguments: pytest's; none: all tests.
    :param began: when the script started, on the monotonic clock.
    """
    every = checks()
    typed = [check for check in every if check.name.startswith("mypy")]
    failure = first_failed_check(python, (check for check in every if check not in typed))
    if failure is not None:
        return failure
    with ThreadPoolExecutor(2) as beside:
        types = beside.submit(first_failed_check, python, typed)
        compile_tests(python, every=not arguments)
        say(f"[tests] {time.monotonic() - began:.0f} s after the start")
        for name, command in suites(python, arguments, thorough=thorough):
            if types.done() and types.result() is not None:
                break
            say(f"[{name}] {' '.join(command[1:])}")
            tests = subprocess.Popen(command, cwd=ROOT, env=clean())
            ended = beside.submit(tests.wait)
            if stopped(tests, ended, types):
                break
            if ended.result() != 0:
                return Failure(name, ended.result())
        return types.result()


def stopped(
    tests: subprocess.Popen[bytes], ended: Future[int], types: Future[Failure | None]
) -> bool:
    """Wait for tests, and stop them as Ctrl-C does where a check beside them fails before.

    :param ended: waits for the tests; :param types: the check.
    """
    either: tuple[Future[Any], ...] = (ended, types)
    concurrent.futures.wait(either, return_when=concurrent.futures.FIRST_COMPLETED)
    if not types.done() or types.result() is None:
        ended.result()
        return False
    tests.send_signal(signal.SIGINT)
    try:
        ended.result(PATIENCE)
    except concurrent.futures.TimeoutError:
        tests.kill()
    return True


def checks_of(tool: str) -> list[Check]:
    """The checks of a tool: those that its name begins.

    :raises environment.EnvironmentFailed: if the tool has no check.
    """
    chosen = [check for check in checks() if check.name.startswith(tool)]
    if not chosen:
        raise environment.EnvironmentFailed(f"--checks: expected ruff or mypy, found {tool!r}")
    return chosen


def first_failed_check(python: Path, chosen: Iterable[Check]) -> Failure | None:
    """Run checks up to the first that fails; None if none does."""
    for check in chosen:
        command = [str(python), "-m", *check.arguments]
        path = {"MYPYPATH": os.pathsep.join(map(str, check.beside))} if check.beside else {}
        done = subprocess.run(
            command,
            cwd=check.folder,
            env={**os.environ, **path},
            check=False,
            text=True,
            stdout=subprocess.PIPE,  # in one piece, where tests print beside it
            stderr=subprocess.STDOUT,
        )
        say(f"[check] {check.name}\n{done.stdout}".rstrip())
        if done.returncode != 0:
            return Failure(f"check {check.name}", done.returncode)
    return None


def ended(failure: Failure, began: float) -> int:
    """Tell what failed, and when; the exit status that says so, too."""
    seconds = time.monotonic() - began
    status = failure.status
    failed = "failed" if status == 1 else f"did not run to its end (status {status})"
    say(f"[{failure.name}] {failed}, {seconds:.0f} s after the start; nothing behind it was run")
    return 1 if status == 1 else 2


def suites(
    python: Path, arguments: Sequence[str], *, thorough: bool
) -> list[tuple[str, list[str]]]:
    """List the commands that test, each with a name, in the order in which they run.

    :param arguments: pytest's; none: all tests.
    """
    more = ["--whole", *(["--thorough"] if thorough else [])]
    chosen = list(arguments) or list(IN_FOUR)
    commands = [("tests", [str(python), "-m", "pytest", "--costs", *more, *chosen])]
    if thorough and not arguments:
        mutants = [str(python), str(ROOT / "scripts" / "mutants.py"), "--bounded"]
        commands.append(("mutants", mutants))
    return commands


def clean() -> dict[str, str]:
    """Copy the environment without what would steer the overlay."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except environment.EnvironmentFailed as error:
        say(str(error))
        sys.exit(2)
