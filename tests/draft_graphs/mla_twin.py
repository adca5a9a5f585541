"""Upstream's `propose` and the draft graphs, side by side, with vLLM's MLA backends.

``python mla_twin.py --cases N --seed S``, as `upstream_twin`, with a small random model that has
latent attention. Metadata builders and `forward_mqa` are vLLM's own; only the kernels behind them
are doubles (`mla_kernels`). Prints one line of JSON: what was drafted how, by backend.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.v1.spec_decode.draft_graphs import capabilities, capture

from tests.draft_graphs import mla_kernels, upstream_twin
from tests.draft_graphs.recorded_backend import RecordedBackend
from tests.draft_graphs.twin_model import (
    BLOCK,
    BLOCKS,
    HEADS,
    HIDDEN,
    LAYER,
    LONGEST,
    VOCAB,
    Shape,
)
from tests.draft_graphs.upstream_twin import Parts

LATENT, ROPE, LAYERS = 16, 8, 2
WIDTH = LATENT + ROPE
HOST: list[torch.Tensor] = []


class HostAware(capture.DraftBuffers):  # type: ignore[misc]  # mypy sees no vLLM
    """Tells the recordings which of the module's tensors are host memory."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # On CPU a tensor that is moved to the device stays the same one.
        starts: dict[int, torch.Tensor] = vars(self)["query_start_loc_cpu"]
        starts.update({length: start.clone() for length, start in starts.items()})
        HOST[:] = [*starts.values(), self.seq_lens_bound]


class Recorded(RecordedBackend):
    """Tells host memory from device memory."""

    def __init__(self) -> None:
        super().__init__()
        self.host = HOST


class Model(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # mypy may see no PyTorch
    """An MTP-like draft: two layers of latent attention over one cache, absorbed weights only."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def weight(*size: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(size, generator=generator) / size[-1] ** 0.5)

        self.embed, self.head = weight(VOCAB, HIDDEN), weight(VOCAB, HIDDEN)
        self.mix, self.places = weight(HIDDEN, 2 * HIDDEN), weight(1, WIDTH)
        self.cell = weight(WIDTH, HIDDEN)
        self.queries = torch.nn.ParameterList(
            [weight(HEADS * WIDTH, HIDDEN) for _ in range(LAYERS)]
        )
        self.outs = torch.nn.ParameterList([weight(HIDDEN, HEADS * LATENT) for _ in range(LAYERS)])
        self.kv_cache = torch.zeros(BLOCKS, BLOCK, WIDTH)
        self.beyond = torch.zeros((), dtype=torch.int64)
        self.impl = make_impl(shape.backend)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states @ self.head.T

    def write(self, cells: torch.Tensor, slots: torch.Tensor) -> None:
        """Each row to its slot; one with slot -1 writes the null block's own content."""
        place = slots.clamp(min=0)
        flat = self.kv_cache.view(-1, WIDTH)
        flat.index_put_((place,), torch.where((slots >= 0)[:, None], cells, flat[place]))

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
        hidden_states: torch.Tensor,
    ) -> torch.Tensor:
        # Beyond the longest position a table of cosines ends.
        self.beyond.add_((positions >= LONGEST).sum())
        context = get_forward_context()
        metadata, slots = context.attn_metadata[LAYER], context.slot_mapping[LAYER]
        assert metadata.prefill is None, "the doubles have no kernel for prefills"
        embeds = torch.where(positions[:, None] == 0, 0.0, self.embed[input_ids.long()])
        mixed = torch.tanh(torch.cat([embeds, hidden_states], -1) @ self.mix.T)
        turned = torch.sin(positions[:, None].float() @ self.places)
        self.write(mixed @ self.cell.T + turned, slots)
        for query_weight, out_weight in zip(self.queries, self.outs, strict=True):
            query = (mixed @ query_weight.T).view(-1, HEADS, WIDTH) + turned[:, None]
            parts = query.split([LATENT, ROPE], -1)
            out, _ = self.impl.forward_mqa(parts, self.kv_cache, metadata, self.scales)
            mixed = torch.tanh(mixed + out.flatten(1) @ out_weight.T)
        return mixed

    scales = SimpleNamespace(_k_scale=torch.ones(1), _q_scale=torch.ones(1))


