"""The tables of model runners, and the page that shows them, say what each release does."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay._features.vllm_defaults import (
    ONLY_V2,
    SETTINGS,
    V1_FILES,
    V2_FOR_BOTH,
    Runs,
    Setting,
    advice,
    models,
    note_on,
    runner_of,
    runs,
    settings,
)
from overlay.package import KNOWN_RELEASES
from overlay.results import (
    RUNNER_FILES,
    FeatureResult,
    FileResult,
    HunkResult,
    ModelRunner,
    State,
)
from overlay.targets.resolution import resolve
from scripts import render_runners

CONFIG = "vllm/config/vllm.py"

_DENSE = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"}
_EXPERTS = {"DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM"}
_FROM_0_26 = _EXPERTS | {
    "InklingForCausalLM",
    "InklingForConditionalGeneration",
    "LongcatFlashNgramForCausalLM",
}
_FROM_0_27 = _FROM_0_26 | {"KimiK3ForConditionalGeneration"}
#: First release of a row of ``MODELS`` -> vLLM's list of architectures that get V2, if it has one.
V2_ARCHITECTURES = {
    "0.22": {"Qwen3ForCausalLM"},
    "0.23": _DENSE,
    "0.24": _DENSE | _EXPERTS,
    "0.25": _EXPERTS,
    "0.26": _FROM_0_26,
    "0.27": _FROM_0_27,
    "0.28": _FROM_0_27 | {"DeepseekV4ForCausalLM"},
}
_ROCM = {"DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM"}
#: Likewise -> those that stay on V1 on ROCm where every other model gets V2.
ROCM_V1_ARCHITECTURES = {"0.29": _ROCM, "0.30": _ROCM | {"GlmMoeDsaForCausalLM"}}

#: What sends a model to V1, as the table words it -> as the sources do.
SOURCES = {
    "parallel drafting (P-EAGLE, PARD)": r"parallel drafting",
    "drafts by suffix or a custom class": r"'suffix'|not in \('eagle'",
    "drafts by Medusa or an MLP speculator": r"'medusa'|not in \('eagle'",
    "drafts with another vocabulary than the target's": r"heterogeneous-vocabulary",
    "drafts by n-grams": r"ngram",
    "drafts by a draft model": r"'draft_model'|not in \('eagle'",
    "drafts by DFlash": r"not in \('eagle', 'eagle3', 'mtp'\)",
    "extraction of hidden states": r"not in \((?!.*'extract_hidden_states').*'mtp'",
    "EAGLE3 with pipeline parallelism": r"EAGLE3 with pipeline parallelism",
    "pipeline parallelism with the external launcher": r"with external_launcher",
    "prefill context parallelism": r"prefill context parallelism",
    "a budget of reasoning tokens": r"reasoning budget enforcement",
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

#: What V1 does not serve, as the table words it -> as the sources do.
ONLY_V2_SOURCES = {
    "drafts by DSpark": r"dspark speculative decoding",
    "adaptive verification of drafts": r"adaptive draft verification",
    "DFlash drafts of sliding and full attention": r"mixed sliding/full dflash drafts",
    "DFlash drafts with a candidate head (DFlash2)": r"dflash2 drafts|candidate-head drafts",
    "drafts by XPress": r"xpress speculative decoding",
    "drafts with a quantized lm_head": r"draft lm_head quantization",
    "drafts by the MTP layers of Parse 3.5": r"Parse 3.5 MTP",
    "prefill context parallelism": r"prefill context parallel",
    "pipeline parallelism with async scheduling": r"pipeline parallelism with async scheduling",
    "text diffusion models": r"diffusion models",
    "Step5": r"Step5'\)",
    "batch-sharded sampling": r"batch-sharded sampling",
    "HiSparse": r"HiSparse requires Model Runner V2; remove",
    "watermarks (V2 serves them whatever is asked)": r"Watermarking requires .* and overrides",
}

#: Reasons of the sources that are no rows, and why.
NO_ROWS = {
    "hybrid/mamba models": "0.22 chooses V2 for Qwen3 alone",
    "hybrid/mamba models with align cache mode": "0.23 and 0.24 choose V2 for no hybrid model",
    "adaptive verification with LoRA": "DSpark alone verifies adaptively, which 0.28 runs on V2",
    "adaptive verification with enforce_eager/cudagraph_mode=none": "as with LoRA",
    "adaptive verification with pipeline parallelism": "as with LoRA",
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


@pytest.mark.parametrize("path", render_runners.pages(), ids=lambda path: path.stem)
def test_the_pages_show_the_tables(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == render_runners.pages()[path]


def test_a_page_that_differs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["render_runners.py", "--check"])
    assert render_runners.main() == 0
    text = render_runners.APPENDIX.read_text(encoding="utf-8")
    monkeypatch.setattr(render_runners, "APPENDIX", tmp_path / "page.md")
    assert render_runners.main() == 1
    render_runners.APPENDIX.write_text(text.replace("0.22 to 0.33", "0.22 to 0.32", 1))
    assert render_runners.main() == 1


def test_the_page_names_only_settings_that_a_release_has() -> None:
    """The sentences above the appendix: what holds until or from a release does so in the table."""
    releases = {each.text: each.releases for each in (*SETTINGS, *ONLY_V2)}
    for text, bound, place in (
        ("drafts by n-grams", "0.31", 1),
        ("drafts by a draft model", "0.30", 1),
        ("drafts with another vocabulary than the target's", "0.32", 0),
        ("custom logits processors", "0.30", 1),
        ("parallel drafting (P-EAGLE, PARD)", "0.33", 1),
        ("drafts by suffix or a custom class", "0.33", 1),
        ("dual-batch overlap", "0.33", 1),
        ("drafts by DSpark", "0.29", 0),
        ("adaptive verification of drafts", "0.29", 0),
        ("prefill context parallelism", "0.29", 0),
        ("text diffusion models", "0.29", 0),
        ("batch-sharded sampling", "0.29", 0),
    ):
        assert releases[text][place] == bound, text


def test_features_that_run_on_v2_are_those_of_the_page() -> None:
    first, *_ = render_runners.PAGE.read_text(encoding="utf-8").partition("The log of vLLM decides")
    named = set(re.findall(r"\[`([a-z-]+)`\]", first))
    shipped = load([shipped_folder()])
    assert named == {
        each.id for each in shipped if each.model_runner is not ModelRunner.V1 and each.switches
    }


def test_every_release_has_a_rule_and_every_setting_a_source() -> None:
    assert {each.text for each in SETTINGS} == set(SOURCES)
    assert [each.text for each in ONLY_V2] == list(ONLY_V2_SOURCES)
    for release in KNOWN_RELEASES:
        rule = models(Version(release))
        assert rule is not None
        assert rule.v2 in advice(Version(release), {})


def reasons(release: str, name: str) -> list[str]:
    """The texts that a method collects, as the sources have them."""
    for node in ast.walk(config(release)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return [
                ast.unparse(call.args[0])
                for call in ast.walk(node)
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "unsupported.append"
            ]
    return []


@pytest.mark.network
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.text)
def test_settings_that_need_v1_are_those_of_the_sources(setting: Setting) -> None:
    for release in KNOWN_RELEASES:
        if Version(release) < Version("0.22"):  # every model is on V1 there
            continue
        code = function(release, "_get_v2_model_runner_unsupported_features")
        first = function(release, "use_v2_model_runner")
        there = re.search(SOURCES[setting.text], code) is not None
        # 0.27 and 0.28 still list it, behind a rule that chooses V2 for it first.
        there &= not ("prefill context" in setting.text and "prefill_context_parallel" in first)
        assert there == (setting in settings(Version(release))), release


@pytest.mark.network
@pytest.mark.parametrize("setting", ONLY_V2, ids=lambda setting: setting.text)
def test_what_v1_does_not_serve_is_what_the_sources_refuse(setting: Setting) -> None:
    for release in KNOWN_RELEASES:
        code = function(release, "_get_v1_model_runner_unsupported_features")
        code += function(release, "use_v2_model_runner")
        refuses = "does not support" in function(release, "_validate_v1_model_runner")
        there = refuses and re.search(ONLY_V2_SOURCES[setting.text], code) is not None
        assert there == (setting in settings(Version(release), ONLY_V2)), release


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_no_reason_of_the_sources_is_left_out(release: str) -> None:
    """A reason that no row words would be a setting of which nothing is said."""
    if Version(release) >= Version("0.22"):
        for reason in reasons(release, "_get_v2_model_runner_unsupported_features"):
            row = any(re.search(pattern, reason) for pattern in SOURCES.values())
            assert row or "speculative method" in reason or reason.strip("'") in NO_ROWS, reason
    for reason in reasons(release, "_get_v1_model_runner_unsupported_features"):
        assert any(
            re.search(pattern.removesuffix("'\\)"), reason) for pattern in ONLY_V2_SOURCES.values()
        ), reason


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_the_methods_of_drafts_that_rows_name_are_those_of_the_release(release: str) -> None:
    """A row ends where upstream took the method out, not where the rule that named it did."""
    content = resolve(release).read("vllm/config/speculative.py")
    assert content is not None
    methods = next(
        ast.unparse(node.value)
        for node in ast.parse(content).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SpeculativeMethod"
    )
    named = {setting.text for setting in settings(Version(release))}
    if Version(release) < Version("0.22"):
        return  # every model is on V1 there
    assert ("drafts by Medusa or an MLP speculator" in named) == ("'medusa'" in methods)
    assert "drafts by suffix or a custom class" in named
    assert "'suffix'" in methods
    assert "'custom_class'" in methods


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_models_on_each_runner_are_those_of_the_sources(release: str) -> None:
    rule = models(Version(release))
    assert rule is not None
    listed = architectures(release, "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES")
    assert listed == V2_ARCHITECTURES.get(rule.releases[0], set())
    on_rocm = architectures(release, "ROCM_DEFAULT_MRV1_ARCHITECTURES")
    assert on_rocm == ROCM_V1_ARCHITECTURES.get(rule.releases[0], set())
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


@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_what_a_release_runs_is_what_the_table_says(release: str) -> None:
    version = Version(release)
    rule = models(version)
    assert rule is not None
    ours = runs(ModelRunner.V1, version, {})
    assert (ours is Runs.YES) == (rule.v2 == "no model")
    assert (ours is Runs.NO) == (rule.v2 == "every model")
    assert (runs(ModelRunner.V2, version, {}) is Runs.YES) == (rule.v1 == "no model")
    answer = note_on({"mine": ModelRunner.V1, "theirs": ModelRunner.V2}, version, {})
    assert answer.runs["mine"] is ours
    assert (ours is Runs.YES) == ("V2 for" not in answer.text)
    if ours is not Runs.YES:
        assert f"chooses model runner V2 for {rule.v2}" in answer.text
        assert "mine does nothing there unless VLLM_USE_V2_MODEL_RUNNER=0 is set" in answer.text
    for number, runner in ((0, ModelRunner.V1), (1, ModelRunner.V2)):
        asked = {"VLLM_USE_V2_MODEL_RUNNER": str(number)}
        for mine in ModelRunner:
            expected = Runs.YES if mine is runner else Runs.NO
            assert runs(mine, version, asked) is expected


def test_a_release_that_the_table_lacks_is_not_guessed() -> None:
    answer = note_on({"mine": ModelRunner.V1}, Version("0.99.0"), {})
    assert answer.runs == {"mine": Runs.UNKNOWN}
    assert "not known here" in answer.text
    assert note_on({}, Version("0.33.0"), {}).text == ""


@pytest.mark.parametrize("value", ["", "on", "true"])
def test_a_value_that_vllm_cannot_read_asks_for_nothing(value: str) -> None:
    """vLLM stops there; ``overlay doctor`` says so of its own variables only."""
    given = {"VLLM_USE_V2_MODEL_RUNNER": value}
    assert runs(ModelRunner.V1, Version("0.33.0"), given) is Runs.NO


def results(path: str, *scopes: str) -> FileResult:
    """A file with a hunk in each scope."""
    return FileResult(
        path, State.PRISTINE, hunks=tuple(HunkResult(each, State.PRISTINE) for each in scopes)
    )


def test_no_shipped_feature_says_another_runner_than_its_files() -> None:
    """What a feature patches in each release, beside what its ``feature.toml`` says."""
    told = set()
    for feature in load([shipped_folder()]):
        for release in map(Version, KNOWN_RELEASES):
            patches = [
                variant.patch
                for topic in feature.topics
                for variant in topic.variants
                if release in variant.releases
            ]
            places = [(each.path, hunk.scope) for each in patches for hunk in each.hunks]
            runner = runner_of(places, release)
            assert runner in (None, feature.model_runner), (
                f"{feature.id} patches {runner} in {release}: its feature.toml has to say so"
            )
            told.add((feature.id, runner))
    assert {"context-limit", "prompt-logprobs", "steady-inputs"} <= {
        name for name, runner in told if runner is ModelRunner.V1
    }


@pytest.mark.parametrize(
    ("files", "release", "runner"),
    [
        ([("gpu_model_runner", "GPUModelRunner.f")], "0.33.0", ModelRunner.V1),
        ([("gpu_model_runner", "GPUModelRunner.f"), ("gpu_worker", "f")], "0.33.0", None),
        ([("gpu_model_runner", "GPUModelRunner.reload_weights")], "0.29.0", None),
        ([("gpu_model_runner", "GPUModelRunner.f"), ("gpu/states", "f")], "0.33.0", None),
        ([("gpu/states", "f"), ("gpu/spec_decode/utils", "f")], "0.26.0", ModelRunner.V2),
        ([("gpu/attn_utils", "f")], "0.26.0", None),
        ([("gpu_worker", "f")], "0.33.0", None),
        ([("../spec_decode/ngram_proposer", "f")], "0.31.0", None),  # drafts by n-grams choose V1
        ([("../spec_decode/ngram_proposer", "f")], "0.32.0", ModelRunner.V1),
        ([("../spec_decode/suffix_decoding", "f")], "0.33.0", None),
        ([("gpu_model_runner", "GPUModelRunner.f")], None, ModelRunner.V1),
        ([], "0.33.0", None),
    ],
)
def test_the_runner_is_told_by_what_is_patched(
    files: list[tuple[str, str]], release: str | None, runner: ModelRunner | None
) -> None:
    base = "vllm/v1/worker/"
    paths = [(f"{base}{name}.py".replace("worker/../", ""), scope) for name, scope in files]
    feature = FeatureResult(
        "ours",
        State.PRISTINE,
        (*(results(*each) for each in paths), FileResult("vllm/ours.py", State.PRISTINE)),
    )
    assert runner_of(feature.places, None if release is None else Version(release)) is runner


#: Modules that import one of V1's and run none of it where V2 was chosen, and why.
NOT_V2 = {
    "vllm.v1.worker.cpu_model_runner": "V1's class for CPUs",
    "vllm.v1.worker.xpu_model_runner": "V1's class for XPUs, and V2's beside it",
    "vllm.v1.worker.gpu_worker": "makes the runner that was chosen",
    "vllm.v1.worker.gpu.model_runner": "calls three methods until 0.29, which tell nothing",
    "vllm.v1.spec_decode.metadata": "names a type",
    "vllm.model_executor.warmup": "names a type",
    "vllm.model_executor.model_loader.weight_cache": "asks which class a runner is",
    "vllm.platforms.cpu": "replaces V1's kernels on CPUs",
}

#: Modules outside V2's folder that import its modules, and run with V2 alone.
WITH_V2 = (
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu.",
    "vllm.v1.worker.xpu_model_runner",
    "vllm.v1.worker.mm_encoder_model_runner",
    "vllm.v1.worker.sentinel.",
    "vllm.v1.hisparse.",  # V2's by `ONLY_V2`
    "vllm.v1.watermarking.",  # the same
    "vllm.benchmarks.",  # measures V2's drafters
    "vllm.distributed.aux_output_connector.",  # of V2's input batch
    "vllm.model_executor.model_loader.weight_cache.",
    "vllm.model_executor.models.",  # a model's state, which V2 alone has
    "vllm.models.",
    "vllm.model_executor.warmup.",
)


@pytest.mark.network
@pytest.mark.parametrize("release", ["0.20.0", "0.26.0", KNOWN_RELEASES[-1]])
def test_the_files_of_one_runner_are_imported_by_no_code_of_the_other(release: str) -> None:
    target = resolve(release)
    folder = RUNNER_FILES[ModelRunner.V2].rpartition("/")[0].replace("/", ".")
    ours = {path.removesuffix(".py").replace("/", ".") for path in V1_FILES}
    both = {path.removesuffix(".py").replace("/", ".") for path in V2_FOR_BOTH}
    modules = {path.removesuffix(".py").replace("/", "."): path for path in target.paths()}
    assert folder + ".model_runner" in modules
    imports = re.compile(
        r"^\s*(?:from (vllm\.v1\.[\w.]+) import (\w+)|import (vllm\.v1\.[\w.]+))", re.M
    )
    for module, path in modules.items():
        if not path.endswith(".py"):
            continue
        text = (target.read(path) or b"").decode()
        for where, name, whole in imports.findall(text) if "vllm.v1." in text else ():
            for used in {where, f"{where}.{name}", whole} & modules.keys():
                if used in ours - {module}:
                    assert module in ours or module.startswith(tuple(NOT_V2)), (module, used)
                inside = used.startswith(f"{folder}.") and used not in both
                if inside and not module.startswith(f"{folder}."):
                    assert module.startswith(WITH_V2), (module, used)
