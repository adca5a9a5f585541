# SPDX-License-Identifier: Apache-2.0
"""What draft graphs can do on each platform and with each attention backend, and what shows it.

A table, therefore longer than other modules, and two functions that look a row up by exact
classes: a subclass, or a class of somebody else under a known name, has no row. Imports neither
torch nor vLLM. The tables of docs/platforms.md are generated from the rows.

Attention backends are granted where their `build_for_drafting` is host arithmetic on the numbers
of a key, and device work that a capture records and every replay repeats: none for FLASH_ATTN,
TRITON_ATTN, TRITON_MLA, FLASHINFER_MLA, the TRTLLM kernels of FLASHINFER and the backends of ROCm;
the schedule of FLASH_ATTN_MLA, written to a buffer of its builder; that of FLASHMLA, made by the
first layer that asks for it; from 0.32 the mapping of the block table to smaller blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .keys import UNIFORM_ROLES, Role

#: What shows that a row is right, the strongest first: a run on such a device; vLLM's own code on
#: a CPU with doubles of its kernels; reading alone; and what was read and is refused.
Evidence = Literal["gpu", "doubles", "reading", "refused"]
EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)

ALL_ROLES = frozenset(UNIFORM_ROLES)
_NO_WHOLE = ALL_ROLES - {"whole"}

_MLA_TWIN = "tests/draft_graphs/mla_twin.py"
_BACKEND_TWIN = "tests/draft_graphs/backend_twin.py"
_CELLS = "bench/results/h200-acceptance-*.json"
_READ = "docs/draft-graphs.md, by reading"
_FA2_CELLS = "bench/results/h200-backends-fa2-*.json"
_FP8_CELLS = "bench/results/h100-acceptance-*-fp8-*.json"


@dataclass(frozen=True)
class Bar:
    """A role that a platform does not get.

    tensor_parallel: from this tensor-parallel size on.
    """

    role: Role
    tensor_parallel: int
    why: str


@dataclass(frozen=True)
class Platform:
    """What is known of one platform.

    name: as the rows of attention backends name it.
    classes: of `vllm.platforms.current_platform`, by module and qualified name.
    why: why it is refused, and what is missing; empty where it is not.
    undo_failed_capture: whether PyTorch's own functions can end a capture that failed.
    """

    name: str
    classes: tuple[str, ...]
    evidence: Evidence
    where: str
    why: str = ""
    bars: tuple[Bar, ...] = ()
    undo_failed_capture: bool = True


@dataclass(frozen=True)
class Backend:
    """What is known of one attention backend with one metadata builder.

    names: in vLLM's `AttentionBackendEnum`.
    classes: of the backend, by module and qualified name.
    builder: the class of its metadata builder, likewise.
    where: the test or file that shows it.
    kernel: which of several kernels the builder or the layers have chosen; empty where there is
        one, see `facts.attention_kernel`.
    platforms: names of those on which it exists. The weaker evidence of the two counts.
    releases: first and last release of vLLM in which these classes are found.
    kept: granted without a switch although no GPU has shown it; the log says so.
    why: why it is refused, and what to do; empty where it is not.
    any_size: what shows that the graph of a first pass may have more tokens than the largest
        capture size, because only a number of splits is bounded by it; None where it may not. See
        `sizes.most_first_tokens`.
    mixed: what shows that a graph of its first pass holds requests with different numbers of
        tokens; None where it does not. See `sizes.most_mixed_tokens`.
    asks_threshold: whether requests longer than the builder's `reorder_batch_threshold` are
        prefills, which are planned on the host; `facts.prefill_backends` knows what else asks.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    builder: str
    evidence: Evidence
    where: str
    kernel: str = ""
    platforms: tuple[str, ...] = ("cuda",)
    releases: str = "0.20.0..0.33.0"
    roles: frozenset[Role] = ALL_ROLES
    kept: bool = False
    why: str = ""
    any_size: Evidence | None = None
    mixed: Evidence | None = None
    asks_threshold: bool = True

    @property
    def title(self) -> str:
        """Its names, and the kernel."""
        names = ", ".join(self.names)
        return f"{names} ({KERNELS[self.kernel]})" if self.kernel else names


