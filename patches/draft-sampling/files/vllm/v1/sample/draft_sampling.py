# SPDX-License-Identifier: Apache-2.0
"""Serves requests with min_p or logit_bias beside drafts.

Rejection sampling gives the distribution of the logits that it is handed.  So the logits at each
draft are changed as the sampler changes those of its one token: by the bias before everything
else, by min_p behind the temperature and before top_k and top_p.  The bonus token comes from the
sampler itself, which asks the processors of the batch.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from vllm.logger import init_logger
from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

logger = init_logger(__name__)

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "draft-sampling"
VARIABLE = "OVERLAY_DRAFT_SAMPLING"
#: The value that serves such requests where engines may run on other machines, too.
EVERYWHERE = "everywhere"
REQUESTS = "requests with min_p or logit_bias beside drafts"
ELSEWHERE = f"engines may run on other machines; {VARIABLE}={EVERYWHERE} serves them"
_ACTIVE = "requests with min_p or logit_bias are served beside drafts"


def allow_requests() -> None:
    """Lift the refusal of min_p and logit_bias in this process, whatever checks requests in it.

    Raises ValueError if the switch has another value than on, everywhere and off.
    """
    from vllm.sampling_params import SamplingParams

    if not is_on(VARIABLE, further=(EVERYWHERE,)):
        idle(FEATURE, f"{VARIABLE}=off")
        return
    idle(FEATURE, "no request beside drafts was checked in this process")
    parameters: Any = SamplingParams
    parameters._validate_spec_decode = without_refusal(parameters._validate_spec_decode)


def without_refusal(check: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Upstream's check of a request beside drafts, of all but min_p and logit_bias.

    check: `SamplingParams._validate_spec_decode`, asked with the SamplingParams and the
        SpeculativeConfig, or None without drafts.
    """

    def allowing(parameters: Any, speculative: Any) -> None:
        if speculative is None or not _is_upstreams_platform():
            check(parameters, speculative)
            return
        if is_elsewhere(speculative.target_parallel_config) and not _is_everywhere():
            idle(FEATURE, ELSEWHERE)
            if parameters.min_p or parameters.logit_bias:
                logger.warning_once("Requests with min_p or logit_bias are refused: %s", ELSEWHERE)
            check(parameters, speculative)
            return
        active(FEATURE, _ACTIVE)
        if not parameters.min_p and not parameters.logit_bias:
            check(parameters, speculative)
            return
        others = copy.copy(parameters)
        others.min_p, others.logit_bias = 0.0, None
        check(others, speculative)
        count(FEATURE, REQUESTS)

    return allowing


def is_elsewhere(parallel: Any) -> bool:
    """Whether an engine may run on another machine, whose vLLM need not be patched.

    An engine that is not would leave min_p and logit_bias out without a word.

    parallel: the target's ParallelConfig.
    """
    return bool(
        parallel.nnodes > 1
        or parallel.data_parallel_size_local < parallel.data_parallel_size
        or "ray" in (parallel.distributed_executor_backend, parallel.data_parallel_backend)
    )


def _is_everywhere() -> bool:
    return os.environ.get(VARIABLE) == EVERYWHERE


def build_logitsprocs(
    config: Any, device: Any, pinned: bool, pooling: bool, custom: Sequence[Any] = ()
) -> Any:
    """The logits processors of a GPUModelRunner's batch, beside drafts those of both, too.

    Of upstream's `build_logitsprocs`, which leaves two of vLLM's own out beside drafts, with its
    arguments. Raises what it raises.
    """
    from vllm.v1.sample.logits_processor import (
        LogitBiasLogitsProcessor,
        LogitsProcessors,
        MinPLogitsProcessor,
        MinTokensLogitsProcessor,
    )
    from vllm.v1.sample.logits_processor import build_logitsprocs as upstream

    if config.speculative_config is None:
        idle(FEATURE, "there is no speculative decoding")
    elif not is_on(VARIABLE, further=(EVERYWHERE,)):
        idle(FEATURE, f"{VARIABLE}=off")
    elif not (pooling or custom) and _is_upstreams_platform():
        active(FEATURE, _ACTIVE)
        kinds = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
        return LogitsProcessors(kind(config, device, pinned) for kind in kinds)
    return upstream(config, device, pinned, pooling, custom)


def _is_upstreams_platform() -> bool:
    """Whether the samplers are vLLM's own: a platform package may bring others."""
    from vllm.platforms import current_platform

    return not (current_platform.is_out_of_tree() or current_platform.is_tpu())


def apply_bias(logits: torch.Tensor, sampling_metadata: Any, metadata: Any) -> torch.Tensor:
    """Add each request's logit_bias to its logits, in place.

    logits: [drafts, vocab], float32.  metadata: SpecDecodeMetadata.
    """
    from vllm.v1.sample.logits_processor.builtin import LogitBiasLogitsProcessor

    for processor in sampling_metadata.logitsprocs.non_argmax_invariant:
        if isinstance(processor, LogitBiasLogitsProcessor) and processor.biases:
            _add(logits, processor.biases, metadata.num_draft_tokens)
    return logits


def _add(logits: torch.Tensor, biases: dict[int, dict[int, float]], drafts: list[int]) -> None:
    """Add biases by request and token to the rows of each request's drafts.

    drafts: how many rows each request has.
    """
    first = np.concatenate(([0], np.cumsum(drafts, dtype=np.int64)))
    rows, tokens, values = [], [], []
    for request, bias in biases.items():
        own = np.arange(first[request], first[request + 1])
        rows.append(np.repeat(own, len(bias)))
        tokens.append(np.tile(np.fromiter(bias.keys(), np.int64, len(bias)), len(own)))
        values.append(np.tile(np.fromiter(bias.values(), np.float32, len(bias)), len(own)))
    at = tuple(_on_device(np.concatenate(each), logits) for each in (rows, tokens))
    # No row has a token twice.
    logits[at] += _on_device(np.concatenate(values), logits)


def _on_device(values: np.ndarray[Any, Any], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values).to(like.device, non_blocking=True)


def apply_min_p(
    logits: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    sampling_metadata: Any,
) -> torch.Tensor:
    """Mask the tokens below each request's min_p, in place.

    logits: [drafts, vocab], float32, behind the temperature.
    cu_num_draft_tokens: [requests].
    """
    from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor

    for processor in sampling_metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, MinPLogitsProcessor) and processor.min_p_count:
            drafts = torch.arange(logits.shape[0], device=logits.device, dtype=torch.int32)
            # Not by upstream's expansion, which does not write floats on a CPU.
            requests = torch.searchsorted(cu_num_draft_tokens, drafts, right=True)
            chances = logits.softmax(dim=-1)
            least = chances.amax(dim=-1, keepdim=True) * processor.min_p[requests]
            logits.masked_fill_(chances < least, -float("inf"))
    return logits
