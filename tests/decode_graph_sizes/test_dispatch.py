"""Decodes take vLLM's own graphs of decodes beside those of mixed batches, planned as captured.

What chooses and captures is the text of each release; a graph is its descriptor, and of attention's
plan the layout that a captured graph reads, which a step of single tokens has of its own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.decode_graph_sizes import graph_choosers
from tests.decode_graph_sizes.test_mixed import UTILS
from tests.decode_graph_sizes.test_withdrawal import World, guarded, known
from tests.decode_graph_sizes.worlds import beside, text

pytestmark = pytest.mark.network

RELEASES = ["0.31.0", "0.32.0", "0.33.0"]
OWN = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
WIDE = [*OWN, 544, 640, 768, 896, 1024, 1280, 1536, 2048]

#: Tokens of each request of a batch.
Batch = list[int]


@contextmanager
def managers(
    release: str,
    sizes: Sequence[int],
    drafts: int,
    requests: int = 256,
    mistakes: Sequence[Sequence[str]] = (),
    *,
    ours: bool = True,
    speculative: bool = False,
) -> Iterator[SimpleNamespace]:
    """Managers of a release of the same sizes, by their mode, and the feature's `dispatch`.

    :ivar both: one in mode FULL where the feature has chosen it; ``draft`` is another.
    :param drafts: of each request; with any, the widths of batches are as beside drafts.
    :param ours: whether the feature chose mode FULL, and not the user.
    :param speculative: whether the configuration says so; else it is as without drafts.
    """
    mode = graph_choosers.mode_of(release)
    cls = graph_choosers.manager_class(release)
    utils: Any = ModuleType("vllm.v1.worker.gpu.cudagraph_utils")
    utils.CudaGraphManager = cls
    gpu: Any = ModuleType("vllm.v1.worker.gpu")

    def made(chosen: Any, *, noted: bool = False) -> Any:
        config = graph_choosers.settings(release, list(sizes), drafts)
        config.compilation_config.cudagraph_mode = chosen
        config.scheduler_config.max_num_seqs = requests
        if noted:
            config.compilation_config.overlay_mixed_graphs = None
        if not speculative:
            config.speculative_config = None
        manager = cls(config, "cuda", chosen, 1 + drafts)
        manager._graphs_captured = True
        return manager

    # What vLLM has by itself is made before its class is changed.
    full, default = made(mode.FULL), made(mode.FULL_AND_PIECEWISE)
    modules = {gpu.__name__: gpu, utils.__name__: utils}
    with beside(dispatch_edits=mistakes) as world, mock.patch.dict(sys.modules, modules):
        sys.modules["vllm.config.compilation"].CUDAGraphMode = mode  # type: ignore[attr-defined]
        for _ in range(2):
            world.dispatch.capture_decodes()
        yield SimpleNamespace(
            both=made(mode.FULL, noted=ours),
            draft=made(mode.FULL, noted=ours),
            untouched=made(mode.FULL_AND_PIECEWISE, noted=ours),
            full=full,
            default=default,
            dispatch=world.dispatch,
            mode=mode,
        )


def batches(drafts: int, requests: int) -> Iterator[Batch]:
    """Decodes of all requests alike of every width, single tokens, and drawn ones."""
    for number in range(1, requests + 1):
        yield [1 + drafts] * number
        yield [1] * number
    drawn = random.Random(drafts)
    for _ in range(200):
        number = drawn.randint(1, requests)
        longest = drawn.choice((1, 2, 1 + drafts, 300))
        yield [drawn.randint(1, longest) for _ in range(number)]


def dispatched(manager: Any, batch: Batch, padded: int | None = None) -> Any:
    """The graph that a manager chooses; a batch of as many tokens each is one of decodes.

    :param padded: the tokens of the graph that the target took, which the draft's is asked for.
    """
    uniform = batch[0] if len(set(batch)) == 1 else None
    return manager.dispatch(len(batch), padded or sum(batch), uniform, 0, max_query_len=max(batch))


def expect_choices(release: str, drafts: int, mistakes: Sequence[Sequence[str]] = ()) -> None:
    """Uniform batches take the graph of vLLM's default mode, and all others that of mode FULL."""
    requests = 256
    with managers(release, WIDE, drafts, requests, mistakes) as world:
        full, piecewise = world.mode.FULL, world.mode.PIECEWISE
        for batch in batches(drafts, requests):
            decode, graph = dispatched(world.default, batch), dispatched(world.both, batch)
            wanted = decode if decode.cg_mode == full else dispatched(world.full, batch)
            assert graph == wanted, batch
            assert dispatched(world.draft, batch, graph.num_tokens) == graph, batch
            assert dispatched(world.untouched, batch) == decode
        captured = world.both._capture_descs[full]
        decodes = world.default._capture_descs[full]
        assert set(captured) == {*decodes, *world.full._capture_descs[full]}
        assert len(captured) == len(set(captured))
        tokens = [graph.num_tokens for graph in captured]
        assert tokens == sorted(tokens, reverse=True), "the first one makes the buffers of all"
        assert max(graph.num_tokens for graph in decodes) <= requests * (1 + drafts)
        assert world.both.cudagraph_mode == full
        assert world.untouched._capture_descs[piecewise] == world.default._capture_descs[piecewise]
        assert set(world.both._capture_descs) == {full}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("drafts", [0, 2, 3, 7])
