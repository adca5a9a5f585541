"""Upstream's `propose` and the draft graphs, side by side, with backends of plain attention.

``python backend_twin.py --cases N --seed S``, as `upstream_twin`. The metadata builders are vLLM's
own, whatever the release: FLASHINFER's with each kernel that decodes by its TRTLLM interface, and
those of ROCm. The kernels behind them are one double, which gets what `forward` hands the kernel:
the same tensors of the metadata, and the integers that a capture bakes. Prints one line of JSON:
what was drafted how, by backend.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from vllm.config import VllmConfig
from vllm.v1.spec_decode.draft_graphs import capabilities, capture

from tests.draft_graphs import upstream_twin
from tests.draft_graphs.graph_safe_attention import GraphSafeImpl, GraphSafeMetadata
from tests.draft_graphs.mla_twin import HostAware, Recorded
from tests.draft_graphs.twin_model import BLOCK, HEAD, HEADS, Model, Shape
from tests.draft_graphs.upstream_twin import Parts

#: Backend as the shapes name it -> module, class of the backend.
BACKENDS = {
    "TRTLLM-gen": ("flashinfer", "FlashInferBackend"),
    "XQA": ("flashinfer", "FlashInferBackend"),
    "ROCM_ATTN": ("rocm_attn", "RocmAttentionBackend"),
    "ROCM_AITER_UNIFIED_ATTN": ("rocm_aiter_unified_attn", "RocmAiterUnifiedAttentionBackend"),
    "ROCM_AITER_FA": ("rocm_aiter_fa", "AiterFlashAttentionBackend"),
}


class OnRocm(Recorded):
    """Recordings as if HIP had made them."""

    def __init__(self) -> None:
        super().__init__()
        self.platform = capabilities.platform_row("vllm.platforms.rocm.RocmPlatform")


class Anything(ModuleType):
    """A module that has every name, and nothing behind it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@cache
def module_of(name: str) -> Any:
    """The module of vLLM's backend, without the packages that only its devices have."""
    names = ["flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils"]
    if name == "ROCM_AITER_UNIFIED_ATTN":
        names.append("vllm.platforms.rocm")  # asks for the device when it is imported
    with patch.dict(sys.modules, {each: Anything(each) for each in names}):
        module: Any = importlib.import_module(f"vllm.v1.attention.backends.{BACKENDS[name][0]}")
    if BACKENDS[name][0] == "flashinfer":
        # Chooses the kernel of prefills, of which there are none.
        module.use_trtllm_attention = lambda *args, **more: False
    return module


def kernels(module: Any) -> set[str]:
    """The kernels that decode several tokens a request by the TRTLLM interface."""
    if not hasattr(module, "FlashInferDecodeKernel"):  # until 0.24
        return {"TRTLLM-gen"}
    # Its mask of drafts is there from 0.30 on for Hopper; before, one token decodes.
    return {"TRTLLM-gen", "XQA"}


