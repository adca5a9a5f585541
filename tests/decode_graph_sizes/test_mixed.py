"""Graphs of mixed batches, where they were tried, and for whoever asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlay.package import KNOWN_RELEASES
from tests.decode_graph_sizes.test_sizes import TEXTS, VARIABLE, check_law, plain
from tests.decode_graph_sizes.worlds import (
    Mode,
    Platform,
    beside,
    chosen,
    configuration,
    fitted,
    stock,
    text,
    worker,
)

pytestmark = pytest.mark.network

UTILS = "v1/worker/gpu/cudagraph_utils.py"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch, as where nobody has set it."""
    monkeypatch.delenv(VARIABLE, raising=False)


def write_utils(release: str, folder: Path) -> None:
    """Write what the feature reads of a release as text."""
    utils = folder / UTILS
    utils.parent.mkdir(parents=True, exist_ok=True)
    utils.write_text(text(release, f"vllm/{UTILS}"))


def choose(world: SimpleNamespace, config: SimpleNamespace) -> None:
    """What vLLM does of a configuration, in its order."""
    world.config.try_verify_and_update_config(config)
    if config.compilation_config.cudagraph_mode is None:
        config.compilation_config.cudagraph_mode = Mode.FULL_AND_PIECEWISE
    world.config._set_cudagraph_sizes(config)


def made(
    release: str, folder: Path, config: SimpleNamespace, **given: Any
) -> tuple[SimpleNamespace, Any]:
    """A configuration as vLLM makes it, and why there are no graphs of mixed batches."""
    compilation: SimpleNamespace = config.compilation_config
    write_utils(release, folder)
    with beside(release, folder=folder, **given) as world:
        world.sizes.cover_decodes()
        choose(world, config)
        return compilation, getattr(compilation, world.sizes.MODE, "nobody asked")


@pytest.mark.parametrize("release", [str(each) for each in KNOWN_RELEASES])
def test_releases_whose_graphs_hold_prompts_get_them(release: str, tmp_path: Path) -> None:
    compilation, reason = made(release, tmp_path, configuration(cudagraph_mode=None))
    if release in ("0.31.0", "0.32.0", "0.33.0"):
        assert reason is None
        assert compilation.cudagraph_mode is Mode.FULL
        assert compilation.max_cudagraph_capture_size == 2048
        own = stock(release, configuration()).cudagraph_capture_sizes
        check_law(own, compilation.cudagraph_capture_sizes, 4, 512, 8192)
    else:
        assert "compute prompts wrongly on model runner V2 before 0.31.0" in reason
        assert compilation.cudagraph_mode is Mode.FULL_AND_PIECEWISE
        assert compilation.max_cudagraph_capture_size == 1024


def test_an_engine_without_drafts_gets_them_too(tmp_path: Path) -> None:
    config = configuration(cudagraph_mode=None, speculative_config=None, num_speculative_tokens=0)
    compilation, reason = made("0.33.0", tmp_path, config)
    assert (reason, compilation.cudagraph_mode) == (None, Mode.FULL)
    assert compilation.max_cudagraph_capture_size == 2048


#: MTP with a module for each draft.
MODULES = SimpleNamespace(
    uses_dynamic_speculative_decoding=lambda: False, use_multi_module_mtp=lambda: True
)

#: What is set, and a word of the reason.
SET: list[tuple[dict[str, Any], str]] = [
    ({"cudagraph_mode": Mode.PIECEWISE}, "mode is set already"),
    ({"cudagraph_capture_sizes": [1, 2, 40]}, "capture sizes, or a largest one"),
    ({"max_cudagraph_capture_size": 64}, "capture sizes, or a largest one"),
    ({"runner_type": "pooling"}, "does not decode"),
    ({"attention_config": SimpleNamespace(hisparse_config=1)}, "HiSparse"),
    ({"use_v2_model_runner": False}, "more than 1,024 tokens of them on model runner V1"),
    *(
        ON_REQUEST := [
            ({"world_size_across_dp": 2}, "several ranks lose"),
            ({"lora_config": SimpleNamespace()}, "with adapters"),
            ({"is_multimodal_model": True}, "that takes images"),
            ({"speculative_config": MODULES}, "several modules that draft"),
        ]
    ),
]