#: Kernels in words.
KERNELS = {
    "fa2": "FlashAttention 2",
    "fa3": "FlashAttention 3",
    "fa4": "FlashAttention 4",
    "fa3 fp8": "FlashAttention 3, FP8 cache",
    "fa4 fp8": "FlashAttention 4, FP8 cache",
    "fp8": "FP8 cache",
    "trtllm-gen": "TRTLLM-gen",
    "trtllm-gen fp8": "TRTLLM-gen, FP8 cache, until 0.24",
    "xqa": "XQA",
    "xqa hopper": "XQA on Hopper",
    "native": "native",
}

PLATFORMS = (
    Platform(
        "cuda",
        (
            "vllm.platforms.cuda.NvmlCudaPlatform",
            "vllm.platforms.cuda.NonNvmlCudaPlatform",
        ),
        "gpu",
        _CELLS,
    ),
    Platform(
        "rocm",
        ("vllm.platforms.rocm.RocmPlatform",),
        "reading",
        "PyTorch makes HIP graphs by torch.cuda, as vLLM's own FULL graphs",
    ),
    Platform(
        "musa",
        (
            "vllm_musa.platform.MtmlMUSAPlatform",
            "vllm_musa.platform.NonMtmlMUSAPlatform",
            "vllm_musa.musa.MtmlMUSAPlatform",
            "vllm_musa.musa.NonMtmlMUSAPlatform",
        ),
        "reading",
        "torchada sends torch.cuda's graphs, pools and streams to torch.musa",
        bars=(
            Bar(
                "loop",
                2,
                "one graph of all later passes has broken MCCL's barriers with tensor parallelism",
            ),
        ),
        undo_failed_capture=False,
    ),
    Platform(
        "npu",
        ("vllm_ascend.platform.NPUPlatform",),
        "refused",
        "vllm-ascend 0.20.2rc1 to 0.30.0rc2, by reading",
        why="vllm-ascend drafts by its own code, in graphs of its own",
    ),
    Platform(
        "xpu",
        ("vllm.platforms.xpu.XPUPlatform",),
        "refused",
        "vllm/v1/worker/xpu_model_runner.py, by reading",
        why="the platform (xpu) has graphs from PyTorch 2.11 on, but nobody has read how "
        "torch.xpu reports free memory in a capture, nor what its attention kernels read on the "
        "host",
    ),
    Platform(
        "cpu",
        ("vllm.platforms.cpu.CpuPlatform", "vllm.platforms.zen_cpu.ZenCpuPlatform"),
        "refused",
        "PyTorch",
        why="the platform (cpu) has neither CUDA nor HIP graphs",
    ),
)

#: Stands for a platform that has no row.
UNKNOWN = Platform("unknown", (), "refused", "", why="the platform is not known")

_BACKENDS = "vllm.v1.attention.backends."
_MLA = _BACKENDS + "mla."
_MUSA = "vllm_musa.v1.attention.backends."
#: Builders of backends with several kernels.
FLASH_ATTN_BUILDER = _BACKENDS + "flash_attn.FlashAttentionMetadataBuilder"
FLASHINFER_BUILDER = _BACKENDS + "flashinfer.FlashInferMetadataBuilder"
FLASHMLA_BUILDER = _MLA + "flashmla.FlashMLAMetadataBuilder"

