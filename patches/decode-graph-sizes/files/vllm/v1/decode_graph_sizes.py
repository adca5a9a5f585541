# SPDX-License-Identifier: Apache-2.0
"""Chooses capture sizes that cover the widest batch of decodes, where nobody set any.

vLLM's own choice is made first and stays: sizes are added above its largest, up to the tokens of a
decode of all requests that an engine takes at a time. Where the user or the model set sizes, or a
largest one, nothing is added. What was chosen is noted at the configuration, which reaches each
worker: it leaves out what does not fit into its memory (`vllm.v1.worker.decode_graph_memory`).

Where nobody set a cudagraph mode and that was tried, it chooses mode FULL on model runner V2, in
which a step with a prefill among its decodes is a graph, too, and sizes for such steps.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vllm.v1.overlay_switches import is_on

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "decode-graph-sizes"
VARIABLE = "OVERLAY_DECODE_GRAPH_SIZES"

#: At most one in so many tokens of a graph that is replayed is one that nobody asked for. Where the
#: GPU is what a step waits for, each of them costs as much as any other.
WASTE = 16

#: The values of the switch that ask for graphs of decodes alone, and for those of mixed batches
#: also where they are not chosen.
DECODES, MIXED = "decodes", "mixed"

#: The largest size for mixed batches is the one that was measured.
MIXED_TOKENS = 2048

#: Sizes are multiples of this where a step can be, as those of vLLM are.
STRIDE = 8

#: The attribute of a CompilationConfig that says what was chosen: vLLM's own sizes as a tuple, and
#: why none were added, None where some were. Plain types, which any process can read.
CHOICE = "overlay_decode_graph_sizes"

Choice = tuple[tuple[int, ...], "str | None"]

#: The attribute that says why mixed batches get no graphs; None where mode FULL was chosen for
#: them. It is PENDING between what a user sets and what vLLM chooses itself.
MODE = "overlay_mixed_graphs"
PENDING = "vLLM has not chosen a cudagraph mode yet"

#: Why a configuration keeps vLLM's own sizes that are wide enough, up to so many tokens.
HELD = "vLLM's own sizes, up to {} tokens, hold every batch of decodes"

#: What model runner V2 captures a mixed batch with, from 0.31.0 on. Before, attention in its graph
#: was given the longest request of a dummy batch, and computed no longer prompts as it must.
LONGEST = "max_query_len = num_tokens"


def wide_sizes(sizes: Sequence[int], query: int, requests: int, tokens: int) -> list[int]:
    """Capture sizes that hold every batch of decodes, in ascending order.

    sizes: vLLM's own, ascending, at least one; all of them are among the answer.
    query: tokens of a request in a decode, 1 + K.
    requests: that an engine takes at a time; tokens: that a step may have.

    Each size that is added is a multiple of query. A decode that is wider than vLLM's largest size
    has a size at most a sixteenth of which is empty, or the smallest that holds one request more.
    """
    last = sizes[-1]
    widest = min(requests, tokens // query) * query
    added = []
    while last < widest:
        # The narrowest decode that the size before does not hold.
        narrowest = (last // query + 1) * query
        most = min(narrowest * WASTE // (WASTE - 1), widest)
        last = max(narrowest, _multiple(most, query))
        added.append(last)
    return [*sizes, *added]


def _multiple(most: int, query: int) -> int:
    """The largest multiple of query up to most; of the stride, too, if that is about as large."""
    plain = most // query * query
    strided = most - most % (query * STRIDE)
    return strided if 2 * WASTE * strided > (2 * WASTE - 1) * plain else plain


def cover_decodes() -> None:
    """Have each configuration that is made choose its sizes here, once in a process."""
    from vllm.config.vllm import VllmConfig

    upstream = VllmConfig._set_cudagraph_sizes
    if getattr(upstream, "covers_decodes", False):
        return

    @functools.wraps(upstream)
    def set_sizes(config: Any) -> None:
        _set_sizes(config, upstream)

    set_sizes.covers_decodes = True  # type: ignore[attr-defined]
    VllmConfig._set_cudagraph_sizes = set_sizes
    VllmConfig.try_verify_and_update_config = _choosing(VllmConfig.try_verify_and_update_config)


def _choosing(upstream: Callable[[Any], None]) -> Callable[[Any], None]:
    """What vLLM calls before it chooses a mode, with a note behind it whether one is set."""

    @functools.wraps(upstream)
    def verify_and_note(config: Any) -> None:
        upstream(config)
        compilation = config.compilation_config
        wanted = os.environ.get(VARIABLE) != DECODES and config.model_config is not None
        if wanted and not hasattr(compilation, MODE):
            is_set = compilation.cudagraph_mode is not None
            setattr(compilation, MODE, "a cudagraph mode is set already" if is_set else PENDING)

    return verify_and_note


def _choose_mode(config: Any, is_set: bool) -> None:
    """Choose cudagraph mode FULL for a configuration, unless there is a reason against it.

    is_set: whether the user, or vLLM for the model, set sizes or a largest one.
    """
    from vllm.config.compilation import CUDAGraphMode

    compilation = config.compilation_config
    reason = _reason_against(config, (1,), is_set)
    if reason is None and compilation.cudagraph_mode != CUDAGraphMode.FULL_AND_PIECEWISE:
        reason = f"vLLM chose cudagraph mode {compilation.cudagraph_mode.name}"
    attention = getattr(config, "attention_config", None)
    if reason is None and getattr(attention, "hisparse_config", None) is not None:
        reason = "HiSparse has no such graphs"
    if reason is None and not _holds_prompts():
        reason = "graphs of mixed batches compute prompts wrongly on model runner V2 before 0.31.0"
    if reason is None and not config.use_v2_model_runner:
        reason = "vLLM ends in capturing more than 1,024 tokens of them on model runner V1"
    if reason is None and os.environ.get(VARIABLE) != MIXED:
        reason = _unless_asked(config)
    if reason is None:
        compilation.cudagraph_mode = CUDAGraphMode.FULL
    setattr(compilation, MODE, reason)


def _unless_asked(config: Any) -> str | None:
    """Why a configuration gets no graphs of mixed batches unless they are asked for."""
    speculative = config.speculative_config
    untried = "nobody tried them with {}"
    cases = {
        # They plan attention themselves, and single tokens otherwise than they were captured.
        untried.format("several modules that draft"): (
            speculative and speculative.use_multi_module_mtp()
        ),
        # 8B on two of them had 1.04 of the tokens beside prefills, and 0.97 to 0.99 there.
        "several ranks lose by them in decodes alone": (
            config.parallel_config.world_size_across_dp > 1
        ),
        untried.format("adapters"): config.lora_config is not None,
        untried.format("a model that takes images"): config.model_config.is_multimodal_model,
    }
    for reason, has_it in cases.items():
        if has_it:
            return f"{reason}; {VARIABLE}={MIXED} asks for them"
    return None


def _holds_prompts() -> bool:
    """Whether a graph of a mixed batch holds a prompt on model runner V2 of this release."""
    import vllm

    utils = Path(str(vllm.__file__)).parent / "v1/worker/gpu/cudagraph_utils.py"
    return LONGEST in utils.read_text(encoding="utf-8")


def _is_set(compilation: Any) -> bool:
    """Whether a CompilationConfig that vLLM has not completed has sizes, or a largest one."""
    return (
        compilation.cudagraph_capture_sizes is not None
        or compilation.max_cudagraph_capture_size is not None
    )


def _set_sizes(config: Any, upstream: Any) -> None:
    """Set the capture sizes of a configuration, by vLLM's own function.

    config: VllmConfig. Raises ValueError if the switch has no value of its own.
    """
    compilation = config.compilation_config
    if hasattr(compilation, CHOICE):  # a configuration made of one that has its sizes
        upstream(config)
        return
    wanted, is_set = is_on(VARIABLE, further=(DECODES, MIXED)), _is_set(compilation)
    if wanted and getattr(compilation, MODE, "") == PENDING:
        _choose_mode(config, is_set)
    asked = compilation.compile_sizes
    compile_sizes = None if asked is None else list(asked)
    upstream(config)
    own = tuple(compilation.cudagraph_capture_sizes)
    reason = f"{VARIABLE}=off" if not wanted else _reason_against(config, own, is_set)
    if reason is None:
        sizes = sizes_for(config, own)
        if len(sizes) == len(own):
            reason = HELD.format(own[-1])
        else:
            # As if the user had set them: vLLM's function checks them and notes what follows.
            compilation.compile_sizes = compile_sizes
            compilation.max_cudagraph_capture_size = None
            compilation.cudagraph_capture_sizes = sizes
            upstream(config)
    setattr(compilation, CHOICE, (own, reason))


def sizes_for(config: Any, own: tuple[int, ...]) -> list[int]:
    """The sizes of a configuration for which there is no reason against more."""
    scheduler = config.scheduler_config
    query = 1 + (config.num_speculative_tokens if config.speculative_config else 0)
    requests = scheduler.max_num_seqs
    if getattr(config.compilation_config, MODE, "") is None:
        requests = max(requests, MIXED_TOKENS // query)
    return wide_sizes(own, query, requests, scheduler.max_num_batched_tokens)


def _reason_against(config: Any, own: tuple[int, ...], is_set: bool) -> str | None:
    """Why a configuration keeps vLLM's own sizes.

    own: these; is_set: whether the user, or vLLM for the model, set sizes or a largest one.
    """
    from vllm.platforms import current_platform

    if not own:
        return "there are no CUDA graphs"
    if is_set:
        return "capture sizes, or a largest one, are set already"
    if not current_platform.is_cuda():
        return "it was tried on CUDA alone"
    if config.model_config.runner_type != "generate":
        return "the model does not decode"
    if getattr(config, "diffusion_config", None) is not None:
        return "a diffusion model has decodes of its own"
    if config.parallel_config.use_ubatching:
        return "micro-batches have sizes of their own"
    if config.parallel_config.enable_elastic_ep:
        return "ranks that come later could not agree on what fits into memory"
    return None
