"""Drafts by vLLM's own `propose`, eager, over the reference attention."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import vllm.v1.spec_decode.llm_base_proposer as base_proposer
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import BatchDescriptor, override_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.eagle import EagleProposer

from tests.ascend.batches import Batch
from tests.ascend.twin_model import BLOCK, HIDDEN, LAYER, LONGEST, DraftModel, reference

TOKENS = 256


class _Builder:
    """Metadata as the reference attention reads it."""

    def build_for_drafting(self, common_attn_metadata: Any, draft_index: int, **more: Any) -> Any:
        """What one pass needs, with memory of its own."""
        return SimpleNamespace(
            query_start_loc=common_attn_metadata.query_start_loc.clone(),
            seq_lens=common_attn_metadata.seq_lens.clone(),
            block_table=common_attn_metadata.block_table_tensor,
        )


class _Group:
    kv_cache_group_id = 0
    layer_names = (LAYER,)
    kv_cache_spec = SimpleNamespace(block_size=BLOCK)

    def get_metadata_builder(self) -> _Builder:
        return _Builder()

    def build_metadata_for_drafting(self, common_attn_metadata: Any, draft_index: int) -> Any:
        return _Builder().build_for_drafting(common_attn_metadata, draft_index)


def _advance(
    *,
    positions_1d: torch.Tensor,
    block_table_tensor: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    max_model_len: int,
    out_clamped_positions: torch.Tensor,
    out_slot_mapping: torch.Tensor,
    **more: Any,
) -> None:
    """Go on by a position, in the place of vLLM's Triton kernel of the same arguments."""
    rows = positions_1d.shape[0]
    following = positions_1d + 1
    beyond = following >= max_model_len
    clamped = torch.where(beyond, 0, following)
    numbers = (clamped // block_size).clamp(max=block_table_tensor.shape[1] - 1)
    blocks = block_table_tensor[:rows].gather(1, numbers[:, None].long())[:, 0]
    out_clamped_positions[:rows] = clamped
    out_slot_mapping[:rows] = torch.where(beyond, -1, blocks * block_size + clamped % block_size)
    out_slot_mapping[rows:] = -1
    seq_lens[:rows] = torch.where(beyond, 1, seq_lens[:rows] + 1)


@contextlib.contextmanager
def _forward_context(attn_metadata: Any, vllm_config: VllmConfig, **more: Any) -> Iterator[None]:
    context = SimpleNamespace(
        attn_metadata=attn_metadata,
        slot_mapping=more.get("slot_mapping") or {},
        cudagraph_runtime_mode=CUDAGraphMode.NONE,
        batch_descriptor=None,
    )
    with override_forward_context(context):
        yield


def replace_kernels() -> None:
    """Let vLLM draft on the CPU."""
    base_proposer.eagle_step_update_slot_mapping_and_metadata = _advance
    base_proposer.set_forward_context = _forward_context


def make_proposer(model: DraftModel, config: VllmConfig, k: int) -> Any:
    """vLLM's proposer with what drafting reads, and none of its set-up."""
    # Over fifty lines: one table of what the proposer reads, an attribute a line.
    eager = SimpleNamespace(
        dispatch=lambda count, *args, **more: (CUDAGraphMode.NONE, BatchDescriptor(count))
    )
    dense = model.attention != "mla"
    proposer: Any = object.__new__(EagleProposer)
    vars(proposer).update(
        allowed_attn_types=None,
        arange=torch.arange(TOKENS + 1, dtype=torch.int32),
        block_size=BLOCK,
        constant_draft_positions=False,
        cudagraph_dispatcher=eager,
        device=torch.device("cpu"),
        dp_rank=0,
        draft_attn_groups=[_Group()],
        draft_uses_xdrope_dim=0,
        dtype=torch.float32,
        eagle3_use_aux_hidden_state=True,
        eplb_state=None,
        hidden_size=HIDDEN,
        hidden_states=torch.zeros(TOKENS, HIDDEN),
        input_ids=torch.zeros(TOKENS, dtype=torch.int32),
        inputs_embeds=None,
        kv_cache_gid=0,
        max_batch_size=32,
        max_model_len=LONGEST,
        max_num_tokens=TOKENS,
        method="eagle3" if dense else "mtp",
        model=model,
        model_returns_tuple=lambda: True,
        needs_extra_input_slots=False,
        num_speculative_tokens=k,
        parallel_drafting=False,
        pass_hidden_states_to_model=True,
        positions=torch.zeros(TOKENS, dtype=torch.int64),
        speculative_config=SimpleNamespace(num_speculative_tokens=k),
        supports_mm_inputs=False,
        token_arange_np=torch.arange(TOKENS, dtype=torch.int32).numpy(),
        use_fp64_gumbel=False,
        use_heterogeneous_vocab=False,
        use_local_argmax_reduction=False,
        uses_mrope=False,
        uses_xdrope_dim=0,
        vllm_config=config,
        _draft_attn_layer_names={LAYER},
        _enable_probabilistic_draft_probs=False,
        _last_draft_probs=None,
        _share_mtp_indices=False,
        _slot_mapping_buffer=torch.zeros(TOKENS, dtype=torch.int64),
    )
    return proposer


def draft(proposer: Any, batch: Batch) -> torch.Tensor:
    """[requests, K] draft tokens."""
    proposer.model.attend = reference
    seen = torch.tensor(batch.seen, dtype=torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=batch.ends,
        query_start_loc_cpu=batch.ends,
        seq_lens=seen.clone(),
        seq_lens_cpu_upper_bound=seen.clone(),
        num_reqs=len(batch.seen),
        num_actual_tokens=len(batch.ids),
        max_query_len=max(batch.lengths),
        max_seq_len=max(batch.seen),
        block_table_tensor=batch.table.clone(),
        slot_mapping=batch.slots.clone(),
        causal=True,
    )
    given = {
        "num_speculative_tokens": batch.k,
        "target_token_ids": batch.ids.clone(),
        "target_positions": batch.positions.clone(),
        "target_hidden_states": batch.hidden.clone(),
        "next_token_ids": batch.next_ids.clone(),
        "token_indices_to_sample": batch.last,
        "common_attn_metadata": common,
        "sampling_metadata": SimpleNamespace(all_greedy=True),
        "mm_embed_inputs": None,
        "num_rejected_tokens_gpu": None if batch.rejected is None else batch.rejected.clone(),
    }
    known = inspect.signature(proposer.propose).parameters
    drafts: torch.Tensor = proposer.propose(
        **{name: value for name, value in given.items() if name in known}
    )
    return drafts
