"""Paged attention in plain PyTorch that a graph can hold: no value of a tensor reaches the host.

Stands in for vLLM's own CPU backend, which plans on the host and bakes the plan. Like a GPU
kernel it reads lengths, query offsets and block tables from the device when it runs, leaves the
output of padding rows alone, and does not write where the slot is -1. Shapes depend only on the
number of tokens, of requests and of blocks in a row of the table. The integers of the metadata
bound the work, as the launch grid of a kernel does: what lies beyond them is not computed. What a
kernel would read or write out of bounds is clamped here, and counted in `FAULTS`. As
FlashAttention 3 it refuses a capture in which the number of splits has no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from tests.draft_graphs.recorded_graph import CaptureRefused, RecordedGraph

#: Any size, until somebody wants the kernel's blocks to be smaller than the manager's.
KERNEL_BLOCK_SIZES: list[Any] = [MultipleOf(1)]
#: What `FAULTS` counts, by position.
FAULT_NAMES = (
    "a query is longer than max_query_len",
    "the queries have more tokens than there are",
    "a sequence is longer than max_seq_len",
    "a sequence is shorter than its query",
    "a block of the table is not in the cache",
    "a slot is not in the cache",
    "two tokens go to one slot",
)
#: How often each was seen since somebody last set it to zero; lies where device memory would.
FAULTS = torch.zeros(len(FAULT_NAMES), dtype=torch.int64)
#: The first block whose slots are nobody else's. The null block, in front of it, is nobody's: in
#: graphs, rows that are not drafted for write there.
FIRST_BLOCK = [1]


def watch_null_block() -> None:
    """Watch that block, too: without graphs, whoever writes there has no room of its own."""
    FIRST_BLOCK[0] = 0


def faults() -> list[str]:
    """What was seen since the last call."""
    names = [name for name, count in zip(FAULT_NAMES, FAULTS.tolist(), strict=True) if count]
    FAULTS.zero_()
    return names


@dataclass
class GraphSafeMetadata:
    """Views of what the common metadata holds; the integers are baked by a capture."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor  # [R + 1]
    max_seq_len: int
    seq_lens: torch.Tensor  # [R]
    block_table: torch.Tensor  # [R, blocks]
    slot_mapping: torch.Tensor  # [T]
    causal: bool = True
    # First and last position of images, by request: their tokens see each other.
    ranges: dict[int, list[tuple[int, int]]] | None = None
    # 0: the kernel chooses it, by lengths that a capture would bake.
    max_num_splits: int = 1


# The three classes here have bases of vLLM's, and mypy sees no vLLM.
class GraphSafeBackend(AttentionBackend):  # type: ignore[misc]
    """Called CPU_ATTN, because vLLM's platform for CPU accepts no other name."""

    forward_includes_kv_cache_update = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto"]

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return KERNEL_BLOCK_SIZES

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        from vllm.v1.kv_cache_interface import KVCacheLayout  # older releases do not ask

        return (KVCacheLayout.LBHNC,)

    @staticmethod
    def get_kv_cache_shape(  # releases up to 0.28.0 ask the backend
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, *_: Any, **__: Any
    ) -> tuple[int, ...]:
        return num_blocks, num_kv_heads, block_size, 2 * head_size

    @staticmethod
    def get_impl_cls() -> type[GraphSafeImpl]:
        return GraphSafeImpl

    @staticmethod
    def get_builder_cls() -> type[GraphSafeBuilder]:
        return GraphSafeBuilder


# Mypy sees no vLLM, so the base is Any.
class GraphSafeBuilder(AttentionMetadataBuilder[GraphSafeMetadata]):  # type: ignore[misc]
    """Wraps what it is given; nothing is planned."""

    _cudagraph_support = AttentionCGSupport.ALWAYS
    supports_draft_decode_metadata_update = True
    #: Tokens up to which the number of splits is bounded: none but for full graphs.
    bounded_tokens = 0

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        compilation = vllm_config.compilation_config
        if compilation.cudagraph_mode.has_full_cudagraphs():
            self.bounded_tokens = compilation.max_cudagraph_capture_size or 0

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> GraphSafeMetadata:
        common = common_attn_metadata
        return GraphSafeMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            causal=bool(common.causal),
            ranges=getattr(common, "mm_req_doc_ranges", None),
            max_num_splits=32 if common.num_actual_tokens <= self.bounded_tokens else 0,
        )

    def update_draft_decode_metadata(self, metadata: GraphSafeMetadata) -> None:
        """Nothing to refresh: all of it is views."""


