# SPDX-License-Identifier: Apache-2.0
"""Keeps a row's count of tokens from running ahead of the scheduler's, at the end of the context.

Under asynchronous scheduling with drafts the runner adds one to the count of each row in each step,
and sets it right only where a request's list of output tokens is longer than the scheduler says.
In a batch in which a request has penalties or the like, each list is cut to what was accepted, so
that this does not happen; and where the drafts of a row near the end are rejected, the scheduler's
count stands still while they get fewer.  The count then passes the end of the context, and the
assertion on it ends the engine.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "context-limit"
VARIABLE = "OVERLAY_CONTEXT_LIMIT"
ALIGNED = "rows whose count was ahead set right"


def report_effect(runner: Any) -> None:
    """Report the feature's effect in the process of a GPUModelRunner that is being made.

    Raises ValueError if the switch is neither on nor off.
    """
    if not is_on(VARIABLE):
        idle(FEATURE, f"{VARIABLE}=off")
    elif not runner.use_async_spec_decode:
        idle(FEATURE, "there is no asynchronous scheduling with drafts")
    elif runner.speculative_config.use_ngram_gpu():
        idle(FEATURE, "drafts by ngram on the GPU have a count of their own")
    else:
        active(FEATURE, "counts of rows near the end of the context follow the scheduler's")


def align_counts(runner: Any, scheduled: Any) -> None:
    """Set right each row near the end of the context whose count is ahead of the scheduler's.

    runner: GPUModelRunner, under asynchronous scheduling with drafts.
    scheduled: SchedulerOutput.

    The scheduler's count, with all that may come of the steps on their way, leaves room for the
    token of this step, so that no row that has it is full.
    """
    batch = runner.input_batch
    near = runner.max_model_len - runner.num_spec_tokens - 1
    # Rows that nobody has any more are among them: that costs a look, and changes nothing.
    if batch.num_tokens_no_spec.max() < near or not is_on(VARIABLE):
        return
    if runner.speculative_config.use_ngram_gpu():
        return
    data = scheduled.scheduled_cached_reqs
    for name, outputs in zip(data.req_ids, data.num_output_tokens, strict=True):
        row = batch.req_id_to_index.get(name)
        if row is None or batch.num_tokens_no_spec[row] < near:
            continue
        expected = batch.num_prompt_tokens[row] + outputs
        if batch.num_tokens_no_spec[row] > expected:
            batch.num_tokens_no_spec[row] = expected
            count(FEATURE, ALIGNED)
