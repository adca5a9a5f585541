"""Install a wheel as people do, with each installer on each Python, and run what it brings.

``python3 scripts/install_proof.py WHEEL PYTHON... [--beside VLLM_PYTHON]`` needs uv and a package
index.  pip and uv install into an environment that sees the packages of ``VLLM_PYTHON``, which is
only read; ``uv tool`` and pipx make one of their own and are told of it.  Each line that is printed
is a Python, an installer, and what ``overlay`` said.

Exit 0: all did.  1: one did not, and the lines behind it were tried all the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PIPX = "pipx==1.18.4"


def run(*command: str | Path, **variables: str | Path) -> str:
    """What a command prints.

    :raises subprocess.CalledProcessError: if it does not end with 0.
    """
    environment = {**os.environ, **{name: str(text) for name, text in variables.items()}}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def installed(way: str, wheel: Path, python: str, beside: Path | None, folder: Path) -> str:
    """Install a wheel in an empty folder, and ask the command that is then there.

    :raises subprocess.CalledProcessError: if a command does not end with 0.
    """
    programs = folder / "bin"
    if way in ("pip", "uv"):
        programs = folder / "environment/bin"
        run("uv", "venv", "--seed", "--python", python, programs.parent)
        if beside is not None:
            ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
            site = Path(run(programs / "python", "-c", ask))
            (site / "vllm.pth").write_text(run(beside, "-c", ask) + "\n")
    if way == "pip":
        run(programs / "python", "-m", "pip", "install", wheel)
    elif way == "uv":
        run("uv", "pip", "install", "--python", programs / "python", wheel)
    elif way == "uv tool":
        places = {"UV_TOOL_DIR": folder / "tools", "UV_TOOL_BIN_DIR": programs}
        run("uv", "tool", "install", "--python", python, wheel, **places)
    else:
        places = {"PIPX_HOME": folder / "tools", "PIPX_BIN_DIR": programs}
        pipx = ("uv", "tool", "run", "--from", PIPX, "pipx")
        run(*pipx, "install", "--python", python, wheel, **places)
    overlay = programs / "overlay"
    answer = run(overlay, "--version")
    if beside is None:
        run(overlay, "list")
        return answer
    # Where it was installed beside vLLM it finds that itself.
    target = () if way in ("pip", "uv") else ("--python", beside)
    return f"{answer}; {run(overlay, 'check', *target).splitlines()[-1]}"


def main(arguments: Sequence[str]) -> int:
    """Try each installer on each Python; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="what uv finds: 3.12, a path")
    parser.add_argument("--beside", type=Path, help="the interpreter of an environment with vLLM")
    asked = parser.parse_args(arguments)
    failed = False
    for python in asked.pythons:
        for way in ("pip", "uv", "uv tool", "pipx"):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    answer = installed(
                        way, asked.wheel.resolve(), python, asked.beside, Path(folder)
                    )
                except subprocess.CalledProcessError as error:
                    failed = True
                    answer = f"FAILED: {error}\n{error.stdout}{error.stderr}"
            print(f"{python}  {way}: {answer}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
