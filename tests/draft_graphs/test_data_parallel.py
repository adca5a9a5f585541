"""Two data-parallel ranks with experts in the target, in lockstep over gloo, one of them idle.

Each rank is a real engine in a process of its own: the target's experts exchange rows at every
step, and a rank without requests runs dummy batches for the sake of the other. What each rank says
and accepts is the oracle's.

Where the drafts' passes need nobody, nobody is asked: not by a rank that replays, not by one whose
capture failed, not by an idle one. Where a layer of the draft exchanges its rows, both ranks replay
the same graphs in the same step, or both draft as upstream.

Longer than other modules: all cases share the engines of one run, which are what takes time.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.draft_graphs.added_modules import require_fit
from tests.draft_graphs.dp_client import (
    RANKS,
    RanksFailed,
    busy,
    dp_run,
    idle,
    make_dp_spec,
    run_ranks,
)
from tests.draft_graphs.dp_mutations import DP_MUTATIONS, DpMutation
from tests.draft_graphs.dp_rank import DpOutcome, DpRun
from tests.draft_graphs.dp_runs import (
    FAILING,
    FAILING_BETWEEN,
    K,
    different_plans,
    glm_runs,
    glm_spec,
    good_runs,
    soak_faults,
    soak_runs,
)
from tests.draft_graphs.forked_modules import ForkedModules
from tests.draft_graphs.harness_client import expect_graphs, expect_right

Ranks = list[dict[str, DpOutcome]]


@pytest.fixture(scope="module")
def glm_models(forks: ForkedModules, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the target whose MTP layer has experts."""
    folder = tmp_path_factory.mktemp("glm")
    forks.write_models(folder, "tiny_glm")
    return folder


#: For each mutation that its ranks do not survive its own pair of engines; all others, and what
#: must succeed, share the pair of this name.
SHARED = "shared"
#: The pair whose draft has experts, by the draft's name.
GLM = "glm-mtphid"


@pytest.fixture(scope="module")
def pairs(
    forks: ForkedModules, moe_models: Path, glm_models: Path, pytestconfig: pytest.Config
) -> dict[str, list[dict[str, DpOutcome]] | RanksFailed]:
    thorough = bool(pytestconfig.getoption("--thorough"))
    alone = [each for each in DP_MUTATIONS if each.alone and (thorough or not each.repeats)]
    together = [run_of(each) for each in DP_MUTATIONS if not each.alone]
    shared = [*good_runs(thorough=thorough), *together]
    shared.append(different_plans())
    plans = [(make_dp_spec(moe_models, "eagle3hid", K), shared)]
    # A wait that nobody ends is what shows these, so it is short.
    plans += [(make_dp_spec(moe_models, "eagle3hid", K, patience=15), [run_of(m)]) for m in alone]
    plans.append((glm_spec(glm_models, GLM), glm_runs()))
    names = [SHARED, *(each.name for each in alone), GLM]
    return dict(zip(names, run_ranks(forks, plans, seconds=900), strict=True))


@pytest.fixture(scope="module")
def ranks(pairs: dict[str, list[dict[str, DpOutcome]] | RanksFailed]) -> Ranks:
    return ranks_of(pairs, SHARED)


def ranks_of(pairs: dict[str, list[dict[str, DpOutcome]] | RanksFailed], name: str) -> Ranks:
    """The outcomes of both ranks of a pair.

    :raises RanksFailed: where a rank finished no run.
    """
    pair = pairs[name]
    if isinstance(pair, RanksFailed):
        raise pair
    return pair


def warnings_of(outcome: DpOutcome) -> list[str]:
    """The warnings in a rank's log."""
    return [line for line in outcome.log if line.startswith("WARNING")]


engine_test = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("name", ["loop", "step"])
class TestGraphsOnBothRanks:
    pytestmark = engine_test

    def test_drafts_are_those_of_the_oracle(self, ranks: Ranks, name: str, rank: int) -> None:
        outcome = ranks[rank][name]
        expect_right(outcome)
        off = ranks[rank if name == "loop" else 1 - rank]["off"]
        assert outcome.accepted == off.accepted

    def test_every_batch_that_graphs_hold_ran_in_them(
        self, ranks: Ranks, name: str, rank: int
    ) -> None:
        outcome = ranks[rank][name]
        # Of the draft model's calls, dummy batches made K each.
        dummies = K * outcome.dummy_batches
        expect_graphs(replace(outcome, model_calls=outcome.model_calls - dummies), K)

    def test_nobody_asks_the_other_rank(self, ranks: Ranks, name: str, rank: int) -> None:
        assert ranks[rank][name].agreements == 0


