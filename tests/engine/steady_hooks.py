"""Hooks for ``run_engine.py``: asynchronous scheduling on a CPU, and what the features did.

vLLM schedules asynchronously on GPUs only, since a CPU has no streams to overlap.  With streams and
events that do nothing, its runner takes the same way here: everything is done when it is called.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

from tests.gpu.graph_hooks import watch_verification

_steps: Counter[str] = Counter()


class _Idle:
    """A stream or an event where all work is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def _nothing(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = wait = record = record_event = synchronize = _nothing

    def query(self) -> bool:
        return True


def schedule_asynchronously() -> None:
    """Let vLLM's CPU platform schedule asynchronously."""
    import torch
    from vllm.platforms.cpu import CpuPlatform

    # Where mypy sees PyTorch and vLLM, it lets nobody replace what is theirs.
    for name in ("Stream", "Event"):
        setattr(torch.cuda, name, _Idle)
    # A double takes the place of what has another type.
    torch.Event = _Idle  # type: ignore[assignment, misc, unused-ignore]
    # A double takes the place of what has another type.
    torch.cuda.current_stream = lambda *_: _Idle()  # type: ignore[assignment, return-value, unused-ignore]
    # A double takes the place of what has another type.
    torch.cuda.stream = lambda *_: contextlib.nullcontext()  # type: ignore[assignment, return-value, unused-ignore]
    # A double takes the place of what has another type.
    update = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined, unused-ignore]

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        update(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    # A double takes the place of what has another type.
    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)  # type: ignore[assignment, unused-ignore]


def watch(llm: Any) -> None:
    """Count from now on, in an engine whose worker is in this process.

    Batches of any size are kept together, since there are few requests.
    """
    from vllm.v1.core import steady_steps
    from vllm.v1.worker import batched_bookkeeping

    batched_bookkeeping.FEWEST_ROWS = batched_bookkeeping.FEWEST_GOING_ON = 1
    steady_steps.FEWEST = 1
    watch_verification(_steps)
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    inner_all = runner._prepare_inputs

    def prepare_inputs(*args: Any) -> Any:
        _steps["all"] += 1
        return inner_all(*args)

    runner._prepare_inputs = prepare_inputs
    if runner.steady_inputs is None:
        return
    decode = runner.steady_inputs._decode
    inner = decode.prepare

    def prepare(*args: Any) -> Any:
        _steps["steady"] += 1
        return inner(*args)

    decode.prepare = prepare


def steps(_: Any) -> dict[str, int]:
    """The counts."""
    return dict(_steps)


def bookkeeping(_: Any) -> dict[str, Any]:
    """What `batched-bookkeeping` reports of this process."""
    from vllm.v1.overlay_effects import effects

    told: dict[str, Any] = effects()["batched-bookkeeping"]
    return told


def scheduling(_: Any) -> dict[str, Any]:
    """What `steady-scheduler` reports of this process."""
    from vllm.v1.overlay_effects import effects

    report: dict[str, Any] = effects()["steady-scheduler"]
    return report