def flashinfer_view(metadata: Any) -> GraphSafeMetadata:
    """What `FlashInferImpl.forward` hands the TRTLLM kernels for decodes."""
    decode, requests = metadata.decode, metadata.num_decodes
    assert metadata.num_prefills == 0, "the double has no kernel for prefills"
    assert metadata.prefill is None
    # Until 0.26 forward itself divides the tokens by the requests.
    length = getattr(decode, "q_len_per_req", None) or metadata.num_decode_tokens // requests
    length = max(length, metadata.num_decode_tokens // requests)
    starts = getattr(decode, "q_cu_seq_lens", None)
    if starts is None:
        assert metadata.num_decode_tokens == length * requests
        starts = torch.arange(requests + 1, dtype=torch.int32) * length
    seq_lens = decode.seq_lens
    mask = getattr(decode, "mask", None)
    if mask is not None:
        # Row i of a draft of `length` tokens sees i + 1 of them: a mask that lost its content
        # shortens what is seen, or lengthens it beyond the bound.
        assert mask.shape[:2] == (requests, length), "a mask of another batch"
        seen = mask_rows(mask)
        expected = torch.arange(1, length + 1, dtype=torch.int64)
        seq_lens = seq_lens + (seen - expected).sum(-1).to(seq_lens.dtype)
    return GraphSafeMetadata(
        num_actual_tokens=metadata.num_decode_tokens,
        max_query_len=length,
        query_start_loc=starts,
        max_seq_len=decode.max_seq_len,
        seq_lens=seq_lens,
        block_table=decode.block_tables,
        slot_mapping=metadata.slot_mapping,
    )


def mask_rows(mask: torch.Tensor) -> torch.Tensor:
    """How many tokens each row of a packed mask lets through, [requests, length] int64."""
    bits = torch.stack([mask.to(torch.int64) >> bit & 1 for bit in range(16)])
    return bits.sum(0).sum(-1)


def rocm_view(metadata: Any) -> GraphSafeMetadata:
    """What the `forward` of ROCM_ATTN and ROCM_AITER_UNIFIED_ATTN hands its kernels."""
    assert not getattr(metadata, "use_cascade", False)
    return GraphSafeMetadata(
        num_actual_tokens=metadata.num_actual_tokens,
        max_query_len=metadata.max_query_len,
        query_start_loc=metadata.query_start_loc,
        max_seq_len=metadata.max_seq_len,
        seq_lens=metadata.seq_lens,
        block_table=metadata.block_table,
        slot_mapping=metadata.slot_mapping,
    )


def aiter_view(metadata: Any) -> GraphSafeMetadata:
    """What the `forward` of ROCM_AITER_FA hands its kernels for decodes."""
    assert metadata.num_prefills == metadata.num_extends == 0, "no kernel for prefills here"
    requests = metadata.num_decodes
    return GraphSafeMetadata(
        num_actual_tokens=metadata.num_decode_tokens,
        max_query_len=metadata.decode_metadata.max_query_len,
        query_start_loc=metadata.query_start_loc[: requests + 1],
        max_seq_len=metadata.max_seq_len,
        seq_lens=metadata.seq_lens[:requests],
        block_table=metadata.block_table[:requests],
        slot_mapping=metadata.slot_mapping,
    )


VIEWS: dict[str, Callable[[Any], GraphSafeMetadata]] = {
    "TRTLLM-gen": flashinfer_view,
    "XQA": flashinfer_view,
    "ROCM_ATTN": rocm_view,
    "ROCM_AITER_UNIFIED_ATTN": rocm_view,
    "ROCM_AITER_FA": aiter_view,
}


class Kernel(GraphSafeImpl):
    """The double of the kernels, which gets the tensors and integers that they get."""

    def __init__(self, backend: str) -> None:
        super().__init__(HEADS, HEAD, HEAD**-0.5, HEADS)
        self.view = VIEWS[backend]

    def forward(
        self,
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        kv_cache: Any,
        attn_metadata: Any,
        *more: Any,
    ) -> Any:
        view = self.view(attn_metadata)
        return super().forward(layer, query, key, value, kv_cache, view, *more)


def make_model(shape: Shape) -> Any:
    """The small random model, whose attention is the kernel of the backend."""
    model = Model(shape)
    model.attention = Kernel(shape.backend)
    return model


def make_builder(name: str, config: VllmConfig, k: int) -> Any:
    """vLLM's builder, with the attributes that its builds for drafts read."""
    module = module_of(name)
    builder = object.__new__(getattr(module, BACKENDS[name][1]).get_builder_cls())
    speculative = SimpleNamespace(
        num_speculative_tokens=k,
        parallel_drafting=False,
        max_num_speculative_tokens=lambda: k,
        use_dflash2=lambda: False,
        enable_adaptive_verification=False,
    )
    vars(builder).update(
        vllm_config=SimpleNamespace(
            speculative_config=speculative,
            parallel_config=SimpleNamespace(decode_context_parallel_size=1),
            num_speculative_tokens=k,
        ),
        device=torch.device("cpu"),
        total_tokens=0,
        scale=None,
        k_scale=None,
        v_scale=None,
    )
    if name in ("TRTLLM-gen", "XQA"):
        set_up_flashinfer(builder, module, name)
    else:
        builder._build_asm_kv_scale_tables = lambda: None  # of an FP8 cache
        # Which kernel decodes, in 0.29 to 0.31: gluon has the real split for batches of all kinds.
        vars(builder).update(num_heads_q=8, num_heads_kv=1, headdim=128)
        module._pa_gluon_supports = lambda *heads: False
    return builder


def set_up_flashinfer(builder: Any, module: Any, name: str) -> None:
    """Let a FLASHINFER builder decode with one kernel, as its `__init__` does on such a device."""
    kernel = getattr(module, "FlashInferDecodeKernel", None)
    several = name == "TRTLLM-gen" or hasattr(module, "_make_xqa_draft_block_mask")
    chosen = None if kernel is None else kernel("trtllm-gen" if name == "TRTLLM-gen" else "xqa")
    vars(builder).update(
        attention_config=SimpleNamespace(use_trtllm_attention=None),
        cache_config=SimpleNamespace(get_resolved_kv_cache_layout=lambda: "HND"),
        cache_dtype="auto",
        dcp_world_size=1,
        dcp_rank=0,
        dcp_kv_cache_interleave_size=1,
        use_dcp=False,
        has_sinks=False,
        is_kvcache_nvfp4=False,
        kv_cache_dtype=torch.float32,
        max_num_reqs=64,
        model_config=SimpleNamespace(dtype=torch.float32),
        num_kv_heads=HEADS,
        num_qo_heads=HEADS,
        head_dim=HEAD,
        page_size=BLOCK,
        use_trtllm_decode_attention=True,
        use_xqa=name == "XQA",
        use_dedicated_xqa=name == "XQA",
        use_trtllm_gen_varlen_decode=False,
        use_fa2_native_decode=False,
        _decode_mask_cache={},
        _num_speculative_tokens=0,
    )
    types = ("q_data_type",) if kernel is None else ("q_data_type_prefill", "q_data_type_decode")
    vars(builder).update(dict.fromkeys(types, torch.float32))
    if kernel is not None:
        builder.flashinfer_trtllm_api_decode_kernel = chosen
    builder._init_reorder_batch_threshold(1, several, False)


def make_group(name: str, k: int) -> Callable[[VllmConfig], Any]:
    """Makes the one attention group of the draft."""

    def make(config: VllmConfig) -> Any:
        group: Any = upstream_twin.Group(config)
        group.backend = getattr(module_of(name), BACKENDS[name][1])
        group.builder = make_builder(name, config, k)
        group.build_metadata_for_drafting = group.builder.build_for_drafting
        return group

    return make


def lengths(threshold: int | None, shape: Shape, dice: random.Random, reqs: int) -> list[int]:
    """Query lengths that no builder takes for prefills."""
    if threshold is None:
        return upstream_twin.drawn_lengths(shape, dice, reqs)
    full = min(shape.k + 1, threshold)
    return [full if dice.random() < 0.67 else dice.randint(1, full)] * reqs


SHAPES = tuple(
    Shape(k=k, mode=mode, max_num_seqs=7, max_capture_tokens=64, backend=backend)
    for backend in BACKENDS
    for k, mode in ((1, "auto"), (2, "step"), (3, "loop"), (5, "auto"))
)


def run(shape: Shape, cases: int, dice: random.Random) -> dict[str, int]:
    """`upstream_twin.run_shape` with the backend; what it has no graph for is not drafted."""
    builder = make_builder(shape.backend, VllmConfig(), shape.k)
    asks = BACKENDS[shape.backend][0] == "flashinfer"
    threshold = builder.reorder_batch_threshold if asks else None
    full = shape.k + 1
    if threshold is not None and threshold < full and shape.k == 1:
        return {}

    def inspect(graphs: Any) -> None:
        roles = {key.role for key in graphs.captured.graphs}
        wanted = threshold is None or threshold >= full
        assert ("first" in roles) == wanted, f"{shape.backend}: captured {roles}"

    def drawn(shape: Shape, dice: random.Random, reqs: int) -> list[int]:
        return lengths(threshold, shape, dice, reqs)

    device = OnRocm if shape.backend.startswith("ROCM") else Recorded
    parts = Parts(make_model, make_group(shape.backend, shape.k), drawn, device, inspect)
    return upstream_twin.run_shape(shape, cases, dice, parts)


def main() -> None:
    """Run all shapes that this release has."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a backend's name")
    arguments = parser.parse_args()
    upstream_twin.alone()
    capture.DraftBuffers = HostAware
    used: dict[str, Counter[str]] = {}
    for number, shape in enumerate(SHAPES):
        if arguments.only not in shape.backend:
            continue
        if shape.backend == "XQA" and shape.backend not in kernels(module_of("XQA")):
            continue
        dice = random.Random(arguments.seed * 1000 + number)
        counts = run(shape, arguments.cases, dice)
        used.setdefault(shape.backend, Counter()).update(counts)
    print("TWIN " + json.dumps(used))


if __name__ == "__main__":
    main()
