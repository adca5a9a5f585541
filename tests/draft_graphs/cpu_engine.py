"""vLLM's engine on CPU, led to believe that its platform has graphs.

The target still runs as it does on CPU: nothing wraps its model. But its batches are padded as a
GPU's are, and the runner's own `capture_model` runs, with the overlay's hunk in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tests.draft_graphs import graph_safe_attention
from tests.engine.engine_facts import inspect_in_forks


def prepare() -> None:
    """Let the CPU platform keep the configured cudagraph mode and its capture sizes.

    Also PIECEWISE, which elsewhere wants compiled models: the target runs eagerly in any mode here.
    """
    from vllm.config import CompilationConfig, VllmConfig
    from vllm.platforms.cpu import CpuPlatform

    graph_safe_attention.register()
    inspect_in_forks()
    stock = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        sizes = vllm_config.compilation_config.cudagraph_capture_sizes
        stock(cls, vllm_config)
        vllm_config.compilation_config.cudagraph_capture_sizes = sizes

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    VllmConfig._normalize_piecewise_cudagraph_mode = lambda self, **_: None
    CompilationConfig.is_attention_compiled_piecewise = lambda self: True
    CpuPlatform.support_static_graph_mode = classmethod(lambda cls: True)


@contextlib.contextmanager
def no_streams(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Take the place of the context in which vLLM captures, whose streams CPU has not."""
    yield


def runner_of(llm: Any) -> Any:
    """The model runner of an engine that lives in this process."""
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def capture_model(llm: Any) -> None:
    """Let the runner capture all its graphs, as a GPU's worker does at the end of its start."""
    capture(runner_of(llm))


def capture(runner: Any) -> None:
    """The same of a runner."""
    from vllm.v1.worker import gpu_model_runner
    from vllm.v1.worker.workspace import init_workspace_manager

    init_workspace_manager(runner.device)
    memory = (1 << 34, 1 << 35)
    with (
        mock.patch.object(gpu_model_runner, "graph_capture", no_streams),
        mock.patch("torch.accelerator.get_memory_info", return_value=memory),
    ):
        runner.capture_model()
