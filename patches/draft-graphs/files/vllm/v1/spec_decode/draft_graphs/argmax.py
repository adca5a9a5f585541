# SPDX-License-Identifier: Apache-2.0
"""Samples greedy draft tokens with an argmax that keeps the whole GPU busy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.v1.sample.split_argmax import first_largest


class _SplitArgmax(TorchFunctionMode):  # type: ignore[misc, unused-ignore] # no torch, no type
    """Replaces `argmax(dim=-1)` of a matrix by `first_largest`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.argmax and kwargs == {"dim": -1} and args[0].dim() == 2:
            return first_largest(args[0])
        return func(*args, **kwargs)


def split_argmax() -> AbstractContextManager[Any]:
    """A context in which each argmax over the rows of a matrix is split over the whole GPU."""
    return _SplitArgmax()


def greedy_sample(
    proposer: Any,
    # [num_reqs, hidden] of the model's dtype
    hidden_states: torch.Tensor,
) -> torch.Tensor:
    """Run the proposer's own `_greedy_sample` with a split argmax.

    Returns [num_reqs] int64.
    """
    with split_argmax():
        tokens: torch.Tensor = proposer._greedy_sample(hidden_states)
    return tokens
