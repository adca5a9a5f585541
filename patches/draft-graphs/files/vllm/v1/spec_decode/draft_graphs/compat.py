# SPDX-License-Identifier: Apache-2.0
"""Everything that differs between vLLM 0.20.0 and 0.33.0, told apart by features, not versions.

vLLM's modules are imported inside the functions: vLLM imports this package while it is itself
being imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from .data_parallel import token_counts
from .keys import ROLES
from .policy import AttentionRoles

if TYPE_CHECKING:
    from .graph_backend import GraphBackend

# Attention backends whose `build_for_drafting` is host arithmetic on the numbers of a key, and
# device work that a capture records and every replay repeats: none for FLASH_ATTN, TRITON_ATTN,
# TRITON_MLA and FLASHINFER_MLA; the schedule of FLASH_ATTN_MLA, written to a buffer of its
# builder; that of FLASHMLA, made by the first layer that asks for it; from 0.32 the mapping of
# the block table to smaller blocks. docs/draft-graphs.md has the verdicts.
_ALL_ROLES = frozenset(ROLES)
GRAPH_ATTENTION_BACKENDS: AttentionRoles = {
    "FLASH_ATTN": _ALL_ROLES,
    "TRITON_ATTN": _ALL_ROLES,
    "FLASH_ATTN_MLA": _ALL_ROLES,
    "FLASHMLA": _ALL_ROLES,
}
# The same by reading and with doubles of their kernels, but no graph of theirs has run on a GPU
# yet; they are refused until one has.
UNTRIED_ATTENTION_BACKENDS: AttentionRoles = {
    "TRITON_MLA": _ALL_ROLES,
    "FLASHINFER_MLA": _ALL_ROLES,
}

# Methods of SpecDecodeBaseProposer whose work the graphs take over or build on. A proposer that
# has its own version of one of them keeps upstream's drafting.
TAKEN_OVER = (
    "propose",
    "set_inputs_first_pass",
    "build_model_inputs_first_pass",
    "build_per_group_and_layer_attn_metadata",
    "_greedy_sample",
    "_get_positions",
    "_set_positions",
    "_get_slot_mapping",
    "model_returns_tuple",
    "initialize_attn_backend",
    "_sample_draft_tokens",  # 0.22 and later
    "_sample_from_logits",  # 0.22 and later
    "_update_positions_dependent_metadata",  # 0.21 and later
)


def no_cuda_graphs() -> str | None:
    """Why this platform has no CUDA or HIP graphs; None where it has."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda_alike():
        return f"the platform ({current_platform.device_type}) has neither CUDA nor HIP graphs"
    return None


def announce_graph_pool(pool: object) -> None:
    """Tell NCCL's allocator for symmetric memory which pool is being captured into."""
    from vllm.distributed.device_communicators.pynccl_allocator import set_graph_pool_id

    set_graph_pool_id(pool)


def common_attention_metadata(**fields: Any) -> Any:
    """A CommonAttentionMetadata of those `fields` that this release has.

    `seq_lens_cpu_upper_bound` is there in all of them; the deprecated `_seq_lens_cpu` and
    `_num_computed_tokens_cpu` (until 0.29) stay None, as upstream's drafter leaves them.
    """
    from vllm.v1.attention.backend import CommonAttentionMetadata

    known = {field.name for field in dataclasses.fields(CommonAttentionMetadata)}
    return CommonAttentionMetadata(
        **{name: value for name, value in fields.items() if name in known}
    )


def forward_context(
    proposer: Any, attention_metadata: Any, num_tokens: int
) -> AbstractContextManager[None]:
    """The context of one draft pass of `num_tokens` tokens, padding included.

    The runtime mode is NONE, so that the wrappers of PIECEWISE graphs (and, from 0.22, of
    breakable graphs) pass the call through to the compiled code, which the capture records.
    """
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import set_forward_context

    context: AbstractContextManager[None] = set_forward_context(
        attention_metadata,
        proposer.vllm_config,
        num_tokens=num_tokens,
        num_tokens_across_dp=token_counts(proposer.vllm_config, num_tokens),
        cudagraph_runtime_mode=CUDAGraphMode.NONE,
        slot_mapping=proposer._get_slot_mapping(num_tokens),
    )
    return context


