# SPDX-License-Identifier: Apache-2.0
"""Does the device work of a steady decode step by one Triton kernel, or by PyTorch on a CPU."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import triton
    import triton.language as tl
else:
    from vllm.triton_utils import tl, triton

# Requests of one program of the grid; a decode batch has few, so that one program mostly does.
ROWS = 32


# Not annotated: Triton compiles the signature, too, and knows no names but its own. The number of
# requests changes from step to step and must not cause another compilation. Where mypy sees
# Triton at all, its decorators have no types.
@triton.jit(do_not_specialize=["num_reqs"])  # type: ignore[untyped-decorator, unused-ignore]
def _advance_kernel(  # type: ignore[no-untyped-def]
    num_computed_ptr,
    num_accepted_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    positions_ptr,
    input_ids_ptr,
    draft_ids_ptr,
    valid_counts_ptr,
    sampled_ptr,
    sampled_stride,
    drafts_ptr,
    drafts_stride,
    num_reqs,
    max_num_reqs,
    k: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    rows = tl.program_id(0) * block + tl.arange(0, block)
    live = rows < num_reqs
    held = rows < max_num_reqs
    counts = tl.load(valid_counts_ptr + rows, mask=live, other=0)
    computed = tl.load(num_computed_ptr + rows, mask=live, other=0) + counts
    tl.store(num_computed_ptr + rows, computed, mask=live)
    tl.store(num_accepted_ptr + rows, tl.where(live, counts, 1), mask=held)
    tl.store(seq_lens_ptr + rows, tl.where(live, computed + k + 1, 0), mask=held)
    tl.store(query_start_loc_ptr + rows, tl.minimum(rows, num_reqs) * (k + 1), mask=held)
    end = rows == max_num_reqs
    tl.store(query_start_loc_ptr + rows, num_reqs * (k + 1), mask=end)

    columns = tl.arange(0, width)[None, :]
    token = live[:, None] & (columns < k + 1)
    draft = token & (columns > 0)
    row = rows[:, None]
    at = row * (k + 1) + columns
    tl.store(positions_ptr + at, (computed[:, None] + columns).to(tl.int64), mask=token)
    sampled = tl.load(sampled_ptr + row * sampled_stride, mask=live[:, None], other=0)
    drafted = tl.load(drafts_ptr + row * drafts_stride + columns - 1, mask=draft, other=0)
    ids = tl.where(columns == 0, sampled.to(tl.int32), drafted.to(tl.int32))
    tl.store(input_ids_ptr + at, ids, mask=token)
    tl.store(draft_ids_ptr + row * k + columns - 1, drafted.to(tl.int32), mask=draft)


@dataclass(frozen=True)
class Inputs:
    """Tensors that a steady step writes, all on one device."""

    # [max_num_reqs] int32; only the rows of the step are read and written
    num_computed: torch.Tensor
    # [max_num_reqs] int32
    num_accepted: torch.Tensor
    # [max_num_reqs + 1] int32
    query_start_loc: torch.Tensor
    # [max_num_reqs] int32
    seq_lens: torch.Tensor
    # [tokens] int64
    positions: torch.Tensor
    # [tokens] int32
    input_ids: torch.Tensor


@dataclass(frozen=True)
class LastStep:
    """Results of the last step, in at least as many rows as there are requests."""

    # [rows] int32, tokens that the step gave each request
    valid_counts: torch.Tensor
    # [rows, 1] int32, the last of them
    sampled: torch.Tensor
    # [rows, K] int64, the drafts that follow it
    drafts: torch.Tensor


def warm_up(inputs: Inputs, k: int) -> None:
    """Compile the kernel for K drafts a request, so that no step waits for it; write nothing."""
    device = inputs.input_ids.device
    if device.type == "cpu":
        return
    fields = dataclasses.fields(inputs)
    scratch = Inputs(**{each.name: torch.empty_like(getattr(inputs, each.name)) for each in fields})
    # Types and strides are those of a step: Triton compiles another variant for others.
    last = LastStep(
        valid_counts=torch.zeros(1, dtype=torch.int32, device=device),
        sampled=torch.zeros(1, 1, dtype=torch.int32, device=device),
        drafts=torch.zeros(1, k, dtype=torch.int64, device=device),
    )
    advance(scratch, last, 0)


def advance(inputs: Inputs, last: LastStep, num_reqs: int) -> torch.Tensor:
    """Write the inputs of the next decode step; return its draft tokens, [num_reqs * K] int32."""
    count = num_reqs * last.drafts.shape[1]
    draft_ids = torch.empty(count, dtype=torch.int32, device=inputs.input_ids.device)
    if inputs.input_ids.device.type == "cpu":
        compute_advance(inputs, last, num_reqs, draft_ids)
    else:
        launch_advance(inputs, last, num_reqs, draft_ids)
    return draft_ids


def compute_advance(inputs: Inputs, last: LastStep, num_reqs: int, draft_ids: torch.Tensor) -> None:
    """Do in PyTorch what the kernel does; draft_ids is written, too."""
    k = last.drafts.shape[1]
    counts, drafts = last.valid_counts[:num_reqs], last.drafts[:num_reqs]
    inputs.num_computed[:num_reqs] += counts
    computed = inputs.num_computed[:num_reqs]
    inputs.num_accepted.fill_(1)
    inputs.num_accepted[:num_reqs] = counts
    inputs.seq_lens.zero_()
    inputs.seq_lens[:num_reqs] = computed + k + 1
    rows = torch.arange(inputs.query_start_loc.shape[0], dtype=torch.int32)
    inputs.query_start_loc.copy_(rows.clamp(max=num_reqs) * (k + 1))
    tokens = num_reqs * (k + 1)
    steps = computed[:, None] + torch.arange(k + 1)
    inputs.positions[:tokens].view(num_reqs, k + 1).copy_(steps)
    ids = inputs.input_ids[:tokens].view(num_reqs, k + 1)
    ids[:, 0] = last.sampled[:num_reqs, 0]
    ids[:, 1:] = drafts
    draft_ids.view(num_reqs, k).copy_(drafts)


def launch_advance(inputs: Inputs, last: LastStep, num_reqs: int, draft_ids: torch.Tensor) -> None:
    """Launch the kernel; draft_ids is written, too."""
    max_num_reqs = inputs.seq_lens.shape[0]
    k = last.drafts.shape[1]
    # One row more than there are requests: query_start_loc has one more element.
    _advance_kernel[(max_num_reqs // ROWS + 1,)](
        inputs.num_computed,
        inputs.num_accepted,
        inputs.query_start_loc,
        inputs.seq_lens,
        inputs.positions,
        inputs.input_ids,
        draft_ids,
        last.valid_counts,
        last.sampled,
        last.sampled.stride(0),
        last.drafts,
        last.drafts.stride(0),
        num_reqs,
        max_num_reqs,
        k=k,
        width=triton.next_power_of_2(k + 1),
        block=ROWS,
    )
