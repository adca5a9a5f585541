# SPDX-License-Identifier: Apache-2.0
"""Reads the facts that the policy decides on from vLLM's objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import adapters, upstream
from .capabilities import UNKNOWN
from .coupling import coupling
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
        low_latency_exchange=str(parallel.all2all_backend) in upstream.LOW_LATENCY_EXCHANGES,
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
    prefills = upstream.prefill_backends(groups, tokens, backend.attention)
    if prefills:
        name = "K+1" if drafter.extra == 0 else str(tokens)
        no_first = f"attention backend {', '.join(prefills)} takes {name} tokens for a prefill"
    elif drafter.combines and upstream.combine_width(proposer) is None:
        no_first = "the width of the target's hidden states is not known from the draft's fc layer"
    return replace(
        early,
        cudagraph_mode=compilation.cudagraph_mode.name,
        max_num_seqs=int(proposer.max_batch_size),
        max_capture_tokens=min(
            int(compilation.max_cudagraph_capture_size or 0), int(proposer.max_num_tokens)
        ),
        attention=upstream.attention_of(proposer, backend.attention, early.platform.name),
        unseen_group=upstream.unseen_group(proposer),
        no_first=no_first,
    )