def advance(
    *,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    slots: torch.Tensor,
    block_size: int,
    max_model_len: int,
) -> None:
    """One position further, in place: positions [R], seq_lens [R] and slots [R].

    block_table: [R, blocks]. block_size: the proposer's, which is the kernel's until 0.31 and
    the KV-cache manager's from 0.32. The function is taken where upstream's proposer takes it.
    """
    from vllm.v1.spec_decode import llm_base_proposer

    llm_base_proposer.eagle_step_update_slot_mapping_and_metadata(
        positions_1d=positions,
        block_table_tensor=block_table,
        seq_lens=seq_lens,
        block_size=block_size,
        max_model_len=max_model_len,
        out_clamped_positions=positions,
        out_slot_mapping=slots,
        input_batch_size=int(slots.shape[0]),
    )


def overridden_methods(proposer: Any) -> tuple[str, ...]:
    """Which of the methods that the graphs take over this proposer has from elsewhere."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    return tuple(
        name
        for name in TAKEN_OVER
        if getattr(type(proposer), name, None) is not getattr(SpecDecodeBaseProposer, name, None)
        or name in vars(proposer)
    )


def is_eagle_proposer(proposer: Any) -> bool:
    """Whether the proposer is EagleProposer itself: eagle, eagle3 and every plain MTP method."""
    from vllm.v1.spec_decode.eagle import EagleProposer

    return type(proposer) is EagleProposer


def weight_offloader() -> str | None:
    """Name of the offloader that copies weights in between passes; None where none does."""
    from vllm.model_executor.offloader.base import NoopOffloader, get_offloader

    offloader = get_offloader()
    # The UVA offloader maps host memory: it has nothing to do between passes.
    if isinstance(offloader, NoopOffloader) or type(offloader).__name__ == "UVAOffloader":
        return None
    return type(offloader).__name__


def sequence_parallel(vllm_config: Any) -> bool:
    """Whether token counts must be multiples of the tensor-parallel size."""
    passes = vllm_config.compilation_config.pass_config
    parallel = vllm_config.parallel_config
    return bool(
        getattr(passes, "enable_sp", False)
        or getattr(parallel, "use_sequence_parallel_moe", False)  # needed no DP from 0.33
    )


def combine_width(proposer: Any) -> int | None:
    """Width of the hidden states that `combine_hidden_states` takes; None where not known.

    EAGLE3 concatenates the target's auxiliary hidden states and lets the draft's `fc` reduce
    them. Without auxiliary hidden states the function returns what it is given.
    """
    if not proposer.eagle3_use_aux_hidden_state:
        return int(proposer.hidden_size)
    fc = getattr(getattr(proposer.model, "model", None), "fc", None)
    width = getattr(fc, "input_size", None) or getattr(fc, "in_features", None)
    return int(width) if width is not None else None


def position_rows(proposer: Any) -> torch.Tensor:
    """The positions that the draft model reads, [dimensions, tokens] int64, as one view.

    One row, or one per dimension of M-RoPE. The first is what slots and lengths go by; from the
    second pass on the others are copies of it, as in upstream's proposer.
    """
    rows: torch.Tensor = (
        proposer.mrope_positions if proposer.uses_mrope else proposer.positions.unsqueeze(0)
    )
    return rows


def proposer_buffers(proposer: Any) -> dict[str, torch.Tensor]:
    """The proposer's own persistent tensors that the graphs read or write, by name."""
    names = ["input_ids", "hidden_states", "_slot_mapping_buffer"]
    names.append("mrope_positions" if proposer.uses_mrope else "positions")
    if proposer.supports_mm_inputs:
        names.append("inputs_embeds")
    return {name: getattr(proposer, name) for name in names}


def draft_layers(proposer: Any) -> dict[str, Any]:
    """The attention layers of the draft model by name."""
    context = proposer.vllm_config.compilation_config.static_forward_context
    return {name: context[name] for name in sorted(proposer._draft_attn_layer_names)}


def kv_caches(proposer: Any) -> dict[str, torch.Tensor]:
    """The KV cache of each draft layer by name; a list of tensors gives several entries."""
    caches: dict[str, torch.Tensor] = {}
    for name, layer in draft_layers(proposer).items():
        cache = getattr(layer, "kv_cache", None)
        if isinstance(cache, torch.Tensor):
            caches[name] = cache
        elif isinstance(cache, (list, tuple)):
            caches.update({f"{name}[{index}]": each for index, each in enumerate(cache)})
    return caches


