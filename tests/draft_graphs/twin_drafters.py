"""The drafters of `upstream_twin.py` beside EAGLE and MTP: what vLLM's proposers have for each.

draft_model and PARD (a model of its own, which takes no hidden states), P-EAGLE, dflash, and a
draft_model with another vocabulary than the target's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tests.draft_graphs.twin_model import HIDDEN, VOCAB, Shape

#: The token of positions that a parallel drafter is to fill.
MASK = 5


def proposer_class(shape: Shape) -> Any:
    """vLLM's class of proposers for this drafter."""
    from vllm.v1.spec_decode.dflash import DFlashProposer
    from vllm.v1.spec_decode.draft_model import DraftModelProposer
    from vllm.v1.spec_decode.eagle import EagleProposer

    if shape.method == "dflash":
        return DFlashProposer
    return DraftModelProposer if shape.method == "draft_model" else EagleProposer


def drafter_name(shape: Shape) -> str:
    """What a count of a shape's drafts is called: its drafter, or what is special to it."""
    if shape.sampled or shape.vocabularies or shape.ranges:
        return "sampled" if shape.sampled else "vocabularies" if shape.vocabularies else "ranges"
    if shape.parallel and shape.method != "dflash":
        return "PARD" if shape.method == "draft_model" else "P-EAGLE"
    return shape.method


def extra_attributes(shape: Shape, tokens: int) -> dict[str, Any]:
    """Attributes that differ from those of EAGLE; `tokens` is max_num_batched_tokens."""
    takes_hidden = shape.method != "draft_model"
    extra = shape.k if shape.parallel else 1
    net = extra - (1 if takes_hidden and shape.method != "dflash" else 0)
    attributes: dict[str, Any] = {
        "extra_slots_per_request": extra,
        "net_num_new_slots_per_request": net,
        "needs_extra_input_slots": net > 0,
        "parallel_drafting": shape.parallel,
        "parallel_drafting_token_id": MASK,
        "parallel_drafting_hidden_state_tensor": None,
        "pass_hidden_states_to_model": takes_hidden,
        "is_rejected_token_mask": None,
        "is_masked_token_mask": None,
        "use_heterogeneous_vocab": shape.vocabularies,
        "vocab_mapping": vocabulary_mapping() if shape.vocabularies else None,
    }
    if net > 0:
        attributes["is_rejected_token_mask"] = torch.zeros(tokens, dtype=torch.bool)
        attributes["is_masked_token_mask"] = torch.zeros(tokens, dtype=torch.bool)
    if shape.parallel and takes_hidden and shape.method != "dflash":
        generator = torch.Generator().manual_seed(3)
        attributes["parallel_drafting_hidden_state_tensor"] = torch.randn(
            HIDDEN, generator=generator
        )
    if shape.method == "dflash":
        queries = shape.max_num_seqs * (shape.k + 1)
        attributes |= {
            "dflash_causal": shape.causal,
            "max_query_tokens": queries,
            "_context_slot_mapping_buffer": torch.zeros(tokens, dtype=torch.int64),
            "_context_positions_buffer": torch.zeros(tokens, dtype=torch.int64),
            "_slot_mapping_buffer": torch.zeros(queries, dtype=torch.int64),
            "positions": torch.zeros(queries, dtype=torch.int64),
        }
    return attributes