@pytest.mark.parametrize("name", ["loop", "step", "one capture fails", "one has no graphs", "off"])
class TestAnIdleRank:
    pytestmark = engine_test

    def test_runs_dummy_batches_that_draft_and_write_nothing(self, ranks: Ranks, name: str) -> None:
        idler = ranks[0 if name in ("step", "one capture fails") else 1][name]
        worker = ranks[1 if name in ("step", "one capture fails") else 0][name]
        expect_right(idler)
        expect_right(worker)
        assert idler.dummy_batches > 10
        assert worker.dummy_batches == 0
        assert idler.dummy_replays == 0
        assert idler.dummy_writes == []


class TestRanksThatDiffer:
    pytestmark = engine_test

    def test_a_capture_that_fails_on_one_rank_leaves_the_graphs_of_the_other(
        self, ranks: Ranks
    ) -> None:
        first, second = (ranks[rank]["one capture fails"] for rank in range(RANKS))
        assert first.captured
        assert first.used
        assert not second.captured
        assert not second.used
        (warning,) = warnings_of(second)
        assert "this rank cannot capture" in warning
        assert first.agreements == second.agreements == 0

    def test_a_rank_whose_device_has_no_graphs_takes_them_from_all(self, ranks: Ranks) -> None:
        first, second = (ranks[rank]["one has no graphs"] for rank in range(RANKS))
        assert any("another data-parallel rank drafts as upstream" in line for line in first.log)
        assert any("this device has no graphs" in line for line in second.log)
        assert not first.captured
        assert first.agreements == second.agreements > 0

    def test_a_rank_at_the_largest_length_stops_to_draft_without_the_other(
        self, ranks: Ranks
    ) -> None:
        for rank in range(RANKS):
            outcome, off = ranks[rank]["long"], ranks[rank]["long and off"]
            assert outcome.error is None
            assert outcome.tokens_ok
            assert off.tokens_ok
            assert outcome.accepted == off.accepted
            assert outcome.used
            assert outcome.agreements == 0
            assert off.agreements > 0


REPLAYED = re.compile(r"first (\d+), (loop \1|step \1, step \1); asked 0")
#: The later passes behind a first one that ran as upstream's, as where one rank has a prefill.
LATER = re.compile(r"loop \d+; asked 1")
#: What upstream's code does in a step: it asks before the first pass, and before the later ones.
UPSTREAM = "; asked 2"
#: Seconds in which a rank must notice that another was killed: half of what its collectives wait.
KILLED_DEADLINE = 30


@pytest.mark.parametrize("name", ["loop", "step", "long"])
class TestRanksThatDraftTogether:
    pytestmark = engine_test

    def test_each_draft_is_the_oracles(self, ranks: Ranks, name: str) -> None:
        for rank in range(RANKS):
            outcome = ranks[rank][f"together: {name}"]
            assert outcome.error is None, outcome.trace
            assert outcome.tokens_ok
            assert outcome.accepted == (
                ranks[rank]["long and off"].accepted if name == "long" else outcome.expected
            )

    def test_all_ranks_replay_the_same_graphs_or_all_draft_as_upstream(
        self, ranks: Ranks, name: str
    ) -> None:
        first, second = (ranks[rank][f"together: {name}"].trail for rank in range(RANKS))
        assert first == second
        others = [step for step in first if not REPLAYED.fullmatch(step)]
        assert len(others) < len(first) // 2
        if name == "step":
            assert set(others) == {UPSTREAM}
        else:
            assert others
            assert all(LATER.fullmatch(step) for step in others)

    def test_dummy_batches_replay_and_write_nothing(self, ranks: Ranks, name: str) -> None:
        for rank in range(RANKS):
            outcome = ranks[rank][f"together: {name}"]
            assert (outcome.dummy_replays > 0) == (outcome.dummy_batches > 0)
            assert outcome.dummy_writes == []
            assert outcome.python_calls == 0


@pytest.mark.parametrize("rank", range(RANKS))
class TestADraftWithExperts:
    pytestmark = engine_test

    def test_ranks_replay_the_same_graphs_and_draft_what_the_oracle_does(
        self, pairs: dict[str, list[dict[str, DpOutcome]] | RanksFailed], rank: int
    ) -> None:
        outcome, other = (ranks_of(pairs, GLM)[each]["loop"] for each in (rank, 1 - rank))
        expect_right(outcome)
        assert outcome.captured
        assert outcome.trail == other.trail
        whole = [step for step in outcome.trail if REPLAYED.fullmatch(step)]
        later = [step for step in outcome.trail if LATER.fullmatch(step)]
        assert later
        assert len(outcome.trail) // 2 < len(whole) == len(outcome.trail) - len(later)
        assert outcome.dummy_writes == []
        assert (outcome.dummy_batches > 10) == (rank == 1)


