"""Hooks (``post_load``) that break the drafter, to show that the oracle notices."""

from __future__ import annotations

from typing import Any

from overlay.proof.engine_compat import drafter_of


def forget_hidden_states(llm: Any) -> str:
    """Hand the draft model zeros instead of the hidden states it should go on from."""
    return _wrap(llm, "hidden_states", lambda hidden: hidden * 0)


def stand_still(llm: Any) -> str:
    """Hand the draft model position 0 for every token."""
    return _wrap(llm, "positions", lambda positions: positions * 0)


def _wrap(llm: Any, name: str, change: Any) -> str:
    model = drafter_of(llm.llm_engine.model_executor.driver_worker.worker.model_runner).model
    stock = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        kwargs[name] = change(kwargs[name])
        return stock(*args, **kwargs)

    model.forward = forward
    return f"every {name} is changed"
