"""Hooks for ``run_engine.py``: model runner V2 as in cudagraph mode FULL, on a CPU without graphs.

A graph is its descriptor here: a replay runs the model on what attention was planned for. Where
the plan has another layout than the graph was captured with, it computes nothing that is right, as
FlashAttention 3 does. Which graph a step takes, and how it is planned, is vLLM's and the feature's.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from tests.support.beside_vllm import put_beside_vllm
from tests.support.code_edits import edited

SIZES = [1, 2, 4]
#: A mistake in the module that dispatches, as ``scope|old|new``.
MISTAKE = "TEST_DISPATCH_MISTAKE"

_steps: Counter[str] = Counter()


def _dispatch_module() -> Any:
    """The feature's module, with the mistake that the environment asks for."""
    put_beside_vllm("decode-graph-sizes")
    from vllm.v1.worker import decode_graph_dispatch as module

    if MISTAKE in os.environ:
        with open(module.__file__, encoding="utf-8") as file:
            source = edited(file.read(), [os.environ[MISTAKE].split("|")])
        exec(compile(source, module.__file__, "exec"), vars(module))
    return module


def prepare(llm: Any) -> None:
    """Give the engine's runner managers of graphs, as the feature has them in mode FULL."""
    from vllm.config import CUDAGraphMode
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu import model_runner
    from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager
    from vllm.v1.worker.gpu.model_states import default

    dispatch = _dispatch_module()
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    runner = executor.driver_worker.worker.model_runner
    compilation = runner.compilation_config
    compilation.cudagraph_mode = CUDAGraphMode.FULL
    compilation.cudagraph_capture_sizes = SIZES
    compilation.max_cudagraph_capture_size = SIZES[-1]
    compilation.overlay_mixed_graphs = None  # as the feature notes that it chose the mode
    type(current_platform).get_global_graph_pool = lambda _: None
    dispatch.capture_decodes()
    dispatch.plan_as_captured(runner)
    manager = ModelCudaGraphManager(
        runner.vllm_config, runner.device, CUDAGraphMode.FULL, runner.decode_query_len
    )
    manager._graphs_captured = True
    plan: dict[str, Any] = {}
    _keep(default, "build_attn_metadata", plan)
    _keep(model_runner, "build_slot_mappings_by_layer", plan)
    manager.run_fullgraph = lambda graph: _replay(runner, graph, plan)
    runner.cudagraph_manager = manager


def _keep(module: Any, name: str, plan: dict[str, Any]) -> None:
    """Have what a function of vLLM's returns kept in a plan, with what it was asked by name."""
    upstream = getattr(module, name)

    def kept(*given: Any, **named: Any) -> Any:
        plan[name] = upstream(*given, **named)
        plan.update(named)
        return plan[name]

    setattr(module, name, kept)


def _replay(runner: Any, graph: Any, plan: dict[str, Any]) -> Any:
    """What a captured graph computes of the plan that was made last."""
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import BatchDescriptor, set_forward_context

    captured = graph.max_query_len or graph.uniform_token_count or graph.num_tokens
    planned = plan["max_query_len"]
    kind = "mixed batches" if graph.uniform_token_count is None else "decodes"
    with set_forward_context(
        plan["build_attn_metadata"],
        runner.vllm_config,
        num_tokens=graph.num_tokens,
        cudagraph_runtime_mode=CUDAGraphMode.NONE,
        batch_descriptor=BatchDescriptor(num_tokens=graph.num_tokens),
        slot_mapping=plan["build_slot_mappings_by_layer"],
    ):
        hidden = runner.model(
            input_ids=runner.input_buffers.input_ids[: graph.num_tokens],
            positions=runner.input_buffers.positions[: graph.num_tokens],
            inputs_embeds=None,
            intermediate_tensors=None,
        )
    starts = plan["query_start_loc_cpu"]
    longest = "one token" if int((starts[1:] - starts[:-1]).max()) == 1 else "more tokens"
    _steps[f"{kind}: {longest}"] += 1
    return hidden if (planned == 1) == (captured == 1) else hidden * 0


def steps(_llm: Any) -> dict[str, int]:
    """Which graphs ran, and how long the longest request of their steps was."""
    return dict(_steps)
