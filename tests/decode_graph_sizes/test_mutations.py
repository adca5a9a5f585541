"""Mistakes in the feature's modules, each of which a test of this folder notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.decode_graph_sizes import test_memory, test_mixed, test_sizes
from tests.decode_graph_sizes.worlds import (
    Mode,
    Platform,
    beside,
    chosen,
    configuration,
    fitted,
    stock,
    worker,
)

pytestmark = pytest.mark.network

RELEASE = "0.33.0"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch, as where nobody has set it."""
    monkeypatch.delenv(test_sizes.VARIABLE, raising=False)


Mistake = tuple[str, str, str]

#: In what chooses sizes.
SIZES: list[Mistake] = [
    ("wide_sizes", "min(requests, tokens // query) * query", "requests * query"),
    ("wide_sizes", "min(requests, tokens // query) * query", "tokens // query * query"),
    ("wide_sizes", "last < widest", "False"),
    ("wide_sizes", "narrowest * WASTE // (WASTE - 1)", "2 * narrowest"),
    ("wide_sizes", "max(narrowest, _multiple(most, query))", "most"),
    ("wide_sizes", "[*sizes, *added]", "added"),
    ("_multiple", "most // query * query", "most"),
    ("_set_sizes", "hasattr(compilation, CHOICE)", "False"),
    ("_set_sizes", "not wanted", "False"),
    ("_is_set", "compilation.cudagraph_capture_sizes is not None", "False"),
    ("_is_set", "compilation.max_cudagraph_capture_size is not None", "False"),
    ("_set_sizes", "compilation.compile_sizes = compile_sizes", "pass"),
    ("_set_sizes", "compilation.max_cudagraph_capture_size = None", "pass"),
    ("_set_sizes", "setattr(compilation, CHOICE, (own, reason))", "pass"),
    ("_set_sizes", "setattr(compilation, CHOICE, (own, reason))", "MATCH\nraise ValueError"),
    ("sizes_for", "config.num_speculative_tokens if config.speculative_config else 0", "0"),
    ("sizes_for", "getattr(config.compilation_config, MODE, '') is None", "True"),
    ("_reason_against", "not own", "False"),
    ("_reason_against", "is_set", "False"),
    ("_reason_against", "not current_platform.is_cuda()", "False"),
    ("_reason_against", "config.model_config.runner_type != 'generate'", "False"),
    ("_reason_against", "getattr(config, 'diffusion_config', None) is not None", "False"),
    ("_reason_against", "config.parallel_config.use_ubatching", "False"),
    ("_reason_against", "config.parallel_config.enable_elastic_ep", "False"),
]

#: In what chooses a mode for mixed batches.
MODES: list[Mistake] = [
    ("_choosing.verify_and_note", "os.environ.get(VARIABLE) != DECODES", "True"),
    ("_choosing.verify_and_note", "compilation.cudagraph_mode is not None", "False"),
    ("_choose_mode", "_reason_against(config, (1,), is_set)", "None"),
    ("_choose_mode", "compilation.cudagraph_mode != CUDAGraphMode.FULL_AND_PIECEWISE", "False"),
    ("_choose_mode", "getattr(attention, 'hisparse_config', None) is not None", "False"),
    ("_choose_mode", "not _holds_prompts()", "False"),
    ("_choose_mode", "not config.use_v2_model_runner", "False"),
    ("_choose_mode", "os.environ.get(VARIABLE) != MIXED", "True"),
    ("_choose_mode", "os.environ.get(VARIABLE) != MIXED", "False"),
    ("_choose_mode", "compilation.cudagraph_mode = CUDAGraphMode.FULL", "pass"),
    ("_unless_asked", "speculative and speculative.use_multi_module_mtp()", "False"),
    ("sizes_for", "max(requests, MIXED_TOKENS // query)", "requests"),
]

