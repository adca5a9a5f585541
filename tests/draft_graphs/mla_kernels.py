"""Doubles in plain PyTorch of the kernels behind vLLM's MLA backends, which a graph can hold.

Only the kernels are replaced: builders, metadata and `forward_mqa` are vLLM's own, whatever the
release. As the kernels do, the doubles take lengths from the schedule where there is one, so a
schedule that was not made again at a replay gives wrong results, and they compute nothing beyond
the integers that a capture bakes. Rows for which nothing is to be seen give zeros.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

#: What FlashAttention 3 must get as its bound of splits wherever there may be a graph.
MAX_SPLITS = 32


def paged(
    query: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    owner: torch.Tensor,
    seen: torch.Tensor,
    scale: float,
    latent: int,
) -> torch.Tensor:
    """Attention of many heads over one key: [T, heads, width] to [T, heads, latent].

    cache: [blocks, tokens of a block, width], whose first `latent` columns are the values. table:
    [R, blocks]. owner: [T], a row of the table. seen: [T], how many tokens of it are visible.
    """
    rows = table.long().clamp(min=0, max=cache.shape[0] - 1)
    cells = cache[rows].flatten(1, 2)[owner].float()  # [T, cells of a request, width]
    visible = torch.arange(cells.shape[1]) < seen[:, None]
    cells = torch.where(visible[..., None], cells, 0.0)
    scores = torch.einsum("thd,tsd->ths", query.float(), cells) * scale
    weights = scores.masked_fill(~visible[:, None], float("-inf")).softmax(-1)
    out = torch.einsum("ths,tsl->thl", weights, cells[..., :latent])
    return torch.where((seen > 0)[:, None, None], out, 0.0).to(query.dtype)


def _room(rows: int) -> int:
    return -(-rows // 4) * 4


def get_scheduler_metadata(
    *, batch_size: int, max_seqlen_q: int, cache_seqlens: torch.Tensor, **more: Any
) -> torch.Tensor:
    """[1 + 4 * R rounded up]: lengths of the sequences and, where R says, of the queries."""
    room, starts = _room(batch_size), more["cu_seqlens_q"]
    assert cache_seqlens.shape[0] == batch_size == starts.shape[0] - 1
    schedule = torch.zeros(1 + 4 * room, dtype=torch.int32)
    schedule[1 : 1 + batch_size].copy_(cache_seqlens)
    schedule[1 + room : 1 + room + batch_size].copy_(starts[1:] - starts[:-1])
    return schedule


def flash_attn_varlen_func(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_v: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    cu_seqlens_q: torch.Tensor,
    block_table: torch.Tensor,
    scheduler_metadata: torch.Tensor,
    **more: Any,
) -> torch.Tensor:
    """FlashAttention 3 with a schedule: the lengths are those of the schedule."""
    assert more["num_splits"] == MAX_SPLITS, "without a bound the kernel counts splits on the host"
    requests, tokens = cu_seqlens_q.shape[0] - 1, q.shape[0]
    room = (scheduler_metadata.shape[0] - 1) // 4
    assert room == _room(requests), "the schedule was made for another number of requests"
    rows = torch.arange(tokens, dtype=torch.int32)
    owner = torch.searchsorted(cu_seqlens_q[1:].contiguous(), rows, right=True)
    owner = owner.clamp(max=requests - 1)
    place = rows - cu_seqlens_q[owner]
    length = scheduler_metadata[1 : 1 + requests][owner].clamp(max=max_seqlen_k)
    queries = scheduler_metadata[1 + room : 1 + room + requests][owner]
    seen = torch.where(place < max_seqlen_q, length - (queries - 1 - place), 0)
    cache = torch.cat([v.squeeze(-2), k.squeeze(-2)], -1)
    query = torch.cat([q_v, q], -1)
    return paged(query, cache, block_table, owner, seen, more["softmax_scale"], v.shape[-1])


@dataclass
class Schedule:
    """FlashMLA's: empty until the first layer asks for it."""

    shape: torch.Size | None = None
    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None


def get_mla_metadata(*_: Any, **__: Any) -> tuple[Schedule, None]:
    """An empty schedule."""
    return Schedule(), None


