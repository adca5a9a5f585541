"""The cells of ``acceptance.py``: which engines serve what, and what is expected of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.engine.engine_spec import EngineSpec, Request, make_requests
from tests.gpu import drafter_cells, hybrid_cells, long_cells, mode_cells, quantised_cells
from tests.gpu.cells import Cell, expects, falling, replayed
from tests.gpu.every_size import at_every_mixed_size, at_every_size

TESTS = str(Path(__file__).resolve().parents[1])
FULL = {"cudagraph_mode": "FULL_AND_PIECEWISE"}
#: Bytes of KV cache for an engine, and the share of the GPU that must be free when it starts:
#: vLLM asks for that share even where it is given the bytes, so neighbours must fit beside it.
KV_BYTES, FREE_SHARE = 1 << 30, 0.05

#: Tokens of 256 requests with K = 3: more than vLLM's own largest capture size of 512.
WIDE = 1024

#: Where several requests begin at once, upstream's own drafts share slots up to 0.22.1, by chance.
ROOM = ("tests.engine.scheduler_hooks:room_for_first_drafts",)


def mixed(requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """Some with a temperature, some that ask for prompt logprobs, beside the greedy ones."""
    return tuple(
        replace(
            request,
            temperature=0.7 if index % 3 == 1 else 0.0,
            prompt_logprobs=1 if index % 4 == 2 else None,
        )
        for index, request in enumerate(requests)
    )


def all_cells(models: str) -> list[Cell]:
    """Every cell, those that take long first, so that nothing waits for them at the end."""
    base = EngineSpec(
        models=models,
        enforce_eager=False,
        compilation=FULL,
        engine={"gpu_memory_utilization": FREE_SHARE, "kv_cache_memory_bytes": KV_BYTES},
        pre=ROOM,
        post_load=("tests.gpu.graph_hooks:watch_replays",),
        finish=("tests.gpu.graph_hooks:replays",),
        packages=(TESTS,),
    )
    eight = falling(24, wave=5)
    made = [
        *_drafts(base, eight),
        *_without_oracle(base, eight),
        *_many_requests(base),
        *_every_size(base),
        *_mixed(base),
        *_settings(base, eight),
        *_by_default(base, eight),
        *_tensor_parallel(base, eight),
        *_failures(base, eight),
        *_soaks(base),
        *drafter_cells.drafters(base),
        *hybrid_cells.hybrids(base, eight),
        *mode_cells.piecewise(base, eight),
        *mode_cells.adapters(base, eight),
        *mode_cells.by_batch_size(base, eight),
        *mode_cells.sampled(base, eight),
        *quantised_cells.quantised(base, eight),
        *long_cells.long(base),
    ]
    return sorted(made, key=lambda cell: -cell.weight)


def _drafts(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    for mode in ("off", "step", "loop"):
        wanted = expects(mode)
        for k in (1, 2, 3, 5, 7):
            yield Cell(f"k{k}", mode, replace(base, k=k, requests=eight), wanted)
        for draft in ("eagle3hid", "eagle1"):
            yield Cell(draft, mode, replace(base, draft=draft, k=5, requests=eight), wanted)


def _without_oracle(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    """Where upstream leaves the oracle: the engine without graphs, run twice, is the measure.

    Near the length limit it drafts zeros for the whole batch.  Of six requests it gives three wrong
    prompt logprobs: it computes them after it has drafted, from hidden states in the memory of
    graphs.  In FULL, where upstream's drafter has no graphs that could write there, all are right.
    """
    limit = make_requests(16, tokens=200, lengths=(20, 90))
    for mode in ("off", "off again", "step", "loop"):
        wanted = expects(mode)
        long = replace(base, max_model_len=128, k=5, requests=limit)
        yield Cell("max-model-len", mode, long, wanted)
        asked = replace(base, requests=mixed(eight))
        yield Cell("sampled-and-logprobs", mode, asked, wanted)
        for name in ("FULL", "FULL_DECODE_ONLY"):
            graphs = replace(asked, compilation={"cudagraph_mode": name})
            yield Cell(f"sampled-and-logprobs-{name.lower()}", mode, graphs, wanted)


def _many_requests(base: EngineSpec) -> Iterator[Cell]:
    for mode in ("off", "step", "loop"):
        for seqs in (1, 8, 200, 256):
            requests = falling(min(seqs * 3, 300), wave=None if seqs > 8 else 3)
            spec = replace(base, max_num_seqs=seqs, max_num_batched_tokens=2048, requests=requests)
            wanted, weight = expects(mode), 10 if seqs > 8 else 0
            yield Cell(f"seqs{seqs}", mode, replace(spec, k=3), wanted, weight=weight)
            hidden = replace(spec, draft="eagle3hid", k=5)
            yield Cell(f"seqs{seqs}-k5-hid", mode, hidden, wanted, weight=weight)


def _every_size(base: EngineSpec) -> Iterator[Cell]:
    """Every graph is full once, and once has a request more than the next smaller one holds."""
    base = replace(base, max_num_batched_tokens=2048)  # so that all begin in one step
    for seqs, draft, k in (
        (8, "eagle3hid", 5),
        (200, "eagle3", 2),
        (200, "eagle3hid", 5),
        (256, "eagle3", 3),
        (256, "eagle3hid", 7),
    ):
        requests = at_every_size(seqs, k)
        spec = replace(base, draft=draft, k=k, max_num_seqs=seqs, requests=requests)
        name, weight = f"every-size{seqs}-{draft}-k{k}", 10 if seqs > 8 else 0
        for mode in ("off", "step", "loop"):
            yield Cell(name, mode, spec, expects(mode), weight=weight, every_size=replayed(mode))
    # First passes of all batches have graphs where the user raises vLLM's largest capture size.
    wide = {**FULL, "max_cudagraph_capture_size": WIDE}
    spec = replace(base, k=3, max_num_seqs=256, compilation=wide)
    spec = replace(spec, requests=at_every_size(256, 3, captured=WIDE))
    for mode in ("off", "step", "loop"):
        yield Cell(
            "wide-every-size256", mode, spec, expects(mode), weight=20, every_size=replayed(mode)
        )
    # At vLLM's own largest size nearly all first passes are beyond it, here with long prompts.
    long = make_requests(256, tokens=64, lengths=(150, 400))
    spec = replace(spec, compilation=FULL, max_num_batched_tokens=16384, requests=long)
    for mode in ("off", "step", "loop"):
        cell = Cell("beyond-long-prompts", mode, spec, expects(mode), weight=20)
        yield cell
        yield from _on_two_ranks(cell)
    # Four graphs, and nearly all batches are larger than the largest of them.
    small = {**FULL, "cudagraph_capture_sizes": [1, 2, 4, 8]}
    spec = replace(base, draft="eagle3hid", max_num_seqs=200, requests=falling(300))
    spec = replace(spec, compilation=small)
    for mode in ("off", "step", "loop"):
        yield Cell("sizes-1248-seqs200", mode, spec, expects(mode), weight=10)


def _mixed(base: EngineSpec) -> Iterator[Cell]:
    """Each graph of mixed batches has a batch; some batches have more tokens than any holds."""
    for draft, k in (("eagle3hid", 3), ("eagle3", 5)):
        spec = replace(base, draft=draft, k=k, max_num_seqs=256, max_num_batched_tokens=8192)
        spec = replace(spec, requests=at_every_mixed_size(k))
        for mode in ("off", "step", "loop"):
            name, each = f"mixed-every-size-{draft}-k{k}", replayed(mode, "mixed")
            cell = Cell(name, mode, spec, expects(mode), weight=20, every_size=each)
            yield cell
            if draft == "eagle3hid":
                yield from _on_two_ranks(cell)


def _on_two_ranks(cell: Cell) -> Iterator[Cell]:
    """The cell with two tensor-parallel ranks that reduce in vLLM's own kernel, and in NCCL.

    vLLM takes NCCL for what is larger than any tensor of models as small as these.
    """
    spec = replace(cell.spec, tensor_parallel_size=2)
    yield replace(cell, name=f"tp2-{cell.name}", spec=spec)
    nccl = replace(spec, engine={**spec.engine, "disable_custom_all_reduce": True})
    yield replace(cell, name=f"tp2-nccl-{cell.name}", spec=nccl)


def _by_default(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    """As without `OVERLAY_DRAFT_GRAPHS`."""
    yield Cell("default", "auto", replace(base, requests=eight))
    hidden = replace(base, draft="eagle3hid", k=5, requests=eight)
    yield Cell("default-hid-k5", "auto", hidden)


def _settings(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    for mode in ("off", "step", "loop"):
        wanted = expects(mode)
        small = {**FULL, "cudagraph_capture_sizes": [1, 2, 4, 8]}
        yield Cell("sizes-1248", mode, replace(base, compilation=small, requests=eight), wanted)
        for name in ("FULL", "FULL_DECODE_ONLY"):
            graphs = replace(base, compilation={"cudagraph_mode": name}, requests=eight)
            yield Cell(name.lower(), mode, graphs, wanted)
        triton = replace(base, attention_backend="TRITON_ATTN", requests=eight)
        yield Cell("triton", mode, triton, wanted)
        triton = replace(triton, draft="eagle3hid")
        yield Cell("triton-hid-k5", mode, replace(triton, k=5), wanted)
        long = make_requests(24, tokens=64, lengths=(150, 400), wave=3, steps_between=4)
        hidden = replace(base, draft="eagle3hid")
        yield Cell("long-prompts", mode, replace(hidden, requests=long), wanted)
        yield Cell("long-prompts-triton", mode, replace(triton, requests=long), wanted)
        scarce: dict[str, Any] = {
            "k": 5,
            "block_size": 16,
            "kv_blocks": 40,
            "requests": falling(24, shortest=80),
        }
        yield Cell("preempted", mode, replace(hidden, **scarce), wanted)
        yield Cell("preempted-triton", mode, replace(triton, **scarce), wanted)
        prefix = tuple(
            replace(request, prompt=tuple(range(3, 103)) + request.prompt) for request in eight
        )
        cached = replace(hidden, prefix_caching=True, requests=prefix)
        yield Cell("prefix-caching", mode, cached, wanted)
        # vLLM compares the device's free memory before and after its profile.
        profiled = replace(base, engine={"gpu_memory_utilization": 0.3}, requests=eight)
        yield Cell("profiled-memory", mode, profiled, wanted, alone=True, weight=1000)


def _tensor_parallel(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    for workers in (2, 4):
        for mode in ("off", "step", "loop"):
            for draft, k in (("eagle3", 3), ("eagle3hid", 5)):
                spec = replace(base, draft=draft, k=k, requests=eight)
                spec = replace(spec, tensor_parallel_size=workers)
                name = f"tp{workers}-{draft}-k{k}"
                yield Cell(name, mode, spec, expects(mode), weight=20)


def _failures(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    """A capture that fails on one rank, before it records anything or while it does.

    After one that CUDA itself has ended, PyTorch's allocator and generators must be in order: so
    some requests are sampled.
    """
    sampled = tuple(replace(one, prompt_logprobs=None) for one in mixed(eight))
    for workers, plans in (
        (1, ("0:first:within", "0:last:before", "0:first:invalid", "0:last:invalid")),
        (2, ("1:first:before", "1:last:within", "0:last:before", "1:first:invalid")),
    ):
        for plan in plans:
            spec = replace(
                base,
                draft="eagle3hid",
                requests=sampled if plan.endswith("invalid") else eight,
                tensor_parallel_size=workers,
                env={"TEST_FAILING_CAPTURE": plan},
                engine={
                    **base.engine,
                    "worker_extension_cls": "tests.gpu.failing_capture.FailingCapture",
                },
            )
            rank, key, moment = plan.split(":")
            name = f"tp{workers}-capture-fails-rank{rank}-{key}-{moment}"
            yield Cell(name, "loop", spec, "withdrawn", weight=20 if workers > 1 else 0)


def _soaks(base: EngineSpec) -> Iterator[Cell]:
    checked = replace(base, draft="eagle3hid", env={"OVERLAY_DRAFT_GRAPHS_CHECK": "1"})
    loop = replace(checked, k=3, requests=make_requests(7600, tokens=60))
    yield Cell("soak", "loop", loop, weight=100)
    step = replace(checked, k=7, requests=make_requests(9200, tokens=60))
    yield Cell("soak", "step", step, weight=100)
