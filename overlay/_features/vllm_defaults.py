"""What a release of vLLM does by itself: its model runner, and what it imports before plugins.

The shipped features patch model runner V1; V2 has draft graphs of its own and runs none of their
code.  The tables here are the only ones: ``docs/model-runners.md`` shows them, ``overlay check``,
``apply``, ``status`` and ``doctor`` speak from them, and ``tests/docs/test_model_runners.py``
compares all with the sources of every release (``vllm/config/vllm.py``).

Modules that vLLM imports before it loads its plugins cannot be patched in memory.
``early-modules.json`` has them, by ranges of releases: what is reached by import statements that
run while a module is imported, from the modules that each kind of process is entered through
(``scripts/vllm_import_graph.py`` writes it, and a test compares it with the sources).  Following
the imports of a target takes seconds, and ``status`` may not; so the table is shipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from overlay.package import KNOWN_RELEASES, VLLM, ReleaseRange, is_module, module_name
from overlay.results import RUNNER_FILES, ModelRunner

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.results import FeatureResult


#: By which the user chooses; vLLM reads a number, and 0 is V1.
VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"

#: How many features a sentence names.
_MOST_NAMES = 12

_PAGE = "docs/model-runners.md"


class Runs(str, Enum):
    """Whether a release runs what a feature patches, where nothing else is asked of it."""

    YES = "yes"
    #: For some models.
    SOME = "some"
    #: For no model, but with some settings.
    NO = "no"
    UNKNOWN = "unknown"


class RunnerNote(NamedTuple):
    """Which of some features a release runs, and the sentence about those that it does not.

    :ivar runs: by feature; :ivar text: what follows the name of the release.
    :ivar short: the same without what differs between releases of the same kind.
    :ivar asks: by feature, the variable that asks for its model runner, with its value.
    """

    runs: Mapping[str, Runs]
    text: str
    short: str
    asks: Mapping[str, str]


class Models(NamedTuple):
    """Which models a range of releases runs on which model runner.

    :ivar releases: first and last minor release, both included.
    :ivar v2: who gets V2 by default; :ivar v1: who stays on V1.
    """

    releases: tuple[str, str]
    v2: str
    v1: str


class Setting(NamedTuple):
    """A setting that decides for a model runner, whatever the model.

    :ivar releases: first and last minor release in which it does, both included.
    """

    text: str
    releases: tuple[str, str]


_EVERY, _NONE = "every model", "no model"
_OTHERS = "every other model"
_LARGE = (
    "most mixtures of experts, and hybrid models: DeepSeek-V3, Qwen3-MoE, Qwen3-Next, GLM, "
    "MiniMax, gpt-oss"
)
_LISTED = "dense models that are not hybrid; DeepSeek-V2, Qwen2-MoE, Granite-MoE"
_LISTED_0_26 = f"{_LISTED}, Inkling, LongCat-Flash (n-gram)"

MODELS = (
    Models(("0.20", "0.21"), _NONE, _EVERY),
    Models(("0.22", "0.22"), "Qwen3, dense and not quantized", _OTHERS),
    Models(("0.23", "0.23"), "Llama, Mistral and Qwen3, dense and not quantized", _OTHERS),
    Models(
        ("0.24", "0.24"),
        "Llama, Mistral, Qwen3, DeepSeek-V2, Qwen2-MoE, Granite-MoE; text diffusion models",
        _OTHERS,
    ),
    Models(("0.25", "0.25"), _LISTED, _LARGE),
    Models(("0.26", "0.26"), _LISTED_0_26, _LARGE),
    Models(("0.27", "0.27"), f"{_LISTED_0_26}; Kimi-K3 (not on ROCm)", _LARGE),
    Models(("0.28", "0.28"), f"{_LISTED_0_26}; Kimi-K3 and DeepSeek-V4 (not on ROCm)", _LARGE),
    Models(("0.29", "0.29"), _EVERY, "on ROCm: DeepSeek-V3.2 and DeepSeek-V4"),
    Models(
        ("0.30", "0.31"),
        _EVERY,
        "on ROCm: DeepSeek-V3.2, DeepSeek-V4 and GLM with sparse attention",
    ),
    Models(("0.32", "0.33"), _EVERY, _NONE),
)

#: What sends a model to V1 that would run on V2 by default.
SETTINGS = (
    Setting("parallel drafting (P-EAGLE, PARD)", ("0.22", "0.33")),
    Setting("drafts by suffix or a custom class", ("0.22", "0.33")),
    Setting("drafts by Medusa or an MLP speculator", ("0.22", "0.32")),
    Setting("drafts with another vocabulary than the target's", ("0.32", "0.33")),
    Setting("drafts by n-grams", ("0.22", "0.31")),
    Setting("drafts by a draft model", ("0.22", "0.30")),
    Setting("drafts by DFlash", ("0.22", "0.23")),
    Setting("extraction of hidden states", ("0.22", "0.28")),
    Setting("EAGLE3 with pipeline parallelism", ("0.22", "0.29")),
    Setting("pipeline parallelism with the external launcher", ("0.24", "0.33")),
    Setting("prefill context parallelism", ("0.22", "0.26")),
    Setting("a budget of reasoning tokens", ("0.22", "0.22")),
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

#: What V1 does not serve: VLLM_USE_V2_MODEL_RUNNER=0 is refused there, or (watermarks) overridden.
ONLY_V2 = (
    Setting("drafts by DSpark", ("0.29", "0.33")),
    Setting("adaptive verification of drafts", ("0.29", "0.33")),
    Setting("DFlash drafts of sliding and full attention", ("0.29", "0.33")),
    Setting("DFlash drafts with a candidate head (DFlash2)", ("0.29", "0.33")),
    Setting("drafts by XPress", ("0.33", "0.33")),
    Setting("drafts with a quantized lm_head", ("0.33", "0.33")),
    Setting("drafts by the MTP layers of Parse 3.5", ("0.33", "0.33")),
    Setting("prefill context parallelism", ("0.29", "0.33")),
    Setting("pipeline parallelism with async scheduling", ("0.31", "0.33")),
    Setting("text diffusion models", ("0.29", "0.33")),
    Setting("Step5", ("0.33", "0.33")),
    Setting("batch-sharded sampling", ("0.29", "0.33")),
    Setting("HiSparse", ("0.30", "0.33")),
    Setting("watermarks (V2 serves them whatever is asked)", ("0.30", "0.33")),
)


#: The files that model runner V1 alone runs, for each of V1's drafters the drafts that it makes:
#: where a row of ``SETTINGS`` sends these to V1, the file is run wherever it is asked for.
V1_FILES: Mapping[str, str | None] = {
    RUNNER_FILES[ModelRunner.V1]: None,
    **dict.fromkeys(
        (
            "vllm/v1/sample/rejection_sampler.py",
            *(f"vllm/v1/spec_decode/{name}.py" for name in ("eagle", "gemma4", "step3p5")),
            "vllm/v1/spec_decode/llm_base_proposer.py",
            "vllm/v1/worker/ec_connector_model_runner_mixin.py",
        )
    ),
    "vllm/v1/spec_decode/dflash.py": "drafts by DFlash",
    "vllm/v1/spec_decode/draft_model.py": "drafts by a draft model",
    "vllm/v1/spec_decode/extract_hidden_states.py": "extraction of hidden states",
    "vllm/v1/spec_decode/ngram_proposer.py": "drafts by n-grams",
    "vllm/v1/spec_decode/ngram_proposer_gpu.py": "drafts by n-grams",
}

#: What V2 calls of V1's class until 0.29.
_V1_FOR_BOTH = frozenset(
    f"GPUModelRunner.{name}"
    for name in ("apply_sparse_weight_patches", "reload_weights", "update_config")
)

_V2_FOLDER = f"{RUNNER_FILES[ModelRunner.V2].rpartition('/')[0]}/"

#: The files of V2's folder that other code of some release imports.
V2_FOR_BOTH = frozenset(
    f"{_V2_FOLDER}{name}.py"
    for name in (
        "attn_utils",
        "buffer_utils",
        "cudagraph_utils",
        "eplb_utils",
        "pool/late_interaction_runner",
        "sample/gumbel",
        "sample/logits_processor",
        "sample/logprob",
        "spec_decode/eagle/eagle3_utils",
        "spec_decode/rejection_sampler_utils",
    )
)


def runner_of(
    places: Iterable[tuple[str, str]], release: Version | None, *, ascend: bool = False
) -> ModelRunner | None:
    """The only model runner that runs what a feature patches in a release, told by its places.

    Added modules say nothing: what is patched calls them.

    :param places: the file and scope of each hunk.
    :param ascend: whether vllm-ascend is there, whose runner is another.
    :returns: ``None`` where another runner may run some of it.
    """
    runners = {_runner_of_hunk(path, scope, release) for path, scope in places}
    return runners.pop() if len(runners) == 1 and not ascend else None


def has_ascend(root: str | os.PathLike[str] | None) -> bool:
    """Whether vllm-ascend lies beside vLLM, and chooses by a rule of its own."""
    return root is not None and os.path.isdir(os.path.join(root, "vllm_ascend"))


def _runner_of_hunk(path: str, scope: str, release: Version | None) -> ModelRunner | None:
    if path in V1_FILES and scope not in _V1_FOR_BOTH:
        drafts = V1_FILES[path]
        rows = settings(release) if release is not None and drafts is not None else ()
        return None if any(row.text == drafts for row in rows) else ModelRunner.V1
    if path.startswith(_V2_FOLDER) and path not in V2_FOR_BOTH:
        return ModelRunner.V2
    return None


def _within(release: Version, span: tuple[str, str]) -> bool:
    first, last = (Version(text).release for text in span)
    return first <= release.release[:2] <= last


def models(release: Version | None) -> Models | None:
    """The rule of a release; ``None`` for one that the tables do not hold."""
    if release is None:
        return None
    return next((rule for rule in MODELS if _within(release, rule.releases)), None)


def settings(release: Version, table: Sequence[Setting] = SETTINGS) -> tuple[Setting, ...]:
    """The settings that send a model to V1 in a release, or those of another table."""
    return tuple(setting for setting in table if _within(release, setting.releases))


def requested_runner(environment: Mapping[str, str]) -> ModelRunner | None:
    """The model runner that the environment asks for; ``None`` where vLLM chooses, or stops."""
    try:
        number = int(environment[VARIABLE])
    except (KeyError, ValueError):
        return None
    return ModelRunner.V2 if number else ModelRunner.V1


def asking(runner: ModelRunner) -> str:
    """The variable that asks vLLM for a model runner, with its value."""
    return f"{VARIABLE}={int(runner is ModelRunner.V2)}"


def runs(runner: ModelRunner, release: Version | None, environment: Mapping[str, str]) -> Runs:
    """Whether a release of vLLM runs a feature that patches ``runner``."""
    if (choice := requested_runner(environment)) is not None:
        return Runs.YES if choice is runner else Runs.NO
    rule = models(release)
    if rule is None:
        return Runs.UNKNOWN
    mine, theirs = (rule.v2, rule.v1) if runner is ModelRunner.V2 else (rule.v1, rule.v2)
    if theirs == _NONE:
        return Runs.YES
    if mine == _NONE or theirs == _EVERY:
        return Runs.NO
    return Runs.SOME


def note_on(
    runners: Mapping[str, ModelRunner],
    release: Version | None,
    environment: Mapping[str, str],
    *,
    ascend: bool = False,
) -> RunnerNote:
    """Say which features a release of vLLM runs; the text is empty where it runs all of them.

    :param runners: the model runner that each feature patches, by id.
    :param ascend: whether vllm-ascend is there, which chooses by a rule of its own.
    """
    asks = {name: asking(runner) for name, runner in runners.items()}
    if ascend and runners and requested_runner(environment) is not ModelRunner.V2:
        text = (
            "is run by vllm-ascend, which chooses model runner V1 and replaces methods that "
            f"these patch: {_names(runners)} (docs/platforms.md)"
        )
        return RunnerNote(dict.fromkeys(runners, Runs.UNKNOWN), text, text, asks)
    every = {name: runs(runner, release, environment) for name, runner in runners.items()}
    idle = {name: runners[name] for name, each in every.items() if each is not Runs.YES}
    sentences = [
        _sentence(runner, [name for name in idle if idle[name] is runner], release, environment)
        for runner in ModelRunner
        if runner in idle.values()
    ]
    texts, shorts = (list(each) for each in zip(*sentences, strict=True)) if sentences else ([], [])
    return RunnerNote(every, "; ".join(texts), "; ".join(shorts), asks)


def _sentence(
    runner: ModelRunner,
    ids: Sequence[str],
    release: Version | None,
    environment: Mapping[str, str],
) -> tuple[str, str]:
    """What a release does with features of one model runner that it does not always run.

    :returns: in full, and without what differs between releases.
    """
    names = _names(ids)
    do = "does" if len(ids) == 1 else "do"
    other = ModelRunner.V1 if runner is ModelRunner.V2 else ModelRunner.V2
    default = other.value.upper()
    value = environment.get(VARIABLE)
    if value is not None and requested_runner(environment) is None:
        text = f"does not start with {VARIABLE}={value[:40]!r}: it expects a number there, 0 for V1"
        return text, text
    if value is not None and requested_runner(environment) is other:
        text = f"uses model runner {default} by {VARIABLE}={int(value)}: {names} {do} nothing there"
        return text, text
    unless = f"unless {asking(runner)} is set"
    rule = models(release)
    if rule is None:
        text = (
            f"chooses a model runner that is not known here, and its log says which: on {default} "
            f"{names} {do} nothing, {unless}"
        )
        return text, text
    mine, theirs = (rule.v2, rule.v1) if runner is ModelRunner.V2 else (rule.v1, rule.v2)
    if runs(runner, release, environment) is Runs.NO:
        but = "" if mine == _NONE else f" (but {mine})"
        settled = " or a setting needs V1" if runner is ModelRunner.V1 else ""
        head = f"chooses model runner {default} for every model"
        tail = f": {names} {do} nothing there {unless}{settled} ({_PAGE})"
        return f"{head}{but}{tail}", f"{head}{tail}"
    tail = f"{names} {do} nothing there {unless} ({_PAGE})"
    return (
        f"chooses model runner {default} for {theirs}: {tail}",
        f"chooses model runner {default} for some models: {tail}",
    )


def _names(ids: Iterable[str]) -> str:
    """Ids as a list in a sentence, of very many the first and how many others there are."""
    words = list(ids)
    if len(words) > _MOST_NAMES:
        words[_MOST_NAMES - 1 :] = [f"{len(words) - _MOST_NAMES + 1} others"]
    *firsts, last = words
    return f"{', '.join(firsts)} and {last}" if firsts else last


def advice(release: Version | None, environment: Mapping[str, str], *, ascend: bool = False) -> str:
    """Say in a few sentences which model runner is chosen, and what that means for a drafter.

    :param ascend: whether vllm-ascend is installed, which chooses by a rule of its own.
    """
    choice = requested_runner(environment)
    if choice is ModelRunner.V2:
        return (
            f"V2, by {VARIABLE}=1: a drafter on V2 does not use draft-graphs; V2 has draft graphs "
            "of its own"
        )
    if ascend:
        return (
            "V1 for every model, by vllm-ascend, which replaces the methods that draft-graphs "
            "patches: the drafter does not use them"
        )
    refused = settings(release, ONLY_V2) if release is not None else ()
    but = f". vLLM {release} does not serve on V1: {_listed(refused)}" if refused else ""
    if choice is ModelRunner.V1:
        return f"V1, by {VARIABLE}=0: a drafter (EAGLE, EAGLE3, MTP) uses draft-graphs{but}"
    rule = models(release)
    if release is None or rule is None:
        return (
            f"not known for {release or 'this vLLM'}; its log says which it uses. A drafter on V2 "
            f"does not use draft-graphs; {VARIABLE}=0 asks for V1"
        )
    text = f"V2 for {rule.v2}; V1 for {rule.v1}. "
    if forced := settings(release):
        text += f"V1 in any case for: {_listed(forced)}. "
    return f"{text}A drafter on V2 does not use draft-graphs; {VARIABLE}=0 asks for V1{but}"


def _listed(some: Sequence[Setting]) -> str:
    return ", ".join(setting.text for setting in some)


TABLE = "early-modules.json"


@cache
def early_modules(release: Version | None) -> frozenset[str]:
    """The modules that a release of vLLM imports before it loads plugins.

    Of a release that is not known, those of the newest that is.
    """
    import json
    from importlib.resources import files

    releases = {Version(text) for text in KNOWN_RELEASES}
    version = None if release is None else Version(release.base_version)
    if version is None or version not in releases:
        version = max(releases)
    table: Mapping[str, list[str]] = json.loads(
        files("overlay._features").joinpath(TABLE).read_text(encoding="utf-8")
    )
    return frozenset(
        module
        for span, modules in table.items()
        if version in ReleaseRange.parse(span, VLLM)
        for module in modules
    )


def early_among(paths: Iterable[str], release: Version | None) -> tuple[str, ...]:
    """Those modules of patched files that a release of vLLM imports too early, sorted."""
    ours = [path for path in paths if path.startswith(f"{VLLM.name}/") and is_module(path)]
    early = early_modules(release) if ours else frozenset()
    return tuple(sorted({module for path in ours if (module := module_name(path)) in early}))


def why_on_disk(modules: Sequence[str]) -> str:
    """Why what patches these modules cannot be patched in memory, and what to do.

    :param modules: at least one.
    """
    *first, last = modules
    names = f"{', '.join(first)} and {last}" if first else last
    return f"vLLM imports {names} before it loads plugins; apply it on disk"


def not_in_memory(
    results: Iterable[FeatureResult],
    features: Iterable[Feature],
    release: Version | None,
    package: str,
) -> dict[str, str]:
    """The features that cannot be patched in memory -> the reason.

    :param results: their state in a target of this release; :param package: its import name.
    """
    results, features = tuple(results), tuple(features)
    ids = {result.feature for result in results}
    reasons = {each.id: why for each in features if each.id in ids and (why := each.on_disk_reason)}
    if package == VLLM.name:
        late = too_early(results, features, release)
        reasons = {name: why_on_disk(modules) for name, modules in late.items()} | reasons
    return reasons


def too_early(
    results: Iterable[FeatureResult], features: Iterable[Feature], release: Version | None
) -> dict[str, tuple[str, ...]]:
    """The features that cannot be patched in memory -> their modules that are imported too early.

    None of the shipped ones is among them, which a test holds for every release.

    :param results: their state in a target of vLLM of this release.
    """
    own = {each.id for each in features if not each.shipped and each.package == VLLM}
    early = {
        result.feature: early_among((file.path for file in result.files), release)
        for result in results
        if result.feature in own
    }
    return {name: modules for name, modules in early.items() if modules}
