"""The tests of the instrument need torch and vLLM, which only the engine's environment has."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from overlay.proof.engine_launch import link_packages

HERE = Path(__file__).parent
FILES = ("test_recorded_graph.py", "test_graph_safe_attention.py")
#: pytest and what it needs; all of it is pure Python.
LENT = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli")


def lend_pytest(folder: Path) -> None:
    """Put links to pytest's packages into a folder that can go on an import path."""
    for name in LENT:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue  # needed by older Pythons only
        for top in {file.parts[0] for file in files if file.suffix == ".py"} - {".."}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(metadata.distribution(name).locate_file(top))))


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_the_instrument_passes_its_own_tests(
    patched_python: Path, tmp_path: Path, file: str
) -> None:
    lend_pytest(tmp_path)
    code = link_packages(tmp_path / "code", (HERE.parent,))
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    ended = subprocess.run(
        [
            *(str(patched_python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest"),
            *("-c", str(tmp_path / "pytest.ini"), str(HERE / file)),
        ],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{code}", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert re.search(r"\d+ passed", ended.stdout)
    assert "skipped" not in ended.stdout
