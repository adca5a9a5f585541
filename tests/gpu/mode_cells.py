"""The cells of ``acceptance.py`` in which vLLM's own settings decide how the target runs.

A target in PIECEWISE, adapters of the target, a K that changes with the batch size, and drafts that
are drawn by temperature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.engine.engine_spec import EngineSpec, Request
from tests.engine.tiny_adapters import ADAPTERS, MAX_RANK
from tests.gpu.cells import Cell, expects, falling, release_has, replayed, soaking
from tests.gpu.every_size import at_every_size

PIECEWISE = {"cudagraph_mode": "PIECEWISE"}
CHECK = {"OVERLAY_DRAFT_GRAPHS_CHECK": "1"}
LORA = {"enable_lora": True, "max_loras": len(ADAPTERS), "max_lora_rank": MAX_RANK}
#: In ``speculative_config`` from 0.24 on.
BY_BATCH_SIZE = "num_speculative_tokens_per_batch_size"


def piecewise(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    """The target in PIECEWISE, with each attention backend and at every size of a graph."""
    base = replace(base, compilation=PIECEWISE)
    hidden = replace(base, draft="eagle3hid", k=5)
    many = replace(hidden, max_num_seqs=200, max_num_batched_tokens=2048)
    scarce: dict[str, Any] = {"block_size": 16, "kv_blocks": 40}
    for mode in ("off", "step", "loop"):
        wanted = expects(mode)
        yield Cell("piecewise", mode, replace(base, requests=eight), wanted)
        yield Cell("piecewise-hid-k5", mode, replace(hidden, requests=eight), wanted)
        triton = replace(hidden, attention_backend="TRITON_ATTN", requests=eight)
        yield Cell("piecewise-triton-hid-k5", mode, triton, wanted)
        preempted = replace(hidden, requests=falling(24, shortest=80), **scarce)
        yield Cell("piecewise-preempted", mode, preempted, wanted)
        every = replace(many, requests=at_every_size(200, 5))
        yield Cell(
            "piecewise-every-size200", mode, every, wanted, weight=10, every_size=replayed(mode)
        )
        odd = {**PIECEWISE, "cudagraph_capture_sizes": [1, 3, 7, 13, 29]}
        few = replace(hidden, compilation=odd, requests=eight)
        yield Cell("piecewise-odd-sizes", mode, few, wanted)
    checked = replace(hidden, requests=eight, env=CHECK)
    yield Cell("piecewise-checked", "loop", checked)
    soak = replace(checked, requests=soaking())
    yield Cell("piecewise-soak", "loop", soak, weight=100)


def with_adapters(requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """A third without an adapter, the others with one of two."""
    adapters = (None, *ADAPTERS)
    return tuple(
        replace(request, adapter=adapters[index % len(adapters)])
        for index, request in enumerate(requests)
    )


def adapters(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    """The target with adapters, which it shares with no draft that has graphs.

    Without graphs upstream drafts with them, and its later passes write beyond their output: there
    is nothing to be compared with but the oracle.
    """
    base = replace(base, engine={**base.engine, **LORA})
    many = falling(300)
    for mode in ("step", "loop"):
        eight_adapted = replace(base, requests=with_adapters(eight))
        yield Cell("lora", mode, eight_adapted, weight=5)
        shared = {**(base.compilation or {}), "cudagraph_specialize_lora": False}
        yield Cell("lora-one-case", mode, replace(eight_adapted, compilation=shared), weight=5)
        lowered = replace(eight_adapted, compilation=PIECEWISE)
        yield Cell("lora-piecewise", mode, lowered, weight=5)
        full = replace(
            base, max_num_seqs=200, max_num_batched_tokens=2048, requests=with_adapters(many)
        )
        yield Cell("lora-seqs200", mode, full, weight=20)
    soak = replace(base, requests=with_adapters(soaking()), env=CHECK)
    yield Cell("lora-soak", "loop", soak, weight=100)


def by_batch_size(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    """K by batch size, in the releases that have it."""
    if not _has(BY_BATCH_SIZE):
        return
    schedule = {BY_BATCH_SIZE: [[1, 2, 5], [3, 5, 3], [6, 8, 1]]}
    spec = replace(base, k=5, speculative=schedule, requests=eight)
    for draft in ("eagle3", "eagle3hid"):
        for mode in ("off", "step", "loop", "auto"):
            each = replace(spec, draft=draft)
            yield Cell(f"k-by-batch-size-{draft}", mode, each, expects(mode))


def sampled(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    """Drafts drawn by temperature, in the releases that have it.

    The drafts are so sure of themselves that up to a temperature of 1.0 the oracle still holds.
    """
    if not _has("draft_sample_method"):
        return
    base = replace(base, speculative={"draft_sample_method": "probabilistic"})
    many = replace(base, max_num_seqs=200, max_num_batched_tokens=2048)
    for mode in ("off", "step", "loop"):
        wanted = expects(mode)
        for k in (1, 3, 5):
            warm = replace(base, k=k, requests=warmed(eight))
            yield Cell(f"probabilistic-k{k}", mode, warm, wanted)
        all_warm = tuple(replace(request, temperature=0.7) for request in eight)
        hidden = replace(base, draft="eagle3hid", k=5, requests=all_warm)
        yield Cell("probabilistic-all-random-hid-k5", mode, hidden, wanted)
        yield Cell("probabilistic-all-greedy", mode, replace(base, requests=eight), wanted)
        full = replace(many, requests=warmed(falling(300)))
        yield Cell("probabilistic-seqs200", mode, full, wanted, weight=10)
    checked = replace(base, requests=warmed(eight), env=CHECK)
    yield Cell("probabilistic-checked", "loop", checked)
    soak = replace(checked, requests=warmed(soaking()))
    yield Cell("probabilistic-soak", "loop", soak, weight=100)


def warmed(requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """Two in three with a temperature."""
    return tuple(
        replace(request, temperature=(0.0, 0.5, 1.0)[index % 3])
        for index, request in enumerate(requests)
    )


def _has(setting: str) -> bool:
    """Whether the vLLM that will run knows a setting of speculation."""
    return release_has("config/speculative.py", setting)
