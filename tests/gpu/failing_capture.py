"""Make the capture of one draft graph fail on one rank.

vLLM imports this in every worker (``worker_extension_cls``), before it loads the model.  Which
capture fails is said by ``TEST_FAILING_CAPTURE``: rank, ``first`` or ``last`` key of the
plan, and ``before`` or ``within`` the recording, or ``invalid`` if CUDA itself is to end it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

REASON = "failed on purpose"


class _FailingBackend:
    """A graph backend whose captures fail; everything else is the real one's."""

    def __init__(self, backend: Any, moment: str) -> None:
        self._backend, self._moment = backend, moment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def capture(self, function: Callable[[], None], pool: object) -> Any:
        def recorded() -> None:
            function()
            if self._moment == "invalid":
                _read_a_value()
            raise RuntimeError(REASON)

        if self._moment == "before":
            raise RuntimeError(REASON)
        return self._backend.capture(recorded, pool)


def _read_a_value() -> None:
    """What no capture allows; it does not end well any more."""
    import torch

    try:
        torch.zeros(1, device="cuda").item()
    except RuntimeError as error:
        raise RuntimeError(f"{REASON}: {error}") from error


def install(plan: str) -> None:
    """Let the capture fail that ``plan`` names."""
    from vllm.distributed.parallel_state import get_tp_group
    from vllm.v1.spec_decode.draft_graphs.capture import Captured

    rank, which, moment = plan.split(":")
    stock = Captured.capture

    def capture(self: Any, key: Any, backend: Any) -> None:
        chosen = self.plan[0 if which == "first" else -1]
        if key == chosen and get_tp_group().rank_in_group == int(rank):
            backend = _FailingBackend(backend, moment)
        stock(self, key, backend)

    Captured.capture = capture


class FailingCapture:
    """Mixed into vLLM's worker; all it does is done when this module is imported."""


install(os.environ["TEST_FAILING_CAPTURE"])
