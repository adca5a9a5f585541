"""``--help`` of every script only helps: it installs, fetches and writes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("scripts", "bench")
    for path in (ROOT / folder).glob("*.py")
    if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what scripts import, so that whatever one writes is seen."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("overlay", "scripts", "bench", "tests"):
        results = ("results",) if name == "bench" else ()
        ignored = shutil.ignore_patterns("__pycache__", *results)
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


def everything(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.lstat().st_mtime_ns
        for path in folder.rglob("*")
        if not path.is_dir()
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_only_helps(script: str, checkout: Path) -> None:
    before = everything(checkout)
    done = subprocess.run(
        [sys.executable, "-B", script, "--help"],
        cwd=checkout,
        env={**os.environ, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert Path(script).name in done.stdout
    assert everything(checkout) == before


def test_the_demo_refuses_what_it_does_not_know() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/demo.py"), "--helpp"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout.count("--helpp")) == (2, 1)
