"""Draft graphs beside a target whose batches are split into micro-batches (dual-batch overlap).

Two data-parallel ranks with experts in the target, on CPU over gloo: `UBatchWrapper` and its
contexts are vLLM's own, and its threads take turns at every exchange between the ranks. The drafter
runs in graphs, whole. What each rank says and accepts is the oracle's; and where either of the two
features that let vLLM start is switched off, it stops as users have reported it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.draft_graphs.dp_client import (
    RANKS,
    RanksFailed,
    busy,
    dp_run,
    idle,
    make_dp_spec,
    run_ranks,
)
from tests.draft_graphs.dp_rank import DpOutcome, DpRun
from tests.draft_graphs.forked_modules import ForkedModules
from tests.draft_graphs.harness_client import expect_right
from tests.support.micro_batches import ARGUMENTS

K = 3
#: Six of each, which end one after the other: decodes and prefills that are split, and some not.
BOTH = (busy()[:6], busy(seed=7)[:6])
#: By draft: the runs of its engines. The last one ends them.
RUNS: dict[str, list[DpRun]] = {
    "eagle3hid": [
        dp_run("loop", "loop", requests=BOTH),
        dp_run("step", "step", requests=(busy()[:6], idle())),
        dp_run("without dbo-eagle3", "loop", requests=BOTH),
    ],
    "eagle1": [
        dp_run("off", "off", requests=BOTH),
        dp_run("without dbo-drafts", "off", requests=BOTH),
    ],
}
GRAPHS = [("eagle3hid", "loop"), ("eagle3hid", "step")]
RIGHT = [*GRAPHS, ("eagle1", "off")]

pytestmark = [pytest.mark.engine, pytest.mark.slow]

Ranks = list[dict[str, DpOutcome]]


@pytest.fixture(scope="module")
def pairs(forks: ForkedModules, moe_models: Path) -> dict[str, Ranks]:
    plans = []
    for draft, runs in RUNS.items():
        spec = make_dp_spec(moe_models, draft, K)
        spec["engine"] |= ARGUMENTS
        plans.append((spec, runs))
    found = run_ranks(forks, plans, seconds=900, module="tests.draft_graphs.dbo_rank")
    by_draft: dict[str, Ranks] = {}
    for draft, ranks in zip(RUNS, found, strict=True):
        if isinstance(ranks, RanksFailed):
            raise ranks
        by_draft[draft] = ranks
    return by_draft


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(("draft", "name"), RIGHT)
def test_tokens_and_acceptance_are_the_oracles(
    pairs: dict[str, Ranks], draft: str, name: str, rank: int
) -> None:
    outcome = pairs[draft][rank][name]
    expect_right(outcome)
    assert outcome.steps["target ran"] > 0, "no batch was split"


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(("draft", "name"), GRAPHS)
def test_the_drafter_runs_in_graphs(
    pairs: dict[str, Ranks], draft: str, name: str, rank: int
) -> None:
    outcome = pairs[draft][rank][name]
    assert outcome.captured
    assert outcome.replays
    assert outcome.python_calls == 0
    assert not sum(outcome.missed.values())
    assert outcome.agreements == 0


@pytest.mark.parametrize("rank", range(RANKS))
def test_every_large_enough_batch_of_both_ranks_is_split(
    pairs: dict[str, Ranks], rank: int
) -> None:
    """Both ranks split the same steps: they agree on it in the target's own agreement."""
    for draft, name in RIGHT:
        first, other = (each[name].steps["target ran"] for each in pairs[draft])
        assert first == other
    busy_rank = pairs["eagle3hid"][rank]["loop"].steps
    assert busy_rank["target ran"] > 10


@pytest.mark.parametrize(
    ("draft", "name", "error", "where"),
    [
        # With graphs of the target, which CPU has not, its capture is the first to be split.
        (
            "eagle3hid",
            "without dbo-eagle3",
            "TypeError: expected Tensor as element 0",
            "_cat_ubatch_outputs",
        ),
        ("eagle1", "without dbo-drafts", "AssertionError", "capture_model"),
    ],
)
def test_without_the_feature_vllm_stops(
    pairs: dict[str, Ranks], draft: str, name: str, error: str, where: str
) -> None:
    for rank in range(RANKS):
        outcome = pairs[draft][rank][name]
        assert outcome.error is not None
        assert error in outcome.error
        assert f"in {where}" in outcome.trace
