"""What each step of a data-parallel rank costs, as its process sees it: lines of JSON in one file.

``data_parallel_time.py`` installs this in every process that its engine starts, before vLLM is
loaded there. A line is a list of steps of one rank, in order, each with its ``kind`` ("decode N",
where N requests verify K drafts each, "dummy" or "mixed"), when it ``began`` (seconds of a clock
that all processes share), how long the host was in ``propose`` or in a dummy batch (``host``), and
how often the target and the drafter ``asked`` the other ranks.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

EVENTS_VARIABLE = "TEST_DATA_PARALLEL_EVENTS"
#: Steps that are written together: writing is not measured.
TOGETHER = 100

_steps: list[dict[str, Any]] = []


def _begin(rank: int, kind: str) -> dict[str, Any]:
    if len(_steps) >= TOGETHER:
        line = json.dumps(_steps) + "\n"
        _steps.clear()
        descriptor = os.open(os.environ[EVENTS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    step = {"rank": rank, "kind": kind, "began": time.perf_counter(), "host": None, "asked": 0}
    _steps.append(step)
    return step


def kind_of(scheduled: dict[str, int], k: int) -> str:
    """What a batch is, by the tokens of each request."""
    uniform = all(tokens == k + 1 for tokens in scheduled.values())
    return f"decode {len(scheduled)}" if uniform else "mixed"


def install() -> None:
    """Watch this process."""
    from vllm.v1.spec_decode import llm_base_proposer
    from vllm.v1.worker import gpu_model_runner
    from vllm.v1.worker.gpu_worker import Worker

    execute, dummy = Worker.execute_model, Worker.execute_dummy_batch

    def rank_of(self: Any) -> int:
        return int(self.vllm_config.parallel_config.data_parallel_index)

    def execute_model(self: Any, scheduler_output: Any) -> Any:
        if scheduler_output.total_num_scheduled_tokens:
            k = int(self.vllm_config.speculative_config.num_speculative_tokens)
            _begin(rank_of(self), kind_of(scheduler_output.num_scheduled_tokens, k))
        return execute(self, scheduler_output)

    def execute_dummy_batch(self: Any) -> None:
        step = _begin(rank_of(self), "dummy")
        dummy(self)
        step["host"] = time.perf_counter() - step["began"]

    Worker.execute_model = execute_model
    Worker.execute_dummy_batch = execute_dummy_batch
    for module in (llm_base_proposer, gpu_model_runner):
        _watch_agreements(module)
    _watch_propose(llm_base_proposer.SpecDecodeBaseProposer)


def _watch_agreements(module: Any) -> None:
    stock = module.coordinate_batch_across_dp

    def coordinate(*args: Any, **kwargs: Any) -> Any:
        if _steps:
            _steps[-1]["asked"] += 1
        return stock(*args, **kwargs)

    module.coordinate_batch_across_dp = coordinate


def _watch_propose(proposer: Any) -> None:
    stock = proposer.propose

    def propose(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        drafts = stock(self, *args, **kwargs)
        if _steps:
            _steps[-1]["host"] = time.perf_counter() - began
        return drafts

    proposer.propose = propose