def flash_mla_with_kvcache(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int,
    tile_scheduler_metadata: Schedule,
    softmax_scale: float,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashMLA, q [R, length, heads, width]: the first layer makes the schedule for all."""
    schedule = tile_scheduler_metadata
    requests, length, heads, _width = q.shape
    if schedule.tile_scheduler_metadata is None:
        schedule.shape = q.shape
        schedule.tile_scheduler_metadata = cache_seqlens.clone()
    assert schedule.shape == q.shape, "the schedule was made for another batch"
    ends = torch.arange(1 - length, 1, dtype=torch.int32)
    seen = (schedule.tile_scheduler_metadata[:, None] + ends).flatten()
    owner = torch.arange(requests).repeat_interleave(length)
    query, cache = q.flatten(0, 1), k_cache.squeeze(-2)
    out = paged(query, cache, block_table, owner, seen, softmax_scale, head_dim_v)
    return out.unflatten(0, (requests, length)), torch.zeros(requests, heads, length)


def decode_attention_fwd(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    req_to_token: torch.Tensor,
    b_seq_len: torch.Tensor,
    attn_logits: torch.Tensor,
    num_kv_splits: int,
    sm_scale: float,
    page_size: int,
    **_: Any,
) -> None:
    """Triton's decode kernel: a row of the table for each row of q; writes o."""
    assert q.shape[0] == req_to_token.shape[0] == b_seq_len.shape[0]
    owner = torch.arange(q.shape[0])
    cache, latent = k_buffer.squeeze(2), v_buffer.shape[-1]
    o.copy_(paged(q, cache, req_to_token, owner, b_seq_len, sm_scale, latent))


def trtllm_batch_decode_with_kv_cache_mla(
    *,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    kv_lora_rank: int,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    bmm1_scale: float,
    cum_seq_lens_q: torch.Tensor | None = None,
    max_q_len: int | None = None,
    **_: Any,
) -> torch.Tensor:
    """FlashInfer's, query [R, length, heads, width], or, from 0.31, [T, heads, width]."""
    requests = seq_lens.shape[0]
    if cum_seq_lens_q is None:
        length, shape = query.shape[1], query.shape[:-1]
        owner = torch.arange(requests).repeat_interleave(length)
        later = torch.arange(length - 1, -1, -1).repeat(requests)
        query = query.flatten(0, 1)
    else:
        assert max_q_len is not None
        rows, shape = torch.arange(query.shape[0], dtype=torch.int32), query.shape[:-1]
        owner = torch.searchsorted(cum_seq_lens_q[1:].contiguous(), rows, right=True)
        owner = owner.clamp(max=requests - 1)
        later = cum_seq_lens_q[owner + 1] - 1 - rows
        # Whoever promises too short a query loses its end.
        later = torch.where(rows - cum_seq_lens_q[owner] < max_q_len, later, max_seq_len)
    seen = seq_lens.clamp(max=max_seq_len)[owner] - later
    cache = kv_cache.squeeze(1)
    out = paged(query, cache, block_tables, owner, seen, bmm1_scale, kv_lora_rank)
    return out.view(*shape, kv_lora_rank)


FILES = {
    "FLASH_ATTN_MLA": "flashattn_mla",
    "FLASHMLA": "flashmla",
    "TRITON_MLA": "triton_mla",
    "FLASHINFER_MLA": "flashinfer_mla",
}
DOUBLES: dict[str, tuple[Any, ...]] = {
    "FLASH_ATTN_MLA": (flash_attn_varlen_func, get_scheduler_metadata),
    "FLASHMLA": (flash_mla_with_kvcache, get_mla_metadata),
    "TRITON_MLA": (decode_attention_fwd,),
    "FLASHINFER_MLA": (trtllm_batch_decode_with_kv_cache_mla,),
}


def _stand_ins() -> dict[str, Any]:
    """Modules that the backends import and that only a GPU has, by name."""
    from vllm.v1.attention.backends import fa_utils

    names = ("vllm.vllm_flash_attn", "flashinfer", "flashinfer.decode", "flashinfer.utils")
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    for where in (modules["vllm.vllm_flash_attn"], fa_utils):
        where.flash_attn_varlen_func = flash_attn_varlen_func
        where.get_scheduler_metadata = get_scheduler_metadata
    kernel = trtllm_batch_decode_with_kv_cache_mla
    modules["flashinfer.decode"].trtllm_batch_decode_with_kv_cache_mla = kernel
    utils = modules["flashinfer.utils"]
    utils.get_device_sm_count = utils.get_trtllm_gen_multi_ctas_kv_counter_bytes = None
    return modules


@cache
def backend(name: str) -> Any:
    """The module of vLLM's MLA backend `name`, with the doubles in the place of the kernels."""
    importlib.import_module("vllm.model_executor.layers.attention.mla_attention")
    # Until 0.24 FlashInfer's workspace is made on the GPU when the module is imported.
    no_workspace = patch.object(torch, "zeros", lambda *size, **_: torch.empty(0))
    with patch.dict(sys.modules, _stand_ins()), no_workspace:
        module: Any = importlib.import_module(f"vllm.v1.attention.backends.mla.{FILES[name]}")
    for double in DOUBLES[name]:
        assert hasattr(module, double.__name__), f"{name} calls no {double.__name__} any more"
        setattr(module, double.__name__, double)
    module._get_workspace_buffer = lambda return_lse: None
    if name == "TRITON_MLA":
        module.triton = SimpleNamespace(
            next_power_of_2=lambda number: 1 << (int(number) - 1).bit_length()
        )
    return module
