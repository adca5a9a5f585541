"""Hooks for ``run_engine.py``: how many steps of an engine were prepared in which way."""

from __future__ import annotations

from collections import Counter
from typing import Any

_steps: Counter[str] = Counter()


def watch(llm: Any) -> None:
    """Count from now on, in an engine whose worker is in this process."""
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