class GraphSafeImpl(AttentionImpl):  # type: ignore[misc]  # mypy sees no vLLM, so the base is Any
    """Cache: [blocks, heads, tokens of a block, 2 * head size], keys beside values."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **unsupported: Any,
    ) -> None:
        if alibi_slopes or logits_soft_cap or attn_type != AttentionType.DECODER:
            raise NotImplementedError("plain attention of decoders only")
        self.sliding_window = sliding_window
        self.num_heads, self.head_size = num_heads, head_size
        # A tensor, as the scales of a quantized cache are.
        self.scale = torch.full((1,), float(scale), dtype=torch.float32)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write rows to their slots; a row with slot -1 writes the null block's own content."""
        tokens, block_size = slot_mapping.shape[0], kv_cache.shape[2]
        cells_in_all = kv_cache.shape[0] * block_size
        inside = slot_mapping.sort().values
        FAULTS[5].add_((slot_mapping >= cells_in_all).sum())
        watched = inside[1:] >= FIRST_BLOCK[0] * block_size
        FAULTS[6].add_(((inside[1:] == inside[:-1]) & watched).sum())
        slots = slot_mapping.clamp(min=0, max=cells_in_all - 1)
        blocks, offsets = slots // block_size, slots % block_size
        cells = kv_cache.transpose(1, 2)
        new = torch.cat([key[:tokens], value[:tokens]], -1).to(kv_cache.dtype)
        real = (slot_mapping >= 0)[:, None, None]
        cells.index_put_((blocks, offsets), torch.where(real, new, cells[blocks, offsets]))

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: GraphSafeMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """All rows against all cells of all requests, with those of other requests masked."""
        # Over fifty lines: attention written out in vLLM's order; half are its arguments.
        if attn_metadata is None:
            return output  # vLLM's profile run
        if RecordedGraph.capturing is not None and not attn_metadata.max_num_splits:
            raise CaptureRefused("attention chooses its number of splits by the lengths of a batch")
        meta, size, heads = attn_metadata, self.head_size, self.num_kv_heads
        requests, tokens = meta.seq_lens.shape[0], query.shape[0]
        starts = meta.query_start_loc[: requests + 1]
        rows = torch.arange(tokens, dtype=starts.dtype)
        owner = torch.searchsorted(starts[1:].contiguous(), rows, right=True)
        lengths = starts[1:] - starts[:-1]
        FAULTS[0].add_((lengths > meta.max_query_len).sum())
        FAULTS[1].add_(starts[requests] > tokens)
        FAULTS[2].add_((meta.seq_lens > meta.max_seq_len).sum())
        FAULTS[3].add_(((meta.seq_lens < lengths) & (meta.seq_lens > 0)).sum())
        real = rows < starts[requests].clamp(max=meta.num_actual_tokens)
        owner = owner.clamp(max=requests - 1)
        real &= rows - starts[owner] < meta.max_query_len
        # The last row of a request sees its whole sequence, the one before a token less.
        behind = starts[owner + 1] - 1 - rows if meta.causal else 0
        seen = meta.seq_lens[owner] - behind
        for request, ranges in (meta.ranges or {}).items():
            for first, last in ranges:
                inside = (owner == request) & (seen > first) & (seen <= last)
                seen = torch.where(inside, meta.seq_lens[owner].clamp(max=last + 1), seen)
        seen = seen.clamp(max=meta.max_seq_len)
        begins = torch.zeros_like(seen)
        if self.sliding_window is not None:
            if not meta.causal:
                raise NotImplementedError("a sliding window of causal attention only")
            begins = (seen - self.sliding_window).clamp(min=0)

        table = meta.block_table[:requests].long()
        FAULTS[4].add_(((table < 0) | (table >= kv_cache.shape[0])).sum())
        table = table.clamp(min=0, max=kv_cache.shape[0] - 1)
        cells = kv_cache[table].transpose(2, 3).reshape(-1, heads, 2 * size).float()
        per_request = cells.shape[0] // requests
        cell = torch.arange(cells.shape[0])
        visible = (
            real[:, None]
            & (cell // per_request == owner[:, None])
            & (cell % per_request < seen[:, None])
            & (cell % per_request >= begins[:, None])
        )
        # What a row may not see may hold NaN, and zero times NaN is NaN.
        broken = ~cells.isfinite().flatten(1).all(1)
        cells = torch.where(broken[:, None, None], 0.0, cells)

        queries = query.view(tokens, heads, self.num_heads // heads, size).float() * self.scale
        scores = torch.einsum("thgd,shd->thgs", queries, cells[..., :size])
        weights = scores.masked_fill(~visible[:, None, None], float("-inf")).softmax(-1)
        result = torch.einsum("thgs,shd->thgd", weights, cells[..., size:])
        sees_it = (visible & broken).any(1)
        result = torch.where(sees_it[:, None, None, None], float("nan"), result)
        result = result.reshape(output.shape).to(output.dtype)
        output.copy_(torch.where(real.view(-1, *[1] * (output.dim() - 1)), result, output))
        return output


def register() -> None:
    """Put the backend in the place of vLLM's own for CPU."""
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.{GraphSafeBackend.__name__}")
