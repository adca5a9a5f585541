# SPDX-License-Identifier: Apache-2.0
"""Verifies the drafts of greedy requests from one argmax over the logits.

Upstream copies the rows of the drafts and of the bonus tokens into two float32 tensors and takes
the argmax of each. Where all requests are greedy and nothing changes a logit, that is the argmax
of the rows as they are: float32 holds every bfloat16 and float16 exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on
from vllm.v1.sample.split_argmax import first_largest

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "greedy-verification"
VARIABLE = "OVERLAY_GREEDY_VERIFICATION"

# Logits processors of vLLM that every batch has and that do nothing while this is empty.
_IDLE_WHILE_EMPTY = {"LogitBiasLogitsProcessor": "biases", "MinTokensLogitsProcessor": "min_toks"}


def switched_on() -> bool:
    """Whether this process's environment asks for it; a RejectionSampler asks once and keeps it.

    Reports the answer as the feature's effect. Raises ValueError if the switch is neither on nor
    off.
    """
    on = is_on(VARIABLE)
    if on:
        active(FEATURE, "batches of plain greedy requests are verified from one argmax")
    else:
        idle(FEATURE, f"{VARIABLE}=off")
    return on


@dataclass(frozen=True)
class KnownArgmax:
    """Replaces target logits where only their argmax is read.

    tokens: [drafts] int64, the argmax of each row.
    vocab_size: columns of the logits.
    """

    tokens: torch.Tensor
    vocab_size: int
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the logits, [drafts, vocab_size]."""
        return self.tokens.shape[0], self.vocab_size

    @property
    def device(self) -> torch.device:
        """Device of the logits."""
        return self.tokens.device

    def argmax(self, dim: int) -> torch.Tensor:
        """The argmax of each row, [drafts] int64; `dim` must be the last."""
        if dim != -1:
            raise ValueError(f"the argmax is known along the last dimension only, not {dim}")
        return self.tokens


def verify_greedily(
    # the RejectionSampler
    sampler: Any,
    # SpecDecodeMetadata
    metadata: Any,
    # [drafts + requests, vocab] of the model's dtype
    logits: torch.Tensor,
    sampling_metadata: Any,
) -> torch.Tensor | None:
    """Sample what upstream's `RejectionSampler.forward` samples, [requests, K+1] int32.

    Returns None, having done nothing, unless all requests are greedy and nothing changes or reads
    their logits.
    """
    # A subclass need not have the attribute, and is not plain.
    if not is_plain(sampler, sampling_metadata) or not sampler.verifies_greedily:
        count(FEATURE, "batches left to upstream")
        return None
    from vllm.v1.sample.rejection_sampler import rejection_sample

    tokens = first_largest(logits)
    bonus = tokens.index_select(0, metadata.bonus_logits_indices).to(torch.int32)
    target = tokens.index_select(0, metadata.target_logits_indices)
    verified: torch.Tensor = rejection_sample(
        metadata.draft_token_ids,
        metadata.num_draft_tokens,
        metadata.max_spec_len,
        metadata.cu_num_draft_tokens,
        None,  # probabilities of the drafts: greedy requests do not need them
        KnownArgmax(target, logits.shape[-1]),
        bonus.unsqueeze(-1),
        sampling_metadata,
        synthetic_mode=sampler.synthetic_mode,
        synthetic_conditional_rates=sampler.synthetic_conditional_rates,
    )
    count(FEATURE, "batches verified from one argmax")
    return verified


def is_plain(sampler: Any, sampling_metadata: Any) -> bool:
    """Whether all requests are greedy, and nothing changes or reads their logits."""
    asked = sampling_metadata
    # From 0.21 on: holds the requests that think within a budget.
    budget = getattr(asked, "thinking_budget_state_holder", None)
    return bool(
        asked.all_greedy
        and asked.max_num_logprobs is None
        and not asked.logprob_token_ids
        and asked.no_penalties
        and asked.allowed_token_ids_mask is None
        and not asked.bad_words_token_ids
        and all(_is_idle(processor) for processor in asked.logitsprocs.non_argmax_invariant)
        and (budget is None or not budget.has_tracked_requests())
        # From 0.33 on: FLy accepts drafts by the entropy of the logits.
        and getattr(sampler, "fly_window_size", None) is None
        and is_upstreams(sampler, "vllm.v1.sample.", "RejectionSampler")
        and is_upstreams(sampler.sampler, "vllm.v1.sample.", "Sampler")
    )


def _is_idle(processor: Any) -> bool:
    """Whether a logits processor is one of vLLM's own and has no requests to change."""
    kind = type(processor)
    if kind.__module__ != "vllm.v1.sample.logits_processor.builtin":
        return False
    requests = _IDLE_WHILE_EMPTY.get(kind.__name__)
    return requests is not None and not getattr(processor, requests)


def is_upstreams(sampler: Any, package: str, name: str) -> bool:
    """Whether it is vLLM's own class, of a package; a subclass may sample differently."""
    kind = type(sampler)
    return kind.__name__ == name and kind.__module__.startswith(package)