_FLASH_ATTN = (
    ("FLASH_ATTN",),
    (_BACKENDS + "flash_attn.FlashAttentionBackend",),
    FLASH_ATTN_BUILDER,
)
_FLASHINFER = (
    ("FLASHINFER",),
    (_BACKENDS + "flashinfer.FlashInferBackend",),
    FLASHINFER_BUILDER,
)
_FLASHMLA = (
    ("FLASHMLA",),
    (_MLA + "flashmla.FlashMLABackend",),
    FLASHMLA_BUILDER,
)
_UNIFIED = _BACKENDS + "rocm_aiter_unified_attn.RocmAiterUnifiedAttentionBackend"
_TRITON_MLA = _MLA + "triton_mla.TritonMLABackend"
_SPARSE = (
    "sparse MLA chooses its tokens by an indexer with metadata of its own for each step, which "
    "no draft graph builds"
)
_AITER_MLA = (
    "its builder asks the host for the longest query (`.item()`), from 0.31 on also for a value "
    "on the device"
)

GRANTED = (
    Backend(*_FLASH_ATTN, "gpu", _CELLS, kernel="fa3", any_size="gpu", mixed="gpu"),
    Backend(*_FLASH_ATTN, "gpu", _FA2_CELLS, kernel="fa2", any_size="gpu"),
    Backend(*_FLASH_ATTN, "reading", _READ, kernel="fa4", kept=True),
    Backend(*_FLASH_ATTN, "gpu", _FP8_CELLS, kernel="fa3 fp8", any_size="gpu", mixed="gpu"),
    Backend(*_FLASH_ATTN, "reading", _READ, kernel="fa4 fp8", kept=True),
    Backend(
        ("TRITON_ATTN",),
        (_BACKENDS + "triton_attn.TritonAttentionBackend",),
        _BACKENDS + "triton_attn.TritonAttentionMetadataBuilder",
        "gpu",
        _CELLS,
        platforms=("cuda", "rocm", "musa"),
    ),
    Backend(
        ("FLASH_ATTN_MLA",),
        (_MLA + "flashattn_mla.FlashAttnMLABackend",),
        _MLA + "flashattn_mla.FlashAttnMLAMetadataBuilder",
        "gpu",
        "bench/results/h200-acceptance-*-mla-*.json",
    ),
    Backend(*_FLASHMLA, "gpu", "bench/results/h200-acceptance-*-mla-*.json"),
    Backend(*_FLASHMLA, "reading", _READ, kernel="fp8", kept=True),
    Backend(
        ("TRITON_MLA",),
        (_TRITON_MLA,),
        _MLA + "triton_mla.TritonMLAMetadataBuilder",
        "doubles",
        _MLA_TWIN,
        platforms=("cuda", "rocm"),
        releases="0.22.0..0.33.0",
    ),
    Backend(
        ("FLASHINFER_MLA",),
        (_MLA + "flashinfer_mla.FlashInferMLABackend",),
        _MLA + "flashinfer_mla.FlashInferMLAMetadataBuilder",
        "doubles",
        _MLA_TWIN,
    ),
    Backend(*_FLASHINFER, "doubles", _BACKEND_TWIN, kernel="trtllm-gen", roles=_NO_WHOLE),
    Backend(
        *_FLASHINFER,
        "doubles",
        _BACKEND_TWIN,
        kernel="xqa",
        releases="0.25.0..0.33.0",
        roles=_NO_WHOLE,
    ),
    Backend(
        *_FLASHINFER,
        "gpu",
        "bench/results/h200-backends-xqa-*.json",
        kernel="xqa hopper",
        releases="0.30.0..0.33.0",
        roles=_NO_WHOLE,
    ),
    Backend(
        ("ROCM_ATTN",),
        (_BACKENDS + "rocm_attn.RocmAttentionBackend",),
        _BACKENDS + "rocm_attn.RocmAttentionMetadataBuilder",
        "doubles",
        _BACKEND_TWIN,
        platforms=("rocm",),
    ),
    Backend(
        ("ROCM_AITER_UNIFIED_ATTN",),
        (_UNIFIED,),
        _BACKENDS + "rocm_attn.RocmAttentionMetadataBuilder",
        "doubles",
        _BACKEND_TWIN,
        platforms=("rocm",),
        releases="0.20.0..0.28.0",
    ),
    Backend(
        ("ROCM_AITER_UNIFIED_ATTN",),
        (_UNIFIED,),
        _BACKENDS + "rocm_aiter_unified_attn.RocmAiterUnifiedAttentionMetadataBuilder",
        "doubles",
        _BACKEND_TWIN,
        platforms=("rocm",),
        releases="0.29.0..0.33.0",
    ),
    Backend(
        ("ROCM_AITER_FA",),
        (_BACKENDS + "rocm_aiter_fa.AiterFlashAttentionBackend",),
        _BACKENDS + "rocm_aiter_fa.AiterFlashAttentionMetadataBuilder",
        "doubles",
        _BACKEND_TWIN,
        platforms=("rocm",),
        roles=_NO_WHOLE,
        asks_threshold=False,  # its `build_for_drafting` takes nearly all requests for decodes
    ),
)