def make_impl(name: str) -> Any:
    """vLLM's implementation of the backend, with the attributes that decoding reads."""
    impl = object.__new__(mla_kernels.backend(name).__dict__[classes(name)["impl"]])
    vars(impl).update(
        kv_lora_rank=LATENT,
        qk_rope_head_dim=ROPE,
        scale=WIDTH**-0.5,
        kv_cache_dtype="auto",
        need_to_return_lse_for_decode=False,
        dcp_world_size=1,
        dcp_rank=0,
        _sm_count=4,
        num_heads=HEADS,
        qk_nope_head_dim=LATENT,
        bmm1_scale=None,
        bmm2_scale=None,
        _workspace_buffer=None,
    )
    return impl


def classes(name: str) -> dict[str, str]:
    """Names of vLLM's classes for a backend."""
    stem = {
        "FLASH_ATTN_MLA": "FlashAttnMLA",
        "FLASHMLA": "FlashMLA",
        "TRITON_MLA": "TritonMLA",
        "FLASHINFER_MLA": "FlashInferMLA",
    }[name]
    return {"backend": stem + "Backend", "impl": stem + "Impl", "metadata": stem + "Metadata"}


def make_builder(name: str, config: VllmConfig, k: int) -> Any:
    """vLLM's builder, with the attributes that `build` reads, and its own threshold."""
    backend = getattr(mla_kernels.backend(name), classes(name)["backend"])
    builder = object.__new__(backend.get_builder_cls())
    vars(builder).update(
        vllm_config=SimpleNamespace(
            speculative_config=SimpleNamespace(
                num_speculative_tokens=k,
                parallel_drafting=False,
                max_num_speculative_tokens=lambda: k,
                use_dflash2=lambda: False,
            ),
            parallel_config=SimpleNamespace(decode_context_parallel_size=1),
            num_speculative_tokens=k,
        ),
        compilation_config=config.compilation_config,
        model_config=SimpleNamespace(get_head_size=lambda: None),
        metadata_cls=metadata_class(name),
        device=torch.device("cpu"),
        dcp_world_size=1,
        use_pcp=False,
        _use_fi_prefill=False,  # until 0.20
        page_size=BLOCK,
        num_heads=HEADS,
        num_q_heads=HEADS,
        mla_dims=SimpleNamespace(qk_rope_head_dim=ROPE, kv_lora_rank=LATENT),
        kv_cache_spec=SimpleNamespace(dtype=torch.float32, block_size=BLOCK),
        non_causal_multi_token_decode=False,
        is_fp8_kvcache=False,
        fa_aot_schedule=True,
        use_full_cuda_graph=True,
        max_cudagraph_size=config.compilation_config.max_cudagraph_capture_size,
        max_num_splits=mla_kernels.MAX_SPLITS,
        scheduler_metadata=torch.zeros(1 + 4 * 64, dtype=torch.int32),
    )
    several = builder.query_len_support.name != "SINGLE_ONLY"
    builder._init_reorder_batch_threshold(builder.reorder_batch_threshold, several, False)
    return builder


def metadata_class(name: str) -> Any:
    """The class of the metadata that the builder makes."""
    module = mla_kernels.backend(name)
    # Some have none of their own.
    return getattr(module, classes(name)["metadata"], None) or module.MLACommonMetadata


