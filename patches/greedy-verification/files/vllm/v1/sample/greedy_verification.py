# SPDX-License-Identifier: Apache-2.0
"""Drafts of greedy requests are verified from one look at the logits.

Upstream copies the rows of the drafts and of the bonus tokens apart, each to float32, and takes the
argmax of either copy. Where all requests are greedy and nothing changes a logit, that is the argmax
of the rows as they are: float32 holds every bfloat16 and float16 exactly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

VARIABLE = "OVERLAY_GREEDY_VERIFICATION"

# PyTorch reduces a row in one block until that would have 256 values for each of its 512 threads.
# Splitting was measured to pay (`bench/results/h200-split-argmax-2026-11-21.json` of vllm-overlay)
# for more logits than one block reads quickly, fewer than those for which PyTorch takes several
# blocks itself, and so few rows that they leave the GPU idle.
_ONE_BLOCK = range(1 << 16, 1 << 17)
_FEW_ROWS = 8
# Blocks that read at the same time: some for each of the 132 multiprocessors of an H200.
_BLOCKS = 512

# Logits processors of vLLM that every batch has and that do nothing while this is empty.
_IDLE_WHILE_EMPTY = {"LogitBiasLogitsProcessor": "biases", "MinTokensLogitsProcessor": "min_toks"}


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for it; it does where the variable is unset or empty.

    Raises ValueError for anything but on and off.
    """
    value = environ.get(VARIABLE) or "on"
    if value not in ("on", "off"):
        raise ValueError(f"{VARIABLE} is {value!r}; set it to on or off")
    return value == "on"


def switched_on() -> bool:
    """`wanted` of the process's environment; what a RejectionSampler keeps of it."""
    return wanted(os.environ)


def first_largest(logits: torch.Tensor) -> torch.Tensor:
    """`logits.argmax(dim=-1)`, by way of the largest of each part of a row.

    logits: [N, V]. Returns [N] int64: as `argmax`, of several largest the first, and NaN is larger
    than all numbers. Where splitting does not pay, or no power of two splits V, it is `argmax`.
    """
    rows, size = logits.shape
    parts = size & -size if size in _ONE_BLOCK and rows <= _FEW_ROWS else 1
    while parts > 1 and rows * parts > _BLOCKS:
        parts //= 2
    if parts < 2:
        return logits.argmax(dim=-1)
    largest, place = logits.reshape(rows, parts, size // parts).max(dim=-1)
    part = largest.argmax(dim=-1, keepdim=True)
    return torch.add(place.gather(-1, part), part, alpha=size // parts).squeeze(-1)


@dataclass(frozen=True)
class KnownArgmax:
    """Stands for target logits where nothing but their argmax is asked for.

    tokens: [drafts] int64, the argmax of each row. vocab_size: columns of the logits.
    """

    tokens: torch.Tensor
    vocab_size: int
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        """Of the logits: [drafts, vocab_size]."""
        return self.tokens.shape[0], self.vocab_size

    @property
    def device(self) -> torch.device:
        """Of the logits."""
        return self.tokens.device

    def argmax(self, dim: int) -> torch.Tensor:
        """The argmax of each row, [drafts] int64; `dim` must be the last."""
        if dim != -1:
            raise ValueError(f"the argmax is known along the last dimension only, not {dim}")
        return self.tokens


def verify_greedily(
    sampler: Any, metadata: Any, logits: torch.Tensor, sampling_metadata: Any
) -> torch.Tensor | None:
    """What upstream's `RejectionSampler.forward` samples, [requests, K+1] int32, or None.

    None where the batch has anything but greedy requests whose logits nobody changes or asks for;
    then nothing was done.

    sampler: the RejectionSampler. metadata: SpecDecodeMetadata. logits: [drafts + requests, vocab].
    """
    # A subclass need not have the attribute, and is not plain.
    if not is_plain(sampler, sampling_metadata) or not sampler.verifies_greedily:
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
    return verified


def is_plain(sampler: Any, sampling_metadata: Any) -> bool:
    """Whether all requests are greedy, and nobody changes their logits or asks for them."""
    asked = sampling_metadata
    # From 0.21 on; it has requests that think within a budget.
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
        and _is_upstreams(sampler, "RejectionSampler")
        and _is_upstreams(sampler.sampler, "Sampler")
    )


def _is_idle(processor: Any) -> bool:
    """Whether a logits processor is one of vLLM's own that has nothing to do."""
    kind = type(processor)
    if kind.__module__ != "vllm.v1.sample.logits_processor.builtin":
        return False
    requests = _IDLE_WHILE_EMPTY.get(kind.__name__)
    return requests is not None and not getattr(processor, requests)


def _is_upstreams(sampler: Any, name: str) -> bool:
    """Whether it is the class of vLLM itself, and no subclass that may sample otherwise."""
    kind = type(sampler)
    return kind.__name__ == name and kind.__module__.startswith("vllm.v1.sample.")
