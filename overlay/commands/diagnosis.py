"""What ``overlay doctor`` collects: everything that a bug report needs, as plain data.

Nothing of vLLM or torch is imported; a part that cannot be told says why instead."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import overlay
from overlay import settings as switches
from overlay.commands.project import find_project
from overlay.commands.variables import cache_problem
from overlay.errors import OverlayError
from overlay.processes import records
from overlay.settings import kept_out

if TYPE_CHECKING:
    from overlay.targets.target import Target


GROUP = "vllm.general_plugins"

_OTHERS = ("vllm.platform_plugins",)

Data = dict[str, Any]


def interpreter() -> Data:
    """The Python that runs this, and the machine."""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "platform": platform.platform(),
    }


def this_overlay(patches: tuple[str, ...]) -> Data:
    """The overlay itself."""
    return {
        "version": overlay.__version__,
        "folder": str(Path(overlay.__file__).parent),
        "patches": list(patches),
        "project": str(find_project().file or "no overlay.toml at or above the working folder"),
    }


def vllm(target: Target) -> Data:
    """The vLLM that this Python would import, and how it was found."""
    return {
        "version": target.vllm,
        "root": str(target.root),
        "found": _how(target),
        "record": None if target.record_file is None else str(target.record_file),
    }


def _how(target: Target) -> str:
    root = str(target.root)
    for entry in sys.path:
        if os.path.realpath(entry or ".") == os.path.realpath(root):
            return f"on sys.path as {entry or 'the current folder'}"
    return "by an editable installation"


def torch() -> Data:
    """torch's version and what it was built for, from its files."""
    try:
        distribution = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return {"version": None, "built_for": None}
    text = distribution.read_text("../torch/version.py") or ""
    built = [
        f"{name} {value}"
        for name in ("cuda", "hip", "xpu")
        if (value := _assigned(text, name)) is not None
    ]
    return {"version": distribution.version, "built_for": ", ".join(built) or "cpu"}


def _assigned(text: str, name: str) -> str | None:
    """What ``name: Optional[str] = 'value'`` assigns in a Python text; ``None`` for None."""
    import ast

    for node in ast.walk(ast.parse(text)):
        targets: list[ast.expr] = [node.target] if isinstance(node, ast.AnnAssign) else []
        targets += node.targets if isinstance(node, ast.Assign) else []
        if any(getattr(target, "id", None) == name for target in targets):
            value = getattr(node, "value", None)
            found = value.value if isinstance(value, ast.Constant) else None
            return None if found is None else str(found)
    return None


def devices(root: Path = Path("/")) -> Data:
    """The graphics drivers and devices that the kernel tells of, without asking any of them."""
    data: Data = {"nvidia_driver": None, "amd_driver": None, "devices": []}
    for name, file, pattern in (
        ("nvidia_driver", root / "proc/driver/nvidia/version", r"(\d+(?:\.\d+)+)"),
        ("amd_driver", root / "sys/module/amdgpu/version", r"(\S+)"),
    ):
        found = re.search(pattern, _text(file))
        data[name] = found[1] if found else None
    for place in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        model = re.search(r"^Model:\s*(.+?)\s*$", _text(place), re.MULTILINE)
        data["devices"].append(model[1] if model else f"{place.parent.name}, model not told")
    return data


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # no such driver, or one that hides it
        return ""


def plugins(environment: Mapping[str, str] = os.environ) -> list[Data]:
    """Every plugin of vLLM that this Python sees, and why it runs or not."""
    allowed = environment.get("VLLM_PLUGINS")
    found = []
    for group in (GROUP, *_OTHERS):
        for entry in metadata.entry_points(group=group):
            runs = allowed is None or entry.name in allowed.split(",")
            why = "VLLM_PLUGINS is not set, so all run"
            if allowed is not None:
                why = f"VLLM_PLUGINS={allowed} {'names' if runs else 'does not name'} it"
            mode = environment.get("OVERLAY")
            if runs and entry.name == switches.PLUGIN_NAME and mode in ("off", "disk"):
                why += f"; OVERLAY={mode}"
            distribution = getattr(entry, "dist", None)
            found.append(
                {
                    "group": group,
                    "name": entry.name,
                    "value": entry.value,
                    "distribution": distribution and f"{distribution.name} {distribution.version}",
                    "runs": runs,
                    "why": why,
                }
            )
    return found


def plugin_problems(found: list[Data]) -> Iterator[str]:
    """What keeps our plugin from doing its work, one sentence each."""
    ours = [one for one in found if one["group"] == GROUP and one["name"] == switches.PLUGIN_NAME]
    if not ours:
        yield (
            "vLLM does not find the overlay's plugin: install vllm-overlay into the environment of "
            "vLLM, or patch on disk with `overlay apply`"
        )
    if len(ours) > 1:
        names = ", ".join(f"{one['distribution']} ({one['value']})" for one in ours)
        yield f"several distributions bring a plugin called overlay: {names}; uninstall all but one"
    for one in ours[:1]:
        if not one["runs"]:
            yield kept_out(one["why"])


def cache() -> Data:
    """The store of patched modules, and where processes leave their records."""
    from overlay.cache import cache_folder

    data: Data = {"folder": None, "entries": 0, "bytes": 0, "problem": None}
    try:
        folder = cache_folder() / "modules"
    except RuntimeError as error:
        return {**data, "problem": f"no home folder: {error}", "records": _records()}
    data["folder"] = str(folder)
    try:
        entries = [place for place in folder.iterdir() if not place.name.startswith(".")]
        data["entries"] = len(entries)
        data["bytes"] = sum(
            file.stat().st_size for place in entries for file in place.rglob("*") if file.is_file()
        )
    except FileNotFoundError:
        pass  # nothing was patched in memory yet
    except OSError as error:
        data["problem"] = str(error)
    data["problem"] = cache_problem(folder) or data["problem"]
    return {**data, "records": _records()}


def _records() -> str:
    folder = next(records.usable(make=False), None)
    return "no folder yet; the first process of vLLM makes one" if folder is None else str(folder)


def model_runner(target: Target | None, found: Mapping[str, str] = os.environ) -> str:
    """Which model runner the installed release chooses; see ``overlay.commands.model_runners``."""
    from importlib.util import find_spec

    from overlay.commands.model_runners import advice

    # A search on the path; nothing of vllm-ascend is imported.
    ascend = find_spec("vllm_ascend") is not None
    return advice(target.release if target else None, found, ascend=ascend)


def installed() -> tuple[Target | None, str | None]:
    """The vLLM of this Python, or why there is none."""
    from overlay.targets.installed import resolve_installed

    try:
        return resolve_installed(), None
    except OverlayError as error:
        return None, str(error)
