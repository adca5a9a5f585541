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


def watch_slots(manager: Any, second: bool) -> Callable[[Any, int, int], Any]:
    """The function by which a scheduler asks whether a running request holds its slots.

    manager: the scheduler's KVCacheManager.
    second: whether the engine uses model runner V2.

    Returns a function of a request, its new tokens and its lookahead tokens. Its answer is that of
    `manager.allocate_slots` if this would allocate, free and note nothing, else None; always None
    where upstream is to be asked each time. Which it is, and why, is told as a count of one.
    Raises ValueError if the switch is neither on nor off.
    """
    reason = _reason_against(manager, second)
    if reason is not None:
        count(FEATURE, f"schedulers that allocate upstream's way: {reason}")
        return lambda *_: None
    count(FEATURE, "schedulers that ask which requests hold their slots")
    return _asking(manager)


def _reason_against(manager: Any, second: bool) -> str | None:
    """Why each request is allocated upstream's way; None where it need not be."""
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    if not wanted(os.environ):
        return f"{VARIABLE}=off"
    if second:
        return "model runner V2"
    for group in manager.coordinator.single_type_managers:
        # Others free blocks that fall out of a window, or keep states.
        if type(group) is not FullAttentionManager:
            return f"{type(group).__name__} has rules of its own"
        # Blocks that are hashed in parts are noted before they are full.
        if getattr(group.block_pool, "hash_block_size", group.block_size) != group.block_size:
            return "blocks are hashed in parts"
    return None


def _asking(manager: Any) -> Callable[[Any, int, int], Any]:
    """Ask what the groups of a manager hold."""
    nothing, longest = manager.empty_kv_cache_blocks, manager.max_model_len
    caching = manager.enable_caching
    groups = [
        (group.req_to_blocks, group.num_cached_block, group.block_size)
        for group in manager.coordinator.single_type_managers
    ]

    def ask(request: Any, tokens: int, lookahead: int) -> Any:
        name = request.request_id
        end = request.num_computed_tokens + tokens
        needed = min(end + lookahead, longest)
        # Tokens that may be noted for the prefix cache, as soon as they fill a block.
        final = min(end, request.num_tokens) if caching else 0
        for blocks, noted, size in groups:
            held = blocks.get(name)
            if held is None or len(held) * size < needed:
                return None
            if caching and (noted.get(name, 0) + 1) * size <= final:
                return None
        return nothing

    return ask
