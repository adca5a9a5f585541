# SPDX-License-Identifier: Apache-2.0
"""Counts the tokens of requests with min_tokens right before they are sampled for.

Upstream's processor asks for the length of a request's list of tokens when the step is prepared.
Under asynchronous scheduling drafts that are not verified yet stand in the list; once they would be
enough it forgets the request for good.  And it keeps the stop tokens of every request that it knows
from the token behind the drafts, which may come when enough of them are accepted.

By the time a step is sampled it is known what became of the step before.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "min-tokens"
VARIABLE = "OVERLAY_MIN_TOKENS"
COUNTED = "steps whose requests with min_tokens were counted"
#: No row: an entry that upstream takes out, upon which it makes its masks anew.
NOBODY = -1


class TokenCount:
    """Stands for a list of tokens of which the number alone is asked for."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number


def report_effect(runner: Any) -> None:
    """Report the feature's effect in the process of a GPUModelRunner that is being made.

    Raises ValueError if the switch is neither on nor off.
    """
    if not is_on(VARIABLE):
        idle(FEATURE, f"{VARIABLE}=off")
    elif runner.speculative_config is None:
        idle(FEATURE, "there is no speculative decoding")
    else:
        active(FEATURE, "tokens are counted for min_tokens when drafts have been verified")


def count_tokens(runner: Any, scheduled: Any) -> None:
    """Let the processor of min_tokens know how many tokens each of its requests has.

    runner: GPUModelRunner, whose step is about to be sampled.
    scheduled: SchedulerOutput.
    """
    if runner.speculative_config is None or not is_on(VARIABLE):
        return
    from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor

    for processor in runner.input_batch.logitsprocs.non_argmax_invariant:
        if isinstance(processor, MinTokensLogitsProcessor) and processor.min_toks:
            _count(processor, runner.input_batch, scheduled)


def _count(processor: Any, batch: Any, scheduled: Any) -> None:
    """Keep a processor's requests that lack tokens, and mask what comes behind the drafts."""
    lacking, masked = {}, {}
    for row, (least, _, *rest) in processor.min_toks.items():
        name = batch.req_ids[row]
        drafts = len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
        tokens = batch.num_computed_tokens_cpu[row] + scheduled.num_scheduled_tokens[name]
        known = max(int(tokens) - drafts - int(batch.num_prompt_tokens[row]), 0)
        if known < least:
            lacking[row] = (least, TokenCount(known), *rest)
            if known + drafts < least:
                masked[row] = lacking[row]
    # Upstream makes the masks for the token behind the drafts of those that it has now ...
    processor.min_toks = {**masked, NOBODY: (0, (), *rest)}
    processor.update_state(None)
    # ... and those at the drafts, as many as a request still lacks, of these.
    processor.min_toks = lacking
    count(FEATURE, COUNTED)
