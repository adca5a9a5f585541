# SPDX-License-Identifier: Apache-2.0
"""Leaves out capture sizes whose graphs would take too much of a worker's memory.

It is reckoned before memory is divided between graphs and cache, from the shape of the model and
what is free once its weights are there: capturing to find out would cost the memory that is asked
about. All ranks keep the same sizes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from vllm.logger import init_logger
from vllm.v1.decode_graph_sizes import (
    CHOICE,
    FEATURE,
    HELD,
    MIXED,
    MODE,
    VARIABLE,
    sizes_for,
)
from vllm.v1.overlay_effects import active, idle
from vllm.v1.worker.decode_graph_withdrawal import agreed, guard_capture

logger = init_logger(__name__)

#: Of the memory that graphs and cache share, further graphs get at most one part in so many.
PART_OF_SHARED = 8

#: Of the memory that is outside what vLLM asks for, where it does not reckon with graphs.
PART_OF_REST = 2

#: The most parts into which FlashAttention splits a request within a graph, each with its output.
SPLITS = 32

#: What a graph's pool takes of what a forward pass has at a time, and what a layer's nodes take of
#: each graph. With these 18 graphs of up to 2,048 tokens of a model of 1B are 3.1 GiB, of which
#: 2.63 GiB were seen on an H100 (0.26.0).
POOLED = 4
LAYER_BYTES = 1 << 20

GIB = 1 << 30

#: With more weights on a rank a step waits for the GPU, and graphs of mixed batches cost more than
#: they give: in them attention does not know that each request of a decode has as many tokens. On
#: an H200 (0.33.0) 2.5 GiB gained a third by them; 15 GiB lost 4 % in 64 decodes, 57 GiB 2 %.
MOST_WEIGHTS = 8 * GIB


class Shape(NamedTuple):
    """What the memory of a graph depends on, as one rank has it.

    width: values in the two largest activations of a token, together.
    """

    layers: int
    width: int
    heads: int
    head: int
    value_bytes: int

    def token_bytes(self) -> int:
        """Bytes in a graph's pool for each token of the largest graph."""
        split = SPLITS * self.heads * (self.head + 1) * 4
        return POOLED * (self.width * self.value_bytes + split)

    def bytes_of(self, sizes: Sequence[int], own: Sequence[int], graphs: int) -> int:
        """The most bytes that sizes take beyond vLLM's own, with so many graphs for each size."""
        further = len(sizes) - len(own)
        return (
            self.token_bytes() * (max(sizes) - max(own))
            + further * graphs * (self.layers + 1) * LAYER_BYTES
        )


def fitting(
    sizes: Sequence[int], own: Sequence[int], shape: Shape, graphs: int, room: int
) -> list[int]:
    """Those of the sizes that fit into room bytes, from 0 on: the largest are left out first."""
    kept = list(sizes)
    while shape.bytes_of(kept, own, graphs) > room:
        kept.pop()
    return kept


def fit_sizes(worker: Any) -> None:
    """Leave out sizes that do not fit into a worker's memory, and report the feature's effect.

    worker: the Worker of a GPU, whose model is loaded and which has no cache yet.
    """
    compilation = worker.vllm_config.compilation_config
    choice = getattr(compilation, CHOICE, None)
    if choice is None:
        idle(FEATURE, "the configuration was made where the feature is not")
        return
    own, reason = choice
    mixed: str | None = getattr(compilation, MODE, "")
    if chosen := mixed is None:
        mixed = _choose_mixed(worker, own)
    note = _note(mixed)
    sizes = list(compilation.cudagraph_capture_sizes)
    if len(sizes) == len(own):
        text = f"{reason or HELD.format(own[-1])}{note if chosen else ''}"
        (active if mixed is None else idle)(FEATURE, text)
        if mixed is None:
            logger.info("Decode graph sizes: %s", text)
        return
    shape, room = _shape(worker.vllm_config), _room(worker)
    mode = compilation.cudagraph_mode
    graphs = 2 if mode is not None and mode.separate_routine() else 1
    kept = sizes[: agreed(len(fitting(sizes, own, shape, graphs, room)))]
    compilation.cudagraph_capture_sizes = kept
    compilation.max_cudagraph_capture_size = kept[-1]
    _report(kept, sizes, own, shape.bytes_of(kept, own, graphs), room, note)
    if len(kept) > len(own):
        guard_capture(worker, own)


def _choose_mixed(worker: Any, own: tuple[int, ...]) -> str | None:
    """Have a worker use the graphs of mixed batches that its configuration chose, or give them up.

    own: vLLM's own sizes. Returns why they are given up, None where they are used.
    """
    reason = _against_mixed(worker)
    if agreed(int(reason is None)):
        plan_as_captured(worker.model_runner)
        return None
    reason = reason or "another rank has a reason against them"
    _choose_decodes_alone(worker.vllm_config, own, reason)
    return reason


