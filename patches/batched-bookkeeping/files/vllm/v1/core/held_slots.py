# SPDX-License-Identifier: Apache-2.0
"""Answers that a request needs no slots of the KV cache, where it holds those of its next step.

The scheduler asks for the slots of each running request in each step. A step of a decode takes a
few slots, a block has sixteen or more, so most of the answers are "no new blocks", for which
upstream does all that an allocation may need. Here the same answer is given at once, where nothing
would be allocated, freed or noted; whatever else comes is left to upstream's allocation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from vllm.v1.overlay_effects import count
from vllm.v1.worker.batched_bookkeeping import FEATURE, VARIABLE, wanted


def slot_allocator(scheduler: Any) -> Callable[..., Any]:
    """The function by which a scheduler allocates the slots of a running request.

    scheduler: Scheduler, with its KVCacheManager.

    Returns one that calls upstream's `allocate_slots`, each time or where a request does not hold
    its slots. Which of them it is, and why, is told as a count of one.
    Raises ValueError if the switch is neither on nor off.
    """

    def allocate(request: Any, num_new_tokens: int, num_lookahead_tokens: int = 0) -> Any:
        # Looked up each time, as upstream does.
        return scheduler.kv_cache_manager.allocate_slots(
            request, num_new_tokens, num_lookahead_tokens=num_lookahead_tokens
        )

    reason = _reason_against(scheduler)
    if reason is not None:
        count(FEATURE, f"schedulers that allocate upstream's way: {reason}")
        return allocate
    count(FEATURE, "schedulers that ask which requests hold their slots")
    return _asking_first(scheduler.kv_cache_manager, allocate)


def _reason_against(scheduler: Any) -> str | None:
    """Why each request is allocated upstream's way; None where it need not be."""
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    if not wanted(os.environ):
        return f"{VARIABLE}=off"
    if scheduler.use_v2_model_runner:
        return "model runner V2"
    for group in scheduler.kv_cache_manager.coordinator.single_type_managers:
        # Others free blocks that fall out of a window, or keep states.
        if type(group) is not FullAttentionManager:
            return f"{type(group).__name__} has rules of its own"
        # Blocks that are hashed in parts are noted before they are full.
        if getattr(group.block_pool, "hash_block_size", group.block_size) != group.block_size:
            return "blocks are hashed in parts"
    return None


def _asking_first(manager: Any, allocate: Callable[..., Any]) -> Callable[..., Any]:
    """Ask whether a request holds its slots before `allocate` is called."""
    nothing, longest = manager.empty_kv_cache_blocks, manager.max_model_len
    caching = manager.enable_caching
    groups = [
        (group.req_to_blocks, group.num_cached_block, group.block_size)
        for group in manager.coordinator.single_type_managers
    ]

    def ask(request: Any, num_new_tokens: int, num_lookahead_tokens: int = 0) -> Any:
        name = request.request_id
        end = request.num_computed_tokens + num_new_tokens
        needed = min(end + num_lookahead_tokens, longest)
        # Tokens that may be noted for the prefix cache, as soon as they fill a block.
        final = min(end, request.num_tokens) if caching else 0
        for blocks, noted, size in groups:
            held = blocks.get(name)
            if held is None or len(held) * size < needed:
                break
            if caching and (noted.get(name, 0) + 1) * size <= final:
                break
        else:
            if num_new_tokens > 0:
                return nothing
        return allocate(request, num_new_tokens, num_lookahead_tokens)

    return ask