@pytest.mark.parametrize(("changed", "words"), SET)
def test_what_is_set_stays(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    given = {"cudagraph_mode": None, **changed}
    compilation, reason = made("0.33.0", tmp_path, configuration(**given))
    assert words in reason
    assert compilation.cudagraph_mode is (given["cudagraph_mode"] or Mode.FULL_AND_PIECEWISE)
    if "cudagraph_capture_sizes" in changed:
        assert compilation.cudagraph_capture_sizes == [1, 2, 40]


def test_on_another_platform_there_are_none(tmp_path: Path) -> None:
    config = configuration(cudagraph_mode=None)
    compilation, reason = made("0.33.0", tmp_path, config, platform=Platform("rocm"))
    assert "CUDA alone" in reason
    assert compilation.max_cudagraph_capture_size == 512


@pytest.mark.parametrize(("changed", "_words"), ON_REQUEST)
def test_whoever_asks_gets_them(
    changed: dict[str, Any], _words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "mixed")
    compilation, reason = made("0.33.0", tmp_path, configuration(cudagraph_mode=None, **changed))
    assert (reason, compilation.cudagraph_mode) == (None, Mode.FULL)


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.PIECEWISE])
def test_a_mode_that_vllm_chooses_stays(mode: Mode, tmp_path: Path) -> None:
    """Of a lower optimization level, a connector, an encoder: known after the user's is noted."""
    config = configuration(cudagraph_mode=None)
    write_utils("0.33.0", tmp_path)
    with beside("0.33.0", folder=tmp_path) as world:
        world.sizes.cover_decodes()
        world.config.try_verify_and_update_config(config)
        config.compilation_config.cudagraph_mode = mode
        world.config._set_cudagraph_sizes(config)
        reason = getattr(config.compilation_config, world.sizes.MODE)
    assert reason == f"vLLM chose cudagraph mode {mode.name}"
    assert config.compilation_config.cudagraph_mode is mode


