"""The page about model runners says what ``vllm/config/vllm.py`` of each release does."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from packaging.version import Version

from overlay.commands.model_runners import RUNNERS
from overlay.package import KNOWN_RELEASES
from overlay.targets.resolution import resolve
from tests.support import markdown
from tests.support.markdown import ROOT

PAGE = markdown.read(ROOT / "docs/model-runners.md")
CONFIG = "vllm/config/vllm.py"

#: What sends a model to V1, as the page words it -> as the sources do.
SETTINGS = {
    "parallel drafting for EAGLE (P-EAGLE) and for draft models (PARD)": r"parallel drafting",
    "speculative decoding with suffix, Medusa, an MLP speculator or a custom class": (
        r"speculative method '"
    ),
    "drafts with another vocabulary than the target's": r"heterogeneous-vocabulary",
    "speculative decoding with n-grams": r"ngram",
    "speculative decoding with a draft model": r"'draft_model'|not in \('eagle'",
    "speculative decoding with DFlash": r"not in \('eagle', 'eagle3', 'mtp'\)",
    "dual-batch overlap": r"dual batch overlap|_get_dbo_unsupported_features",
    "sequence parallelism (the compile pass), stock `torch.compile`": (
        r"sequence parallelism|stock torch.compile"
    ),
    "elastic expert parallelism": r"elastic expert parallelism",
    "custom logits processors": r"custom logits processors",
    "KV-cache sharing with fast prefill": r"KV sharing fast prefill",
    "prompt embeddings": r"prompt embeds",
    "capture of routed experts, transfer of encoder caches": r"routed experts capture|EC transfer",
    "logprobs mode other than the default": r"logprobs mode",
    "number of drafts that changes from batch to batch": r"dynamic speculative decoding",
    "Mamba cache mode `all`": r"mamba cache mode 'all'",
}

#: Words of the first table -> an architecture of ``DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES``.
ARCHITECTURES = {
    "Llama,": "LlamaForCausalLM",
    "Mistral": "MistralForCausalLM",
    "Qwen3": "Qwen3ForCausalLM",
    "DeepSeek-V2": "DeepseekV2ForCausalLM",
    "Qwen2-MoE": "Qwen2MoeForCausalLM",
    "Granite-MoE": "GraniteMoeForCausalLM",
    "Inkling": "InklingForCausalLM",
    "LongCat-Flash": "LongcatFlashNgramForCausalLM",
    "Kimi-K3": "KimiK3ForConditionalGeneration",
    "DeepSeek-V4": "DeepseekV4ForCausalLM",
}


def minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


MINORS = tuple(dict.fromkeys(minor(release) for release in KNOWN_RELEASES))


@cache
def config(release: str) -> ast.Module:
    content = resolve(release).read(CONFIG)
    assert content is not None
    return ast.parse(content)


def function(release: str, name: str) -> str:
    """The code of a method without comments, in one spelling; empty where there is none."""
    for node in ast.walk(config(release)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.unparse(node)
    return ""


def architectures(release: str, name: str) -> set[str]:
    """The texts in a constant such as ``DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES``."""
    for node in config(release).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return {
                each.value
                for each in ast.walk(node.value)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            }
    return set()


def releases(words: str) -> set[str]:
    """``0.22 to 0.24``, ``0.20, 0.21`` or ``0.24`` as minor releases."""
    first, _, last = words.partition(" to ")
    if not last:
        return set(words.split(", "))
    return {each for each in MINORS if Version(first) <= Version(each) <= Version(last)}


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    start = next(line for line, text in PAGE.prose if text == heading)
    end = min((n for n, text in PAGE.prose if n > start and text.startswith("#")), default=10**6)
    lines = [text for line, text in PAGE.tables if start < line < end]
    return [[cell.strip() for cell in text.strip("|").split(" | ")] for text in lines[2:]]


def test_the_page_shows_the_one_table_of_models() -> None:
    assert [tuple(row) for row in rows("## By model")] == [tuple(row) for row in RUNNERS]


def test_the_table_of_settings_has_every_setting() -> None:
    assert [row[0] for row in rows("## By setting")] == list(SETTINGS)


@pytest.mark.network
@pytest.mark.parametrize(("setting", "words"), rows("## By setting"))
def test_settings_that_need_v1_are_those_of_the_sources(setting: str, words: str) -> None:
    told = releases(words)
    for release in KNOWN_RELEASES:
        if Version(release) < Version("0.22"):  # every model is on V1 there
            continue
        code = function(release, "_get_v2_model_runner_unsupported_features")
        there = re.search(SETTINGS[setting], code) is not None
        assert there == (minor(release) in told), (setting, release)


@pytest.mark.network
def test_models_on_v2_are_those_of_the_sources() -> None:
    told: dict[str, set[str]] = {}
    before: set[str] = set()
    for words, v2, _ in rows("## By model"):
        models = {name for word, name in ARCHITECTURES.items() if word in v2}
        if match := re.match(r"as (0\.\d+)", v2):
            models |= told[match[1]]
        for each in words.split(", "):
            told[each] = models
        before = models
    assert set(told) == set(MINORS)
    assert before == set()
    for release in KNOWN_RELEASES:
        named = architectures(release, "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES")
        assert told[minor(release)] == named - {"InklingForConditionalGeneration"}, release


@pytest.mark.network
def test_what_else_decides_is_that_of_the_sources() -> None:
    v2 = {words: cell for words, cell, _ in rows("## By model")}
    v1 = {words: cell for words, _, cell in rows("## By model")}
    for release in KNOWN_RELEASES:
        chooses = function(release, "use_v2_model_runner")
        default = function(release, "_is_default_v2_model_runner_model")
        row = next(words for words in v2 if minor(release) in words.split(", "))
        assert ("no model" in v2[row]) == (not chooses), release
        assert ("every model" in v2[row]) == (bool(chooses) and not default), release
        on_rocm = architectures(release, "ROCM_DEFAULT_MRV1_ARCHITECTURES")
        assert ("ROCm" in v1[row]) == bool(on_rocm), release
        assert ("GLM with sparse attention" in v1[row]) == ("GlmMoeDsaForCausalLM" in on_rocm)
        if Version("0.25") <= Version(release) < Version("0.29"):
            assert "is_hybrid" in default, release
            assert "is_moe" in default, release
        if "not quantized" in v2[row]:
            assert "not model_config.is_quantized" in default, release
