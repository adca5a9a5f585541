"""The tables of model runners, and the page that shows them, say what each release does."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from packaging.version import Version

from overlay.commands.model_runners import MODELS, SETTINGS, Setting, advice, models, settings
from overlay.package import KNOWN_RELEASES
from overlay.targets.resolution import resolve
from tests.support import markdown
from tests.support.markdown import ROOT

PAGE = markdown.read(ROOT / "docs/model-runners.md")
CONFIG = "vllm/config/vllm.py"

#: What sends a model to V1, as the table words it -> as the sources do.
SOURCES = {
    "parallel drafting (P-EAGLE, PARD)": r"parallel drafting",
    "drafts by suffix, Medusa, an MLP speculator or a custom class": r"speculative method '",
    "drafts with another vocabulary than the target's": r"heterogeneous-vocabulary",
    "drafts by n-grams": r"ngram",
    "drafts by a draft model": r"'draft_model'|not in \('eagle'",
    "drafts by DFlash": r"not in \('eagle', 'eagle3', 'mtp'\)",
    "dual-batch overlap": r"dual batch overlap|_get_dbo_unsupported_features",
    "sequence parallelism (the compile pass)": r"sequence parallelism",
    "stock torch.compile": r"stock torch.compile",
    "elastic expert parallelism": r"elastic expert parallelism",
    "custom logits processors": r"custom logits processors",
    "KV-cache sharing with fast prefill": r"KV sharing fast prefill",
    "prompt embeddings": r"prompt embeds",
    "capture of routed experts": r"routed experts capture",
    "transfer of encoder caches": r"EC transfer",
    "logprobs mode other than the default": r"logprobs mode",
    "a number of drafts that changes from batch to batch": r"dynamic speculative decoding",
    "Mamba cache mode 'all'": r"mamba cache mode 'all'",
}


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


def span(releases: tuple[str, str]) -> str:
    """Minor releases as the page writes them: ``0.22 to 0.24``, ``0.20, 0.21`` or ``0.24``."""
    first, last = (int(text.partition(".")[2]) for text in releases)
    if last - first > 1:
        return f"{releases[0]} to {releases[1]}"
    return ", ".join(dict.fromkeys(releases))


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    start = next(line for line, text in PAGE.prose if text == heading)
    end = min((n for n, text in PAGE.prose if n > start and text.startswith("#")), default=10**6)
    lines = [text for line, text in PAGE.tables if start < line < end]
    return [[cell.strip() for cell in text.strip("|").split(" | ")] for text in lines[2:]]


def test_the_page_shows_the_tables() -> None:
    by_model = [[span(rule.releases), rule.v2, rule.v1] for rule in MODELS]
    assert rows("## By model") == by_model
    assert rows("## By setting") == [[each.text, span(each.releases)] for each in SETTINGS]


def test_every_release_has_a_rule_and_every_setting_a_source() -> None:
    assert [each.text for each in SETTINGS] == list(SOURCES)
    for release in KNOWN_RELEASES:
        rule = models(Version(release))
        assert rule is not None
        assert rule.v2 in advice(Version(release), {})


@pytest.mark.network
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.text)
def test_settings_that_need_v1_are_those_of_the_sources(setting: Setting) -> None:
    for release in KNOWN_RELEASES:
        if Version(release) < Version("0.22"):  # every model is on V1 there
            continue
        code = function(release, "_get_v2_model_runner_unsupported_features")
        there = re.search(SOURCES[setting.text], code) is not None
        assert there == (setting in settings(Version(release))), release


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_models_on_each_runner_are_those_of_the_sources(release: str) -> None:
    rule = models(Version(release))
    assert rule is not None
    listed = architectures(release, "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES")
    assert listed == rule.architectures
    assert architectures(release, "ROCM_DEFAULT_MRV1_ARCHITECTURES") == rule.rocm
    chooses = function(release, "use_v2_model_runner")
    default = function(release, "_is_default_v2_model_runner_model")
    assert ("no model" in rule.v2) == (not chooses)
    assert ("every model" in rule.v2) == (bool(chooses) and not default)
    assert ("dense models that are not hybrid" in rule.v2) == (
        "is_hybrid" in default and "is_moe" in default
    )
    assert ("not quantized" in rule.v2) == ("not model_config.is_quantized" in default)
    assert ("diffusion" in rule.v2) <= ("is_diffusion" in chooses)


def test_who_asks_for_a_runner_gets_it() -> None:
    release = Version("0.26.0")
    assert advice(release, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, ascend=True).startswith("V2, by")
    assert advice(release, {"VLLM_USE_V2_MODEL_RUNNER": "0"}).startswith("V1, by")
    assert advice(release, {}, ascend=True).startswith("V1 for every model, by vllm-ascend")
    assert "drafts by n-grams" in advice(release, {})
    assert "not known for 0.99.0" in advice(Version("0.99.0"), {})