@pytest.mark.parametrize("value", ["decodes", "off"])
def test_nobody_gets_them_who_says_no(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    compilation, reason = made("0.33.0", tmp_path, configuration(cudagraph_mode=None))
    assert reason is not None
    assert compilation.cudagraph_mode is Mode.FULL_AND_PIECEWISE
    assert compilation.max_cudagraph_capture_size == (512 if value == "off" else 1024)


def layer(support: str, *, spec: object = "full") -> SimpleNamespace:
    """A layer of attention, as a worker that has loaded its model knows it."""
    builder = SimpleNamespace(get_cudagraph_support=lambda *_: SimpleNamespace(name=support))
    backend = SimpleNamespace(get_builder_cls=lambda: builder, get_name=lambda: "SOME_ATTENTION")
    return SimpleNamespace(get_attn_backend=lambda: backend, get_kv_cache_spec=lambda _: spec)


def fitted_beside(
    layers: list[Any],
    folder: Path,
    requests: int = 256,
    others: Sequence[int] = (),
    weights: Sequence[int] = (),
    **changed: Any,
) -> tuple[Any, str]:
    """The compilation configuration of a worker with these layers, and the feature's effect.

    :param weights: bytes of each of its parameters.
    """
    config = configuration(cudagraph_mode=None, requests=requests, **changed)
    write_utils("0.33.0", folder)
    one = worker(config)
    parameters = [SimpleNamespace(nbytes=each) for each in weights]
    one.get_model = lambda: SimpleNamespace(parameters=lambda: iter(parameters))
    config.compilation_config.static_forward_context = dict(enumerate(layers))
    compilation = config.compilation_config
    with fitted(one, others, choose=choose, folder=folder) as world:
        changes = compilation.cudagraph_mode is Mode.FULL or world.sizes != world.own
        assert world.effect["state"] == ("active" if changes else "idle")
        return compilation, world.effect["text"]


@pytest.mark.parametrize("support", ["NEVER", "UNIFORM_BATCH", "UNIFORM_SINGLE_TOKEN_DECODE"])
@pytest.mark.parametrize("requests", [64, 256])
def test_a_backend_that_holds_no_prefill_gets_decodes_alone(
    support: str, requests: int, tmp_path: Path
) -> None:
    layers = [layer("ALWAYS"), layer(support)]
    compilation, effect = fitted_beside(layers, tmp_path, requests)
    alone = chosen("0.33.0", configuration(requests=requests))
    assert compilation.cudagraph_mode is Mode.FULL_AND_PIECEWISE
    assert compilation.cudagraph_capture_sizes == alone.cudagraph_capture_sizes
    assert compilation.max_cudagraph_capture_size == alone.max_cudagraph_capture_size
    reason = "no graphs of mixed batches: SOME_ATTENTION holds no prefill in a graph"
    if requests == 64:
        assert (
            effect == f"vLLM's own sizes, up to 512 tokens, hold every batch of decodes; {reason}"
        )
    else:
        assert effect.endswith(f"for graphs; {reason}")


def test_other_backends_get_them(tmp_path: Path) -> None:
    layers = [layer("ALWAYS"), layer("NEVER", spec=None), SimpleNamespace(no="attention")]
    compilation, effect = fitted_beside(layers, tmp_path)
    assert compilation.cudagraph_mode is Mode.FULL
    assert compilation.max_cudagraph_capture_size == 2048
    assert effect.endswith("cudagraph mode FULL, for mixed batches, too")


@pytest.mark.parametrize("support", ["ALWAYS", "UNIFORM_BATCH"])
def test_where_no_size_is_added_the_mode_is_looked_after_all_the_same(
    support: str, tmp_path: Path
) -> None:
    """A step that is no wider than vLLM's own sizes: mode FULL is all that was chosen."""
    compilation, effect = fitted_beside([layer(support)], tmp_path, max_num_batched_tokens=512)
    held = "vLLM's own sizes, up to 512 tokens, hold every batch of decodes"
    assert compilation.max_cudagraph_capture_size == 512
    if support == "ALWAYS":
        assert compilation.cudagraph_mode is Mode.FULL
        assert effect == f"{held}; cudagraph mode FULL, for mixed batches, too"
    else:
        assert compilation.cudagraph_mode is Mode.FULL_AND_PIECEWISE
        reason = "no graphs of mixed batches: SOME_ATTENTION holds no prefill in a graph"
        assert effect == f"{held}; {reason}"


def test_ranks_agree_on_them(tmp_path: Path) -> None:
    """Another rank votes 0: its attention holds no prefill, or it has more weights."""
    compilation, effect = fitted_beside([layer("ALWAYS")], tmp_path, 64, others=[0])
    assert compilation.cudagraph_mode is Mode.FULL_AND_PIECEWISE
    assert effect.endswith("no graphs of mixed batches: another rank has a reason against them")


@pytest.mark.parametrize("weights", [[8 << 30, 1], [4 << 30] * 3])
def test_where_a_step_waits_for_the_gpu_decodes_alone_have_graphs(
    weights: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilation, effect = fitted_beside([layer("ALWAYS")], tmp_path, weights=weights)
    alone = chosen("0.33.0", configuration())
    assert compilation.cudagraph_mode is Mode.FULL_AND_PIECEWISE
    assert compilation.cudagraph_capture_sizes == alone.cudagraph_capture_sizes
    assert f"no graphs of mixed batches: with weights of {sum(weights) / (1 << 30):.1f}" in effect
    monkeypatch.setenv(VARIABLE, "mixed")
    compilation, _ = fitted_beside([layer("ALWAYS")], tmp_path, weights=weights)
    assert compilation.cudagraph_mode is Mode.FULL


def test_few_weights_leave_graphs_of_mixed_batches(tmp_path: Path) -> None:
    compilation, _ = fitted_beside([layer("ALWAYS")], tmp_path, weights=[4 << 30, 4 << 30])
    assert compilation.cudagraph_mode is Mode.FULL


def planned(
    folder: Path,
    mode: Mode,
    longest: int,
    padded: int,
    whole: Mode = Mode.FULL,
    **changed: Any,
) -> Any:
    """The longest request that attention is planned for; None: it is to ask the batch.

    :param mode: of the step; :param whole: of the engine; :param padded: tokens of the graph.
    """
    config = configuration(cudagraph_mode=None, **changed)
    write_utils("0.33.0", folder)
    one = worker(config)
    one.get_model = lambda: SimpleNamespace(parameters=lambda: iter(()))
    with fitted(one, choose=choose, folder=folder):
        config.compilation_config.cudagraph_mode = whole
        scheduled = SimpleNamespace(max=lambda: longest)
        batch = SimpleNamespace(
            max_query_len=None, num_tokens_after_padding=padded, num_scheduled_tokens=scheduled
        )
        told = one.model_runner.model_state.prepare_attn(batch, mode, "tables")
        assert batch.max_query_len is None
        return told


def test_decodes_of_a_token_each_are_planned_as_the_graph_was_captured(tmp_path: Path) -> None:
    assert planned(tmp_path, Mode.FULL, 1, 2) == 2
    assert planned(tmp_path, Mode.FULL, 1, 2, max_num_batched_tokens=512) == 2
    for mode, longest, padded, whole in (
        (Mode.NONE, 1, 2, Mode.FULL),  # no graph
        (Mode.FULL, 2, 2, Mode.FULL),
        (Mode.FULL, 1, 1, Mode.FULL),  # captured for one token
        (Mode.FULL, 1, 2, Mode.FULL_AND_PIECEWISE),  # a graph of decodes
    ):
        assert planned(tmp_path, mode, longest, padded, whole) is None


@pytest.mark.parametrize("release", ["0.31.0", "0.32.0", "0.33.0"])
def test_a_release_asks_the_batch_for_its_longest_request(release: str) -> None:
    states = text(release, "vllm/v1/worker/gpu/model_states/default.py")
    assert (
        "        max_query_len = input_batch.max_query_len\n        if max_query_len is" in states
    )
    runner = text(release, "vllm/v1/worker/gpu/model_runner.py")
    assert "self.model_state.prepare_attn(\n                input_batch,\n" in runner


@pytest.mark.parametrize("release", TEXTS)
def test_narrow_steps_have_no_larger_sizes(release: str, tmp_path: Path) -> None:
    config = configuration(cudagraph_mode=None, max_num_batched_tokens=512)
    compilation, _ = made(release, tmp_path, config)
    own = stock(release, configuration(max_num_batched_tokens=512))
    compilation.cudagraph_mode = own.cudagraph_mode
    assert compilation.max_cudagraph_capture_size == 512
    ours, theirs = plain(compilation), plain(own)
    ours.pop("overlay_mixed_graphs", None)
    assert ours == theirs