def _note(mixed: str | None) -> str:
    """What is said of graphs of mixed batches, behind what is said of the sizes."""
    if mixed is None:
        return "; cudagraph mode FULL, for mixed batches, too"
    return f"; no graphs of mixed batches: {mixed}" if mixed else ""


def plan_as_captured(runner: Any) -> None:
    """Have attention in a graph of a mixed batch planned as it was when the graph was captured.

    runner: of V2, with its model's state. Graphs are captured for requests of several tokens. Where
    no request has more than one, FlashAttention 3 plans without the causal mask (heads up to 64 and
    above 128), in another layout than the captured kernel reads: decodes were computed wrongly.
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
    )


def _against_mixed(worker: Any) -> str | None:
    """Why the graphs of a worker hold decodes alone; None: they hold mixed batches, too."""
    backend = _without_prefills(worker.vllm_config)
    if backend is not None:
        return f"{backend} holds no prefill in a graph"
    weights = sum(each.nbytes for each in worker.get_model().parameters())
    if weights <= MOST_WEIGHTS or os.environ.get(VARIABLE) == MIXED:
        return None
    return (
        f"with weights of {weights / GIB:.1f} GiB a step waits for the GPU; "
        f"{VARIABLE}={MIXED} asks for them"
    )


def _without_prefills(config: Any) -> str | None:
    """The name of an attention backend whose graphs cannot hold a prefill; None: there is none."""
    for layer in config.compilation_config.static_forward_context.values():
        # Layers that are no attention, and those that share another one's keys, have none.
        if hasattr(layer, "get_attn_backend") and (spec := layer.get_kv_cache_spec(config)):
            backend = layer.get_attn_backend()
            support = backend.get_builder_cls().get_cudagraph_support(config, spec)
            if support.name != "ALWAYS":
                return str(backend.get_name())
    return None


def _choose_decodes_alone(config: Any, own: tuple[int, ...], reason: str) -> None:
    """Give a configuration what it would have without graphs of mixed batches.

    own: vLLM's own sizes; reason: why there are none.
    """
    from vllm.config.compilation import CUDAGraphMode

    compilation = config.compilation_config
    compilation.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
    setattr(compilation, MODE, reason)
    sizes = sizes_for(config, own)
    compilation.cudagraph_capture_sizes = sizes
    compilation.max_cudagraph_capture_size = sizes[-1]


def _report(
    kept: list[int], sizes: list[int], own: tuple[int, ...], expected: int, room: int, note: str
) -> None:
    """Say what is captured, in the log and as the feature's effect."""
    left_out = f"{len(sizes) - len(kept)} up to {sizes[-1]} do not fit into {room / GIB:.1f} GiB"
    if len(kept) == len(own):
        text = f"vLLM's own sizes, up to {own[-1]} tokens, since {left_out}{note}"
        idle(FEATURE, text)
    else:
        text = (
            f"{len(kept)} capture sizes up to {kept[-1]} tokens for vLLM's {len(own)} up to "
            f"{own[-1]}, with up to {expected / GIB:.1f} GiB more for graphs"
        )
        if len(kept) < len(sizes):
            text = f"{text}; {left_out}"
        text += note
        active(FEATURE, text)
    logger.info("Decode graph sizes: %s", text)


def _shape(config: Any) -> Shape:
    """The shape of a model on one rank."""
    model, parallel = config.model_config, config.parallel_config
    text, hidden = model.hf_text_config, model.get_hidden_size()
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    experts = getattr(text, "num_experts_per_tok", None) or 0
    inner = max(inner, experts * (getattr(text, "moe_intermediate_size", None) or 0))
    return Shape(
        layers=model.get_num_layers(parallel),
        width=8 * hidden + 4 * inner,
        heads=model.get_num_attention_heads(parallel),
        head=model.get_head_size(),
        value_bytes=model.dtype.itemsize,
    )


def _room(worker: Any) -> int:
    """The bytes that further graphs may take."""
    import torch

    free: int = torch.cuda.mem_get_info()[0]
    before: int = worker.init_snapshot.free_memory
    asked: int | None = worker.cache_config.kv_cache_memory_bytes
    if asked:
        return max(free - asked, 0) // PART_OF_REST
    budget: int = worker.requested_memory
    shared = max(budget - (before - free), 0) // PART_OF_SHARED
    if _reckons_with_graphs(worker):
        return shared
    return min(shared, max(before - budget, 0) // PART_OF_REST)


def _reckons_with_graphs(worker: Any) -> bool:
    """Whether vLLM takes what graphs will need off the memory of the cache."""
    import vllm.envs as envs

    if not envs.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS:
        return False
    if not getattr(worker, "use_v2_model_runner", False):
        return True
    from vllm.v1.worker.gpu import cudagraph_utils

    # Before 0.29.0 model runner V2 says that its graphs need nothing.
    return hasattr(cudagraph_utils, "profile_cudagraph_memory")
