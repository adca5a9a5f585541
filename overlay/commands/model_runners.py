"""The model runner, V1 or V2, that each release of vLLM chooses by itself.

The shipped features patch model runner V1; V2 has draft graphs of its own and runs none of their
code.  The tables here are the only ones: ``docs/model-runners.md`` shows them, ``overlay doctor``
speaks from them, and ``tests/docs/test_model_runners.py`` compares both with the sources of every
release (``vllm/config/vllm.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from packaging.version import Version

_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


class Models(NamedTuple):
    """Which models a range of releases runs on which model runner.

    :ivar releases: first and last minor release, both included.
    :ivar v2: who gets V2 by default; :ivar v1: who stays on V1.
    :ivar architectures: vLLM's own list of architectures that get V2; empty where it has no list.
    :ivar rocm: architectures that stay on V1 on ROCm where every other model gets V2.
    """

    releases: tuple[str, str]
    v2: str
    v1: str
    architectures: frozenset[str] = frozenset()
    rocm: frozenset[str] = frozenset()


class Setting(NamedTuple):
    """A setting that sends a model to V1 which would run on V2 by default.

    :ivar releases: first and last minor release in which it does, both included.
    """

    text: str
    releases: tuple[str, str]


_EVERY = "every model"
_OTHERS = "every other model"
_LARGE = (
    "most mixtures of experts, and hybrid models: DeepSeek-V3, Qwen3-MoE, Qwen3-Next, GLM, "
    "MiniMax, gpt-oss"
)
_LISTED = "dense models that are not hybrid; DeepSeek-V2, Qwen2-MoE, Granite-MoE"
_LISTED_0_26 = f"{_LISTED}, Inkling, LongCat-Flash (n-gram)"
_DENSE = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"})
_EXPERTS = frozenset({"DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM"})
_FROM_0_26 = _EXPERTS | {
    "InklingForCausalLM",
    "InklingForConditionalGeneration",
    "LongcatFlashNgramForCausalLM",
}
_FROM_0_27 = _FROM_0_26 | {"KimiK3ForConditionalGeneration"}
_ROCM = frozenset({"DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM"})

MODELS = (
    Models(("0.20", "0.21"), "no model", _EVERY),
    Models(
        ("0.22", "0.22"),
        "Qwen3, dense and not quantized",
        _OTHERS,
        frozenset({"Qwen3ForCausalLM"}),
    ),
    Models(("0.23", "0.23"), "Llama, Mistral and Qwen3, dense and not quantized", _OTHERS, _DENSE),
    Models(
        ("0.24", "0.24"),
        "Llama, Mistral, Qwen3, DeepSeek-V2, Qwen2-MoE, Granite-MoE; text diffusion models",
        _OTHERS,
        _DENSE | _EXPERTS,
    ),
    Models(
        ("0.25", "0.25"),
        _LISTED,
        _LARGE,
        _EXPERTS,
    ),
    Models(
        ("0.26", "0.26"),
        _LISTED_0_26,
        _LARGE,
        _FROM_0_26,
    ),
    Models(
        ("0.27", "0.27"),
        f"{_LISTED_0_26}; Kimi-K3 (not on ROCm)",
        _LARGE,
        _FROM_0_27,
    ),
    Models(
        ("0.28", "0.28"),
        f"{_LISTED_0_26}; Kimi-K3 and DeepSeek-V4 (not on ROCm)",
        _LARGE,
        _FROM_0_27 | {"DeepseekV4ForCausalLM"},
    ),
    Models(("0.29", "0.29"), _EVERY, "on ROCm: DeepSeek-V3.2 and DeepSeek-V4", frozenset(), _ROCM),
    Models(
        ("0.30", "0.31"),
        _EVERY,
        "on ROCm: DeepSeek-V3.2, DeepSeek-V4 and GLM with sparse attention",
        frozenset(),
        _ROCM | {"GlmMoeDsaForCausalLM"},
    ),
    Models(("0.32", "0.33"), _EVERY, "no model"),
)

SETTINGS = (
    Setting("parallel drafting (P-EAGLE, PARD)", ("0.22", "0.33")),
    Setting("drafts by suffix, Medusa, an MLP speculator or a custom class", ("0.22", "0.33")),
    Setting("drafts with another vocabulary than the target's", ("0.32", "0.33")),
    Setting("drafts by n-grams", ("0.22", "0.31")),
    Setting("drafts by a draft model", ("0.22", "0.30")),
    Setting("drafts by DFlash", ("0.22", "0.23")),
    Setting("dual-batch overlap", ("0.22", "0.33")),
    Setting("sequence parallelism (the compile pass)", ("0.22", "0.31")),
    Setting("stock torch.compile", ("0.22", "0.31")),
    Setting("elastic expert parallelism", ("0.24", "0.31")),
    Setting("custom logits processors", ("0.22", "0.30")),
    Setting("KV-cache sharing with fast prefill", ("0.22", "0.29")),
    Setting("prompt embeddings", ("0.22", "0.28")),
    Setting("capture of routed experts", ("0.22", "0.27")),
    Setting("transfer of encoder caches", ("0.22", "0.27")),
    Setting("logprobs mode other than the default", ("0.22", "0.25")),
    Setting("a number of drafts that changes from batch to batch", ("0.24", "0.24")),
    Setting("Mamba cache mode 'all'", ("0.30", "0.31")),
)


def _within(release: Version, span: tuple[str, str]) -> bool:
    first, last = (Version(text).release for text in span)
    return first <= release.release[:2] <= last


def models(release: Version | None) -> Models | None:
    """The rule of a release; ``None`` for one that the tables do not hold."""
    if release is None:
        return None
    return next((rule for rule in MODELS if _within(release, rule.releases)), None)


def settings(release: Version) -> tuple[Setting, ...]:
    """The settings that send a model to V1 in a release."""
    return tuple(setting for setting in SETTINGS if _within(release, setting.releases))


def advice(release: Version | None, environment: Mapping[str, str], *, ascend: bool = False) -> str:
    """Say in a few sentences which model runner is chosen, and what that means for a drafter.

    :param ascend: whether vllm-ascend is installed, which chooses by a rule of its own.
    """
    asked = environment.get(_VARIABLE)
    if asked == "1":
        return (
            f"V2, by {_VARIABLE}=1: a drafter on V2 does not use draft-graphs; V2 has draft graphs "
            "of its own"
        )
    if ascend:
        return (
            "V1 for every model, by vllm-ascend, which replaces the methods that draft-graphs "
            "patches: the drafter does not use them"
        )
    if asked == "0":
        return f"V1, by {_VARIABLE}=0: a drafter (EAGLE, EAGLE3, MTP) uses draft-graphs"
    rule = models(release)
    if release is None or rule is None:
        return (
            f"not known for {release or 'this vLLM'}; its log says which it uses. A drafter on V2 "
            f"does not use draft-graphs; {_VARIABLE}=0 asks for V1"
        )
    text = f"V2 for {rule.v2}; V1 for {rule.v1}. "
    if forced := settings(release):
        text += f"V1 in any case for: {', '.join(setting.text for setting in forced)}. "
    return f"{text}A drafter on V2 does not use draft-graphs; {_VARIABLE}=0 asks for V1"
