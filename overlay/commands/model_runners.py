"""Which model runner a release of vLLM chooses by itself, for ``overlay doctor``.

A drafter on model runner V2 has graphs of its own and runs none of the code that ``draft-graphs``
patches.  ``RUNNERS`` is the one table: docs/model-runners.md shows its rows, which a test compares
with ``vllm/config/vllm.py`` of each release."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import NamedTuple

from packaging.version import Version

_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"

#: What sends a model to V1 that would run on V2; each is in some releases only.
_SETTINGS = (
    "Parallel drafting and some other settings send a model to V1 "
    "(docs/model-runners.md lists them)"
)


class Runner(NamedTuple):
    """What decides between V1 and V2 in some minor releases.

    :ivar minors: such as ``0.20, 0.21``.
    :ivar v2: the models that get V2 unless told otherwise; :ivar v1: the models that get V1.
    """

    minors: str
    v2: str
    v1: str

    def has(self, release: Version) -> bool:
        """Whether the row is about this release."""
        return f"{release.major}.{release.minor}" in self.minors.split(", ")


RUNNERS = (
    Runner(
        "0.20, 0.21",
        "no model",
        "every model",
    ),
    Runner(
        "0.22",
        "Qwen3, dense and not quantized",
        "every other model",
    ),
    Runner(
        "0.23",
        "Llama, Mistral and Qwen3, dense and not quantized",
        "every other model",
    ),
    Runner(
        "0.24",
        "Llama, Mistral, Qwen3, DeepSeek-V2, Qwen2-MoE, Granite-MoE; text diffusion models",
        "every other model",
    ),
    Runner(
        "0.25",
        "dense models that are not hybrid; DeepSeek-V2, Qwen2-MoE, Granite-MoE",
        "most mixtures of experts, and hybrid models: DeepSeek-V3, Qwen3-MoE, Qwen3-Next, GLM, "
        "MiniMax, gpt-oss",
    ),
    Runner(
        "0.26",
        "as 0.25, with Inkling and LongCat-Flash (n-gram)",
        "as 0.25",
    ),
    Runner(
        "0.27",
        "as 0.26, with Kimi-K3 (not on ROCm)",
        "as 0.25",
    ),
    Runner(
        "0.28",
        "as 0.27, with DeepSeek-V4 (not on ROCm)",
        "as 0.25",
    ),
    Runner(
        "0.29",
        "every model",
        "on ROCm: DeepSeek-V3.2 and DeepSeek-V4",
    ),
    Runner(
        "0.30, 0.31",
        "every model",
        "on ROCm: DeepSeek-V3.2, DeepSeek-V4 and GLM with sparse attention",
    ),
    Runner(
        "0.32, 0.33",
        "every model",
        "no model; only the settings below",
    ),
)


def runner(release: Version | None) -> Runner | None:
    """The row of a release, ``None`` where the table has none."""
    if release is None:
        return None
    return next((row for row in RUNNERS if row.has(release)), None)


def advice(release: Version | None, environment: Mapping[str, str]) -> str:
    """One or two sentences: which runner, and what that means for a drafter."""
    asked = environment.get(_VARIABLE)
    if asked == "1":
        return (
            f"V2, by {_VARIABLE}=1 (V1 where V2 cannot do it): a drafter on V2 does not use "
            "draft-graphs; V2 has draft graphs of its own"
        )
    if asked == "0":
        return f"V1, by {_VARIABLE}=0: a drafter (EAGLE, EAGLE3, MTP) uses draft-graphs"
    if _has_vllm_ascend():
        return (
            f"V1 for every model on an NPU, where vllm-ascend decides ({_VARIABLE}=1 asks for V2); "
            "its drafters do not run the code that draft-graphs patches"
        )
    row = runner(release)
    if row is None:
        return (
            f"not known for {release or 'this vLLM'}; its log says which it uses. A drafter on V2 "
            f"does not use draft-graphs; {_VARIABLE}=0 asks for V1"
        )
    if row.v2 == "no model":
        return f"V1 for {row.v1}: a drafter (EAGLE, EAGLE3, MTP) uses draft-graphs"
    v2, v1 = (_in_full(cell, column) for column, cell in (("v2", row.v2), ("v1", row.v1)))
    by_default = f"V2 by default: {v2}. V1 by default: {v1}"
    return (
        f"{by_default}. {_SETTINGS}. A drafter on V2 does not use draft-graphs; "
        f"{_VARIABLE}=0 asks for V1. `overlay status --live` says what a running "
        "engine uses"
    )


def _in_full(cell: str, column: str) -> str:
    """A cell of the table, where it refers to another release with that one's words."""
    words = cell.split(", ", 1)
    if not words[0].startswith("as "):
        return cell
    other = runner(Version(words[0].removeprefix("as ")))
    assert other is not None
    return ", ".join([_in_full(getattr(other, column), column), *words[1:]])


def _has_vllm_ascend() -> bool:
    try:
        metadata.distribution("vllm-ascend")
    except metadata.PackageNotFoundError:
        return False
    return True