def vocabulary_mapping() -> Any:
    """vLLM's own mapping between two vocabularies that share two thirds of their tokens."""
    from vllm.v1.spec_decode.vocab_mapping import VocabMapping  # 0.25 and later

    mapping = object.__new__(VocabMapping)
    generator = torch.Generator().manual_seed(4)
    drafts = torch.randperm(VOCAB, generator=generator)[: 2 * VOCAB // 3]
    targets = torch.randperm(VOCAB, generator=generator)[: len(drafts)]
    mapping.draft_to_target_ids = torch.full((VOCAB,), -1)
    mapping.target_to_draft_ids = torch.full((VOCAB,), -1)
    mapping.draft_to_target_ids[drafts] = targets
    mapping.target_to_draft_ids[targets] = drafts
    mapping.intersection_mask_draft = mapping.draft_to_target_ids >= 0
    mapping.draft_unk_token_id, mapping.target_unk_token_id = 1, 2
    return mapping


def use_expanding_kernels() -> None:
    """Let the kernels that make the inputs of a first pass run on CPU, in all releases."""
    from vllm.utils import cpu_triton_utils
    from vllm.v1.spec_decode import dflash, llm_base_proposer

    name = "copy_and_expand_eagle_inputs_kernel"
    setattr(llm_base_proposer, name, AnyGrid(getattr(cpu_triton_utils, f"_{name}_impl")))
    name = "copy_and_expand_dflash_inputs_kernel"  # has no stand-in on CPU until 0.24
    stand_in = getattr(cpu_triton_utils, f"_{name}_impl", expand_dflash_inputs)
    setattr(dflash, name, AnyGrid(stand_in))
    for module in (llm_base_proposer, dflash):
        # Functions of Triton's that are host arithmetic, and missing with it.
        module.triton = SimpleNamespace(
            next_power_of_2=lambda number: 1 << (number - 1).bit_length(),
            cdiv=lambda number, by: -(-number // by),
        )


def use_dispatched_kernels() -> None:
    """The same in 0.30.0, where each kernel has a dispatcher that asks it for its arguments."""
    from vllm.utils import cpu_triton_utils
    from vllm.v1.spec_decode import utils

    for owner in list(vars(utils).values()):
        kernel = vars(owner).get("kernel") if hasattr(owner, "launch") else None
        name = f"_{getattr(kernel, '__name__', '')}_impl"
        if kernel is not None and hasattr(cpu_triton_utils, name):
            owner.kernel = Dispatched(kernel, getattr(cpu_triton_utils, name))


class Dispatched:
    """A function in the place of a Triton kernel, by whose names a dispatcher gives arguments."""

    def __init__(self, kernel: Callable[..., None], function: Callable[..., None]) -> None:
        self.arg_names = tuple(inspect.signature(kernel).parameters)
        self.function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            self.function(*(arguments[name] for name in self.arg_names if name in arguments))

        return run


class AnyGrid:
    """A function in the place of a Triton kernel, which is launched with a grid."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.function


def expand_dflash_inputs(
    *,
    next_token_ids_ptr: torch.Tensor,
    target_positions_ptr: torch.Tensor,
    out_input_ids_ptr: torch.Tensor,
    out_context_positions_ptr: torch.Tensor,
    out_query_positions_ptr: torch.Tensor,
    out_context_slot_mapping_ptr: torch.Tensor,
    out_query_slot_mapping_ptr: torch.Tensor,
    out_token_indices_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    num_rejected_tokens_ptr: Any,
    parallel_drafting_token_id: int,
    block_size: int,
    num_query_per_req: int,
    num_speculative_tokens: int,
    total_input_tokens: int,
    HAS_NUM_REJECTED: bool,  # noqa: N803 - the kernel's name
    **sizes: Any,
) -> None:
    """Do on any device what the Triton kernel of this name does."""
    starts, reqs = query_start_loc_ptr, query_start_loc_ptr.shape[0] - 1
    last_block = block_table_ptr.shape[1] - 1

    def slots(owner: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        columns = (positions // block_size).clamp(max=last_block)
        return block_table_ptr[owner, columns] * block_size + positions % block_size

    rows = torch.arange(total_input_tokens, dtype=starts.dtype)
    owner = torch.searchsorted(starts[1:].contiguous(), rows, right=True)
    context = target_positions_ptr[:total_input_tokens]
    out_context_positions_ptr[:total_input_tokens] = context
    out_context_slot_mapping_ptr[:total_input_tokens] = slots(owner, context)
    ends = starts[1:] - (num_rejected_tokens_ptr if HAS_NUM_REJECTED else 0)
    last = target_positions_ptr[torch.maximum(ends, starts[:-1] + 1).long() - 1]
    offsets = torch.arange(num_query_per_req)
    positions = (last[:, None] + 1 + offsets).view(-1)
    owner = torch.arange(reqs).repeat_interleave(
        num_query_per_req, output_size=reqs * num_query_per_req
    )
    total = reqs * num_query_per_req
    out_query_positions_ptr[:total] = positions
    out_query_slot_mapping_ptr[:total] = slots(owner, positions)
    out_input_ids_ptr[:total] = parallel_drafting_token_id
    out_input_ids_ptr[:total].view(reqs, -1)[:, 0] = next_token_ids_ptr[:reqs]
    queries = torch.arange(total, dtype=torch.int32).view(reqs, -1)[:, 1:]
    out_token_indices_ptr.view(reqs, num_speculative_tokens).copy_(queries)
