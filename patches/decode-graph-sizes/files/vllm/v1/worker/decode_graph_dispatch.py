# SPDX-License-Identifier: Apache-2.0
"""Graphs of decodes beside those of mixed batches, on model runner V2 in cudagraph mode FULL.

In that mode vLLM captures one graph of each size, with attention for requests as long as all its
tokens. A batch of decodes, whose requests have as many tokens each, loses by it. So its graphs of
decodes, those of its default mode, are captured, too, and such a batch takes them.

A graph reads the plan that attention made, in the layout of what was captured: a plan for another
graph gives wrong tokens, and both kinds may have the same tokens and rows. So the graph that was
dispatched decides how attention is planned.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm.v1.decode_graph_sizes import MODE

#: The attribute of a manager that says which graph it dispatched last; of its class, that it does.
DISPATCHED = "overlay_dispatched"


def capture_decodes() -> None:
    """Have managers of graphs have those of decodes, too, where mode FULL was chosen for them.

    The draft's first pass runs in a graph of its own on the target's plan of attention, so that
    both managers have to choose alike.
    """
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    if hasattr(CudaGraphManager, DISPATCHED):
        return
    setattr(CudaGraphManager, DISPATCHED, None)
    upstream, dispatch_upstream = CudaGraphManager._init_candidates, CudaGraphManager.dispatch

    @functools.wraps(upstream)
    def init_candidates(manager: Any) -> None:
        chosen = getattr(manager.compilation_config, MODE, "") is None
        if not chosen or manager.cudagraph_mode != CUDAGraphMode.FULL:
            upstream(manager)
            return
        # What is added first is asked first whether it holds a batch.
        manager.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
        upstream(manager)
        decodes = manager._capture_descs.get(CUDAGraphMode.FULL, [])
        manager.cudagraph_mode = CUDAGraphMode.FULL
        upstream(manager)
        graphs = manager._capture_descs.get(CUDAGraphMode.FULL, [])
        graphs.extend(decodes)
        # The first that is captured makes the buffers of all.
        graphs.sort(key=lambda graph: graph.num_tokens, reverse=True)

    @functools.wraps(dispatch_upstream)
    def dispatch(manager: Any, *given: Any, **named: Any) -> Any:
        graph = dispatch_upstream(manager, *given, **named)
        setattr(manager, DISPATCHED, graph)
        return graph

    CudaGraphManager._init_candidates = init_candidates
    CudaGraphManager.dispatch = dispatch


def plan_as_captured(runner: Any) -> None:
    """Have attention in a graph of a mixed batch planned as it was when the graph was captured.

    runner: of V2, with its model's state. These graphs are captured for requests of several tokens.
    Where none has more than one, FlashAttention 3 plans without the causal mask (heads up to 64 and
    above 128), in another layout than the captured kernel reads.
    """
    upstream = runner.model_state.prepare_attn

    @functools.wraps(upstream)
    def prepare_attn(batch: Any, mode: Any, *given: Any, **named: Any) -> Any:
        if not _single_tokens(runner, batch, mode):
            return upstream(batch, mode, *given, **named)
        batch.max_query_len = 2
        try:
            return upstream(batch, mode, *given, **named)
        finally:
            batch.max_query_len = None

    runner.model_state.prepare_attn = prepare_attn


def _single_tokens(runner: Any, batch: Any, mode: Any) -> bool:
    """Whether a batch has one token a request, in a graph that was captured for more.

    mode: the CUDAGraphMode in which the batch runs; the graph of one token has no more.
    """
    return bool(
        mode.name == "FULL"
        and not runner.compilation_config.cudagraph_mode.separate_routine()
        and batch.max_query_len is None
        and batch.num_tokens_after_padding > 1
        and batch.num_scheduled_tokens.max() == 1
        and getattr(runner.cudagraph_manager, DISPATCHED).uniform_token_count is None
    )
