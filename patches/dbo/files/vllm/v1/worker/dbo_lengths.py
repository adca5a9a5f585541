# SPDX-License-Identifier: Apache-2.0
"""Keeps the sequence lengths of a micro-batch where a captured graph reads them.

Drafts bring 1 + K tokens for each request, and the batch is cut at half of its tokens: one request,
or any odd number of them, is cut inside a request. The first micro-batch then needs a shorter
length for its last request, for which upstream copies the lengths in every step. A graph that was
captured reads the copy of its capture for ever.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "dbo-lengths"
VARIABLE = "OVERLAY_DBO_LENGTHS"
#: The runner's attribute: number of the micro-batch -> [requests] lengths.
BUFFERS = "dbo_lengths"


def keep_lengths(runner: Any, micro_batch: int, metadata: Any, whole: Any) -> None:
    """Keep a micro-batch's copied sequence lengths where the step before had them.

    runner: GPUModelRunner, which gets the buffers, one for each micro-batch.
    micro_batch: its number, from 0.
    metadata: its CommonAttentionMetadata, whose seq_lens ([requests of the micro-batch]) becomes a
    part of the buffer, with the same values, if they are a copy.
    whole: that of the batch. Lengths that are a view of its seq_lens are at the same place always.

    Reports the feature's effect. Raises ValueError if the switch is neither on nor off.
    """
    if not is_on(VARIABLE):
        idle(FEATURE, f"{VARIABLE}=off")
        return
    active(FEATURE, "graphs of micro-batches read the sequence lengths of the step")
    lengths = metadata.seq_lens
    if lengths.untyped_storage().data_ptr() == whole.seq_lens.untyped_storage().data_ptr():
        return
    buffers = runner.__dict__.setdefault(BUFFERS, {})
    if micro_batch not in buffers:
        buffers[micro_batch] = lengths.new_zeros(runner.max_num_reqs)
    kept = buffers[micro_batch][: lengths.shape[0]]
    kept.copy_(lengths)
    metadata.seq_lens = kept
    count(FEATURE, "micro-batches that end inside a request")