@pytest.mark.engine
@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_in_upstreams_own_agreement(
    pairs: dict[str, list[dict[str, DpOutcome]] | RanksFailed],
) -> None:
    left, killed = ranks_of(pairs, GLM)
    assert "one is killed" not in killed
    outcome = left["one is killed"]
    assert outcome.error is not None
    assert outcome.captured
    assert REPLAYED.fullmatch(outcome.trail[-1]) or LATER.fullmatch(outcome.trail[-1])
    # It waits where vLLM asks at each step whether any rank has work, not in the draft graphs, and
    # not until a timeout.
    last = outcome.trace.rpartition("Traceback (most recent call last)")[2]
    frames = re.findall(r'File "([^"]+)", line \d+, in (\w+)', last)
    vllms = [(path, function) for path, function in frames if "/site-packages/vllm/" in path]
    assert [function for _, function in vllms][-1:] == ["has_unfinished_dp"], outcome.trace
    files = [Path(path) for path, _ in frames]
    # Its modules run from a copy beside the results.
    assert not any(file.match("draft_graphs/*.py") for file in files if "tests" not in file.parts)
    assert outcome.last_seconds < KILLED_DEADLINE


@pytest.mark.thorough
@pytest.mark.engine
@pytest.mark.slow
def test_a_long_soak_parts_no_ranks(forks: ForkedModules, moe_models: Path) -> None:
    """Both ranks come and go for some hundred steps, with an exchange in every pass."""
    runs = soak_runs()
    pair = make_dp_spec(moe_models, "eagle3hid", K), runs
    (outcomes,) = run_ranks(forks, [pair], seconds=1800)
    if isinstance(outcomes, RanksFailed):
        raise outcomes
    for run in runs:
        assert soak_faults([outcomes[rank][run.name] for rank in range(RANKS)]) == []


class TestRanksThatCannotGoOnTogether:
    pytestmark = engine_test

    def test_a_rank_with_one_request_replays_the_graphs_of_the_others_size(
        self, ranks: Ranks
    ) -> None:
        outcome = ranks[1]["together: loop"]
        sizes = [int(match[1]) for match in map(REPLAYED.fullmatch, outcome.trail) if match]
        assert max(sizes) > max(int(call.split()[1]) for call in outcome.used)

    def test_a_rank_without_graphs_for_its_later_passes_leaves_those_of_all_to_upstream(
        self, ranks: Ranks
    ) -> None:
        first, second = (ranks[rank]["together: one declines"] for rank in range(RANKS))
        for outcome in (first, second):
            expect_right(outcome)
            assert outcome.dummy_writes == []
        assert first.trail == second.trail
        others = [step for step in first.trail if not REPLAYED.fullmatch(step)]
        assert others.count(UPSTREAM) > 0
        assert any(LATER.fullmatch(step) for step in others)
        assert all(step == UPSTREAM or LATER.fullmatch(step) for step in others)

    @pytest.mark.parametrize(
        "captures", [*FAILING, pytest.param(FAILING_BETWEEN, marks=pytest.mark.thorough)]
    )
    def test_a_capture_that_fails_on_one_rank_takes_the_graphs_from_all(
        self, ranks: Ranks, captures: int
    ) -> None:
        reasons = ("another rank failed", "this rank cannot capture")
        for rank, reason in enumerate(reasons):
            outcome = ranks[rank][f"together: capture {captures} fails"]
            expect_right(outcome)
            assert not outcome.captured
            (warning,) = warnings_of(outcome)
            assert reason in warning
            assert set(outcome.trail) == {UPSTREAM}

    def test_a_rank_whose_device_has_no_graphs_takes_them_from_all(self, ranks: Ranks) -> None:
        for rank in range(RANKS):
            outcome = ranks[rank]["together: one has no graphs"]
            expect_right(outcome)
            assert not outcome.captured
            assert set(outcome.trail) == {UPSTREAM}

    def test_ranks_that_would_capture_different_graphs_stop_with_a_table(
        self, ranks: Ranks
    ) -> None:
        for rank in range(RANKS):
            error = ranks[rank]["together: different plans"].error or ""
            assert "the ranks draft together, and would capture different graphs" in error
            assert "  rank 0: mode = loop" in error
            assert "  rank 1: mode = step" in error
            assert "attention" not in error.partition("They differ in:")[2]

    def test_all_ranks_withdraw_in_the_step_behind_a_batch_that_one_cannot_replay(
        self, ranks: Ranks
    ) -> None:
        outcomes = [ranks[rank]["together: unforeseen on one rank"] for rank in range(RANKS)]
        assert outcomes[0].trail == outcomes[1].trail
        steps = [step == UPSTREAM for step in outcomes[0].trail]
        withdrawn = len(steps) - steps[::-1].index(False)
        assert 10 <= withdrawn < len(steps), "no step was drafted as upstream at the end"
        reasons = ("another data-parallel rank cannot replay", "this test says so")
        for outcome, reason in zip(outcomes, reasons, strict=True):
            assert outcome.error is None, outcome.trace
            assert outcome.tokens_ok
            (warning,) = warnings_of(outcome)
            assert reason in warning


