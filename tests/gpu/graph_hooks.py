"""Hooks for ``run_engine.py``: which draft graphs an engine has, and how often each role ran.

They look into the worker of the engine's own process; with more workers they answer ``None``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

_replays: Counter[str] = Counter()
_sizes: Counter[str] = Counter()
_calls: Counter[str] = Counter()


def _drafter(llm: Any) -> Any:
    executor = llm.llm_engine.model_executor
    worker = getattr(getattr(executor, "driver_worker", None), "worker", None)
    return getattr(getattr(worker, "model_runner", None), "drafter", None)


def watch_replays(llm: Any) -> dict[str, Any] | None:
    """Count every replay from now on; tell what was captured."""
    drafter = _drafter(llm)
    if drafter is None:
        return None
    inner_propose = drafter.propose

    def propose(*args: Any, **kwargs: Any) -> Any:
        _calls["propose"] += 1
        return inner_propose(*args, **kwargs)

    drafter.propose = propose
    inner_forward = drafter.model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        _calls["draft model forward"] += 1
        return inner_forward(*args, **kwargs)

    drafter.model.forward = forward
    graphs = getattr(drafter, "draft_graphs", None)
    if graphs is None:
        return {"graphs": None}
    inner = graphs._replay

    def replay(captured: Any, key: Any) -> None:
        _replays[key.role] += 1
        _sizes[f"{key.role} {key.num_reqs}"] += 1
        inner(captured, key)

    graphs._replay = replay
    keys = Counter(key.role for key in drafter.cudagraph_dispatcher.draft_keys)
    return {"mode": graphs.mode, "keys": dict(keys), "withdrawn": graphs._withdrawn}


def replays(llm: Any) -> dict[str, Any] | None:
    """What ``watch_replays`` counted."""
    drafter = _drafter(llm)
    if drafter is None:
        return None
    graphs = getattr(drafter, "draft_graphs", None)
    return {
        "replays": dict(_replays),
        "sizes": dict(sorted(_sizes.items())),
        "calls": dict(_calls),
        "withdrawn": getattr(graphs, "_withdrawn", None),
    }