#: In what leaves out sizes.
MEMORY: list[Mistake] = [
    ("Shape.bytes_of", "max(sizes) - max(own)", "max(sizes)"),
    ("Shape.bytes_of", "further * graphs", "further"),
    ("fitting", "shape.bytes_of(kept, own, graphs) > room", "False"),
    ("fitting", "kept.pop()", "kept.pop(0)"),
    ("fit_sizes", "choice is None", "False"),
    ("fit_sizes", "compilation.cudagraph_capture_sizes = kept", "pass"),
    ("fit_sizes", "compilation.max_cudagraph_capture_size = kept[-1]", "pass"),
    ("fit_sizes", "agreed(len(fitting(sizes, own, shape, graphs, room)))", "len(sizes)"),
    ("_choose_mixed", "agreed(int(reason is None))", "reason is None"),
    ("_against_mixed", "weights <= MOST_WEIGHTS", "True"),
    ("_against_mixed", "weights <= MOST_WEIGHTS", "weights < MOST_WEIGHTS"),
    ("_against_mixed", "os.environ.get(VARIABLE) == MIXED", "False"),
    ("_without_prefills", "support.name != 'ALWAYS'", "False"),
    ("_without_prefills", "hasattr(layer, 'get_attn_backend')", "True"),
    ("_choose_decodes_alone", "setattr(compilation, MODE, reason)", "pass"),
    ("fit_sizes", "chosen := mixed is None", "chosen := mixed is None and reason is None"),
    ("fit_sizes", "active if mixed is None else idle", "idle"),
    ("_choose_mixed", "plan_as_captured(worker.model_runner)", "pass"),
    ("plan_as_captured.prepare_attn", "batch.max_query_len = 2", "pass"),
    ("plan_as_captured.prepare_attn", "batch.max_query_len = None", "pass"),
    ("_single_tokens", "mode.name == 'FULL'", "True"),
    ("_single_tokens", "not runner.compilation_config.cudagraph_mode.separate_routine()", "True"),
    ("_single_tokens", "batch.num_tokens_after_padding > 1", "True"),
    ("_single_tokens", "batch.num_scheduled_tokens.max() == 1", "True"),
    ("fit_sizes", "len(sizes) == len(own)", "False"),
    ("fit_sizes", "2 if mode is not None and mode.separate_routine() else 1", "1"),
    ("_room", "max(free - asked, 0) // PART_OF_REST", "free"),
    ("_room", "_reckons_with_graphs(worker)", "True"),
    ("_room", "budget - (before - free)", "budget"),
    ("_reckons_with_graphs", "not envs.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "False"),
    ("_reckons_with_graphs", "not getattr(worker, 'use_v2_model_runner', False)", "False"),
    ("_report", "len(kept) == len(own)", "False"),
    ("_report", "len(kept) < len(sizes)", "False"),
]


def sizes_are_right(edits: list[Mistake]) -> None:
    """The laws of the choice, on one release."""
    for drafts, requests, tokens in ((3, 256, 8192), (2, 300, 8192), (7, 512, 2049), (0, 700, 999)):
        own = stock(RELEASE, configuration(drafts, requests, tokens)).cudagraph_capture_sizes
        compilation = chosen(RELEASE, configuration(drafts, requests, tokens), edits=edits)
        sizes = compilation.cudagraph_capture_sizes
        test_sizes.check_law(own, sizes, 1 + drafts, requests, tokens)
        assert getattr(compilation, test_sizes.CHOICE) == (tuple(own), None)
    asked = configuration(compile_sizes=["cudagraph_capture_sizes"])
    compilation = chosen(RELEASE, asked, edits=edits)
    assert sorted(compilation.compile_sizes) == compilation.cudagraph_capture_sizes
    for changed, words in test_sizes.REASONS.values():
        own = stock(RELEASE, configuration(**changed))
        compilation = chosen(RELEASE, configuration(**changed), edits=edits)
        assert test_sizes.plain(compilation) == test_sizes.plain(own)
        assert words in getattr(compilation, test_sizes.CHOICE)[1]
    elsewhere = chosen(RELEASE, configuration(), platform=Platform("rocm"), edits=edits)
    assert elsewhere.max_cudagraph_capture_size == 512
    with beside(RELEASE, edits=edits) as world:
        world.sizes.cover_decodes()
        config = configuration()
        world.config._set_cudagraph_sizes(config)
        choice = getattr(config.compilation_config, test_sizes.CHOICE)
        world.config._set_cudagraph_sizes(config)
        assert getattr(config.compilation_config, test_sizes.CHOICE) == choice


def choice_is_right(edits: list[Mistake], monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws of the choice, and its switch."""
    sizes_are_right(edits)
    monkeypatch.setenv(test_sizes.VARIABLE, "off")
    assert chosen(RELEASE, configuration(), edits=edits).max_cudagraph_capture_size == 512


def memory_is_right(edits: list[Mistake], monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The laws of what is left out, on one release."""

    def under(function: Callable[..., None], *given: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(
                test_memory, "fitted", lambda *a, **k: fitted(*a, memory_edits=edits, **k)
            )
            patched.setattr(test_memory, "beside", lambda: beside(memory_edits=edits))
            function(*given)

    with beside(memory_edits=edits) as world:
        own, sizes = [1, 8, 512], [1, 8, 512, 768, 1024]
        shape = world.memory.Shape(16, 49152, 32, 64, 2)
        for graphs in (1, 2):
            assert shape.bytes_of(own, own, graphs) == 0
            for number in (4, 5):
                room = shape.bytes_of(sizes[:number], own, graphs)
                assert world.memory.fitting(sizes, own, shape, graphs, room) == sizes[:number]
                fewer = world.memory.fitting(sizes, own, shape, graphs, room - 1)
                assert fewer == sizes[: number - 1]
    under(test_memory.test_all_of_them_on_an_h100)
    under(test_memory.test_the_largest_that_fits, {"weights": 68})
    under(test_memory.test_where_nothing_fits_it_is_vllms_choice, {"weights": 79})
    under(test_memory.test_what_the_room_is_of)
    under(test_memory.test_each_size_has_two_graphs_where_decodes_have_their_own)
    under(test_memory.test_a_configuration_of_a_process_without_the_feature)
    under(test_memory.test_what_the_user_set_is_not_touched, {"enforce_eager": True}, "there are")
    with fitted(worker(configuration()), [55], memory_edits=edits) as fits:
        assert fits.sizes == fits.chosen[:55]
    mode = configuration(cudagraph_mode=Mode.FULL)
    with fitted(worker(mode), memory_edits=edits) as fits:
        assert fits.sizes == fits.chosen
    with monkeypatch.context() as patched:
        patched.setattr(test_mixed, "fitted", lambda *a, **k: fitted(*a, memory_edits=edits, **k))
        test_mixed.test_a_backend_that_holds_no_prefill_gets_decodes_alone("NEVER", 64, folder)
        test_mixed.test_other_backends_get_them(folder)
        test_mixed.test_where_no_size_is_added_the_mode_is_looked_after_all_the_same(
            "ALWAYS", folder
        )
        test_mixed.test_ranks_agree_on_them(folder)
        test_mixed.test_decodes_of_a_token_each_are_planned_as_the_graph_was_captured(folder)
        test_mixed.test_few_weights_leave_graphs_of_mixed_batches(folder)
        test_mixed.test_where_a_step_waits_for_the_gpu_decodes_alone_have_graphs(
            [8 << 30, 1], folder, patched
        )


def mode_is_right(edits: list[Mistake], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is chosen for mixed batches."""
    given = test_mixed.made

    def edited(*arguments: Any, **more: Any) -> Any:
        return given(*arguments, edits=edits, **more)

    monkeypatch.setattr(test_mixed, "made", edited)
    for value in ("decodes", "off"):
        with monkeypatch.context() as patched:
            test_mixed.test_nobody_gets_them_who_says_no(value, folder, patched)
    for release in ("0.30.0", "0.33.0"):
        test_mixed.test_releases_whose_graphs_hold_prompts_get_them(release, folder)
    for changed, words in test_mixed.SET:
        test_mixed.test_what_is_set_stays(changed, words, folder)
    beside_edited = test_mixed.beside
    monkeypatch.setattr(test_mixed, "beside", lambda *a, **k: beside_edited(*a, edits=edits, **k))
    test_mixed.test_a_mode_that_vllm_chooses_stays(Mode.PIECEWISE, folder)
    monkeypatch.setattr(test_mixed, "beside", beside_edited)
    with monkeypatch.context() as patched:
        test_mixed.test_whoever_asks_gets_them({"lora_config": 1}, "", folder, patched)


def test_without_a_mistake_all_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        mode_is_right([], tmp_path, patched)
    memory_is_right([], monkeypatch, tmp_path)
    choice_is_right([], monkeypatch)


@pytest.mark.parametrize("mistake", SIZES, ids=lambda each: f"{each[0]}: {each[1]}, {each[2]}")
def test_a_mistake_in_the_choice_is_noticed(
    mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception):  # noqa: B017  (an assertion, or what the mistake raises)
        choice_is_right([mistake], monkeypatch)


@pytest.mark.parametrize("mistake", MEMORY, ids=lambda each: f"{each[0]}: {each[1]}, {each[2]}")
def test_a_mistake_in_what_is_left_out_is_noticed(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception):  # noqa: B017  (an assertion, or what the mistake raises)
        memory_is_right([mistake], monkeypatch, tmp_path)


@pytest.mark.parametrize("mistake", MODES, ids=lambda each: f"{each[0]}: {each[1]}, {each[2]}")
def test_a_mistake_in_the_mode_is_noticed(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception):  # noqa: B017  (an assertion, or what the mistake raises)
        mode_is_right([mistake], tmp_path, monkeypatch)
