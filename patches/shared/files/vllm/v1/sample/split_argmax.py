# SPDX-License-Identifier: Apache-2.0
"""Computes an argmax over rows of logits with all of the GPU.

PyTorch reduces a row in one block until that would have 256 values for each of its 512 threads.
With few rows that leaves nearly all of the GPU idle: 26 microseconds with 128,256 logits on an
H200; split, one row takes 10 and eight take 15 (`bench/results/h200-split-argmax-2026-11-21.json`
of vllm-overlay).

The features draft-graphs and greedy-verification add this module with the same bytes.
"""

from __future__ import annotations

import torch

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
