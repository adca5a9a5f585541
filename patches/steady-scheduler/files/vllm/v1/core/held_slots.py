# SPDX-License-Identifier: Apache-2.0
"""Answers the scheduler at once for a request that goes on as it was.

In each step the scheduler allocates the slots of each running request, appends its tokens, asks of
each of them whether the request stops there, and notes for the prefix cache what was computed. A
step of a decode takes a few slots, a block has sixteen or more, so most of the answers are "no new
blocks" and "nothing to note", for which upstream does all that a new block may need. Here the same
answers are given at once, where nothing would be allocated, freed or noted, and the tokens are
appended together, where none can stop the request; whatever else comes is left to upstream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.steady_steps import FEATURE, groups_of, take_steps
from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

VARIABLE = "OVERLAY_STEADY_SCHEDULER"


def hold_slots(scheduler: Any) -> None:
    """Have the KV cache of a scheduler answer at once for requests that hold their slots.

    Replaces two methods of the scheduler's KVCacheManager, of this object only, and gives the
    scheduler a method `append_together(request, tokens)`, which `_update_request_with_output`
    calls: whether it appended the tokens of a step to a request, because none of them can stop it.
    Whether all this is done, or why not, is told as a count of one.
    Raises ValueError if the switch is neither on nor off.
    """
    manager = scheduler.kv_cache_manager
    reason = _reason_against(scheduler, manager)
    scheduler.append_together = _appending(scheduler.max_model_len if reason is None else 0)
    if reason is not None:
        count(FEATURE, f"schedulers that allocate upstream's way: {reason}")
        idle(FEATURE, reason)
        return
    count(FEATURE, "schedulers that ask which requests hold their slots")
    manager.allocate_slots = _allocating(manager, manager.allocate_slots)
    if manager.enable_caching:
        manager.cache_blocks = _noting(manager, manager.cache_blocks)
    reason = take_steps(scheduler)
    active(
        FEATURE,
        "requests that go on are scheduled and noted together"
        if reason is None
        else f"held slots are not asked for again; steps are upstream's: {reason}",
    )


def _reason_against(scheduler: Any, manager: Any) -> str | None:
    """Why each request is allocated upstream's way; None where it need not be."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    if not is_on(VARIABLE):
        return f"{VARIABLE}=off"
    # Another package may have a class of its own, or a function in the place of vLLM's.
    allocate = type(manager).allocate_slots
    if type(manager) is not KVCacheManager or allocate.__module__ != KVCacheManager.__module__:
        return f"{allocate.__module__} has rules of its own"
    for owner in type(scheduler).__mro__:
        update = vars(owner).get("_update_request_with_output")
        if update is not None and not update.__module__.startswith("vllm.v1.core.sched."):
            return f"{update.__module__} has rules of its own"
    for group in manager.coordinator.single_type_managers:
        # Others free blocks that fall out of a window, or keep states.
        if type(group) is not FullAttentionManager:
            return f"{type(group).__name__} has rules of its own"
        # Blocks that are hashed in parts are noted before they are full.
        if getattr(group.block_pool, "hash_block_size", group.block_size) != group.block_size:
            return "blocks are hashed in parts"
    return None


def _appending(longest: int) -> Callable[[Any, list[int]], bool]:
    """The scheduler's `append_together`.

    longest: tokens that a request may have; 0 where upstream is to append them.
    """

    def append_together(request: Any, tokens: list[int]) -> bool:
        number, params = len(tokens), request.sampling_params
        # One token is appended upstream's way in no more time.
        if number < 2 or params is None or request.num_tokens + number >= longest:
            return False
        if request.num_output_tokens + number >= request.max_tokens:
            return False
        if params.eos_token_id in tokens or params.stop_token_ids:
            return False
        if params.repetition_detection is not None:
            return False
        request.append_output_token_ids(tokens)
        return True

    return append_together


def _allocating(manager: Any, allocate: Callable[..., Any]) -> Callable[..., Any]:
    """The manager's `allocate_slots`, which answers at once where a request holds its slots."""
    nothing, longest = manager.empty_kv_cache_blocks, manager.max_model_len
    caching, groups = manager.enable_caching, groups_of(manager)

    def held(request: Any, tokens: int, lookahead: int) -> bool:
        name = request.request_id
        end = request.num_computed_tokens + tokens
        needed = min(end + lookahead, longest)
        # Tokens that may be noted for the prefix cache, as soon as they fill a block.
        final = min(end, request.num_tokens) if caching else 0
        for blocks, noted, size in groups:
            own = blocks.get(name)
            if own is None or len(own) * size < needed:
                return False
            if caching and (noted.get(name, 0) + 1) * size <= final:
                return False
        return True

    def allocate_slots(request: Any, num_new_tokens: int, *given: Any, **named: Any) -> Any:
        # As the scheduler asks for a running request; for one that waits it says more.
        plain = not given and len(named) == 1 and num_new_tokens > 0
        lookahead = named.get("num_lookahead_tokens") if plain else None
        if lookahead is not None and held(request, num_new_tokens, lookahead):
            return nothing
        return allocate(request, num_new_tokens, *given, **named)

    return allocate_slots


def _noting(manager: Any, note: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """The manager's `cache_blocks`, which returns at once where no further block is full."""
    groups = groups_of(manager)

    def cache_blocks(request: Any, num_computed_tokens: int) -> None:
        name = request.request_id
        for _, noted, size in groups:
            if (noted.get(name, 0) + 1) * size <= num_computed_tokens:
                note(request, num_computed_tokens)
                return

    return cache_blocks
