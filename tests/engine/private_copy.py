"""Make copies of an installed vLLM that tests may patch.

Only ``vllm/`` and its metadata are copied; its compiled libraries, 420 of 520 MB, which nothing
patches, are links to the same files where both lie on one file system. The packages it needs are
found in the environment's own site-packages, behind the copy on the import path.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BYTECODE = "__pycache__"
#: What every process of a copy does first: its engines start twice as fast.
COLLECTOR = Path(__file__).resolve().parents[1] / "support" / "rested_collector.py"


@dataclass(frozen=True)
class PrivateCopy:
    """An environment whose vLLM may be patched.

    :ivar python: its interpreter.
    :ivar site: its site-packages, the folder that holds ``vllm/``.
    """

    python: Path
    site: Path


def site_packages(python: Path) -> Path:
    """The site-packages of an interpreter."""
    code = "import sysconfig; print(sysconfig.get_path('platlib'))"
    told = subprocess.run([str(python), "-c", code], check=True, text=True, capture_output=True)
    return Path(told.stdout.strip())


def make_private_copy(environment: Path, folder: Path) -> PrivateCopy:
    """Make a private copy in ``folder``, which must not exist.

    :param environment: the interpreter of an environment with vLLM in it.
    """
    source = site_packages(environment)
    subprocess.run([str(environment), "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    site = site_packages(python)
    for part in (source / "vllm", *source.glob("vllm*.dist-info")):
        # With its bytecode, and the times that make it valid: else each process compiles vLLM.
        shutil.copytree(part, site / part.name, copy_function=copy_or_link)
    (site / "rest-of-the-environment.pth").write_text(f"{source}\n", encoding="utf-8")
    shutil.copy2(COLLECTOR, site)
    startup = f"import {COLLECTOR.stem}; {COLLECTOR.stem}.rest()\n"
    (site / "collector.pth").write_text(startup, encoding="utf-8")
    return PrivateCopy(python, site)


def copy_or_link(source: str, target: str) -> None:
    """Copy a file with its times, or link a compiled library, where the file system can."""
    if source.endswith((".so", ".pyc")):
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


def hash_files(folder: Path) -> dict[str, str]:
    """sha256 of every file below ``folder`` by its path, links and empty folders included.

    Bytecode is left out: Python writes it while an engine runs. A compiled library that is a link
    to that of the environment, 420 MB of them, is told by its inode and when it was written.
    """
    hashes = {}
    for path in sorted(folder.rglob("*")):
        if BYTECODE in path.parts:
            continue
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            hashes[name] = f"link to {path.readlink()}"
        elif path.suffix == ".so" and (state := path.stat()).st_nlink > 1:
            hashes[name] = f"{state.st_ino} {state.st_size} {state.st_mtime_ns}"
        elif path.is_file():
            hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif not any(path.iterdir()):
            hashes[name] = "empty folder"
    return hashes


def orphaned_bytecode(folder: Path) -> list[str]:
    """Bytecode below ``folder`` whose source is gone."""
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob(f"{BYTECODE}/*.pyc"))
        if not (path.parent.parent / f"{path.name.partition('.')[0]}.py").exists()
    ]


if __name__ == "__main__":
    made = make_private_copy(Path(sys.argv[1]), Path(sys.argv[2]))
    print(made.python, made.site)
