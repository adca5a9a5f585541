# SPDX-License-Identifier: Apache-2.0
"""Graphs of decodes beside those of mixed batches, on model runner V2 in cudagraph mode FULL.

In that mode vLLM captures one graph of each size, with attention for requests as long as all its
tokens. Decodes of one token each lose by it: 64 requests and one had nine tenths of the tokens
(0.33.0, a model of 1B on an H200, four rounds). So vLLM's graphs of decodes, those of its default
mode, are captured, too, and a batch of decodes takes them.

A graph reads the plan that attention made, in the layout of what was captured: a plan for another
graph gives wrong tokens, and both kinds may have the same tokens and rows. So the graph that was
dispatched decides how attention is planned.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from vllm.v1.decode_graph_sizes import BESIDE, MODE, TOGETHER, VARIABLE


def has_both(config: Any) -> bool:
    """Whether a VllmConfig has graphs of decodes beside those of mixed batches.

    Not beside drafts: six rounds with 64 and 256 requests gave nothing for 1.3 GiB of graphs. All
    managers of an engine choose alike, since a draft's first pass runs on the target's plan.
    """
    chosen = getattr(config.compilation_config, MODE, "") is None
    value = os.environ.get(VARIABLE)
    wanted = config.speculative_config is None or value == BESIDE
    return chosen and wanted and value != TOGETHER


def capture_decodes() -> None:
    """Have managers of graphs capture those of decodes, too, where a configuration has both."""
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    if hasattr(CudaGraphManager, "overlay_dispatched"):
        return
    upstream, dispatch_upstream = CudaGraphManager._init_candidates, CudaGraphManager.dispatch

    def init_candidates(manager: Any) -> None:
        decodes = []
        if manager.cudagraph_mode == CUDAGraphMode.FULL and has_both(manager.vllm_config):
            # What is added first is asked first whether it holds a batch.
            manager.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
            upstream(manager)
            decodes = manager._capture_descs.get(CUDAGraphMode.FULL, [])
            manager.cudagraph_mode = CUDAGraphMode.FULL
        upstream(manager)
        if decodes:
            graphs = manager._capture_descs[CUDAGraphMode.FULL]
            graphs += decodes
            # The first that is captured makes the buffers of all.
            graphs.sort(key=lambda graph: graph.num_tokens, reverse=True)

    def dispatch(manager: Any, *given: Any, **named: Any) -> Any:
        manager.overlay_dispatched = dispatch_upstream(manager, *given, **named)
        return manager.overlay_dispatched

    CudaGraphManager._init_candidates = init_candidates
    CudaGraphManager.dispatch = dispatch
    # What a manager dispatched last.
    CudaGraphManager.overlay_dispatched = None


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
        and runner.cudagraph_manager.overlay_dispatched.uniform_token_count is None
    )
