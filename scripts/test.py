"""Everything that CI runs: style, types, and all tests, those with a real engine included.

``python3 scripts/test.py [PYTEST ARGUMENTS]`` needs Python 3.11 or 3.12 and pip, and makes the
environments it needs below ``.cache/``.  What is set up and fetched is kept, so an interrupted
call goes on there; the checks and the tests themselves always run.  pytest's last line is the last
line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import environment
from environment import ROOT, say

TYPED = ("overlay", "scripts", "tests/engine")


def checks(python: Path) -> list[tuple[str, list[str]]]:
    """What must pass before the tests are worth their time."""
    run = [str(python), "-m"]
    return [
        ("ruff check", [*run, "ruff", "check", "."]),
        ("ruff format --check", [*run, "ruff", "format", "--check", "."]),
        (f"mypy --strict {' '.join(TYPED)}", [*run, "mypy", "--strict", *TYPED]),
    ]


def main() -> int:
    """Set up, check, test; the exit status of the first thing that failed."""
    environment.with_supported_python()
    began = time.monotonic()
    python = environment.dev_python()
    try:
        environment.engine_python()
    except environment.TorchUnavailable:
        say("[engine] pip finds no CPU build of PyTorch: the engine tests will be skipped")
    for name, command in checks(python):
        say(f"[check] {name}")
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status != 0:
            say(f"[check] {name} failed with status {status}; nothing behind it was run")
            return 1
    say(f"[tests] all of them, {time.monotonic() - began:.0f} s after the start")
    command = [str(python), "-m", "pytest", "--durations=10", *sys.argv[1:]]
    env = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except environment.EnvironmentFailed as error:
        say(str(error))
        sys.exit(2)
