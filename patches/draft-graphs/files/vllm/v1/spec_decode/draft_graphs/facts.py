# SPDX-License-Identifier: Apache-2.0
"""Reads the facts that the policy decides on from vLLM's objects."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from . import adapters, connectors, upstream
from .attention import Attention, choose_hint
from .capabilities import (
    FLASH_ATTN_BUILDER,
    FLASHINFER_BUILDER,
    FLASHMLA_BUILDER,
    UNKNOWN,
    Backend,
    backend_row,
)
from .coupling import LOW_LATENCY_EXCHANGES, coupling
from .drafter import Drafter, drafter_of
from .graph_backend import GraphBackend
from .policy import NO_CAPTURE, Facts


def early_facts(proposer: Any, backend: GraphBackend) -> Facts:
    """Facts that are known once the draft model is loaded."""
    config = proposer.vllm_config
    speculative = proposer.speculative_config
    parallel = config.parallel_config
    mode = config.compilation_config.cudagraph_mode.name
    cache = config.cache_config
    return Facts(
        num_speculative_tokens=int(speculative.num_speculative_tokens),
        no_graphs=backend.no_graphs(),
        platform=backend.platform or UNKNOWN,
        tensor_parallel_size=int(parallel.tensor_parallel_size),
        enforce_eager=bool(speculative.enforce_eager),
        proposer_class=upstream.class_path(proposer),
        drafter=drafter_of(proposer) or Drafter(),
        overridden_methods=upstream.overridden_methods(proposer),
        # 0.21 and later
        constant_draft_positions=bool(getattr(proposer, "constant_draft_positions", False)),
        # 0.23 and later
        shared_mtp_indices=bool(getattr(proposer, "_share_mtp_indices", False)),
        padded_batch_disabled=bool(speculative.disable_padded_drafter_batch),
        # until 0.29
        xdrope=getattr(proposer, "uses_xdrope_dim", 0) > 0
        and getattr(proposer, "draft_uses_xdrope_dim", 0) > 0,
        adapted_layers=adapters.kept(proposer),
        coupling=coupling(proposer),
        low_latency_exchange=str(parallel.all2all_backend) in LOW_LATENCY_EXCHANGES,
        decode_context_parallel_size=int(parallel.decode_context_parallel_size),
        prefill_context_parallel_size=int(parallel.prefill_context_parallel_size),
        sequence_parallel=upstream.sequence_parallel(config),
        weight_offloader=upstream.weight_offloader(),
        computes_kv_scales=bool(getattr(cache, "calculate_kv_scales", False)),
        fast_prefill=bool(getattr(cache, "kv_sharing_fast_prefill", False)),
        # 0.25 and later
        rswa=getattr(config.model_config, "rswa_window", None) is not None,
        # vLLM may still lower the mode for the sake of an attention backend, never raise it.
        cudagraph_mode=mode if mode == NO_CAPTURE else None,
        # 0.24 and later
        dynamic_k=getattr(speculative, "num_speculative_tokens_per_batch_size", None) is not None,
        # 0.22 and later
        probabilistic=bool(getattr(proposer, "_enable_probabilistic_draft_probs", False)),
        multimodal=bool(proposer.supports_mm_inputs),
    )


def late_facts(early: Facts, proposer: Any, backend: GraphBackend) -> Facts:
    """Facts when vLLM captures: attention groups, KV cache and the final cudagraph mode added."""
    config = proposer.vllm_config
    compilation = config.compilation_config
    groups = proposer.draft_attn_groups
    no_first = None
    drafter = early.drafter or Drafter()
    tokens = drafter.first_tokens(early.num_speculative_tokens)
    prefills = prefill_backends(groups, tokens, backend.attention)
    if prefills:
        name = "K+1" if drafter.extra == 0 else str(tokens)
        no_first = (
            f"attention backend {', '.join(prefills)} takes {name} tokens for a prefill "
            f"({choose_hint(early.platform)})"
        )
    elif drafter.combines and upstream.combine_width(proposer) is None:
        no_first = (
            "the width of the target's hidden states is not known from the draft's fc layer "
            "(drafts get it whose fc is a linear layer with in_features or input_size)"
        )
    return replace(
        early,
        cudagraph_mode=compilation.cudagraph_mode.name,
        max_num_seqs=int(proposer.max_batch_size),
        max_capture_tokens=min(
            int(compilation.max_cudagraph_capture_size or 0), int(proposer.max_num_tokens)
        ),
        max_num_tokens=int(proposer.max_num_tokens),
        attention=attention_of(proposer, backend.attention, early.platform.name),
        unseen_group=upstream.unseen_group(proposer),
        per_layer_connectors=connectors.acting_per_layer(connectors.current()),
        no_first=no_first,
    )


def attention_kernel(builder: Any, layers: Iterable[Any]) -> str:
    """Which of several kernels an attention group uses, in the words of `capabilities.KERNELS`.

    FlashAttention's version and its cache's type are those of its layers; FlashMLA's and
    FlashInfer's kernel follows from attributes of the builder. Empty where the backend has one
    kernel, or does not tell.
    """
    path = upstream.class_path(builder)
    if path == FLASH_ATTN_BUILDER:  # the layers of MLA tell the version of their prefills
        impls = [getattr(layer, "impl", None) for layer in layers]
        versions = [getattr(impl, "vllm_flash_attn_version", None) or 0 for impl in impls]
        caches = [str(getattr(impl, "kv_cache_dtype", "")) for impl in impls]
        fp8 = " fp8" if any(cache.startswith("fp8") for cache in caches) else ""
        return f"fa{max(versions)}{fp8}" if any(versions) else ""
    if path == FLASHMLA_BUILDER:
        return "fp8" if builder.is_fp8_kvcache else ""
    if path != FLASHINFER_BUILDER:
        return ""
    if not builder.use_trtllm_decode_attention or int(builder.dcp_world_size) > 1:
        return "native"
    if hasattr(builder, "flashinfer_trtllm_api_decode_kernel"):  # 0.25 and later
        kernel = builder.flashinfer_trtllm_api_decode_kernel
        if kernel is None:
            return "native"
        # 0.30 and later: before, XQA takes single tokens on Hopper.
        hopper = getattr(builder, "use_xqa", False) and upstream.on_hopper()
        return "xqa hopper" if hopper else str(kernel.value)
    # Until 0.24 a batch with a native prefill changes the type of the queries for good.
    return "trtllm-gen fp8" if builder.cache_dtype.startswith("fp8") else "trtllm-gen"


def attention_of(proposer: Any, rows: Iterable[Backend], platform: str) -> tuple[Attention, ...]:
    """The attention backends of the draft's groups with their rows, each once.

    rows: of the table of backends; platform: the name of this one.
    """
    here = [row for row in rows if platform in row.platforms]
    known = {name for row in here for name in row.classes}
    context = proposer.vllm_config.compilation_config.static_forward_context
    backends: dict[Attention, None] = {}
    for group in proposer.draft_attn_groups:
        builder = group.get_metadata_builder()
        layers = [context[name] for name in group.layer_names if name in context]
        kernel = attention_kernel(builder, layers)
        cls = upstream.class_name(group.backend)
        row = backend_row(here, cls, upstream.class_path(builder), kernel)
        attention = Attention(
            name=group.backend.get_name(),
            builder=type(builder).__name__,
            row=row,
            derived=cls in known,
        )
        backends[attention] = None
    return tuple(sorted(backends, key=lambda each: (each.name, each.builder)))


def prefill_backends(groups: Iterable[Any], query_len: int, rows: Iterable[Backend]) -> list[str]:
    """Attention backends of the draft that take a request of `query_len` tokens for a prefill.

    A prefill is planned on the host, from lengths on the host. A builder without a threshold does
    not split batches; one whose row says so has another bound for drafts.
    """
    own = {row.builder for row in rows if not row.asks_threshold}
    prefills = []
    for group in groups:
        builder = group.get_metadata_builder()
        if upstream.class_path(builder) in own:
            threshold = _longest_draft(builder)
        else:
            threshold = getattr(builder, "reorder_batch_threshold", None)
        if (threshold or query_len) < query_len:
            prefills.append(group.backend.get_name())
    return sorted(prefills)


def _longest_draft(builder: Any) -> int | None:
    """Tokens of a request beyond which ROCM_AITER_FA builds a draft's metadata on the host.

    None where it never does: before 0.29, from 0.32 on, and where the gluon kernel does not decode.
    """
    module: Any = sys.modules.get(type(builder).__module__)
    supports = getattr(module, "_pa_gluon_supports", None)
    if supports is None or not supports(builder.num_heads_q, builder.num_heads_kv, builder.headdim):
        return None
    return int(module._PA_GLUON_MAX_QUERY_LEN)
