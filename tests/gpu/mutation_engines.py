"""The engines of ``gpu_mutations.py``: each runs as it is, and with the bugs it should show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.engine.engine_spec import EngineSpec, make_requests
from tests.gpu.cells import Cell, falling
from tests.gpu.gpu_cells import FREE_SHARE, KV_BYTES, ROOM
from tests.gpu.mutation_hooks import MUTATION_VARIABLE
from tests.gpu.mutation_plan import GPU_MUTATIONS, GpuMutation

TESTS = str(Path(__file__).resolve().parents[1])
#: Starts much faster than a compiled engine, and a FULL_DECODE_ONLY drafter has no piecewise
#: graphs to fall back to.
UNCOMPILED = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
#: Those that the graph double on CPU can rehearse.
REHEARSED = ("hid-k5", "checked", "preempted")


def engines(models: str) -> dict[str, EngineSpec]:
    """The engines by name, each for every mode."""
    base = EngineSpec(
        models=models,
        draft="eagle3hid",
        k=5,
        enforce_eager=False,
        compilation=UNCOMPILED,
        engine={"gpu_memory_utilization": FREE_SHARE, "kv_cache_memory_bytes": KV_BYTES},
        requests=falling(24, wave=5),
        pre=ROOM,
        post_load=("tests.gpu.graph_hooks:watch_replays",),
        finish=("tests.gpu.graph_hooks:replays",),
        packages=(TESTS,),
    )
    return {
        "hid-k5": base,
        "checked": replace(base, env={"OVERLAY_DRAFT_GRAPHS_CHECK": "1"}),
        "triton": replace(base, attention_backend="TRITON_ATTN"),
        "long": replace(
            base, k=3, requests=make_requests(16, lengths=(150, 400), wave=3, steps_between=4)
        ),
        "preempted": replace(base, block_size=16, kv_blocks=40, requests=falling(24, shortest=80)),
        **_prompt_logprobs(base),
        "seqs256": _with_hooks(
            replace(
                base,
                draft="eagle3",
                k=3,
                max_num_seqs=256,
                max_num_batched_tokens=2048,
                requests=make_requests(8, tokens=24),
            ),
            post_load="pool_bytes",
        ),
        "late-reader": _with_hooks(base, post_load="read_late", finish="late_reads"),
        # Synchronously scheduled, vLLM copies all drafts to the host on another stream.
        "late-copies": _with_hooks(replace(base, async_scheduling=False), pre="slow_copies"),
        "host": _with_hooks(
            base, pre="watch_bodies", post_load="watch_entries", finish="operators"
        ),
    }


def _prompt_logprobs(base: EngineSpec) -> dict[str, EngineSpec]:
    """Engines that still need what the target left in its graphs' memory when they have drafted.

    In FULL prompts are in graphs, if the whole batch has no more tokens than the largest of them,
    which is twice as many as its requests can verify; so three short ones begin at a time. In
    FULL_DECODE_ONLY they are if each has K+1 tokens, as many as a request that decodes.
    """
    base = replace(base, draft="eagle3", k=3)
    short = falling(24, lengths=(5, 12), wave=3)
    asked = tuple(replace(each, prompt_logprobs=1) for each in short)
    like_decodes = tuple(replace(each, prompt=each.prompt[: base.k + 1]) for each in asked)
    return {
        "prompts-full": replace(
            base, compilation={**UNCOMPILED, "cudagraph_mode": "FULL"}, requests=asked
        ),
        "prompts-decode": replace(base, requests=like_decodes),
    }


def _with_hooks(spec: EngineSpec, **hooks: str) -> EngineSpec:
    """With further hooks of ``mutation_hooks``, by where they are called."""
    added = {
        where: (*getattr(spec, where), f"tests.gpu.mutation_hooks:{name}")
        for where, name in hooks.items()
    }
    changes: dict[str, Any] = added
    return replace(spec, **changes)


def rehearsed(spec: EngineSpec) -> EngineSpec:
    """The engine on CPU, with the graph double, and with fewer requests."""
    return replace(
        spec,
        block_size=16,
        kv_blocks=spec.kv_blocks or 64,
        max_model_len=128,
        engine={},
        pre=("tests.gpu.mutation_hooks:double",),
        requests=falling(12, wave=4),
    )


def mutated(spec: EngineSpec, mutation: GpuMutation) -> EngineSpec:
    """The engine with a bug put into it, before anything else is imported."""
    asked = json.dumps({"name": mutation.name, "changes": mutation.changes})
    return replace(
        spec,
        pre=("tests.gpu.mutation_hooks:mutate", *spec.pre),
        post_load=("tests.gpu.mutation_hooks:check_mutated", *spec.post_load),
        env={**spec.env, MUTATION_VARIABLE: asked},
    )


Planned = tuple[Cell, GpuMutation | None]


def planned(models: str, *, double: bool) -> Iterator[Planned]:
    """Every cell with its mutation, the controls first: all that is judged is judged by them.

    :param double: only those that can be rehearsed on CPU, for CPU.
    """
    specs = engines(models)
    if double:
        specs = {name: rehearsed(specs[name]) for name in REHEARSED}
    cells = [
        (each, engine, mode)
        for each in GPU_MUTATIONS
        for engine, _, mode in (name.partition(" ") for name in each.engines)
        if engine in specs
    ]
    for engine, mode in dict.fromkeys((engine, mode) for _, engine, mode in cells):
        yield Cell(engine, mode, specs[engine]), None
    for mutation, engine, mode in cells:
        name = f"{engine}~{mutation.slug}"
        yield Cell(name, mode, mutated(specs[engine], mutation)), mutation
