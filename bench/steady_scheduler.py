"""Time a scheduler's steps of decodes, on a CPU, with and without the feature `steady-scheduler`.

Runs where vLLM can be imported, with its own asynchronous scheduler and KV cache: each request
decodes, one step is scheduled while the one before is under way, and with drafts two and a half of
four tokens are accepted on average. The figures are CPU times of the thread in `schedule` and
`update_from_output` alone: no model runs, no GPU is used, and nothing about serving follows. The
two ways run in turn, pair by pair, since machines are noisy. That both do the same is shown by
`tests/steady_scheduler`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BLOCK, PROMPT, LONGEST = 16, 512, 8192
ACCEPTED = (2, 3)  # tokens of a step with three drafts, in turn
STEPS, PAIRS, BATCHES = 120, 5, (1, 2, 4, 8, 16, 64, 256)


def make_scheduler(requests: int, drafts: int, *, second: bool) -> Any:
    """Make an asynchronous scheduler with so many requests that have been computed."""
    from tests.steady_scheduler import schedulers

    world = schedulers.World(
        drafts=drafts,
        second=second,
        blocks=requests * (PROMPT + STEPS * 4) // BLOCK + 8 * requests + 8,
        most=max(requests, 2),
        budget=1 << 20,
        size=BLOCK,
        longest=LONGEST,
    )
    scheduler = schedulers.make_scheduler(RELEASE, world)
    for number in range(requests):
        scheduler.add_request(make_request(number))
    return scheduler


def make_request(number: int) -> Any:
    """Make a request whose prompt is like no other's."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256

    from tests.steady_scheduler import schedulers

    own = schedulers.modules(RELEASE)
    params = SamplingParams(temperature=0.0, max_tokens=LONGEST - PROMPT - 8)
    params._eos_token_id = 1
    utilities = own["vllm.v1.core.kv_cache_utils"]
    return own["vllm.v1.request"].Request(
        request_id=f"cmpl-00000000-0000-0000-0000-{number:08d}-0",
        prompt_token_ids=[number + 100, *range(10, PROMPT + 9)],
        sampling_params=params,
        pooling_params=None,
        block_hasher=utilities.get_request_block_hasher(BLOCK, sha256),
    )


def output_of(scheduled: Any, number: int) -> Any:
    """What a runner gives for a step."""
    names = list(scheduled.num_scheduled_tokens)
    drafted = scheduled.scheduled_spec_decode_tokens
    sampled = [[7] * (ACCEPTED[number % 2] if drafted.get(name) else 1) for name in names]
    return SimpleNamespace(
        req_ids=names,
        req_id_to_index={name: place for place, name in enumerate(names)},
        sampled_token_ids=sampled,
        prompt_logprobs_dict={},
        prompt_token_id_logprobs_dict={},
        **dict.fromkeys(
            (
                *("logprobs", "pooler_output", "num_nans_in_logits", "kv_connector_output"),
                *("ec_connector_output", "cudagraph_stats", "routed_experts_dict"),
                *("routed_experts", "sampling_masks", "aux_output_connector_output"),
            )
        ),
    )


def medians(requests: int, drafts: int, *, together: bool, second: bool) -> tuple[float, float]:
    """Microseconds of a step: `schedule` and `update_from_output`."""
    from tests.steady_scheduler.schedulers import take_over

    scheduler = make_scheduler(requests, drafts, second=second)
    if together:
        take_over(scheduler)
    under_way: list[Any] = [scheduler.schedule()]
    taken: list[tuple[float, float]] = []
    for number in range(STEPS):
        began = time.thread_time()
        under_way.append(scheduler.schedule())
        scheduled = time.thread_time()
        first = under_way.pop(0)
        output = output_of(first, number)
        asked = time.thread_time()
        scheduler.update_from_output(first, output)
        taken.append((scheduled - began, time.thread_time() - asked))
    steady = taken[10:]
    first, second_ = (statistics.median(each) * 1e6 for each in zip(*steady, strict=True))
    return first, second_


def cell(requests: int, drafts: int, *, second: bool) -> dict[str, Any]:
    """Time both ways in turn."""
    pairs: list[dict[str, tuple[float, float]]] = []
    for number in range(PAIRS):
        ways = [("upstream", False), ("together", True)]
        order = ways if number % 2 else ways[::-1]
        pairs.append(
            {
                name: medians(requests, drafts, together=together, second=second)
                for name, together in order
            }
        )
    least = {
        name: [round(min(each[name][part] for each in pairs), 1) for part in (0, 1)]
        for name in ("upstream", "together")
    }
    ratios = sorted(sum(each["together"]) / sum(each["upstream"]) for each in pairs)
    return {
        **least,
        "ratio": round(sum(least["together"]) / sum(least["upstream"]), 3),
        "ratios of the pairs": [round(each, 3) for each in ratios],
    }


RELEASE = "0.32.0"


def main(arguments: list[str] | None = None) -> int:
    """Time both ways, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="file for the figures, JSON")
    parser.add_argument("--release", default=RELEASE, help="whose scheduler (default: %(default)s)")
    parser.add_argument("--requests", type=int, nargs="+", default=list(BATCHES))
    chosen = parser.parse_args(arguments)
    globals()["RELEASE"] = chosen.release
    os.environ.pop("OVERLAY_STEADY_SCHEDULER", None)
    from tests.steady_scheduler import schedulers

    cells: dict[str, Any] = {}
    with schedulers.own_modules(chosen.release):
        for runner, second in (("V2", True), ("V1", False)):
            for drafts in (0, 3):
                key = f"model runner {runner}, {drafts} drafts"
                cells[key] = {
                    str(number): cell(number, drafts, second=second) for number in chosen.requests
                }
                print(key, json.dumps(cells[key]), flush=True)
    results = {
        "what": "CPU microseconds of a step of decodes in schedule and update_from_output (time "
        f"of the thread), median of {STEPS - 10} steps, least of {PAIRS} runs; the ratio of "
        "their sums, and that of each pair of runs",
        "vllm": chosen.release,
        "python": platform.python_version(),
        "block_size": BLOCK,
        "prompt": PROMPT,
        "microseconds": cells,
    }
    chosen.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
