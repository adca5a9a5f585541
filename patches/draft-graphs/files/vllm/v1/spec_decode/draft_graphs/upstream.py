# SPDX-License-Identifier: Apache-2.0
"""Reads vLLM's objects, and hides what differs between vLLM 0.20.0 and 0.33.0.

Differences are told apart by features, not by versions. vLLM's modules are imported inside the
functions: vLLM imports this package while it is itself being imported.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from .drafter import own_methods
from .ranks import token_counts

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
    "validate_same_kv_cache_group",
    "_sample_draft_tokens",  # 0.22 and later
    "_sample_from_logits",  # 0.22 and later
    "_update_positions_dependent_metadata",  # 0.21 and later
)


def common_attention_metadata(**fields: Any) -> Any:
    """Build a CommonAttentionMetadata of `fields`, without those that its class does not have here.

    `seq_lens_cpu_upper_bound` is a field of it in every release from 0.20.0 to 0.33.0. The
    deprecated `_seq_lens_cpu` and `_num_computed_tokens_cpu`, which it has up to 0.29.0, stay
    None, as upstream sets them for the later passes of a padded batch with rejected tokens.
    """
    from vllm.v1.attention.backend import CommonAttentionMetadata

    known = {field.name for field in dataclasses.fields(CommonAttentionMetadata)}
    return CommonAttentionMetadata(
        **{name: value for name, value in fields.items() if name in known}
    )


def forward_context(
    proposer: Any,
    attention_metadata: Any,
    num_tokens: int,
    # [num_tokens] int64, to be copied to the proposer's buffer; None: they are there
    slots: torch.Tensor | None = None,
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
        slot_mapping=proposer._get_slot_mapping(num_tokens, slots),
    )
    return context


def advance(
    *,
    # [num_reqs] int64
    positions: torch.Tensor,
    # [num_reqs, blocks] int32
    block_table: torch.Tensor,
    # [num_reqs] int32
    seq_lens: torch.Tensor,
    # [num_reqs] int64
    slots: torch.Tensor,
    # the proposer's: that of the kernel until 0.31, of the KV-cache manager from 0.32
    block_size: int,
    max_model_len: int,
) -> None:
    """Move positions, seq_lens and slots one position further, in place, by upstream's kernel.

    The kernel is looked up where upstream's proposer looks it up.
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


def draft_token_ids(
    proposer: Any,
    # [num_reqs] int64, as they were handed out
    tokens: torch.Tensor,
) -> torch.Tensor:
    """`tokens` in the draft's vocabulary, [num_reqs] int64.

    The same tensor where draft and target have one vocabulary. Where they have two (0.25 and
    later), drafts are handed out in the target's, and upstream maps them back before each pass.
    """
    if not getattr(proposer, "use_heterogeneous_vocab", False):
        return tokens
    mapped: torch.Tensor = proposer.vocab_mapping.map_target_to_draft_ids(tokens)
    return mapped


def overridden_methods(proposer: Any) -> tuple[str, ...]:
    """Names of the methods that the graphs take over and that this proposer overrides.

    Those of its own class that the graphs call as they are do not count.
    """
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    allowed = own_methods(type(proposer))
    return tuple(
        name
        for name in TAKEN_OVER
        if (
            getattr(type(proposer), name, None) is not getattr(SpecDecodeBaseProposer, name, None)
            and name not in allowed
        )
        or name in vars(proposer)
    )


def class_name(cls: type) -> str:
    """Module and qualified name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def class_path(value: object) -> str:
    """Module and qualified name of the class of `value`."""
    return class_name(type(value))


def on_hopper() -> bool:
    """Whether the device is one of compute capability 9.0."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_device_capability(90))


def weight_offloader() -> str | None:
    """Name of the offloader that copies weights between passes; None where none does."""
    from vllm.model_executor.offloader.base import NoopOffloader, get_offloader

    offloader = get_offloader()
    # The UVA offloader maps host memory and does nothing between passes.
    if isinstance(offloader, NoopOffloader) or type(offloader).__name__ == "UVAOffloader":
        return None
    return type(offloader).__name__


def sequence_parallel(vllm_config: Any) -> bool:
    """Whether dense layers want token counts that are multiples of the tensor-parallel size.

    The compile pass that does it is in 0.20 to 0.31. Experts that are split in the same way
    (`use_sequence_parallel_moe`) pad inside their layer, and take any token count.
    """
    passes = vllm_config.compilation_config.pass_config
    return bool(getattr(passes, "enable_sp", False))


def combine_width(proposer: Any) -> int | None:
    """Columns of the hidden states that `combine_hidden_states` takes; None where not known.

    EAGLE3 and dflash concatenate the target's auxiliary hidden states and let the draft's `fc`
    reduce them. Without auxiliary hidden states the function returns what it is given.
    """
    if not proposer.eagle3_use_aux_hidden_state:
        return int(proposer.hidden_size)
    fc = getattr(getattr(proposer.model, "model", None), "fc", None)
    width = getattr(fc, "input_size", None) or getattr(fc, "in_features", None)
    return int(width) if width is not None else None


@contextmanager
def fixed_workspace() -> Iterator[None]:
    """Let vLLM's workspace raise inside, rather than grow: the target's graphs read it where it is.

    vLLM itself locks it once all its graphs are captured, so a draft that needs a larger one could
    not run as upstream either.
    """
    from vllm.v1.worker import workspace

    if not workspace.is_workspace_manager_initialized():
        yield
        return
    manager = workspace.current_workspace_manager()
    locked = manager.is_locked()
    manager.lock()
    try:
        yield
    finally:
        if not locked:
            manager.unlock()


