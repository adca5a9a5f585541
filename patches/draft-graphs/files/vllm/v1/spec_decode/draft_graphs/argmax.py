# SPDX-License-Identifier: Apache-2.0
"""Samples greedy draft tokens with an argmax that keeps the whole GPU busy.

PyTorch reduces a row in one block until that would have 256 values for each of its 512 threads.
The few rows of a draft pass leave nearly all of the GPU idle for it: 26 microseconds with 128,256
logits on an H200, three times a step with K = 3; split, one row takes 10 and eight take 15
(`bench/results/h200-split-argmax-2026-11-21.json` of vllm-overlay).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# Where splitting was measured to pay: more logits than one block reads quickly, fewer than those
# for which PyTorch takes several blocks itself, and so few rows that they leave the GPU idle.
_ONE_BLOCK = range(1 << 16, 1 << 17)
_FEW_ROWS = 8
# Blocks that read at the same time: some for each of the 132 multiprocessors of an H200.
_BLOCKS = 512


def first_largest(logits: torch.Tensor) -> torch.Tensor:
    """Compute `logits.argmax(dim=-1)` from the largest element of each part of a row.

    logits: [rows, columns].

    Returns [rows] int64. Like `argmax` it takes the first of equal elements, and NaN is larger than
    all numbers. It is `argmax` itself where splitting does not pay or no power of two divides the
    columns.
    """
    rows, size = logits.shape
    parts = _parts(rows, size)
    if parts < 2:
        return logits.argmax(dim=-1)
    largest, place = logits.reshape(rows, parts, size // parts).max(dim=-1)
    part = largest.argmax(dim=-1, keepdim=True)
    return torch.add(place.gather(-1, part), part, alpha=size // parts).squeeze(-1)


def _parts(rows: int, size: int) -> int:
    """The largest power of two that splits a row evenly into at most _BLOCKS blocks in all.

    1 where splitting does not pay.
    """
    parts = size & -size if size in _ONE_BLOCK and rows <= _FEW_ROWS else 1
    while parts > 1 and rows * parts > _BLOCKS:
        parts //= 2
    return parts


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


def greedy_sample(proposer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Run the proposer's own `_greedy_sample` with a split argmax.

    hidden_states: [num_reqs, hidden].

    Returns [num_reqs] int64.
    """
    with _SplitArgmax():
        tokens: torch.Tensor = proposer._greedy_sample(hidden_states)
    return tokens