# The bugs


def caught_by(
    outcomes: Ranks,
    name: str,
    *,
    reaches: bool = False,
    ends: tuple[tuple[str, ...], ...] = (),
) -> str | None:
    """What shows that something is wrong; None if nothing does.

    A failure that was not to be expected is told as it is, so that no mutation is caught by it.

    :param reaches: whether the draft model reaches other ranks.
    :param ends: for each rank, what the trace of its error must hold; empty if none may fail.
    """
    seen = [each[name] for each in outcomes]
    if any(each.error is not None for each in seen):
        traces = [each.trace for each in seen]
        expected = len(ends) == RANKS and all(
            part in trace for trace, parts in zip(traces, ends, strict=True) for part in parts
        )
        return "lockstep" if expected else "\n".join(["unexpected errors", *traces])
    if reaches and any(each.trail != seen[0].trail for each in seen):
        return "trail"
    if any("CaptureRefused" in line for each in seen for line in each.log):
        return "graph double"
    if any(each.dummy_writes or (each.dummy_replays and not reaches) for each in seen):
        return "audit"
    if any(not each.tokens_ok or each.accepted != each.expected for each in seen):
        return "acceptance"
    return None


def run_of(mutation: DpMutation) -> DpRun:
    """The run that must show it."""
    return dp_run(
        mutation.name,
        *mutation.modes,
        requests=(busy(), idle()),
        mutation=mutation.changes,
        mutated=mutation.mutated,
        fails=mutation.fails,
        captures=mutation.captures,
        reaches=mutation.reaches,
        without=mutation.without,
    )


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        each.name
        for each in good_runs(thorough=False)
        if "long" not in each.name and not each.unforeseen
    ],
)
def test_nothing_is_caught_without_a_bug(ranks: Ranks, name: str) -> None:
    assert caught_by(ranks, name, reaches=name.startswith("together")) is None


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(each, id=each.name, marks=pytest.mark.thorough if each.repeats else ())
        for each in DP_MUTATIONS
    ],
)
def test_mutation_is_caught(
    pairs: dict[str, list[dict[str, DpOutcome]] | RanksFailed], mutation: DpMutation
) -> None:
    """A rank that comes to no end at all fails the test: that does not show this bug."""
    outcomes = ranks_of(pairs, mutation.name if mutation.alone else SHARED)
    caught = caught_by(outcomes, mutation.name, reaches=mutation.reaches, ends=mutation.ends)
    assert caught == mutation.catcher
    seen = [each[mutation.name] for each in outcomes]
    assert not mutation.shows or any(getattr(each, mutation.shows) for each in seen)


def test_no_other_failure_is_taken_for_a_mutation() -> None:
    """Not an error elsewhere, not one rank alone, not the right errors on the wrong ranks."""
    for mutation in DP_MUTATIONS:
        right = [
            DpOutcome("it", error="it", trace="\n".join(parts)) for parts in mutation.ends
        ] or [DpOutcome("it", tokens_ok=True) for _ in range(RANKS)]

        def judged(*seen: DpOutcome, by: DpMutation = mutation) -> str | None:
            return caught_by([{"it": each} for each in seen], "it", ends=by.ends)

        broken = DpOutcome("it", error="it", trace="ImportError: the harness is broken")
        assert judged(*right) == (mutation.catcher if mutation.ends else None)
        wrong = [(broken, broken), (right[0], broken), (broken, right[1])]
        if mutation.ends:
            wrong += [(right[0], right[0]), (right[1], right[0])]
        for seen in wrong:
            assert (judged(*seen) or "").startswith("unexpected errors")


@pytest.mark.parametrize("mutation", DP_MUTATIONS, ids=lambda each: each.name)
def test_mutation_fits_the_module(mutation: DpMutation) -> None:
    require_fit(mutation.changes)
