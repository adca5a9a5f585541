# SPDX-License-Identifier: Apache-2.0
"""Verifies the drafts of greedy requests on model runner V2 by two kernels.

Upstream gathers drafts and positions, reduces the logits of the drafts, accepts, reduces those of
the tokens behind them, inserts these and counts: six kernels with up to 45 arguments, which cost
the host more than the GPU. Where all requests are greedy and nothing changes a logit, each token
is the argmax of its row: one kernel reduces all rows, another verifies and counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on
from vllm.v1.sample.greedy_verification import FEATURE, VARIABLE, is_upstreams

if TYPE_CHECKING:
    import triton
    import triton.language as tl
    from vllm.v1.worker.gpu.sample import gumbel
else:
    from vllm.triton_utils import tl, triton
    from vllm.v1.worker.gpu.sample import gumbel

# Methods that take a greedy request's draft where it is the argmax: all but FLy (from 0.33 on).
_BY_ARGMAX = ("strict", "probabilistic", "standard", "block")
# As upstream's: logits that one program reduces.
_BLOCK = 8192

# Until 0.24 upstream draws 64 bits: synthetic drafts are left to it there.
tl_rand32: Any = getattr(gumbel, "tl_rand32", None)


@dataclass(frozen=True)
class Verification:
    """What the release's own rejection sampler does; a RejectionSampler keeps it.

    synthetic: it accepts drafts at random, by rates.
    placeholders: it rejects the drafts of a step that starts within a prefill (from 0.31 on).
    counts: it counts what is rejected, and a chunk of a prefill samples nothing (from 0.24 on).
    output: its class of answers.
    """

    synthetic: bool
    placeholders: bool
    counts: bool
    output: type[Any]


def prepare(
    # the RejectionSampler
    rejection: Any,
    # its Sampler
    sampler: Any,
    spec_config: Any,
) -> Verification | None:
    """How a RejectionSampler's batches are verified; None where upstream verifies all of them.

    Reports the answer as the feature's effect. Raises ValueError if the switch is neither on nor
    off.
    """
    if not is_on(VARIABLE):
        idle(FEATURE, f"{VARIABLE}=off")
        return None
    reason = _reason_against_all(rejection, sampler, spec_config)
    if reason is not None:
        idle(FEATURE, reason)
        return None
    from vllm.v1.worker.gpu.sample.output import SamplerOutput
    from vllm.v1.worker.gpu.spec_decode import (  # type: ignore[attr-defined, unused-ignore]
        rejection_sampler,
    )

    active(FEATURE, "batches of plain greedy requests are verified by two kernels")
    return Verification(
        synthetic=spec_config.rejection_sample_method == "synthetic",
        placeholders=hasattr(rejection_sampler, "gather_draft_sampled"),
        counts="num_rejected" in SamplerOutput.__annotations__,
        output=SamplerOutput,
    )


def verify_greedily(
    # the RejectionSampler
    sampler: Any,
    # [drafts + requests, vocab] of the model's dtype
    logits: torch.Tensor,
    # the InputBatch
    input_batch: Any,
    # of each slot and step
    draft_logits: torch.Tensor | None,
    # [drafts + requests], from 0.32 on
    invalid_drafts: torch.Tensor | None,
    num_nans: torch.Tensor | None,
) -> Any | None:
    """Sample what upstream's `RejectionSampler.__call__` samples.

    Returns None, having done nothing, unless all requests are greedy and nothing changes or reads
    their logits.
    """
    # A subclass need not have the attribute, and is not plain.
    ours = getattr(sampler, "greedy_verification", None)
    if ours is None:
        return None
    reason = _reason_against(
        sampler.sampler, input_batch.idx_mapping_np, logits, draft_logits, invalid_drafts
    )
    if reason is not None:
        count(FEATURE, f"batches with {reason} left to upstream")
        return None
    count(FEATURE, "batches verified from one argmax")
    return _sample(ours, sampler, logits, input_batch, num_nans)


def _reason_against_all(rejection: Any, sampler: Any, spec_config: Any) -> str | None:
    """Why upstream verifies all batches, if it does."""
    method = spec_config.rejection_sample_method
    if not is_upstreams(rejection, "vllm.v1.worker.gpu.", "RejectionSampler"):
        return "the rejection sampler is not vLLM's own"
    # A watermark has its own sampler, too.
    if not is_upstreams(sampler, "vllm.v1.worker.gpu.", "Sampler"):
        return "the sampler is not vLLM's own"
    if method not in _BY_ARGMAX and not (method == "synthetic" and tl_rand32 is not None):
        return f"drafts are accepted by the method {method}"
    if getattr(spec_config, "enable_adaptive_verification", False):
        return "drafts are verified adaptively"
    if getattr(sampler, "return_sampling_mask", False):
        return "the tokens that could be sampled are returned"
    return None


def _reason_against(
    # the Sampler
    sampler: Any,
    # [requests] of numpy, their slots
    slots: Any,
    logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    invalid_drafts: torch.Tensor | None,
) -> str | None:
    """What a batch has for which upstream verifies it, if it has something."""
    states = sampler.sampling_states
    if states.temperature.np[slots].any():
        return "requests that are not greedy"
    if _processes(sampler, slots):
        return "changes of the logits"
    if states.max_num_logprobs(slots) >= 0:
        return "log probabilities"
    if invalid_drafts is not None:
        return "drafts that a grammar forbids"
    # Upstream looks at the tokens that both have.
    if draft_logits is not None and draft_logits.shape[-1] < logits.shape[-1]:
        return "a draft of fewer tokens"
    return None


def _processes(sampler: Any, slots: Any) -> bool:
    """Whether upstream changes a logit of one of the requests."""
    needs = getattr(sampler, "needs_logits_processing", None)
    if needs is not None:  # from 0.28 on
        return bool(needs[slots].any())
    return bool(
        sampler.logit_bias_state.use_logit_bias[slots].any()
        or sampler.penalties_state.use_penalty[slots].any()
        or sampler.bad_words_state.num_bad_words.np[slots].any()
    )


def _sample(
    ours: Verification,
    sampler: Any,
    logits: torch.Tensor,
    input_batch: Any,
    num_nans: torch.Tensor | None,
) -> Any:
    """The release's answer, by the two kernels."""
    rows, width = logits.shape
    blocks = -(-width // _BLOCK)
    largest = logits.new_empty(rows, blocks, dtype=torch.float32)
    tokens = logits.new_empty(rows, blocks, dtype=torch.int32)
    _largest_kernel[(rows, blocks)](
        largest, tokens, logits, logits.stride(0), width, blocks=blocks, size=_BLOCK
    )
    requests, steps = input_batch.num_reqs, sampler.num_speculative_steps
    sampled = logits.new_empty(requests, steps + 1, dtype=torch.int64)
    num_sampled = logits.new_empty(requests, dtype=torch.int32)
    num_rejected = torch.empty_like(num_sampled) if ours.counts else None
    _verify_kernel[(requests,)](
        sampled,
        num_sampled,
        num_rejected,
        largest,
        tokens,
        input_batch.input_ids,
        input_batch.positions,
        input_batch.logits_indices,
        input_batch.cu_num_logits,
        input_batch.idx_mapping,
        input_batch.seq_lens,
        sampler.sampler.req_states.prefill_len.gpu if ours.counts else None,
        sampler.sampler.sampling_states.seeds.gpu,
        sampler.synthetic_conditional_rates,
        width=steps + 1,
        blocks=blocks,
        padded=triton.next_power_of_2(blocks),
        synthetic=ours.synthetic,
        placeholders=ours.placeholders,
        counts=ours.counts,
        num_warps=1,
    )
    further = {"num_rejected": num_rejected} if ours.counts else {}
    return ours.output(
        sampled_token_ids=sampled,
        logprobs_tensors=None,
        num_nans=num_nans,
        num_sampled=num_sampled,
        **further,
    )


# Not annotated: Triton compiles the signatures, too. Where mypy sees Triton at all, its decorators
# have no types.
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _largest_kernel(  # type: ignore[no-untyped-def]
    # of each row and block
    largest_ptr,
    tokens_ptr,
    logits_ptr,
    logits_stride,
    width,
    blocks: tl.constexpr,
    size: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    columns = block * size + tl.arange(0, size)
    mask = columns < width
    logits = tl.load(logits_ptr + row * logits_stride + columns, mask=mask, other=float("-inf"))
    value, place = tl.max(logits.to(tl.float32), axis=0, return_indices=True)
    # As upstream: NaN is taken of no block that has company, and indexes nothing.
    value = tl.where(value != value, float("-inf"), value)
    tl.store(largest_ptr + row * blocks + block, value)
    tl.store(tokens_ptr + row * blocks + block, block * size + place)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _argmax_of(  # type: ignore[no-untyped-def]
    row, largest_ptr, tokens_ptr, blocks: tl.constexpr, padded: tl.constexpr
):
    each = tl.arange(0, padded)
    mask = each < blocks
    largest = tl.load(largest_ptr + row * blocks + each, mask=mask, other=float("-inf"))
    return tl.load(tokens_ptr + row * blocks + tl.argmax(largest, axis=0)).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _verify_kernel(  # type: ignore[no-untyped-def]
    # of each request, width tokens
    sampled_ptr,
    # of each request
    num_sampled_ptr,
    num_rejected_ptr,
    # of each row and block
    largest_ptr,
    tokens_ptr,
    # of each token
    input_ids_ptr,
    positions_ptr,
    # of each row
    logits_indices_ptr,
    # of each request, and the end
    cu_num_logits_ptr,
    # of each request
    idx_mapping_ptr,
    seq_lens_ptr,
    # of each slot
    prefill_len_ptr,
    seeds_ptr,
    # of each draft
    rates_ptr,
    width: tl.constexpr,
    blocks: tl.constexpr,
    padded: tl.constexpr,
    synthetic: tl.constexpr,
    placeholders: tl.constexpr,
    counts: tl.constexpr,
):
    request = tl.program_id(0)
    slot = tl.load(idx_mapping_ptr + request).to(tl.int64)
    start = tl.load(cu_num_logits_ptr + request).to(tl.int64)
    end = tl.load(cu_num_logits_ptr + request + 1)
    if counts:
        prefill_len = tl.load(prefill_len_ptr + slot)
    if synthetic:
        seed = tl.load(seeds_ptr + slot)

    accepted = tl.zeros((), tl.int64)
    verifying = True
    for step in range(end - start - 1):
        if verifying:
            row = start + step
            place = tl.load(logits_indices_ptr + row + 1)
            draft = tl.load(input_ids_ptr + place).to(tl.int64)
            if placeholders:
                # The step began where the request's first row is.
                began = tl.load(positions_ptr + place) - (step + 1)
                draft = tl.where(began < prefill_len, -1, draft)
            if synthetic:
                position = tl.load(positions_ptr + tl.load(logits_indices_ptr + row))
                drawn = tl_rand32(seed, position, includes_zero=False)
                verifying = (drawn < tl.load(rates_ptr + step)) & (draft >= 0)
            else:
                verifying = draft == _argmax_of(row, largest_ptr, tokens_ptr, blocks, padded)
            tl.store(sampled_ptr + request * width + step, draft, mask=verifying)
            accepted += verifying

    # The token of the first rejected row, or behind all drafts.
    token = _argmax_of(start + accepted, largest_ptr, tokens_ptr, blocks, padded)
    tl.store(sampled_ptr + request * width + accepted, token)
    num_sampled = accepted + 1
    if counts:
        # A chunk of a prefill samples nothing.
        is_chunk = tl.load(seq_lens_ptr + request) < prefill_len
        num_sampled = tl.where(is_chunk, 0, num_sampled)
        num_rejected = tl.where(is_chunk, 0, end - start - num_sampled)
        tl.store(num_rejected_ptr + request, num_rejected)
    tl.store(num_sampled_ptr + request, num_sampled)
