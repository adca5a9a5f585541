# SPDX-License-Identifier: Apache-2.0
"""Keeps the target's hidden states of prompts until their log probabilities are computed.

Upstream computes them behind the drafts of the step.  The drafter's PIECEWISE graphs share their
memory with the target's, and may have written over the hidden states by then.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "prompt-logprobs"
VARIABLE = "OVERLAY_PROMPT_LOGPROBS"
COPIED = "steps whose hidden states were copied"


def report_effect(runner: Any) -> None:
    """Report the feature's effect in the process of a GPUModelRunner that is being made.

    Raises ValueError if the switch is neither on nor off.
    """
    if not is_on(VARIABLE):
        idle(FEATURE, f"{VARIABLE}=off")
    elif runner.speculative_config is None:
        idle(FEATURE, "there is no speculative decoding")
    else:
        active(FEATURE, "hidden states of prompts with log probabilities are kept beside drafts")


def keep_states(runner: Any, hidden_states: Any) -> Any:
    """The target's hidden states, which no drafter writes over where a prompt needs them.

    runner: GPUModelRunner.
    hidden_states: [tokens, hidden] of the step, of the last stage of a pipeline.
    """
    if not runner.num_prompt_logprobs or runner.speculative_config is None or not is_on(VARIABLE):
        return hidden_states
    if not isinstance(hidden_states, torch.Tensor):
        return hidden_states
    count(FEATURE, COPIED)
    return hidden_states.clone()
