"""Time how a scheduler allocates for running requests, on a CPU, with and without held slots.

Runs where vLLM can be imported, with its own manager of the KV cache: each request decodes, four
tokens a step of which two and a half are accepted on average; its slots are allocated, and what it
computed is noted for the prefix cache. The figures are CPU times of these two alone: no model
runs, no GPU is used, and nothing about serving follows. That both keep the same is shown by
`tests/steady_scheduler/test_held_slots.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PATCHES = Path(__file__).resolve().parents[1] / "patches"
BLOCK, PROMPT, LONGEST, LOOKAHEAD = 16, 512, 8192, 3
TOKENS, ACCEPTED = 4, (2, 3)  # of a step; accepted in turn
STEPS, BATCHES = 200, (1, 16, 64, 256)


def make_manager(requests: int, *, caching: bool) -> Any:
    """Make a manager of the KV cache of one group of layers, with room for all."""
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    config = KVCacheConfig(
        num_blocks=requests * (PROMPT + STEPS * max(ACCEPTED)) // BLOCK + 4 * requests,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return KVCacheManager(
        config,
        LONGEST,
        enable_caching=caching,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
        max_in_flight_tokens=8192,
    )


def admit(manager: Any, number: int, *, caching: bool) -> Any:
    """Admit a request whose prompt is like no other's."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.request import Request, RequestStatus

    request = Request(
        request_id=f"r{number}",
        prompt_token_ids=[number, *range(PROMPT - 1)],
        sampling_params=SamplingParams(temperature=0.0, max_tokens=LONGEST),
        pooling_params=None,
        block_hasher=kv_cache_utils.get_request_block_hasher(BLOCK, sha256) if caching else None,
    )
    blocks, computed, *_ = manager.get_computed_blocks(request)
    manager.allocate_slots(
        request, PROMPT - computed, computed, blocks, num_lookahead_tokens=LOOKAHEAD
    )
    request.status, request.num_computed_tokens = RequestStatus.RUNNING, PROMPT
    return request


def steps(manager: Any, requests: list[Any]) -> Iterator[float]:
    """Let all requests take steps; microseconds of each step's calls of the manager."""
    for number in range(STEPS):
        began = time.perf_counter()
        for request in requests:
            manager.allocate_slots(request, TOKENS, num_lookahead_tokens=LOOKAHEAD)
        taken = time.perf_counter() - began
        accepted = ACCEPTED[number % len(ACCEPTED)]
        for request in requests:
            request.num_computed_tokens += accepted
            request.append_output_token_ids([7] * accepted)
        began = time.perf_counter()
        for request in requests:
            manager.cache_blocks(request, request.num_computed_tokens)
        yield (taken + time.perf_counter() - began) * 1e6


def microseconds(rows: int, *, caching: bool, asks: bool) -> float:
    """Return the median of a step with so many requests."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.held_slots import hold_slots

    kv_cache_utils.init_none_hash(sha256)
    manager = make_manager(rows, caching=caching)
    requests = [admit(manager, number, caching=caching) for number in range(rows)]
    if asks:
        scheduler = SimpleNamespace(kv_cache_manager=manager, max_model_len=LONGEST)
        hold_slots(scheduler)
    return round(statistics.median(steps(manager, requests)), 2)


def prepare() -> None:
    """Have the feature's modules beside vLLM's own, and what it knows of KV caches registered."""
    import vllm.v1
    import vllm.v1.core
    import vllm.v1.worker
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    for package in (vllm.v1, vllm.v1.core, vllm.v1.worker):
        for home in ("steady-scheduler", "shared"):
            files = PATCHES / home / "files"
            package.__path__.append(str(files / package.__name__.replace(".", "/")))
    register_all_kvcache_specs(None)


def main(arguments: list[str] | None = None) -> int:
    """Time both ways in turn, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="file for the figures, JSON")
    chosen = parser.parse_args(arguments)
    os.environ.pop("OVERLAY_STEADY_SCHEDULER", None)
    prepare()
    from vllm import __version__

    found: dict[str, Any] = {}
    for caching in (True, False):
        cells = found["with prefix caching" if caching else "without prefix caching"] = {}
        for rows in BATCHES:
            ways = {"upstream": False, "asking": True}
            rounds = [
                {
                    name: microseconds(rows, caching=caching, asks=asks)
                    for name, asks in ways.items()
                }
                for _ in range(3)
            ]
            cells[str(rows)] = {name: min(each[name] for each in rounds) for name in ways}
    results = {
        "what": "CPU microseconds of a step's allocations and notes for the prefix cache, median "
        "of 200 steps, least of 3 runs",
        "vllm": __version__,
        "python": platform.python_version(),
        "block_size": BLOCK,
        "tokens_per_step": TOKENS,
        "microseconds": found,
    }
    chosen.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
