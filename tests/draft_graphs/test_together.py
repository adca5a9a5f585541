"""Ranks that draft together never part, whatever each of them is doing. Needs vLLM; no engine runs.

The ranks are `drafters.Drafter`s in this process, each with graphs of its own; the agreements
between them, the target's and the drafter's, are made here as vLLM makes them: a FULL graph only
if all ranks have one, the largest number of tokens, the least vote. The tests with real engines are
in `test_data_parallel.py`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draft_graphs.added_modules import FOLDER, require_fit
from tests.draft_graphs.drafters import Drafter
from tests.draft_graphs.together_mutations import TOGETHER_MUTATIONS, TogetherMutation
from tests.draft_graphs.together_ranks import (
    DOINGS,
    SHAPE,
    TOGETHER,
    K,
    Rank,
    meet,
    prepare,
    step,
    step_watched,
    watched,
)
from tests.support.code_edits import edited

# The feature's modules lie beside vLLM's own once `drafters` is imported.
# isort: split
from vllm.config import CUDAGraphMode
from vllm.v1.spec_decode.draft_graphs import (
    capabilities,
    coupling,
    draft_graphs,
    ranks,
    same_settings,
)

pytestmark = pytest.mark.usefixtures("one_rank")

#: The votes themselves; within the tests `one_rank` answers.
all_ranks_agree = ranks.all_ranks_agree

#: What a rank does in a step.
ANY_DOING = st.one_of(st.integers(1, SHAPE.max_num_seqs), st.sampled_from(DOINGS))


@pytest.fixture(scope="module")
def both() -> list[Rank]:
    return [Rank(Drafter(SHAPE, coupling=TOGETHER)) for _ in range(2)]


class Reaching(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]  # mypy may see no PyTorch
    """A layer that exchanges rows."""

    def forward(self, rows: Any) -> Any:
        return self.dp_group.all_gather(rows)


def test_a_draft_whose_layers_reach_other_ranks_does_not_draft_alone() -> None:
    parallel = SimpleNamespace(data_parallel_size=2)
    proposer = SimpleNamespace(
        vllm_config=SimpleNamespace(parallel_config=parallel),
        model=torch.nn.Sequential(torch.nn.Linear(2, 2), Reaching()),
    )
    assert coupling.coupling(proposer).together


@settings(max_examples=12)
@given(st.lists(st.tuples(ANY_DOING, ANY_DOING), min_size=1, max_size=6))
def test_all_ranks_replay_the_same_graphs_or_all_ask(
    both: list[Rank], doings: list[tuple[int | str, int | str]]
) -> None:
    prepare(both)
    with watched(both):
        for each in doings:
            caches = [rank.drafter.proposer.model.kv_cache.clone() for rank in both]
            drafts = step(both, list(each))
            for rank, doing, cache, got in zip(both, each, caches, drafts, strict=True):
                reqs = 1 if doing == "prefill" else doing
                if not isinstance(reqs, int):
                    written = rank.drafter.proposer.model.kv_cache
                    assert torch.equal(cache, written), "wrote the KV cache without a draft"
                elif got is not None:
                    assert got.shape == (reqs, K)
    withdrawn = {rank.graphs.withdrawn is not None for rank in both}
    assert len(withdrawn) == 1, "only one rank has withdrawn its graphs"


def test_a_rank_drafts_what_it_drafts_alone(both: list[Rank]) -> None:
    prepare(both)
    alone = Drafter(SHAPE)
    alone.capture()
    expected = alone.propose()
    for other in (1, 2, 3):
        drafts, _ = step_watched(both, [3, other])
        assert torch.equal(drafts, expected)


def test_the_agreed_size_is_that_of_the_rank_with_most_requests(both: list[Rank]) -> None:
    prepare(both)
    cases: list[tuple[int, list[int | str]]] = [
        (1, [1, 1]),
        (1, ["idle", 1]),
        (2, [1, 2]),
        (3, [3, "no room"]),
    ]
    for size, doings in cases:
        step_watched(both, doings)
        assert [rank.replayed for rank in both] == [[f"first {size}", f"loop {size}"]] * 2


@pytest.mark.parametrize("other", [3, "prefill"])
def test_an_idle_rank_writes_nothing_behind_its_last_draft(
    both: list[Rank], other: int | str
) -> None:
    prepare(both)
    step_watched(both, [3, 3])
    cache = both[0].drafter.proposer.model.kv_cache
    before = cache.clone()
    step_watched(both, ["idle", other])
    assert torch.equal(cache, before)


def test_behind_a_prefill_the_later_passes_have_the_size_of_the_rank_with_most_requests(
    both: list[Rank],
) -> None:
    prepare(both)
    cases: list[tuple[int, list[int | str]]] = [
        (1, ["prefill", "prefill"]),
        (1, ["idle", "prefill"]),
        (3, [3, "prefill"]),
        (2, ["prefill", 2]),
        (1, ["prefill", "no room"]),
    ]
    for size, doings in cases:
        before = [rank.asked for rank in both]
        drafts = step_watched(both, doings)
        assert [rank.replayed for rank in both] == [[f"loop {size}"]] * 2
        assert [rank.asked - old for rank, old in zip(both, before, strict=True)] == [1, 1]
        for doing, got in zip(doings, drafts, strict=True):
            rows = {"idle": None, "no room": None, "prefill": 1}.get(str(doing), doing)
            assert (None if got is None else got.shape[0]) == rows


def test_without_a_graph_of_the_first_pass_all_ranks_replay_the_later_ones() -> None:
    bar = capabilities.Bar(role="first", tensor_parallel=1, why="not tried")
    barred = replace(capabilities.PLATFORMS[0], bars=(bar,))
    drafters = [Drafter(SHAPE, coupling=TOGETHER, platform=barred) for _ in range(2)]
    both = [Rank(each) for each in drafters]
    prepare(both)
    cases: list[tuple[int, list[int | str]]] = [(2, [2, 1]), (1, ["idle", 1]), (3, [3, "prefill"])]
    for size, doings in cases:
        step_watched(both, doings)
        assert [rank.replayed for rank in both] == [[f"loop {size}"]] * 2


@pytest.mark.parametrize("other", [2, "prefill", "idle", "no room"])
def test_one_rank_whose_batch_has_no_graph_leaves_the_later_passes_of_all_to_upstream(
    both: list[Rank], other: int | str
) -> None:
    prepare(both)
    step_watched(both, ["odd prefill", other])
    assert [rank.replayed for rank in both] == [[], []]
    assert [rank.asked for rank in both] == [2, 2]
    step_watched(both, [1, 2])
    assert [rank.asked for rank in both] == [2, 2], "a batch without a graph vetoes nothing"


def test_where_nobody_drafts_nothing_is_replayed(both: list[Rank]) -> None:
    """As in the dummy batches with which vLLM warms up behind the capture."""
    prepare(both)
    for rank in both:
        rank.graphs.agree(CUDAGraphMode.NONE, K + 1)
        assert not rank.graphs.dummy_run(False)
    meet(both)
    assert [rank.graphs.later_dummy_runs() for rank in both] == [False, False]


def test_in_mode_step_all_passes_behind_a_prefill_are_upstreams() -> None:
    drafters = [Drafter(replace(SHAPE, mode="step"), coupling=TOGETHER) for _ in range(2)]
    both = [Rank(each) for each in drafters]
    prepare(both)
    for rank in both:
        rank.graphs.agree(CUDAGraphMode.NONE, K + 1)
    assert both[0].draft("prefill") is None
    assert both[0].graphs.unpadded(5) == 5
    assert both[1].draft("idle") is None
    assert both[1].graphs.unpadded(5) == 5


def test_a_batch_that_changes_behind_the_first_pass_gets_drafts_of_zeros(both: list[Rank]) -> None:
    prepare(both)
    first, second = step_watched(both, ["changed prefill", 2])
    assert first.tolist() == [[0] * K]
    assert first.dtype == torch.int64
    assert second.shape == (2, K)
    assert all(rank.graphs.captured is not None for rank in both)
    step_watched(both, [1, 2])
    assert all(rank.graphs.captured is None for rank in both), "the next step withdraws"


def test_a_rank_without_these_patches_offers_nothing(both: list[Rank]) -> None:
    """It gives a count of tokens; where no rank is asked nothing is heard."""
    prepare(both)
    for said in ([-2, K + 1], [-2, 0], None):
        for rank in both:
            rank.graphs.agree(CUDAGraphMode.NONE, K + 1)
            assert rank.draft("prefill") is None
            rank.graphs.unpadded(K + 1)
            if said is not None:
                rank.graphs.together.hear(said)
            rank.graphs.counted(0)
            assert rank.draft_later("prefill") is None


def test_an_agreement_is_used_once(both: list[Rank]) -> None:
    prepare(both)
    rank = both[0]
    rank.graphs.agree(CUDAGraphMode.FULL, K + 1)
    assert rank.graphs.dummy_run(False)
    assert not rank.graphs.dummy_run(False), "nothing was agreed on for this run"
    rank.graphs.agree(CUDAGraphMode.FULL, K + 1)
    assert not rank.graphs.dummy_run(True), "vLLM is capturing"
    assert not rank.graphs.dummy_run(False), "what was agreed on was the capture's"
    rank.graphs.agree(CUDAGraphMode.FULL, K + 1)
    rank.graphs.agree(CUDAGraphMode.PIECEWISE, K + 1)
    assert rank.drafter.propose() is None
    rank.graphs.agree(CUDAGraphMode.FULL, K + 1)
    rank.drafter.capture()
    assert not rank.graphs.dummy_run(False), "what was agreed on was about other graphs"


def test_an_agreement_of_the_drafters_is_used_once(both: list[Rank]) -> None:
    prepare(both)
    rank = both[0]
    rank.graphs.together.hear([-2, -2])
    assert rank.graphs.later_dummy_runs()
    assert not rank.graphs.later_dummy_runs(), "nothing was agreed on for these passes"
    rank.graphs.together.hear([-2, -2])
    rank.graphs.agree(CUDAGraphMode.NONE, K + 1)
    assert not rank.graphs.dummy_run(False)
    assert not rank.graphs.later_dummy_runs(), "what was agreed on was for another step"


def test_a_kv_cache_that_is_made_again_on_one_rank_withdraws_on_all(
    both: list[Rank], log: list[str]
) -> None:
    prepare(both)
    groups = both[0].drafter.proposer.draft_attn_groups
    both[0].drafter.proposer.draft_attn_groups = [*groups]
    step_watched(both, [2, 2])
    assert [rank.asked for rank in both] == [2, 2], "a graph was replayed on memory that is gone"
    reasons = ("the KV cache was initialized again", "another data-parallel rank cannot replay")
    for line, reason in zip(log, reasons, strict=True):
        assert reason in line
    assert all(rank.graphs.captured is None for rank in both)


def test_a_batch_that_no_graph_holds_gets_drafts_of_zeros(both: list[Rank]) -> None:
    prepare(both)
    first, _ = step_watched(both, ["unforeseen", 2])
    assert first.tolist() == [[0] * K]
    assert first.dtype == torch.int64
    assert all(rank.graphs.captured is not None for rank in both)
    step_watched(both, [1, 2])
    assert all(rank.graphs.captured is None for rank in both), "the next step withdraws"


def test_ranks_with_different_plans_stop_with_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Drafter(SHAPE, coupling=TOGETHER)
    lines = ["  rank 0: mode = auto", "  rank 1: mode = step"]
    monkeypatch.setattr(ranks, "differences", lambda plan: lines)
    with pytest.raises(RuntimeError, match=r"(?s)mode = auto.*mode = step"):
        drafter.capture()
    with pytest.raises(RuntimeError, match="OVERLAY_DRAFT_GRAPHS=off on all of them"):
        drafter.graphs.profile(drafter.runner)
    assert drafter.backend.graphs == []


def test_the_plan_that_is_compared_names_the_graphs_and_the_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[dict[str, str]] = []

    def differences(plan: dict[str, str]) -> list[str]:
        plans.append(plan)
        return []

    monkeypatch.setattr(ranks, "differences", differences)
    Drafter(SHAPE, coupling=TOGETHER).capture()
    (plan,) = plans
    assert plan["graphs"] == "first 3 (1, 2, 3 requests); loop 3 (1, 2, 3 requests)"
    assert "CPU_ATTN" in plan["attention"]
    assert plan["mode"] == "auto"


@pytest.mark.parametrize("entry", ["capture", "profile"])
def test_a_failed_capture_stops_ranks_whose_buffers_alternate(entry: str) -> None:
    drafter = Drafter(SHAPE, coupling=TOGETHER, low_latency_exchange=True, untried=True)
    with (
        mock.patch.object(drafter.backend, "capture", side_effect=RuntimeError("on purpose")),
        pytest.raises(RuntimeError, match="out of step between the ranks"),
    ):
        getattr(drafter.graphs, entry)(drafter.runner)


@pytest.mark.parametrize("together", [True, False])
def test_data_parallel_ranks_vote_on_each_graph_only_if_they_draft_together(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    votes: list[bool] = []

    def agree(yes: bool, *, data_parallel: bool) -> bool:
        votes.append(data_parallel)
        return yes

    monkeypatch.setattr(ranks, "all_ranks_agree", agree)
    drafter = Drafter(SHAPE, coupling=TOGETHER if together else coupling.Coupling())
    drafter.capture()
    assert votes == [together] * (1 + len(drafter.keys))


def test_every_graph_of_ranks_that_draft_together_masks_its_slots() -> None:
    """A rank without requests replays the smallest graph, too."""
    drafter = Drafter(SHAPE, coupling=TOGETHER)
    drafter.capture()
    later = {key for key in drafter.graphs.captured.plan if key.role != "first"}
    assert drafter.graphs.captured.masked == later


class Workspace:
    """vLLM's workspace, as far as its lock goes."""

    def __init__(self) -> None:
        self.locked = False
        self.seen: list[bool] = []

    def is_locked(self) -> bool:
        return self.locked

    def lock(self) -> None:
        self.locked = True

    def unlock(self) -> None:
        self.locked = False