def _refused(
    name: str, backend: str, builder: str, why: str, *, where: str = _READ, **more: Any
) -> Backend:
    """A row that is refused: its one class, and its builder's."""
    return Backend((name,), (backend,), builder, "refused", where, why=why, **more)


#: Name, module and class of each sparse backend, its builder, and where it exists.
_SPARSE_ROWS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    (
        "FLASHMLA_SPARSE",
        "flashmla_sparse.FlashMLASparseBackend",
        "FlashMLASparseMetadataBuilder",
        {},
    ),
    (
        "FLASHINFER_MLA_SPARSE",
        "flashinfer_mla_sparse.FlashInferMLASparseTRTLLMBackend",
        "FlashInferMLASparseTRTLLMMetadataBuilder",
        {"releases": "0.29.0..0.33.0"},
    ),
    (
        "FLASH_ATTN_MLA_SPARSE",
        "flashattn_mla_sparse.FlashAttnMLASparseBackend",
        "FlashAttnMLASparseMetadataBuilder",
        {"releases": "0.25.0..0.33.0"},
    ),
    (
        "ROCM_AITER_MLA_SPARSE",
        "rocm_aiter_mla_sparse.ROCMAiterMLASparseBackend",
        "ROCMAiterMLASparseMetadataBuilder",
        {"platforms": ("rocm",)},
    ),
)

REFUSED = (
    _refused(
        "TRITON_MLA",
        _TRITON_MLA,
        "vllm.model_executor.layers.attention.mla_attention.MLACommonMetadataBuilder",
        "it has no builder of its own before 0.22, and vLLM no full graphs with it",
        platforms=("cuda", "rocm"),
        releases="0.20.0..0.21.0",
    ),
    Backend(
        *_FLASHINFER,
        "refused",
        _READ,
        kernel="native",
        why="its native kernels are planned on the host, from lengths on the host (on Blackwell "
        "TRTLLM-gen needs no plan; remove what keeps vLLM from choosing it)",
    ),
    Backend(
        *_FLASHINFER,
        "refused",
        _READ,
        kernel="trtllm-gen fp8",
        releases="0.20.0..0.24.0",
        why="with an FP8 cache a prefill by a native kernel changes the type of all later queries, "
        "which a graph has baked (from 0.25 on it has not)",
    ),
    _refused(
        "FLEX_ATTENTION",
        _BACKENDS + "flex_attention.FlexAttentionBackend",
        _BACKENDS + "flex_attention.FlexAttentionMetadataBuilder",
        "it uploads ids of documents from host memory that is gone when a graph is replayed",
    ),
    _refused(
        "TREE_ATTN",
        _BACKENDS + "tree_attn.TreeAttentionBackend",
        _BACKENDS + "tree_attn.TreeAttentionMetadataBuilder",
        "it drafts a tree, not a chain",
        releases="0.20.0..0.20.2",
    ),
    _refused(
        "CUTLASS_MLA",
        _MLA + "cutlass_mla.CutlassMLABackend",
        _MLA + "cutlass_mla.CutlassMLAMetadataBuilder",
        "a larger batch resizes its workspace under a captured graph",
    ),
    *(
        _refused(
            name, _MLA + backend, f"{_MLA}{backend.partition('.')[0]}.{builder}", _SPARSE, **more
        )
        for name, backend, builder, more in _SPARSE_ROWS
    ),
    Backend(
        ("FLASHINFER_MLA_SPARSE",),
        (
            _MLA + "flashinfer_mla_sparse.FlashInferMLASparseBackend",
            _MLA + "flashinfer_mla_sparse.FlashInferMLASparseTRTLLMBackend",
        ),
        _MLA + "flashinfer_mla_sparse.FlashInferMLASparseMetadataBuilder",
        "refused",
        _READ,
        releases="0.20.0..0.28.0",
        why=_SPARSE,
    ),
    Backend(
        ("ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA"),
        (
            _MLA + "rocm_aiter_mla.AiterMLABackend",
            _MLA + "aiter_triton_mla.AiterTritonMLABackend",
        ),
        _MLA + "rocm_aiter_mla.AiterMLAMetadataBuilder",
        "refused",
        _READ,
        platforms=("rocm",),
        why=_AITER_MLA,
    ),
    *(
        _refused(
            name,
            _MUSA + backend,
            _MUSA + builder,
            "nobody has read what vllm-musa's builder reads on the host",
            where="vllm-musa 0.1.28",
            platforms=("musa",),
        )
        for name, backend, builder in (
            (
                "FLASH_ATTN",
                "flash_attn.MUSAFlashAttentionBackend",
                "flash_attn.FlashAttentionMetadataBuilder",
            ),
            (
                "FLASHMLA",
                "mla.flashmla.MUSAFlashMLABackend",
                "mla.flashmla.FlashMLAMetadataBuilder",
            ),
        )
    ),
)

