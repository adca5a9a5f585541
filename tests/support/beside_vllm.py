"""A feature's modules beside those of an installed vLLM, as in a patched one. Needs vLLM."""

from __future__ import annotations

import importlib
from pathlib import Path

PATCHES = Path(__file__).resolve().parents[2] / "patches"
#: Packages of vLLM to which features add modules.
PACKAGES = (
    "vllm.v1",
    "vllm.v1.core",
    "vllm.v1.sample",
    "vllm.v1.spec_decode",
    "vllm.v1.structured_output",
    "vllm.v1.worker",
)


def put_beside_vllm(feature: str) -> None:
    """Let the modules that a feature adds, and shared ones, be imported by their names in vLLM."""
    for name in PACKAGES:
        path = importlib.import_module(name).__path__
        for home in (feature, "shared"):
            folder = PATCHES / home / "files" / name.replace(".", "/")
            if folder.is_dir() and str(folder) not in path:
                path.append(str(folder))
