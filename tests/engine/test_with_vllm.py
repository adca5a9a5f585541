"""Runs, in the engine's environment, the test modules that import PyTorch or vLLM themselves."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.engine.engine_fixtures import needs_vllm

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "tests").rglob("test_*.py")
    if path != Path(__file__) and needs_vllm(path)
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is not None, reason="they are run right here"),
]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_imports_vllm(engine_python: Path, module: str) -> None:
    command = [str(engine_python), "-m", "pytest", "-q", "-p", "no:cacheprovider", module]
    ended = subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, check=False, timeout=600
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    last = ended.stdout.strip().splitlines()[-1]
    assert re.match(r"=*\s*[1-9][0-9]* passed", last), last
    assert "skipped" not in last, ended.stdout