def test_decodes_take_graphs_of_their_own(release: str, drafts: int) -> None:
    expect_choices(release, drafts)


def expect_nothing_of_others(mistakes: Sequence[Sequence[str]] = ()) -> None:
    """In a process in which an engine has both: mode FULL of a user's, and beside drafts."""
    for case in ({"ours": False}, {"speculative": True}):
        with managers("0.33.0", WIDE, 3, 256, mistakes, **case) as world:
            assert world.both._capture_descs == world.full._capture_descs
            assert world.both._candidates == world.full._candidates


def test_what_a_user_set_and_what_has_drafts_is_not_touched() -> None:
    expect_nothing_of_others()


def test_without_sizes_there_are_no_graphs() -> None:
    with managers("0.33.0", WIDE, 3) as world:
        manager = world.both
        manager.compilation_config.cudagraph_capture_sizes = []
        manager._candidates, manager._capture_descs = {}, {}
        manager._init_candidates()
        assert not manager.needs_capture()


def test_a_withdrawal_leaves_both_kinds_of_vllms_own_sizes() -> None:
    with managers("0.33.0", WIDE, 0) as wide, managers("0.33.0", OWN, 0) as own:
        manager = wide.both
        manager.graphs["half"] = "captured"
        failures = [RuntimeError("CUDA out of memory"), None]
        world = World({"cudagraph_manager": manager}, manager.vllm_config, failures)
        with guarded(world):
            world.runner.capture_model()
        # Each world has classes of its own.
        assert str(known(manager)) == str(known(own.both))
        assert str(known(manager)) != str(known(own.full))


def layout(longest: int) -> str:
    """What FlashAttention 3 plans for requests of up to so many tokens."""
    return "of single tokens" if longest == 1 else "of several"


def expect_plans(release: str, drafts: int, mistakes: Sequence[Sequence[str]] = ()) -> None:
    """Each graph that is replayed reads a plan in the layout that it was captured with."""
    with managers(release, WIDE, drafts, 64, mistakes) as world:
        planned: list[int] = []

        def prepare_attn(batch: Any, _mode: Any, *_: Any) -> None:
            longest = batch.max_query_len
            planned.append(batch.num_scheduled_tokens.max() if longest is None else longest)

        runner = SimpleNamespace(
            model_state=SimpleNamespace(prepare_attn=prepare_attn),
            cudagraph_manager=world.both,
            compilation_config=world.both.compilation_config,
        )
        world.dispatch.plan_as_captured(runner)
        taken = set()
        for lengths in batches(drafts, 64):
            graph = dispatched(world.both, lengths)
            batch = SimpleNamespace(
                max_query_len=None,
                num_tokens_after_padding=graph.num_tokens,
                num_scheduled_tokens=SimpleNamespace(max=lambda lengths=lengths: max(lengths)),
            )
            # Another choice for another batch, of the draft's manager.
            dispatched(world.draft, [1, 2])
            runner.model_state.prepare_attn(batch, world.mode.NONE, "tables")
            assert planned[-1] == max(lengths), "without a graph nothing was captured"
            runner.model_state.prepare_attn(batch, graph.cg_mode, "tables")
            assert batch.max_query_len is None
            assert planned[-1] == max(lengths) or (planned[-1], max(lengths)) == (2, 1)
            if graph.cg_mode != world.mode.FULL:
                continue
            # As `prepare_inputs_to_capture` has it.
            captured = graph.max_query_len or graph.uniform_token_count or graph.num_tokens
            assert layout(planned[-1]) == layout(captured), (lengths, graph)
            taken.add((graph.uniform_token_count, layout(captured)))
        assert taken >= {(1 + drafts, layout(1 + drafts)), (None, "of several")}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("drafts", [0, 3])
