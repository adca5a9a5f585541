"""Hooks for engines whose scheduler gives first drafts no room, as upstream's up to 0.22.1 does.

There a request without computed tokens (a new one, or one that was preempted) gets blocks for its
prompt alone.  Where its drafts cross into the next block, their keys and values go wherever its row
of the block table happens to point, and two such requests of one step may write to the same slot:
which of them drafts from the other's keys is left to chance.  From 0.23 on it gets room at once.
"""

from __future__ import annotations

from typing import Any

_ROOM = "num_lookahead_tokens"


def room_for_first_drafts() -> None:
    """Give such a request room for its drafts.

    As 0.23 does by itself; there it changes nothing unless keys are loaded asynchronously.
    """
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler

    rooms: list[int] = []
    start = Scheduler.__init__

    def started(self: Any, *args: Any, **named: Any) -> None:
        start(self, *args, **named)
        rooms.append(self.num_lookahead_tokens)

    def at_least(given: int) -> int:
        return max(given, *rooms)

    Scheduler.__init__ = started
    _change_room(KVCacheManager, at_least)


def no_room_for_first_drafts() -> None:
    """Give such a request no room, as up to 0.22.1."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    _change_room(KVCacheManager, lambda given: 0)


def _change_room(manager: Any, changed: Any) -> None:
    stock = manager.allocate_slots

    def allocate_slots(self: Any, request: Any, *args: Any, **named: Any) -> Any:
        if request.num_computed_tokens == 0:
            named[_ROOM] = changed(named.get(_ROOM, 0))
        return stock(self, request, *args, **named)

    manager.allocate_slots = allocate_slots


def faults(llm: Any) -> list[str]:
    """What the attention of ``graph_safe_attention`` saw go wrong."""
    from tests.draft_graphs import graph_safe_attention

    return graph_safe_attention.faults()