BACKENDS = (*GRANTED, *REFUSED)

#: Backends of vLLM's enumeration that have no row: nobody has read them, and they are refused.
UNREAD = frozenset(
    {
        *("AMX_MLA", "B12X", "CPU_ATTN", "CPU_MLA", "CUTLASS_MSA", "FLASHINFER_MLA_SPARSE_DSV4"),
        *("FLASHINFER_MLA_SPARSE_DSV41", "FLASHINFER_MLA_SPARSE_SM120", "TURBOQUANT"),
        *("FLASHINFER_MLA_SPARSE_SM90", "FLASHMLA_MEGA_ATTN_DSV41", "FLASHMLA_SPARSE_DSV4"),
        *("FLASHMLA_SPARSE_DSV41", "FLASH_ATTN_DIFFKV", "FLASH_ATTN_MLA_SPARSE_FA4", "HPC_ATTN"),
        *("MINIMAX_M3_SPARSE", "ROCM_FLASHMLA_SPARSE_DSV4", "ROCM_FLASHMLA_SPARSE_DSV41"),
        *("ROCM_OCTAVE", "ROCM_SEGMENTED_ATTN", "STEP5_DSA", "TOKENSPEED_MLA", "TRITON_MSA"),
        *("TRITON_ATTN_DIFFKV", "TRITON_FLASHINFER", "TRITON_FLASH_ATTN", "ULTRAQUANT"),
        "XPU_MLA_SPARSE",
    }
)
#: Members of the enumeration behind which there is no attention backend of vLLM's.
NO_BACKEND = frozenset({"CUSTOM", "NO_ATTENTION", "TORCH_SDPA"})


def platform_row(platform: str) -> Platform | None:
    """The row of a platform, by module and qualified name of its class; None without one."""
    return next((row for row in PLATFORMS if platform in row.classes), None)


def backend_row(
    rows: Iterable[Backend], backend: str, builder: str, kernel: str = ""
) -> Backend | None:
    """The row of an attention backend, by its class, its builder's class and its kernel.

    rows: where to look, such as `BACKENDS`.

    Returns None where the classes have none with this kernel.
    """
    for row in rows:
        if backend in row.classes and builder == row.builder and kernel == row.kernel:
            return row
    return None