def test_attention_is_planned_for_the_graph_that_was_dispatched(release: str, drafts: int) -> None:
    expect_plans(release, drafts)


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_captures_and_dispatches_as_these_tests_have_it(release: str) -> None:
    """What they rest on: no text of another module chooses, and the last choice is replayed."""
    utils = text(release, f"vllm/{UTILS}")
    assert "max_query_len=desc.max_query_len or desc.uniform_token_count" in utils
    assert "max_query_len = num_tokens" in utils
    runner = text(release, "vllm/v1/worker/gpu/model_runner.py")
    step = runner[runner.index("    def execute_model(") :]
    order = [
        step.index("= dispatch_cg_and_sync_dp("),
        step.index("self.model_state.prepare_attn("),
        step.index("self.cudagraph_manager.run_fullgraph(batch_desc)"),
    ]
    assert order == sorted(order)
    assert step.count("dispatch_cg_and_sync_dp(") == 1
    # What is chosen between has no prefill in a graph of its own, so that the step is in none.
    helper = text(release, "vllm/v1/worker/gpu/attn_utils.py")
    assert "or batch_desc.cg_mode == CUDAGraphMode.FULL" in helper
    assert "manager.dispatch(" not in runner


#: Whether a step runs in a graph of a mixed batch.
DISPATCHED = "runner.cudagraph_manager.overlay_dispatched.uniform_token_count is None"

#: Mistakes in the module, each of which one of the laws above notices.
MISTAKES = [
    ("capture_decodes", "hasattr(CudaGraphManager, 'overlay_dispatched')", "False"),
    ("has_both", "getattr(config.compilation_config, MODE, '') is None", "True"),
    ("has_both", "config.speculative_config is None", "True"),
    ("capture_decodes.init_candidates", "manager.cudagraph_mode == CUDAGraphMode.FULL", "True"),
    ("capture_decodes.init_candidates", "CUDAGraphMode.FULL_DECODE_ONLY", "CUDAGraphMode.FULL"),
    ("capture_decodes.init_candidates", "manager.cudagraph_mode = CUDAGraphMode.FULL", "pass"),
    ("capture_decodes.init_candidates", "graphs += decodes", "pass"),
    ("capture_decodes.init_candidates", "graphs.sort(...)", "pass"),
    ("capture_decodes.init_candidates", "if decodes: ...", "pass"),
    (
        "capture_decodes.dispatch",
        "manager.overlay_dispatched = dispatch_upstream(manager, *given, **named)",
        "MATCH\ntype(manager).overlay_dispatched = vars(manager).pop('overlay_dispatched')",
    ),
    ("capture_decodes", "CudaGraphManager._init_candidates = init_candidates", "pass"),
    ("capture_decodes", "CudaGraphManager.dispatch = dispatch", "pass"),
    ("plan_as_captured.prepare_attn", "batch.max_query_len = 2", "pass"),
    ("plan_as_captured.prepare_attn", "batch.max_query_len = 2", "batch.max_query_len = 1"),
    ("plan_as_captured.prepare_attn", "batch.max_query_len = None", "pass"),
    ("_single_tokens", "mode.name == 'FULL'", "True"),
    ("_single_tokens", "batch.num_tokens_after_padding > 1", "True"),
    ("_single_tokens", "batch.num_scheduled_tokens.max() == 1", "True"),
    ("_single_tokens", DISPATCHED, "True"),
    ("_single_tokens", DISPATCHED, "False"),
]


def expect_all(mistakes: Sequence[Sequence[str]] = ()) -> None:
    """All laws of this module."""
    for drafts in (0, 3):
        expect_choices("0.33.0", drafts, mistakes)
        expect_plans("0.33.0", drafts, mistakes)
    expect_nothing_of_others(mistakes)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: f"{each[0]}: {each[1]}, {each[2]}")
def test_a_mistake_is_noticed(mistake: Sequence[str]) -> None:
    with pytest.raises(Exception):  # noqa: B017  (an assertion, or what the mistake raises)
        expect_all([mistake])