def test_no_capture_moves_the_workspace_that_the_targets_graphs_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.worker import workspace

    manager = Workspace()
    monkeypatch.setattr(workspace, "is_workspace_manager_initialized", lambda: True)
    monkeypatch.setattr(workspace, "current_workspace_manager", lambda: manager)
    drafter = Drafter(SHAPE)
    capture = draft_graphs.capture_keys

    def seen(*args: Any, **more: Any) -> Any:
        manager.seen.append(manager.locked)
        return capture(*args, **more)

    monkeypatch.setattr(draft_graphs, "capture_keys", seen)
    drafter.graphs.profile(drafter.runner)
    drafter.capture()
    assert manager.seen == [False, True], "the profile may let it grow, the capture must not"
    assert not manager.locked


class Balance:
    """vLLM's state of expert load balancing, as far as a drafter tells it anything."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def prepare_forward(self, config: Any, tokens: int) -> None:
        self.told.append(tokens)


@pytest.mark.parametrize(
    ("doing", "told"), [(3, [3 * (K + 1), 3]), ("idle", [0]), ("no room", [0])]
)
def test_load_balancing_is_told_how_many_rows_are_no_padding(
    both: list[Rank], doing: int | str, told: list[int]
) -> None:
    prepare(both)
    proposer = both[0].drafter.proposer
    proposer.eplb_state = balance = Balance()
    step_watched(both, [doing, 2])
    proposer.eplb_state = None
    assert balance.told == told


def test_load_balancing_is_told_after_upstreams_first_pass() -> None:
    drafter = Drafter(SHAPE)
    drafter.capture()
    drafter.proposer.eplb_state = balance = Balance()
    assert drafter.later_steps() is not None
    assert balance.told == [3]


def test_no_rank_waits_without_end_for_one_that_does_not_vote() -> None:
    """Nor is the vote begun, which could not be left any more."""

    def late(group: Any, patience: timedelta, *, wait_all_ranks: bool) -> None:
        assert patience == timedelta(seconds=same_settings.PATIENCE)
        raise RuntimeError("Ranks 1 failed to pass")

    both = SimpleNamespace(world_size=2, ranks=[0, 1], cpu_group="cpu")
    begun = mock.Mock()
    with (
        mock.patch("vllm.distributed.parallel_state.get_tp_group", return_value=both),
        mock.patch("torch.distributed.monitored_barrier", late),
        mock.patch("torch.distributed.all_reduce", begun),
    ):
        said = ""
        try:
            all_ranks_agree(False, data_parallel=False)
        except RuntimeError as error:
            said = str(error)
    assert "not all of them did" in said
    assert "Ranks 1 failed to pass" in said
    begun.assert_not_called()


# The bugs


def put_in(mutation: TogetherMutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the function that the mutation changes be the changed one, in the modules that run."""
    file, scope, old, new = mutation.change
    source = (FOLDER / "draft_graphs" / file).read_text(encoding="utf-8")
    tree = ast.parse(edited(source, [(scope, old, new)], file))
    module = importlib.import_module(f"vllm.v1.spec_decode.draft_graphs.{file[:-3]}")
    owner: Any = module
    body = tree.body
    *classes, name = scope.split(".")
    for cls in classes:
        body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == cls).body
        owner = getattr(owner, cls)
    function = next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == name)
    # Annotations are texts in the module, too.
    future = ast.parse("from __future__ import annotations").body
    made: dict[str, Any] = {}
    code = compile(ast.Module([*future, function], []), file, "exec", dont_inherit=True)
    exec(code, vars(module), made)
    monkeypatch.setattr(owner, name, made[name])


@pytest.mark.parametrize("mutation", TOGETHER_MUTATIONS, ids=lambda each: each.name)
def test_mutation_is_caught(
    mutation: TogetherMutation, both: list[Rank], log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    test = globals()[mutation.test]
    given = {"both": both, "log": log, "monkeypatch": monkeypatch}
    names = list(inspect.signature(test).parameters)
    fixtures = {name: given[name] for name in names if name in given}
    others = [name for name in names if name not in given]
    arguments = dict(zip(others, mutation.arguments, strict=True))
    put_in(mutation, monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(**fixtures, **arguments)
    for rank in both:
        rank.drafter.proposer.eplb_state = None
        rank.graphs.release()


@pytest.mark.thorough  # where a mutation is caught it fits
@pytest.mark.parametrize("mutation", TOGETHER_MUTATIONS, ids=lambda each: each.name)
def test_mutation_fits_the_module(mutation: TogetherMutation) -> None:
    require_fit([mutation.change])