def make_group(name: str, k: int, single: bool) -> Callable[[VllmConfig], Any]:
    """Makes the one attention group of the draft. single: decodes have one token a request."""

    def make(config: VllmConfig) -> Any:
        group: Any = upstream_twin.Group(config)
        group.backend = getattr(mla_kernels.backend(name), classes(name)["backend"])
        group.builder = make_builder(name, config, k)
        if single:
            group.builder.reorder_batch_threshold = 1
        group.build_metadata_for_drafting = group.builder.build_for_drafting
        return group

    return make


def lengths(threshold: int, shape: Shape, dice: random.Random, reqs: int) -> list[int]:
    """Query lengths that no builder takes for prefills: one for all, but for FLASH_ATTN_MLA."""
    if shape.backend == "FLASH_ATTN_MLA":
        return upstream_twin.drawn_lengths(shape, dice, reqs)
    full = min(shape.k + 1, threshold)
    return [full if dice.random() < 0.67 else dice.randint(1, full)] * reqs


SHAPES = tuple(
    Shape(
        k=k,
        mode=mode,
        max_num_seqs=7,
        max_capture_tokens=64,
        method="mtp",
        returns_tuple=False,
        backend=backend,
    )
    for backend in ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA", "FLASHINFER_MLA")
    for k, mode in ((1, "auto"), (2, "step"), (3, "loop"), (5, "auto"))
)


def is_granted(name: str) -> bool:
    """Whether this release's classes have a row that grants graphs: TRITON_MLA's do from 0.22."""
    backend = getattr(mla_kernels.backend(name), classes(name)["backend"])
    paths = [f"{cls.__module__}.{cls.__qualname__}" for cls in (backend, backend.get_builder_cls())]
    row = capabilities.backend_row(capabilities.BACKENDS, *paths)
    return row is not None and row.evidence != "refused"


def inspect(backend: str, threshold: int, graphs: Any) -> None:
    """The first pass is captured where it is not a prefill, and the address check sees MLA."""
    captured, full = graphs.captured, graphs._facts.num_speculative_tokens + 1
    roles = {key.role for key in captured.graphs}
    assert ("first" in roles) == (full <= threshold), f"{backend}: captured {roles}"
    wanted = {"decode.block_table", "decode.seq_lens"}
    if backend == "FLASH_ATTN_MLA":
        wanted.add("decode.scheduler_metadata")
    for key in captured.graphs:
        seen = " ".join(name for name, _, _ in captured.address_check._handed[key])
        assert all(name in seen for name in wanted), f"{key}: the address check sees {seen}"


def run(shape: Shape, cases: int, dice: random.Random, *, single: bool = False) -> dict[str, int]:
    """`upstream_twin.run_shape` with MLA. A backend without a first pass has none at K=1."""
    threshold = make_builder(shape.backend, VllmConfig(), shape.k).reorder_batch_threshold
    threshold = 1 if single else threshold
    if shape.k == 1 and threshold == 1:
        return {}

    def drawn(shape: Shape, dice: random.Random, reqs: int) -> list[int]:
        return lengths(threshold, shape, dice, reqs)

    parts = Parts(
        Model,
        make_group(shape.backend, shape.k, single),
        drawn,
        Recorded,
        partial(inspect, shape.backend, threshold),
    )
    return upstream_twin.run_shape(shape, cases, dice, parts)


def main() -> None:
    """Run all shapes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a backend's name")
    arguments = parser.parse_args()
    upstream_twin.alone()
    capture.DraftBuffers = HostAware
    used: dict[str, Counter[str]] = {}
    for number, shape in enumerate(SHAPES):
        if arguments.only not in shape.backend or not is_granted(shape.backend):
            continue
        dice = random.Random(arguments.seed * 1000 + number)
        counts = run(shape, arguments.cases, dice)
        used.setdefault(shape.backend, Counter()).update(counts)
        if shape.backend == "TRITON_MLA" and shape.k > 1:
            counts = run(shape, arguments.cases, dice, single=True)
            used.setdefault("TRITON_MLA, single tokens", Counter()).update(counts)
    print("TWIN " + json.dumps(used))


if __name__ == "__main__":
    main()
