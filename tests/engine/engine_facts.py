"""What the tests' engine runs touch inside vLLM, 0.20.0 to 0.33.0, beside ``engine_compat``.

Imported in the environment of the engine only; nothing here runs before vLLM may be imported.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from overlay.proof.engine_compat import drafter_of
from tests.support import forks

#: Parts of module names of the overlay's targets: whatever of these a process has loaded is listed.
WATCHED_MODULES = (
    "vllm.v1.spec_decode.",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.cudagraph_dispatcher",
)
#: What the proof itself imports of the overlay, each with a dot behind it: nothing that is added to
#: vLLM may import any of it, which a test of the features' modules says.
_OF_THE_PROOF = ("overlay.proof.", "overlay.results.", "overlay.errors.")
#: Entry of ``speculative_config``.
OWN_ATTENTION = "attention_backend"
#: Name in the metrics without ``vllm:`` -> name in the result.
COUNTERS = {
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "draft_tokens",
    "spec_decode_num_accepted_tokens": "accepted",
    "spec_decode_num_accepted_tokens_per_pos": "per_position",
    "num_preemptions": "preemptions",
}


def base_environment(workers: int) -> dict[str, str]:
    """Environment variables of every run, unless its spec or its surroundings say otherwise.

    The engine core stays in the main process, where its scheduler can be watched; of the CPU's
    memory it takes 1 GiB for the KV cache instead of a share of all there is.

    :param workers: tensor-parallel workers.  Several of them on CPU want a core each named, where
        vLLM would ask for a NUMA node each.
    """
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if workers > 1:
        cores = sorted(os.sched_getaffinity(0))
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(
            str(cores[rank % len(cores)]) for rank in range(workers)
        )
    return wanted


def inspect_in_forks() -> None:
    """Let vLLM, which is imported, look at the class of a model in a fork of this process.

    It starts a Python for that, which imports vLLM anew and takes longer than a small engine.
    """
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = forks.returned


def with_draft_attention(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``vllm.LLM`` whose attention backend is the draft's too.

    From 0.21 vLLM chooses the draft's by itself unless ``speculative_config`` says which.
    """
    from vllm.config import SpeculativeConfig

    backend = arguments.get("attention_config", {}).get("backend")
    speculative = arguments.get("speculative_config")
    if backend is None or speculative is None or not hasattr(SpeculativeConfig, OWN_ATTENTION):
        return arguments
    return {**arguments, "speculative_config": {OWN_ATTENTION: backend, **speculative}}


def add_request(llm: Any, request_id: str, prompt: list[int], parameters: Any) -> None:
    """Add one request of token ids to a running engine."""
    llm.llm_engine.add_request(request_id, {"prompt_token_ids": prompt}, parameters)


def read_metrics(llm: Any) -> dict[str, Any]:
    """The engine's counters, summed over data-parallel ranks."""
    metrics: dict[str, Any] = {}
    for metric in llm.get_metrics():
        name = COUNTERS.get(metric.name.partition(":")[2])
        if name == "per_position":
            old = metrics.get(name, [0] * len(metric.values))
            metrics[name] = [a + b for a, b in zip(old, metric.values, strict=True)]
        elif name:
            metrics[name] = metrics.get(name, 0) + metric.value
    return metrics


def describe_worker(worker: Any) -> dict[str, Any]:
    """Describe what one worker runs.  Called in the worker's own process."""
    runner = worker.model_runner
    drafter = drafter_of(runner)
    description: dict[str, Any] = {
        "pid": os.getpid(),
        "rank": worker.rank,
        "runner": _name(type(runner)),
        "drafter": None,
        "propose": None,
        "modules": _watched_modules(),
        "overlay_imported": sorted(
            name
            for name in sys.modules
            if name.startswith("overlay.") and not f"{name}.".startswith(_OF_THE_PROOF)
        ),
    }
    if drafter is not None:
        propose = type(drafter).propose
        description["drafter"] = _name(type(drafter))
        description["propose"] = {
            "name": f"{propose.__module__}.{propose.__qualname__}",
            "file": propose.__code__.co_filename,
            "line": propose.__code__.co_firstlineno,
        }
    return description


def describe_engine(llm: Any) -> list[dict[str, Any]]:
    """``describe_worker`` for every worker, by rank."""
    descriptions: list[dict[str, Any]] = llm.collective_rpc(describe_worker)
    return sorted(descriptions, key=lambda worker: int(worker["rank"]))


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _watched_modules() -> dict[str, dict[str, str]]:
    watched = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.startswith(WATCHED_MODULES) and file:
            digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
            watched[name] = {"file": file, "sha256": digest}
    return watched
