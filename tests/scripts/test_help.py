"""``python3 scripts/SCRIPT.py --help`` prints help and does nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    path
    for folder in ("scripts", "bench")
    for path in (ROOT / folder).glob("*.py")
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
)
#: Runs a script by its path in a process that can start no other one, open no connection, and
#: write no file but bytecode.
ALONE = """
import runpy, sys

def refuse(event, arguments):
    if event in ("subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "socket.connect"):
        raise SystemExit(f"{event} {arguments}")
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        raise SystemExit(f"{event} {arguments}")
    if event in ("os.mkdir", "os.remove", "os.rename", "shutil.rmtree"):
        raise SystemExit(f"{event} {arguments}")

script = sys.argv[1]
sys.argv = [script, "--help"]
sys.path[0] = script.rpartition("/")[0]
sys.dont_write_bytecode = True
sys.addaudithook(refuse)
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_help_only_helps(script: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ALONE, str(script)],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.lower().startswith("usage:")
    assert not list(tmp_path.iterdir())


def test_there_are_scripts() -> None:
    assert {"demo.py", "test.py", "environment.py", "compare.py"} <= {path.name for path in SCRIPTS}
