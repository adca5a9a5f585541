# SPDX-License-Identifier: Apache-2.0
"""Does the bookkeeping of a step for all requests together, with a few numpy operations.

Upstream does it one request at a time. That costs little for few requests, and grows with them.
Here are two such loops: the placeholders that async scheduling notes for the sampled tokens, and
the lists of accepted tokens. What they read and write is the same; a batch of which that is not
certain is left to upstream's loop, before anything was written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from vllm.v1.overlay_effects import active, count, idle

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "batched-bookkeeping"
VARIABLE = "OVERLAY_BATCHED_BOOKKEEPING"

# Fewer rows are left to upstream: numpy's calls cost as much as its loop over about eight
# (bench/results/cpu-batched-bookkeeping-0.26.0-2026-11-23.json of vllm-overlay).
FEWEST_ROWS = 16


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for it; it does where the variable is unset or empty.

    Raises ValueError for anything but on and off.
    """
    value = environ.get(VARIABLE) or "on"
    if value not in ("on", "off"):
        raise ValueError(f"{VARIABLE} is {value!r}; set it to on or off")
    return value == "on"


def report_effect(runner: Any) -> None:
    """Report the feature's effect in the process of a GPUModelRunner that is being made.

    Raises ValueError as `wanted` does.
    """
    if not wanted(os.environ):
        idle(FEATURE, f"{VARIABLE}=off")
    elif runner.use_async_scheduling or runner.speculative_config is not None:
        active(FEATURE, f"the bookkeeping of at least {FEWEST_ROWS} requests is done together")
    else:
        idle(FEATURE, "there is neither async scheduling nor speculative decoding")


def append_placeholders(runner: Any, rows: int, invalid: set[int]) -> bool:
    """Append the placeholder -1 to each row of the batch, and to its request's output tokens.

    runner: GPUModelRunner.
    rows: how many rows were sampled, the first ones of the batch.
    invalid: the rows among them that get no token.

    Returns whether it was done. It is not, and nothing was written, where there are few rows or
    one of them is full: upstream's loop raises its error at that row.
    """
    if rows < FEWEST_ROWS or not wanted(os.environ):
        return False
    batch, requests = runner.input_batch, runner.requests
    if invalid:
        valid = [row for row in range(rows) if row not in invalid]
        index = np.array(valid, dtype=np.intp)
    else:
        valid = list(range(rows))
        index = np.arange(rows)
    starts = batch.num_tokens_no_spec[index]
    # A row may hold more tokens than the model takes, or fewer after its length was reduced.
    longest = min(runner.max_model_len, batch.token_ids_cpu.shape[1])
    if valid and int(starts.max()) >= longest:
        count(FEATURE, "steps with a full row left to upstream")
        return False
    batch.token_ids_cpu[index, starts] = -1
    batch.is_token_ids[index, starts] = True
    batch.num_tokens_no_spec[index] = starts + 1
    req_ids = batch.req_ids
    for row in valid:
        requests[req_ids[row]].output_token_ids.append(-1)
    count(FEATURE, "steps whose placeholders were written together")
    return True


def accepted_tokens(tokens: Any, valid: Any) -> list[list[int]] | None:
    """List the valid tokens of each row, in their order.

    tokens: [rows, K+1] integers, what the rejection sampler gave.
    valid: [rows, K+1] bool, which of them count.

    Returns None, for upstream to do it, where there are few rows or the valid tokens of a row are
    not its first ones (the vocabulary cuts one out).
    """
    if len(tokens) < FEWEST_ROWS or not wanted(os.environ):
        return None
    if (valid[:, 1:] > valid[:, :-1]).any():
        count(FEATURE, "outputs with a gap left to upstream")
        return None
    lengths = valid.sum(axis=1).tolist()
    count(FEATURE, "outputs listed together")
    return [row[:length] for row, length in zip(tokens.tolist(), lengths, strict=True)]
