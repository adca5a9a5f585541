"""Hooks for ``run_engine.py``: which draft graphs an engine has, and how often each role ran.

They look into every worker, in whichever process it is, and answer with rank 0's findings; where
there are more ranks, those of all of them are under ``ranks``.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

_replays: Counter[str] = Counter()
_sizes: Counter[str] = Counter()
_calls: Counter[str] = Counter()
_before: Counter[str] = Counter()


def _watch(worker: Any) -> dict[str, Any] | None:
    """Count every replay of one worker from now on; tell what was captured."""
    drafter = getattr(worker.model_runner, "drafter", None)
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
    _watch_steady(worker.model_runner)
    watch_verification(_calls)
    groups = getattr(drafter, "draft_attn_groups", ())
    attention = sorted({group.backend.get_name() for group in groups})
    graphs = getattr(drafter, "draft_graphs", None)
    if graphs is None:
        return {"graphs": None, "attention": attention}
    if graphs.replay is not None:
        inner = graphs.replay.run

        def run(key: Any) -> None:
            _replays[key.role] += 1
            tokens = f" of {key.num_tokens} tokens" if key.role == "mixed" else ""
            _sizes[f"{key.role} {key.num_reqs}{tokens}"] += 1
            inner(key)

        graphs.replay.run = run
    keys = Counter(key.role for key in drafter.cudagraph_dispatcher.draft_keys)
    return {
        "mode": graphs.mode,
        "keys": dict(keys),
        "withdrawn": graphs.withdrawn,
        "attention": attention,
        "rows": _rows(drafter, graphs),
    }


def _rows(drafter: Any, graphs: Any) -> list[str | None]:
    """Titles of the rows of docs/platforms.md that the draft's attention backends have."""
    facts = sys.modules["vllm.v1.spec_decode.draft_graphs.facts"]
    backend = graphs._backend
    backends = facts.attention_of(drafter, backend.attention, backend.platform.name)
    return [None if each.row is None else each.row.title for each in backends]


def _compiled() -> int:
    """How many variants of the steady kernel this process has compiled or loaded."""
    module = sys.modules.get("vllm.v1.worker.steady_kernels")
    if module is None:
        return 0
    # Without Triton it is a plain function.
    caches = getattr(module._advance_kernel, "device_caches", {})
    return sum(len(held[0]) for held in caches.values())


def _watch_steady(runner: Any) -> None:
    """Count the decode steps that ``steady-inputs`` prepares, and what it compiles from now on."""
    steady = getattr(runner, "steady_inputs", None)
    if steady is None:
        return
    _before["compiled"] = _compiled()
    inner = steady._decode.prepare

    def prepare(*args: Any) -> Any:
        _calls["steady steps"] += 1
        return inner(*args)

    steady._decode.prepare = prepare


def watch_verification(counts: Counter[str]) -> None:
    """Count the batches that ``greedy-verification`` verifies, and those that it leaves."""
    module = sys.modules.get("vllm.v1.sample.greedy_verification")
    if module is None:
        return
    inner = module.verify_greedily

    def verify_greedily(*args: Any) -> Any:
        found = inner(*args)
        counts["verified greedily" if found is not None else "verified upstream's way"] += 1
        return found

    # mypy sees a module of which it knows nothing.
    module.verify_greedily = verify_greedily  # type: ignore[attr-defined]


def _counted(worker: Any) -> dict[str, Any] | None:
    """What ``_watch`` counted in one worker."""
    drafter = getattr(worker.model_runner, "drafter", None)
    if drafter is None:
        return None
    graphs = getattr(drafter, "draft_graphs", None)
    _calls["steady kernels compiled while serving"] = _compiled() - _before["compiled"]
    return {
        "replays": dict(_replays),
        "sizes": dict(sorted(_sizes.items())),
        "calls": dict(_calls),
        "withdrawn": None if graphs is None else graphs.withdrawn,
    }


def _of_all(ranks: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    first = ranks[0]
    return first if first is None or len(ranks) == 1 else {**first, "ranks": ranks}


def watch_replays(llm: Any) -> dict[str, Any] | None:
    """Count every replay from now on; tell what was captured."""
    return _of_all(llm.collective_rpc(_watch))


def replays(llm: Any) -> dict[str, Any] | None:
    """What ``watch_replays`` counted."""
    return _of_all(llm.collective_rpc(_counted))