def per_request_attention(vllm_config: Any) -> bool:
    """Whether attention takes ranges or prefixes per request from the host.

    R-SWA from 0.25, prefix language models with multimodal prefixes from 0.20.
    """
    model = vllm_config.model_config
    return bool(
        getattr(model, "rswa_window", None) is not None or getattr(model, "is_mm_prefix_lm", False)
    )


def block_table_width(runner: Any, kv_cache_gid: int) -> int:
    """Blocks in a row of the runner's block table of one KV-cache group."""
    table = runner.input_batch.block_table[kv_cache_gid]
    return int(table.get_device_tensor(1).shape[1])


def all_ranks_agree(yes: bool) -> bool:
    """Whether all tensor-parallel ranks say yes. They all have to ask, and none on its device."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    if group.world_size == 1:
        return yes
    votes = torch.tensor([int(yes)], dtype=torch.int32)
    torch.distributed.all_reduce(votes, op=torch.distributed.ReduceOp.MIN, group=group.cpu_group)
    return bool(votes.item())


def undo_capture(cuda_graph: Any, pool: Any) -> None:
    """Let PyTorch forget a capture that failed, so that it can go on without this graph.

    Where CUDA itself ended the capture, as for a value that the host reads, `capture_end` raises
    before it has told allocator and generators. Until PyTorch 2.12 (pytorch/pytorch#180395) giving
    memory back is an assertion from then on, and a random number an error.
    """
    try:
        cuda_graph.pool()
    except RuntimeError:  # it has none before its capture has ended
        cuda_graph.reset()
    else:
        return
    device = torch.cuda.current_device()
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError as error:
        if "not currently recording" not in str(error):
            raise
        # `capture_end` has told the allocator, or `reset` has.
    else:
        torch._C._cuda_releasePool(device, pool)
    # The generators are told by any capture that succeeds.
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.current_stream()):
        torch.zeros(1, device=f"cuda:{device}")


def even_out_recorded_all_reduces(backend: GraphBackend) -> None:
    """Let all tensor-parallel ranks have recorded equally many of vLLM's custom all-reduces.

    At the end of `graph_capture()` vLLM pairs the recorded buffers of the ranks by their place in
    each rank's list, and reads past the end of a shorter list. A rank whose capture failed has
    the shorter one. All ranks have to call this, while what they recorded still has its memory.
    """
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    if group.world_size == 1:
        return
    custom = getattr(group.device_communicator, "ca_comm", None)
    if custom is None or custom.disabled:
        return
    from vllm._custom_ops import get_graph_buffer_ipc_meta

    own = len(get_graph_buffer_ipc_meta(custom._ptr)[1])
    most = torch.tensor([own], dtype=torch.int32)
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX, group=group.cpu_group)
    missing = int(most.item()) - own
    if missing == 0:
        return
    # Recorded, never run; this memory of vLLM's lives as long as its all-reduce does.
    any_buffer = custom.rank_data[:128].view(torch.bfloat16)

    def record() -> None:
        for _ in range(missing):
            custom.all_reduce(any_buffer, registered=True)

    backend.capture(record, backend.new_pool())


def is_speaker() -> bool:
    """Whether this rank writes what all ranks would write to the log."""
    from vllm.distributed.parallel_state import get_tp_group

    return bool(get_tp_group().rank_in_group == 0)


def prefill_backends(groups: Iterable[Any], query_len: int) -> list[str]:
    """MLA backends of the draft that take a request of `query_len` tokens for a prefill.

    A prefill is planned on the host, from lengths on the host. A builder without a threshold
    (sparse backends) does not split batches, so it has nothing to be asked for.
    """
    return sorted(
        group.backend.get_name()
        for group in groups
        if group.backend.is_mla()
        and (group.get_metadata_builder().reorder_batch_threshold or query_len) < query_len
    )


def kv_cache_groups(groups: Iterable[Any]) -> int:
    """In how many KV-cache groups the draft's attention groups lie."""
    return len({group.kv_cache_group_id for group in groups})
