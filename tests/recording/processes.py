"""What a process of vLLM decides in each state, with an empty cache and without: the plugin."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.recording.recorder import Recorder, as_json, marked
from tests.recording.states import ADDED, PROPOSER, RUNNER, STATES, WITH_TEAM, World

#: What the environment asks of the plugin: name -> variables.
ASKED: dict[str, dict[str, str]] = {
    "auto": {},
    "disk": {"OVERLAY": "disk"},
    "off": {"OVERLAY": "off"},
    "demo alone": {"OVERLAY_FEATURES": "demo"},
    "demo required": {"OVERLAY_REQUIRED_PRESENT": "demo"},
    "untested allowed": {"OVERLAY_UNTESTED": "on"},
    "a switch": {"OVERLAY_DEMO": "off"},
    "a wrong switch": {"OVERLAY_DEMO": "perhaps"},
}

#: Fields of a process record that are of one process and of nothing else.
_OF_ONE = ("pid", "started", "host", "counts_fd")


def record(recorder: Recorder, state: str) -> None:
    """Record what processes decide in one state, each twice."""
    world = World(recorder)
    STATES[state](world)
    more = {"OVERLAY_PATCHES": "TEAM"} if state in WITH_TEAM else {}
    for name, variables in ASKED.items():
        recorder.forget()
        asked = {**more, **variables}
        first = _process(recorder, world.site, asked)
        recorder.keep(name, first)
        again = _process(recorder, world.site, asked)
        recorder.keep(f"{name}, again", ["as before"] if again == first else again)
    with recorder.beside(lambda: _serve(world.site, "0.26.0", ()), [world.site], more):
        recorder.command("status --live --json", files=False)
    recorder.forget()
    recorder.run("apply SITE" + (" --patches TEAM" if more else ""), [world.site], more)
    recorder.keep("auto, after apply", _process(recorder, world.site, more))


def decide(recorder: Recorder, site: Path, release: str) -> tuple[list[str], dict[str, str]]:
    """What a process of a release decides, whose modules need what is not there to be imported.

    :returns: what it says and records; path -> digest of each module that is served in memory.
    """
    recorder.forget()
    lines = _process(recorder, site, {}, release, ())
    folder = recorder.cache / "modules"
    served = {
        "/".join(file.relative_to(folder).parts[1:]): recorder.digest(file)
        for file in sorted(folder.rglob("*.py"))
    }
    recorder.forget()
    return lines, served


def _process(
    recorder: Recorder,
    site: Path,
    variables: dict[str, str],
    release: str = "0.26.0",
    paths: Iterable[str] = (PROPOSER, RUNNER, ADDED),
) -> list[str]:
    """What one process says, records and runs."""
    shutil.rmtree(recorder.place / "run")
    (recorder.place / "run").mkdir(mode=0o700)
    status, out, err = recorder.fork(lambda: _serve(site, release, paths), [site], variables)
    texts = marked("| ", recorder.plain(out)) + marked("! ", recorder.plain(err))
    return [f"exit {status}", *texts]


def _serve(site: Path, release: str, paths: Iterable[str]) -> None:
    """Be a process that has imported vLLM, loads the plugin, and imports what is patched."""
    vllm = types.ModuleType("vllm")
    vllm.__file__ = str(site / "vllm/__init__.py")
    vllm.__path__ = [str(site / "vllm")]
    vllm.__version__ = release  # type: ignore[attr-defined]
    sys.modules["vllm"] = vllm
    sys.dont_write_bytecode = True
    try:
        importlib.import_module("overlay.plugin").register()
    except Exception as error:  # noqa: BLE001 - vLLM would not start: what it says is recorded
        sys.exit(f"{type(error).__name__}: {error}")
    shown: dict[str, Any] = {"modules": {path: _runs(path) for path in paths}}
    for file in Path(os.environ["XDG_RUNTIME_DIR"]).rglob("*.json"):
        document = json.loads(file.read_text())
        shown["record"] = {
            key: value for key, value in document.items() if value and key not in _OF_ONE
        }
    print(as_json(shown))


def _runs(path: str) -> str:
    """Which text of a module runs in this process."""
    try:
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    text = inspect.getsource(module)
    marks = [mark for mark in ("# patched", "8)", "VALUE", "list(tokens)") if mark in text]
    return ", ".join(marks) or "pristine"
