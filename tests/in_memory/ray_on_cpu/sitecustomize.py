"""Lets vLLM's own Ray executors run on CPU: its platform names no resource that Ray could count.

Imported by every Python of the engine and of Ray.  Each worker gets one of two "GPUs", which is
only Ray's word for them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import rested_at_start  # noqa: F401 - for what it does

from overlay.in_memory.import_watch import when_imported


def _platform(module: ModuleType) -> None:
    module.CpuPlatform.ray_device_key = "GPU"


def _executor(module: ModuleType) -> None:
    stock = module.ray.init

    def init(*arguments: Any, **named: Any) -> Any:
        return stock(*arguments, **{"num_gpus": 2, "num_cpus": 2, **named})

    module.ray.init = init


when_imported("vllm.platforms.cpu", _platform)
when_imported("vllm.v1.executor.ray_utils", _executor)
