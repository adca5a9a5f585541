"""TARGET as a virtual environment or an interpreter: found from files, nothing is run."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from overlay.errors import TargetError
from overlay.targets.environments import environment_at
from overlay.targets.resolution import resolve
from tests.support import fake_vllm


def environment(folder: Path, settings: str = "") -> Path:
    """A virtual environment whose interpreter is a link to one elsewhere; returns it."""
    base = folder / "base/bin/python3.12"
    base.parent.mkdir(parents=True)
    base.write_bytes(b"\x7fELF that must not be run")
    base.chmod(0o755)
    made = folder / "venv"
    (made / "bin").mkdir(parents=True)
    (made / "pyvenv.cfg").write_text(f"home = {base.parent}\nversion = 3.12.3\n{settings}")
    (made / "bin/python").symlink_to(base)
    (made / "lib/python3.12/site-packages").mkdir(parents=True)
    return made


def site(made: Path) -> Path:
    return made / "lib/python3.12/site-packages"


@pytest.mark.parametrize("named", ["", "bin/python"])
def test_a_venv_and_its_interpreter_are_its_site_packages(tmp_path: Path, named: str) -> None:
    made = environment(tmp_path)
    fake_vllm.site_packages(site(made), version="0.27.0")
    target = resolve(str(made / named))
    assert (target.root, target.vllm) == (site(made).resolve(), "0.27.0")
    assert target.record_file is not None
    assert resolve(None, python=str(made / named)).root == target.root


def test_nothing_of_the_environment_is_run(tmp_path: Path) -> None:
    made = environment(tmp_path)
    fake_vllm.site_packages(site(made))
    proof = tmp_path / "was-run"
    code = f"import pathlib; pathlib.Path({str(proof)!r}).write_text('x')\n"
    (site(made) / "evil.pth").write_text(f"import os; {code}")
    (site(made) / "sitecustomize.py").write_text(code)
    assert resolve(str(made / "bin/python")).vllm == "0.26.0"
    assert not proof.exists()


def test_system_site_packages_come_after_its_own(tmp_path: Path) -> None:
    made = environment(tmp_path, "include-system-site-packages = true\n")
    fake_vllm.site_packages(tmp_path / "base/lib/python3.12/site-packages", version="0.21.0")
    assert resolve(str(made)).vllm == "0.21.0"
    fake_vllm.site_packages(site(made), version="0.22.0")
    assert resolve(str(made)).vllm == "0.22.0"


def test_an_interpreter_outside_any_venv(tmp_path: Path) -> None:
    environment(tmp_path)
    fake_vllm.site_packages(tmp_path / "base/lib/python3.12/site-packages", version="0.23.0")
    assert resolve(str(tmp_path / "base/bin/python3.12")).vllm == "0.23.0"


def test_folders_that_path_files_name_count(tmp_path: Path) -> None:
    made = environment(tmp_path)
    source = fake_vllm.tree(tmp_path / "checkout", version="0.24.0")
    (site(made) / "vllm.pth").write_text(f"# a comment\n{source}\n")
    assert resolve(str(made)).root == source.resolve()


def test_the_mapping_of_an_editable_installation_counts(tmp_path: Path) -> None:
    made = environment(tmp_path)
    source = fake_vllm.tree(tmp_path / "checkout", version="0.25.0")
    finder = "__editable___vllm_0_25_0_finder"
    (site(made) / "__editable__.vllm-0.25.0.pth").write_text(f"import {finder}; {finder}.install()")
    text = f"MAPPING: dict[str, str] = {{'vllm': {str(source / 'vllm')!r}}}\nraise SystemExit\n"
    (site(made) / f"{finder}.py").write_text(text)
    assert resolve(str(made)).root == source.resolve()
    (site(made) / f"{finder}.py").write_text("MAPPING = compute()\n")
    with pytest.raises(TargetError, match="expected a package vllm"):
        resolve(str(made))


def test_a_bare_name_is_looked_up_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = environment(tmp_path)
    fake_vllm.site_packages(site(made))
    monkeypatch.setenv("PATH", str(made / "bin"))
    assert resolve(None, python="python").root == site(made).resolve()
    with pytest.raises(TargetError, match="nor a program of that name on PATH"):
        resolve(None, python="python3.99")


def test_what_is_no_environment_is_refused_with_what_was_found(tmp_path: Path) -> None:
    script = tmp_path / "python3"
    script.write_text("#!/bin/sh\nexec pyenv exec\n")
    script.chmod(0o755)
    with pytest.raises(TargetError, match="found a script"):
        resolve(str(script))
    with pytest.raises(TargetError, match="found nothing"):
        resolve(None, python=str(tmp_path / "no-such"))
    with pytest.raises(TargetError, match=r"pyvenv\.cfg"):
        resolve(None, python=str(tmp_path))
    made = environment(tmp_path / "empty")
    with pytest.raises(TargetError, match=f"{made} could import"):
        resolve(str(made))


def test_what_is_found_is_what_python_itself_says(tmp_path: Path) -> None:
    venv.create(tmp_path / "real", with_pip=False, symlinks=True)
    python = tmp_path / "real/bin/python"
    said = subprocess.run(
        [python, "-I", "-c", "import sys; print(*sys.path, sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    ours = environment_at(python, "it").path
    assert list(ours) == [entry for entry in said if entry.endswith("site-packages")]
    assert os.path.realpath(sys.executable) != str(python)
