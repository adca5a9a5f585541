"""Drafts by vllm-ascend's own proposer, metadata builder, attention and graphs.

What stands for a part of vllm-ascend, and why: the forward context (the real one asks for process
groups), the runner's buffers and dispatcher (the real ones need a model), masks and rotary tables
(the operators' stand-ins do not read them), torch_npu's streams and graphs (`npu_double`).

Longer than other modules: what is doubled has to be seen beside what is real, in one place.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Literal

import torch
import vllm_ascend.ascend_config as ascend_config
import vllm_ascend.attention.attention_v1 as dense_attention
import vllm_ascend.attention.mla_v1 as mla_attention
import vllm_ascend.compilation.acl_graph as acl_graph
import vllm_ascend.spec_decode.llm_base_proposer as base_proposer
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import BatchDescriptor, get_forward_context, override_forward_context
from vllm_ascend.attention.attention_v1 import AscendAttentionState
from vllm_ascend.attention.utils import AscendCommonAttentionMetadata
from vllm_ascend.spec_decode.eagle_proposer import AscendEagleProposer

from tests.ascend import npu_double
from tests.ascend.batches import Batch
from tests.ascend.twin_model import (
    BLOCK,
    BLOCKS,
    HIDDEN,
    LAYER,
    LONGEST,
    ROPE,
    TABLE,
    WIDTH,
    DraftModel,
    by_tensors,
    options_of,
)

TOKENS, ROWS = 256, 64

Mode = Literal["eager", "piecewise", "full"]


class _Buffer:
    """A buffer of the host and one of the device."""

    def __init__(self, *shape: int) -> None:
        self.cpu = torch.zeros(*shape, dtype=torch.int32)
        self.gpu = torch.zeros(*shape, dtype=torch.int32)
        self.np = self.cpu.numpy()

    def copy_to_gpu(self, count: int | None = None) -> torch.Tensor:
        """Copy the first `count` values, or all."""
        return self.gpu[:count].copy_(self.cpu[:count])


class _Dispatcher:
    """Graphs for uniform batches of some sizes, as the runner's dispatcher has them."""

    def __init__(self, mode: Mode, k: int, sizes: tuple[int, ...]) -> None:
        self._mode, self._k, self._sizes = mode, k, sizes

    def dispatch(
        self, num_tokens: int, uniform_decode: bool = False, **more: Any
    ) -> tuple[CUDAGraphMode, BatchDescriptor]:
        """The mode and the padded batch."""
        rows = -(-num_tokens // (self._k + 1))
        padded = next((size for size in self._sizes if size >= rows), None)
        if padded is None or not uniform_decode or self._mode == "eager":
            mode = CUDAGraphMode.PIECEWISE if self._mode == "piecewise" else CUDAGraphMode.NONE
            return mode, BatchDescriptor(num_tokens)
        tokens = padded * (self._k + 1)
        if self._mode == "piecewise":
            return CUDAGraphMode.PIECEWISE, BatchDescriptor(tokens)
        return CUDAGraphMode.FULL, BatchDescriptor(tokens, num_reqs=padded, uniform=True)


class Runner:
    """The parts of NPUModelRunner that drafting reads."""

    def __init__(self, k: int, mode: Mode, sizes: tuple[int, ...], pin: bool = False) -> None:
        self._k = k
        self.table: torch.Tensor = torch.zeros(ROWS, TABLE, dtype=torch.int32)
        table = SimpleNamespace(
            get_device_tensor=lambda *rows: self.table, slot_mapping=_Buffer(TOKENS)
        )
        self.input_batch = SimpleNamespace(
            lora_id_to_lora_request={},
            block_table=[table],
            num_computed_tokens_cpu_tensor=torch.zeros(ROWS, dtype=torch.int32),
            sampling_metadata=SimpleNamespace(all_greedy=True),
        )
        self.cudagraph_dispatcher = _Dispatcher(mode, k, sizes)
        self.seq_lens = torch.zeros(ROWS, dtype=torch.int32)
        self.optimistic_seq_lens_cpu = torch.zeros(ROWS, dtype=torch.int32)
        self.query_start_loc = _Buffer(ROWS + 2)
        self.positions = torch.zeros(TOKENS, dtype=torch.int32)
        self.actual_seq_lengths_q: list[int] = []
        self.attn_state = AscendAttentionState.SpecDecoding
        self.attn_groups = [()]
        self.decode_token_per_req = self.uniform_decode_query_len = k + 1
        self.dynamic_eplb = self.eplb_heat_collection_status = False
        self.pin_memory, self.max_num_reqs, self.max_num_tokens = pin, ROWS, TOKENS
        self.pcp_size = self.dcp_size = 1
        self.sparse_kv_offload_enabled = False
        self.synchronize_input_prep = contextlib.nullcontext
        # Parts of later releases that are off here.
        self._copy_sfa_need_eager_tail_restore = False
        self._offload_pool_active = self._offload_pool_slots = None
        self._dsa_positions_cpu_buf = self.sparse_kv_offload_config = None
        self._offload_req_ids_tensor = self._offload_token_to_req = None
        self.group_len = self.group_key_idx = self.group_key_cache_idx = _Buffer(ROWS)

    def get_model(self) -> None:
        """The target, which no builder needs here."""

    def _sync_metadata_across_dp(self, count: int, **more: Any) -> tuple[int, None, None]:
        return count, None, None

    def _pad_query_start_loc_for_fia(self, *given: Any) -> int:
        """Give each padded row K+1 queries, as the runner does for a uniform batch."""
        buffer = given[0] if isinstance(given[0], _Buffer) else self.query_start_loc
        numbers = [value for value in given if isinstance(value, int)]
        tokens, rows = numbers[0], numbers[0] // (self._k + 1)
        buffer.cpu[: rows + 1] = torch.arange(rows + 1, dtype=torch.int32) * (self._k + 1)
        buffer.copy_to_gpu(rows + 1)
        assert int(buffer.cpu[rows]) == tokens
        return rows


class _DenseGroup:
    kv_cache_group_id = 0
    layer_names = (LAYER,)
    kv_cache_spec = SimpleNamespace(block_size=BLOCK)
    backend: type = dense_attention.AscendAttentionBackend

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def get_metadata_builder(self) -> Any:
        return self._builder


class _MlaBackend:
    @staticmethod
    def get_impl_cls() -> type:
        impl: type = mla_attention.AscendMLAImpl
        return impl


class _MlaGroup(_DenseGroup):
    backend = _MlaBackend


class _Off:
    """A configuration of vllm-ascend in which everything that can be switched on is off."""

    def __getattr__(self, name: str) -> _Off:
        return _Off()

    def __bool__(self) -> bool:
        return False


@contextlib.contextmanager
def _forward_context(attn_metadata: Any, vllm_config: VllmConfig, **given: Any) -> Iterator[None]:
    context = SimpleNamespace(
        additional_kwargs={},
        attn_metadata=attn_metadata,
        batch_descriptor=given.get("batch_descriptor"),
        capturing=False,
        cudagraph_runtime_mode=given.get("aclgraph_runtime_mode", CUDAGraphMode.NONE),
        flash_comm_v1_enabled=False,
        is_draft_model=True,
        is_draft_model_prefill=False,
        moe_layer_index=0,
        num_tokens=given.get("num_tokens"),
        sinks=False,
        slot_mapping={},
    )
    with override_forward_context(context):
        yield


def attend(
    model: DraftModel, query: torch.Tensor, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor:
    """Attention by vllm-ascend's class, from vllm-ascend's metadata."""
    metadata = get_forward_context().attn_metadata
    if metadata is None:  # a dummy run without attention
        return torch.zeros(*query.shape[:2], WIDTH)
    metadata = metadata[LAYER]
    model.cache.write(metadata.slot_mapping, first, second)
    if model.attention == "tensor":
        return by_tensors(model, query, metadata)
    if model.attention == "dense":
        own = [each.view(each.shape[0], -1, WIDTH) for each in (first, second)]
        output = torch.zeros(query.shape[0], *query.shape[1:])
        return model.impl.forward_fused_infer_attention(query, *own, metadata, output)
    count = metadata.decode.actual_seq_lengths_q[-1]
    parts = (query[:count, :, :WIDTH].contiguous(), query[:count, :, WIDTH:].contiguous())
    out = _mla_decode(model, parts, metadata)
    # The operator writes [heads, tokens, width].
    result = torch.zeros(*query.shape[:2], WIDTH)
    result[:count] = out.view(query.shape[1], count, WIDTH).transpose(0, 1)
    return result


def _mla_decode(
    model: DraftModel, parts: tuple[torch.Tensor, torch.Tensor], metadata: Any
) -> torch.Tensor:
    decode = model.impl._forward_decode
    if "decode_preprocess_res" not in inspect.signature(decode).parameters:
        cache = (model.cache.first, model.cache.second)
        return decode(*parts, *cache, BLOCK, metadata)
    kind = mla_attention.DecodeMLAPreprocessResult
    names = inspect.signature(kind).parameters
    given = {
        "ql_nope": parts[0],
        "q_pe": parts[1],
        "k_nope": model.cache.first,
        "k_pe": model.cache.second,
    }
    return decode(kind(**{n: given.get(n) for n in names}), BLOCK, metadata)


def make_impl(model: DraftModel) -> Any:
    """vllm-ascend's attention class with what a forward pass reads."""
    options = options_of(model.attention)
    if model.attention == "dense":
        impl: Any = object.__new__(dense_attention.AscendAttentionBackendImpl)
        vars(impl).update(
            _layer_name=LAYER,
            _use_layer_aware_fia_graph_replay=False,
            _use_max_workspace_for_fia_graph=False,
            attn_type="decoder",
            enable_c8_quant=False,
            enable_hamming_sparse=False,
            head_size=WIDTH,
            key_cache=model.cache.first,
            kv_sharing_target_layer_name=None,
            layerIndex=0,
            num_heads=options["num_heads"],
            num_kv_heads=options["num_key_value_heads"],
            scale=options["scale"],
            sinks=None,
            sliding_window=None,
            use_bnsd_kv_cache=False,
            value_cache=model.cache.second,
        )
        return impl
    impl = object.__new__(mla_attention.AscendMLAImpl)
    vars(impl).update(
        _v_up_proj=lambda out: out,
        enable_kv_nz=False,
        enable_mla_fia_split=False,
        fa_quant_layer=False,
        fak_descale_float=None,
        head_padding=0,
        kv_lora_rank=WIDTH,
        layer_name=LAYER,
        num_heads=options["num_heads"],
        num_heads_padded=options["num_heads"],
        num_kv_heads=1,
        qk_rope_head_dim=ROPE,
        scale=options["scale"],
        speculative_config=SimpleNamespace(disable_padded_drafter_batch=False),
        support_fp8_attention=False,
    )
    return impl


class _TensorBackend:
    """Operators that read lengths on the device: nothing of their graphs is updated."""

    @staticmethod
    def get_impl_cls() -> type:
        """What vllm-ascend asks to update a graph."""
        return _TensorBackend

    @staticmethod
    def update_graph_params(*given: Any, **more: Any) -> None:
        """As the classes of SFA and DSA do."""


class _TensorBuilder:
    """Metadata of such operators: views of the tensors of each pass."""

    def build(self, prefix: int, common: Any, *given: Any, **more: Any) -> Any:
        """Of pass 0."""
        return SimpleNamespace(
            query_start_loc=common.query_start_loc,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping[: common.num_actual_tokens],
            num_prefills=0,
        )

    def build_for_drafting(self, *given: Any, **more: Any) -> Any:
        """Of a later pass; releases have its two arguments in either order."""
        arguments = [*given, *more.values()]
        return self.build(0, next(each for each in arguments if not isinstance(each, int)))

    def build_for_graph_capture(self, common: Any, *given: Any) -> Any:
        """Of a capture."""
        return self.build(0, common)


class _TensorGroup(_DenseGroup):
    backend = _TensorBackend


def _make_builder(model: DraftModel, config: Any, k: int) -> Any:
    kind = (
        dense_attention.AscendAttentionMetadataBuilder
        if model.attention == "dense"
        else mla_attention.AscendMLAMetadataBuilder
    )
    builder: Any = object.__new__(kind)
    mask = SimpleNamespace(
        get_attention_mask=lambda *given: None,
        get_splitfuse_attn_mask=lambda *given: None,
        get_pcp_mla_mask=lambda *given: None,
    )
    vars(builder).update(
        attn_mask_builder=mask,
        block_size=BLOCK,
        chunked_prefill_enabled=True,
        decode_threshold=k + 1,
        device="cpu",
        enable_mla_fia_split=False,
        graph_pad_size=0,
        kv_cache_spec=SimpleNamespace(block_size=BLOCK),
        metadata_cls=(
            dense_attention.AscendMetadata
            if model.attention == "dense"
            else mla_attention.AscendMLAMetadata
        ),
        model_config=SimpleNamespace(runner_type="generate", get_head_size=lambda: WIDTH),
        dcp_enabled=False,
        nope_zero_rope_cache=None,
        use_mla_rope=True,
        pcp_enabled=False,
        reorder_batch_threshold=k + 1,
        speculative_config=config.speculative_config,
        vllm_config=config,
    )
    return builder


def replace_parts() -> None:
    """Let vllm-ascend draft without an NPU; `npu_double.install` has run before its import."""
    base_proposer.set_ascend_forward_context = _forward_context
    base_proposer.lmhead_tp_enable = lambda: False
    ascend_config._ASCEND_CONFIG = _Off()
    ascend_config._is_ascend_config_initialized = lambda config: True
    acl_graph.current_platform = SimpleNamespace(get_global_graph_pool=lambda: None)
    mla_attention.get_cos_and_sin_mla = lambda positions, *given, **more: (
        torch.zeros(len(positions), ROPE),
        torch.zeros(len(positions), ROPE),
    )
    if hasattr(dense_attention, "needs_layer_aware_fia_graph_replay"):
        dense_attention.needs_layer_aware_fia_graph_replay = lambda: False


def make_proposer(
    model: DraftModel,
    config: VllmConfig,
    k: int,
    mode: Mode,
    sizes: tuple[int, ...],
    *,
    enpu: bool = False,
) -> Any:
    """vllm-ascend's proposer with what drafting reads, captured where `mode` is full."""
    # Over fifty lines: one table of what the proposer reads, an attribute a line.
    model.impl = make_impl(model) if model.attention != "tensor" else None
    dense = model.attention != "mla"
    runner = Runner(k, mode, sizes)
    group: _DenseGroup
    if model.attention == "tensor":
        group = _TensorGroup(_TensorBuilder())
    else:
        group = (_DenseGroup if dense else _MlaGroup)(_make_builder(model, config, k))

    def by_pass() -> list[torch.Tensor]:
        return [torch.zeros(2 * TOKENS, dtype=torch.int32) for _ in range(k)]

    proposer: Any = object.__new__(AscendEagleProposer)
    vars(proposer).update(
        arange=torch.arange(TOKENS + 1, dtype=torch.int32),
        attn_layer_names=[LAYER],
        block_size=BLOCK,
        block_table_tensor_clone=None,
        constant_draft_positions=False,
        dcp_size=1,
        decode_threshold=k + 1,
        device=torch.device("cpu"),
        draft_attn_groups=[group],
        draft_model_config=SimpleNamespace(use_mla=not dense),
        draft_uses_xdrope_dim=0,
        draft_window_size=None,
        dtype=torch.float32,
        dynamic_spec=None,
        enable_enpu=enpu,
        enable_shared_expert_dp=False,
        extra_slots_per_request=1,
        has_gdn=False,
        hidden_size=HIDDEN,
        hidden_states=torch.zeros(TOKENS, HIDDEN),
        input_ids=torch.zeros(TOKENS, dtype=torch.int32),
        inputs_embeds=None,
        is_multimodal_model=False,
        kernel_block_size=BLOCK,
        kv_cache_gid=0,
        max_model_len=LONGEST,
        method="eagle3" if dense else "mtp",
        model=model,
        model_returns_tuple=lambda: True,
        needs_extra_input_slots=False,
        num_speculative_tokens=k,
        parallel_drafting=False,
        pass_hidden_states_to_model=True,
        pcp_size=1,
        positions=torch.zeros(TOKENS, dtype=torch.int32),
        query_start_loc=_Buffer(ROWS + 2),
        query_start_loc_group=by_pass(),
        runner=runner,
        seq_lens_group=by_pass(),
        sliding_window=None,
        slot_mapping_group=by_pass(),
        supports_mm_inputs=False,
        token_arange_np=torch.arange(TOKENS + 1, dtype=torch.int32).numpy(),
        token_indices_to_sample=torch.zeros(TOKENS, dtype=torch.int32),
        use_compress=False,
        use_cuda_graph=mode != "eager",
        uses_mrope=False,
        uses_xdrope_dim=0,
        vllm_config=config,
        _enable_probabilistic_draft_probs=False,
        _last_draft_probs=None,
        _lim_topk_compactors=[],
        _share_mtp_indices=False,
    )
    proposer._runnable = proposer._run_merged_draft
    if mode == "full":
        _capture(proposer, k, sizes)
    return proposer


def _capture(proposer: Any, k: int, sizes: tuple[int, ...]) -> None:
    """Capture the merged draft as vllm-ascend does, by its own dummy run."""
    tokens = [size * (k + 1) for size in sizes]
    if hasattr(acl_graph, "set_draft_graph_params"):
        acl_graph._draft_graph_params = None
        acl_graph.set_draft_graph_params(tokens)
    proposer.update_stream = npu_double.Stream()
    known = inspect.signature(acl_graph.ACLGraphWrapper).parameters
    options = {
        "use_eagle": True,
        "enable_enpu": proposer.enable_enpu,
        "update_stream": proposer.update_stream,
    }
    proposer._runnable = acl_graph.ACLGraphWrapper(
        proposer._run_merged_draft,
        proposer.vllm_config,
        runtime_mode=CUDAGraphMode.FULL,
        **{name: value for name, value in options.items() if name in known},
    )
    proposer.model.attend = attend
    for size, count in zip(sizes, tokens, strict=True):
        starts = torch.arange(size + 1, dtype=torch.int32) * (k + 1)
        proposer.runner.query_start_loc.cpu[: size + 1] = starts
        proposer.runner.query_start_loc.copy_to_gpu()
        proposer.runner.seq_lens.fill_(k + 1)
        proposer.runner.optimistic_seq_lens_cpu.fill_(k + 1)
        proposer.dummy_run(
            num_tokens=count,
            num_reqs=size,
            in_graph_capturing=True,
            aclgraph_runtime_mode=CUDAGraphMode.FULL,
            batch_descriptor=BatchDescriptor(count, num_reqs=size, uniform=True),
        )


def draft(proposer: Any, batch: Batch) -> torch.Tensor:
    """[requests, K] draft tokens; nothing of them is still being computed.

    :raises ReplayRefused: if the draft would never end on an NPU.
    """
    # Over fifty lines: one call with the arguments of vllm-ascend, one a line.
    proposer.model.attend = attend
    runner, rows = proposer.runner, len(batch.seen)
    seen = torch.tensor(batch.seen, dtype=torch.int32)
    for lengths in (runner.seq_lens, runner.optimistic_seq_lens_cpu):
        lengths.fill_(0)[:rows] = seen
    runner.table.zero_()[:rows] = batch.table
    # 0.20.2rc1 leaves what the last batch had in padded rows; an NPU reads past the end there.
    proposer.token_indices_to_sample.zero_()
    runner.query_start_loc.cpu[: rows + 1] = batch.ends
    runner.query_start_loc.copy_to_gpu()
    common = AscendCommonAttentionMetadata(
        query_start_loc=batch.ends,
        query_start_loc_cpu=batch.ends,
        seq_lens=seen.clone(),
        seq_lens_cpu=seen.clone(),
        _seq_lens_cpu=seen.clone(),
        seq_lens_cpu_upper_bound=seen.clone(),
        num_reqs=rows,
        num_actual_tokens=len(batch.ids),
        num_input_tokens=len(batch.ids),
        max_query_len=max(batch.lengths),
        max_seq_len=max(batch.seen),
        block_table_tensor=batch.table.clone(),
        slot_mapping=batch.slots.int(),
        causal=True,
        positions=batch.positions.int(),
        attn_state=runner.attn_state,
        decode_token_per_req=batch.k + 1,
        num_computed_tokens_cpu=None,
        is_prefilling=torch.zeros(rows, dtype=torch.bool),
    )
    given = {
        "num_speculative_tokens": batch.k,
        "target_token_ids": batch.ids.clone(),
        "target_positions": batch.positions.int(),
        "target_hidden_states": batch.hidden.clone(),
        "next_token_ids": batch.next_ids.clone(),
        "token_indices_to_sample": batch.last,
        "common_attn_metadata": common,
        "target_model_batch_desc": BatchDescriptor(len(batch.ids), uniform=batch.uniform),
        "sampling_metadata": SimpleNamespace(all_greedy=True),
        "num_rejected_tokens_gpu": None if batch.rejected is None else batch.rejected.clone(),
    }
    known = inspect.signature(proposer._propose).parameters
    drafts: torch.Tensor = proposer._propose(
        **{name: value for name, value in given.items() if name in known}
    )
    npu_double.synchronize()
    return drafts[:rows].clone()


assert BLOCKS > ROWS