def position_rows(proposer: Any) -> torch.Tensor:
    """A view of the positions that the draft model reads, [dimensions, tokens] int64.

    One row, or one per dimension of M-RoPE. Slots and lengths follow the first row; from the second
    pass on the other rows are copies of it, as in upstream's proposer.
    """
    rows: torch.Tensor = (
        proposer.mrope_positions if proposer.uses_mrope else proposer.positions.unsqueeze(0)
    )
    return rows


def proposer_buffers(proposer: Any) -> dict[str, torch.Tensor]:
    """The proposer's persistent tensors that the graphs read or write, by name."""
    names = ["input_ids", "hidden_states", "_slot_mapping_buffer"]
    names.append("mrope_positions" if proposer.uses_mrope else "positions")
    if proposer.supports_mm_inputs:
        names.append("inputs_embeds")
    # Where a drafter makes the inputs of its first pass itself.
    names += [
        name
        for name in (
            "arange",
            "is_rejected_token_mask",
            "is_masked_token_mask",
            "parallel_drafting_hidden_state_tensor",
            "_context_positions_buffer",
            "_context_slot_mapping_buffer",
        )
        if isinstance(getattr(proposer, name, None), torch.Tensor)
    ]
    return {name: getattr(proposer, name) for name in names}


def block_table_width(runner: Any, kv_cache_gid: int) -> int:
    """Blocks in a row of the runner's block table of one KV-cache group."""
    table = runner.input_batch.block_table[kv_cache_gid]
    return int(table.get_device_tensor(1).shape[1])


@contextmanager
def builders_of_full_graphs(proposer: Any, builders: list[list[Any]] | None) -> Iterator[None]:
    """Let the draft's attention groups build their metadata with `builders`; None changes nothing.

    builders: as `make_builders_of_full_graphs` returns them.
    """
    groups = proposer.draft_attn_groups if builders is not None else []
    kept = [group.metadata_builders for group in groups]
    try:
        for group, own in zip(groups, builders or [], strict=True):
            group.metadata_builders = own
        yield
    finally:
        for group, before in zip(groups, kept, strict=True):
            group.metadata_builders = before


def make_builders_of_full_graphs(proposer: Any) -> list[list[Any]] | None:
    """Metadata builders for the captures of draft graphs, a list for each attention group.

    None where the groups' own builders serve: in cudagraph modes with full graphs. In PIECEWISE
    these have no bound for FlashAttention's number of splits and no buffers for its schedule, and
    upstream's passes go on with them as they are. The new ones are made as vLLM makes them for
    FULL_DECODE_ONLY, from the same specification of the KV cache.
    """
    from vllm.config import CUDAGraphMode, set_current_vllm_config

    config = proposer.vllm_config
    if config.compilation_config.cudagraph_mode.has_full_cudagraphs():
        return None
    full = copy.copy(config)
    full.compilation_config = copy.copy(config.compilation_config)
    full.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    with set_current_vllm_config(full):  # FlashInfer's builder asks for it when it chooses a kernel
        return [
            [
                type(builder)(builder.kv_cache_spec, builder.layer_names, full, builder.device)
                for builder in group.metadata_builders
            ]
            for group in proposer.draft_attn_groups
        ]


def split_nothing(metadata: Mapping[str, Any]) -> None:
    """Have FlashAttention 3 split no sequence in a pass above the largest capture size.

    There vLLM's builder leaves the number of splits to the kernel (0), which takes it from lengths
    that a capture would bake. Without splits it needs no memory for their results either.

    metadata: of each attention layer, by name.
    """
    for own in metadata.values():
        if getattr(own, "max_num_splits", None) == 0:
            own.max_num_splits = 1


def unseen_group(proposer: Any) -> int | None:
    """The KV-cache group of a draft model whose metadata vLLM does not hand to the proposer.

    The runner looks for the group of EAGLE, MTP and dflash drafts; DraftModelProposer gets group 0
    in all releases. None where the draft's layers lie in the group whose metadata it gets.
    """
    from vllm.v1.spec_decode.draft_model import DraftModelProposer

    gid = int(getattr(proposer, "kv_cache_gid", 0))
    return gid if isinstance(proposer, DraftModelProposer) and gid > 0 else None


def listening(
    stock: Callable[[torch.Tensor], int], heard: Callable[[torch.Tensor], None]
) -> Callable[[torch.Tensor], int]:
    """`stock`, which reads the mode from the tensor of an agreement, telling `heard` the tensor.

    The tensor is [4, ranks] int32, in the order of `dp_utils._synchronize_dp_ranks`: tokens without
    padding, tokens with padding, whether the batch may be split, the cudagraph mode.
    """

    def read(tensor: torch.Tensor) -> int:
        heard(tensor)
        return stock(tensor)

    read.stock = stock  # type: ignore[attr-defined]  # so that only one listens
    return read


def listen_to_agreements(heard: Callable[[torch.Tensor], None]) -> None:
    """Let `heard` have the tensor of each agreement between data-parallel ranks from now on.

    vLLM hands nobody what each rank gave as its tokens without padding. A hunk cannot: vLLM imports
    that module before it loads plugins, so the feature could not be applied in memory.
    """
    from vllm.v1.worker import dp_utils

    stock = dp_utils._post_process_cudagraph_mode
    dp_utils._post_process_cudagraph_mode = listening(getattr(stock, "stock", stock), heard)
