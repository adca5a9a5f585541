# SPDX-License-Identifier: Apache-2.0
"""Begins a grammar right behind the end of the reasoning where that lies inside a step's drafts.

Upstream looks for the end in the last token of a step, tells the grammar nothing of the step that
has it, and up to 0.24 masks none of its places.  Where drafts behind the end were accepted, the
answer is held to no grammar at all, or to one that begins in its middle.

Here the places behind an end among the drafts are masked, and the grammar is told what follows it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "reasoning-end"
VARIABLE = "OVERLAY_REASONING_END"
HEARD = "steps with an answer behind the end of the reasoning"
MASKED = "steps masked behind an end among the drafts"


def begin_behind_reasoning(manager: Any) -> None:
    """Prepare the StructuredOutputManager that a Scheduler gets, and report the feature's effect.

    Raises ValueError if the switch is neither on nor off.
    """
    report_effect(manager)
    manager._tokens_of_answer = tokens_of_answer
    # What has this masks the places behind an end among the drafts itself, from 0.25.0 on.
    if not hasattr(manager, "trim_reasoning_for_advance"):
        upstream = manager.grammar_bitmask
        manager.grammar_bitmask = functools.partial(_bitmask, manager, upstream)


def report_effect(manager: Any) -> None:
    """Report the feature's effect in the process of a StructuredOutputManager.

    Raises ValueError if the switch is neither on nor off.
    """
    if not is_on(VARIABLE):
        idle(FEATURE, f"{VARIABLE}=off")
    elif manager.vllm_config.speculative_config is None:
        idle(FEATURE, "there is no speculative decoding")
    elif not manager.vllm_config.structured_outputs_config.reasoning_parser:
        idle(FEATURE, "there is no reasoning parser")
    else:
        active(FEATURE, "grammars begin right behind the end of the reasoning")


def tokens_of_answer(manager: Any, request: Any, tokens: list[int]) -> list[int]:
    """What the grammar of a request is told of a step: upstream's, or what follows an end in it.

    manager: StructuredOutputManager.
    request: Request, with the tokens in its list already.
    """
    reasoner = _reasoner(manager, request) if tokens else None
    if reasoner is None:
        return tokens
    every = request.all_token_ids
    end = _end(reasoner, every, len(every) - len(tokens))
    if end is None:
        return tokens
    request.structured_output_request.reasoning_ended = True
    answer = tokens[end:]
    if answer:
        count(FEATURE, HEARD)
    return answer


def _bitmask(
    manager: Any,
    upstream: Callable[..., Any],
    requests: Mapping[str, Any],
    ids: Sequence[str],
    scheduled: Mapping[str, list[int]],
) -> Any:
    """Upstream's bitmask, with the rows behind an end among the drafts masked, too."""
    bitmask = upstream(requests, ids, scheduled)
    first = 0
    for request_id in ids:
        drafts = scheduled.get(request_id, ())
        mask_window(manager, requests[request_id], first, drafts)
        first += len(drafts) + 1
    return bitmask


def mask_window(manager: Any, request: Any, first: int, drafts: Any) -> bool:
    """Fill a request's rows of the bitmask if its reasoning ends in its drafts; whether it did.

    manager: StructuredOutputManager.
    first: number of the row of its first draft.
    drafts: list of tokens, with -1 where nobody knows them.
    """
    reasoner = _reasoner(manager, request) if drafts else None
    if reasoner is None or getattr(manager.vllm_config.model_config, "is_diffusion", False):
        return False
    every = list(request.all_token_ids)
    known = drafts[: drafts.index(-1)] if -1 in drafts else drafts
    # Drafts may not come true: a parser that remembers must not have seen them.
    end = _end(copy.copy(reasoner), every + known, len(every))
    if end is None:
        return False
    grammar = request.structured_output_request.grammar
    answer = grammar.validate_tokens(known[end:])
    for row in range(len(drafts) + 1):
        # Behind a draft that the grammar forbids nothing is accepted, so no mask is needed there.
        inside = 0 <= row - end <= len(answer)
        manager._fill_bitmasks(((grammar, first + row, inside),))
        if inside and row - end < len(answer):
            grammar.accept_tokens(request.request_id, [answer[row - end]])
    if answer:
        grammar.rollback(len(answer))
    count(FEATURE, MASKED)
    return True


def _reasoner(manager: Any, request: Any) -> Any:
    """The parser of a request that still reasons, and whose grammar begins behind that."""
    asked = request.structured_output_request
    if asked is None or asked.reasoning_ended or manager.enable_in_reasoning or not is_on(VARIABLE):
        return None
    # 0.20.0 has one parser for all requests.
    own = getattr(manager, "_get_reasoner", None)
    return own(request) if own else manager.reasoner


def _end(reasoner: Any, every: Any, first: int) -> int | None:
    """How many tokens from a first one on come up to the end of the reasoning, the end included.

    every: list of tokens, with those in which an end is looked for at its end.
    """
    fresh = copy.copy(reasoner)
    step = list(every[first:])
    if not step or not reasoner.is_reasoning_end_streaming(every, step):
        return None
    for number in range(1, len(step)):
        if fresh.is_reasoning_end_streaming(every[: first + number], step[number - 1 : number]):
            return number
    return len(step)
