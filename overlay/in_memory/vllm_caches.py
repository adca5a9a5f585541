"""vLLM's own caches see that this process runs patched code.

Two of them ask the installation's files, which stay pristine, what the code is:

- the model-info cache (``vllm.model_executor.models.registry``) is keyed on a hash of the model's
  file on disk;
- compiled models that are loaded ahead of time (``vllm.compilation.decorators``) are keyed on the
  release, the forward's name and its first line, and verified against the files on disk.

Both keep the entries of a patch set apart under its key.  The compile cache proper needs nothing:
it hashes the files that the traced code objects name, which are the patched copies."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from overlay.in_memory.import_watch import when_imported

_REGISTRY = "vllm.model_executor.models.registry"

_DECORATORS = "vllm.compilation.decorators"

#: What a model class and its forward are made of; elsewhere nothing is traced or inspected.
_MODEL_CODE = (
    "vllm.model_executor.",
    "vllm.models.",
    "vllm.lora.",
    "vllm.compilation.",
    "vllm.attention.",
    "vllm.v1.attention.",
    "vllm.distributed.",
    "vllm.ir.",
    "vllm.kernels.",
    "vllm.utils.",
    "vllm._",
    "vllm.forward_context",
    "vllm.config.",
    "vllm.platforms.",
)


def concerned(modules: Iterable[str]) -> bool:
    """Whether any of the patched modules can change what those caches hold.

    Of a module of another package nothing is known, so it can.
    """
    return any(name.startswith(_MODEL_CODE) or not name.startswith("vllm.") for name in modules)


def keep_apart(key: str, required: bool = False) -> None:
    """Keep this process's entries of both caches apart under ``key``, at once or when imported.

    :param key: the digest of the patch set and its switches.
    :param required: whether vLLM must not go on where it cannot be done.
    """
    for name, act, what in (
        (_REGISTRY, _model_info, "what it keeps of models"),
        (_DECORATORS, _ahead_of_time, "what it compiled ahead of time"),
    ):
        lost = f"{what} is not kept apart from that of other code; give VLLM_CACHE_ROOT a folder"
        lost += " of its own for this patch set"
        when_imported(name, functools.partial(act, key=key), None if required else lost)


def _model_info(registry: ModuleType, key: str) -> None:
    model = registry._LazyRegisteredModel
    stock = model._get_cache_dir

    def cache_dir() -> Path:
        folder: Path = stock() / f"overlay-{key[:16]}"
        return folder

    model._get_cache_dir = staticmethod(cache_dir)


def _ahead_of_time(decorators: ModuleType, key: str) -> None:
    stock = decorators._model_hash_key

    def model_hash_key(forward: Callable[..., Any]) -> str:
        return hashlib.sha256(f"{stock(forward)} {key}".encode()).hexdigest()

    # To mypy it is any module.
    decorators._model_hash_key = model_hash_key  # type: ignore[attr-defined]
