"""Everything that the engine runs touch inside vLLM, 0.20.0 to 0.33.0, in one place.

Imported in the environment of the engine only; nothing here runs before vLLM may be imported.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overlay.results import ModelRunner

#: Parts of module names of the overlay's targets: whatever of these a process has loaded is listed.
WATCHED_MODULES = (
    "vllm.v1.spec_decode.",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.cudagraph_dispatcher",
)
#: What the proof itself imports of the overlay, each with a dot behind it: nothing that is added to
#: vLLM may import any of it, which a test of the features' modules says.
_OF_THE_PROOF = ("overlay.proof.", "overlay.results.")
#: The feature that gives the drafter its graphs, and the package that it adds to vLLM.
DRAFT_GRAPHS = "draft-graphs"
DRAFT_GRAPHS_PACKAGE = "vllm.v1.spec_decode.draft_graphs"
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


def runner_environment(runner: ModelRunner | None) -> dict[str, str]:
    """The environment variables that choose the model runner."""
    if runner is None:
        return {}
    return {"VLLM_USE_V2_MODEL_RUNNER": {ModelRunner.V1: "0", ModelRunner.V2: "1"}[runner]}


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


def watch_drafts(seen: Callable[[str, int, int, int], None]) -> None:
    """Call ``seen(request id, known tokens, drafted, accepted)`` at every verification of drafts.

    Known tokens are those of the request, prompt included, before the step.  Must be called
    before the engine is made, in the process that holds its scheduler.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    stock = Scheduler.make_spec_decoding_stats

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        drafted, request_id = kwargs["num_draft_tokens"], kwargs["request_id"]
        if drafted:
            known = self.requests[request_id].num_tokens
            seen(request_id, known, drafted, kwargs["num_accepted_tokens"])
        return stock(self, *args, **kwargs)

    Scheduler.make_spec_decoding_stats = watched


def add_request(
    llm: Any,
    request_id: str,
    prompt: list[int],
    parameters: Any,
    adapter: tuple[str, int, str] | None = None,
) -> None:
    """Add one request of token ids to a running engine.

    :param adapter: name, number (from 1) and folder of its LoRA adapter; None for none.
    """
    options: dict[str, Any] = {}
    if adapter is not None:
        from vllm.lora.request import LoRARequest

        options["lora_request"] = LoRARequest(*adapter)
    llm.llm_engine.add_request(request_id, {"prompt_token_ids": prompt}, parameters, **options)


def external_id(request_id: str) -> str:
    """The id that ``add_request`` was given: vLLM may have appended a suffix behind a dash."""
    return request_id.partition("-")[0]


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


def drafter_of(runner: Any) -> Any:
    """The model runner's drafter: ``drafter`` in V1, ``speculator`` in V2, or ``None``."""
    return getattr(runner, "drafter", None) or getattr(runner, "speculator", None)


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


def draft_graph_facts(worker: Any) -> dict[str, Any]:
    """What draft-graphs is and has counted on one rank.  Called in the worker's own process.

    ``runner``: ``v1``, ``v2`` or null; ``state`` and ``text``: what the feature reports;
    ``captured``: graphs by role; ``replayed``: replays by role; ``left``: its other counts by text.
    """
    runner = worker.model_runner
    effects = importlib.import_module("vllm.v1.overlay_effects").effects()
    told = effects.get(DRAFT_GRAPHS) or {"state": None, "text": "", "counts": {}}
    replays = importlib.import_module(f"{DRAFT_GRAPHS_PACKAGE}.figures").REPLAYS
    replayed: Counter[str] = Counter()
    for (role, _), (name, _) in replays.items():
        replayed[role] += told["counts"].get(name, 0)
    known = {name for name, _ in replays.values()}
    dispatcher = getattr(drafter_of(runner), "cudagraph_dispatcher", None)
    return {
        "rank": int(worker.rank),
        "runner": None if (version := runner_version(runner)) is None else version.value,
        "state": told["state"],
        "text": told["text"],
        "captured": dict(Counter(key.role for key in getattr(dispatcher, "draft_keys", ()))),
        "replayed": {role: count for role, count in replayed.items() if count},
        "left": {name: count for name, count in told["counts"].items() if name not in known},
    }


def runner_version(runner: Any) -> ModelRunner | None:
    """Which model runner an object is; ``None`` for any other."""
    modules = {cls.__module__ for cls in type(runner).__mro__}
    if "vllm.v1.worker.gpu.model_runner" in modules:
        return ModelRunner.V2
    return ModelRunner.V1 if "vllm.v1.worker.gpu_model_runner" in modules else None


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
