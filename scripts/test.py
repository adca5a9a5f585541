"""Everything that CI runs: style, types, and all tests, those with a real engine included.

``python3 scripts/test.py [PYTEST ARGUMENTS]`` needs Python 3.11 or 3.12 and pip, and makes the
environments it needs below ``.cache/``.  What is set up and fetched is kept, so an interrupted
call goes on there; the checks and the tests themselves always run.  Without arguments the tests run
in two processes, for two cores; what the second one says follows when both have ended, and the last
line says how both did.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts import environment
from scripts.environment import ROOT, say

TYPED = ("overlay", "scripts", "bench", "tests/engine", "tests/draft_graphs", "tests/gpu")
#: The folders of tests that take as long as all the others and what is left out of them.
HALF = ("engine", "draft_graphs")
LEFT_OUT = "engine/test_with_vllm.py"


@dataclass(frozen=True)
class Check:
    """One command that must end with 0 in ``folder``."""

    name: str
    folder: Path
    arguments: tuple[str, ...]


def checks() -> list[Check]:
    """What must pass before the tests are worth their time."""
    settings = ("--config-file", str(ROOT / "pyproject.toml"))
    strict = ("mypy", "--strict", *settings, "--cache-dir", str(ROOT / ".mypy_cache"))
    found = [
        Check("ruff check", ROOT, ("ruff", "check", ".")),
        Check("ruff format --check", ROOT, ("ruff", "format", "--check", ".")),
        Check(f"mypy --strict {' '.join(TYPED)}", ROOT, (*strict, *TYPED)),
    ]
    for added in sorted((ROOT / "patches").glob("*/files")):
        # Seen from there, as from site-packages, its modules are parts of vllm.
        name = f"mypy --strict {added.relative_to(ROOT)}"
        found.append(Check(name, added, (*strict, "--explicit-package-bases", "-p", "vllm")))
    return found


def main() -> int:
    """Set up, check, test; the exit status of the first thing that failed."""
    if environment.asked_for_help(__doc__):
        return 0
    environment.with_supported_python()
    began = time.monotonic()
    python = environment.dev_python()
    try:
        environment.engine_python()
    except environment.TorchUnavailable:
        say("[engine] pip finds no CPU build of PyTorch: the engine tests will be skipped")
    for check in checks():
        say(f"[check] {check.name}")
        command = [str(python), "-m", *check.arguments]
        status = subprocess.run(command, cwd=check.folder, check=False).returncode
        if status != 0:
            say(f"[check] {check.name} failed with status {status}; nothing behind it was run")
            return 1
    say(f"[tests] {time.monotonic() - began:.0f} s after the start")
    if sys.argv[1:]:
        return subprocess.run(
            pytest(python, sys.argv[1:]), cwd=ROOT, env=clean(), check=False
        ).returncode
    return in_halves(python)


def pytest(python: Path, arguments: Iterable[str]) -> list[str]:
    """The command that runs some of the tests."""
    return [str(python), "-m", "pytest", "--durations=10", *arguments]


def clean() -> dict[str, str]:
    """The environment without what would steer the overlay."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}


def in_halves(python: Path) -> int:
    """All tests, in two processes beside each other; the worse of their exit statuses."""
    tests = ROOT / "tests"
    half = [file for name in HALF for file in sorted((tests / name).glob("test_*.py"))]
    half.remove(tests / LEFT_OUT)
    others = [str(tests), *(f"--ignore={file}" for file in half)]
    say(f"[tests] those of {' and '.join(HALF)} here, all others beside them")
    with tempfile.TemporaryFile("w+") as output:
        beside = subprocess.Popen(
            pytest(python, others), cwd=ROOT, env=clean(), stdout=output, stderr=output
        )
        try:
            here = subprocess.run(
                pytest(python, map(str, half)), cwd=ROOT, env=clean(), check=False
            )
            statuses = (here.returncode, beside.wait())
        finally:
            beside.terminate()
            beside.wait()
        output.seek(0)
        say(f"[tests] the others:\n{output.read()}")
    ends = " and ".join("passed" if status == 0 else f"ended with {status}" for status in statuses)
    say(f"[tests] those of {' and '.join(HALF)}, and the others: {ends}")
    return max(statuses, key=abs)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except environment.EnvironmentFailed as error:
        say(str(error))
        sys.exit(2)
