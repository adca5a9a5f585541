"""Draft graphs in a real engine: real captures and replays, drafts exactly as without them.

The module's own code creates, captures, dispatches and replays; only what makes a graph is
replaced, by the double of `recorded_graph.py`. Everything that `audit.py` watches is watched, the
module's address check is on, and padded rows hold junk before every replay.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.draft_graphs.forked_modules import ForkedModules
from tests.draft_graphs.harness_client import (
    FULL_DECODE_ONLY,
    QUICKEST,
    Outcome,
    Plan,
    Run,
    expect_graphs,
    expect_right,
    live_sizes,
    make_requests,
    make_spec,
    run_harness,
)
from tests.draft_graphs.mutation_types import Mutation
from tests.draft_graphs.scenario_mutations import SCENARIO_MUTATIONS
from tests.draft_graphs.test_mutations import caught_by
from tests.engine.tiny_adapters import ADAPTERS, MAX_RANK

pytestmark = [pytest.mark.engine, pytest.mark.slow]

DRAFTS = ("eagle3", "eagle3hid", "eagle1")
KS = (1, 2, 3, 5)
CASES = tuple((draft, k) for draft in DRAFTS for k in KS)
OWN = [1, 2, 4, 8]
PIECEWISE = {"mode": 0, "cudagraph_mode": "PIECEWISE"}
#: The target's last layer sees 32 tokens. There is one of its kind, so that all KV-cache groups
#: have one layer, and that of the draft is the last one that sees everything.
WINDOWS = {
    "layer_types": ["full_attention"] * 3 + ["sliding_attention"],
    "sliding_window": 32,
}

#: The second sizes make every batch but the full one a padded one.
RUNS = {
    "loop": Run("loop", "loop"),
    "step": Run("step", "step"),
    "loop, only 8": Run("loop, only 8", "loop", ladder=(8,)),
    "step, only 8": Run("step, only 8", "step", ladder=(8,)),
}


def names_for(k: int) -> list[str]:
    # With K=1 there are no later passes, and so no steps.
    return ["loop", "loop, only 8"] if k == 1 else list(RUNS)


#: The least and the most K with the draft that depends most on what passes hand on, and the other
#: method; loops of all sizes are in each scenario below. `eagle3` and its K are in
#: `test_mutations`: its code is that of `eagle3hid`.
ALWAYS = {
    ("eagle3hid", 1): ["loop, only 8"],
    ("eagle3hid", 5): ["loop, only 8", "step"],
    ("eagle1", 2): ["step, only 8"],
}


@pytest.fixture(scope="module")
def matrix(
    forks: ForkedModules, tiny_models: Path, pytestconfig: pytest.Config
) -> dict[tuple[str, int], dict[str, Outcome]]:
    """Every draft and K, each in one engine, and all engines in one process."""
    whole = {(draft, k): names_for(k) for draft, k in CASES}
    cases = whole if pytestconfig.getoption("--thorough") else ALWAYS
    plans = [
        Plan(make_spec(tiny_models, draft, k, engine=QUICKEST), [RUNS[name] for name in names])
        for (draft, k), names in cases.items()
    ]
    return dict(zip(cases, run_harness(forks, plans), strict=True))


@pytest.mark.parametrize(
    ("draft", "k", "name"),
    [
        pytest.param(
            *(draft, k, name),
            marks=() if name in ALWAYS.get((draft, k), ()) else pytest.mark.thorough,
        )
        for draft, k in CASES
        for name in names_for(k)
    ],
)
def test_drafts_are_those_of_the_oracle(
    matrix: dict[tuple[str, int], dict[str, Outcome]], draft: str, k: int, name: str
) -> None:
    outcome = matrix[draft, k][name]
    expect_right(outcome)
    expect_graphs(outcome, k)
    assert outcome.preemptions > 0, "the KV cache was to be too small"
    sizes = [8] if "only" in name else OWN
    roles = ["first"] if k == 1 else ["first", name[:4]]
    assert outcome.captured == [f"{role} {size}" for role in roles for size in sizes]
    assert set(outcome.replays) <= set(outcome.captured)
    assert {replay.split()[0] for replay in outcome.replays} == set(roles)
    assert outcome.profiled > 0


def test_every_number_of_requests_was_live(
    matrix: dict[tuple[str, int], dict[str, Outcome]],
) -> None:
    seen: dict[str, set[int]] = {"propose": set(), "later_steps": set()}
    for outcomes in matrix.values():
        for entry in seen:
            if "loop, only 8" in outcomes:
                seen[entry] |= live_sizes(outcomes["loop, only 8"], entry)
    assert seen["propose"] == set(range(1, 9))
    assert len(seen["later_steps"]) > 3


#: The scenarios with a run with the mode off in CI: near the largest length the oracle does not
#: know which requests upstream drafts for, and with adapters upstream fails. Elsewhere the oracle
#: says of each verification what upstream's drafts would have come to.
OFF = ("up to the largest length", "LoRA")


def scenario(models: Path, name: str, *, thorough: bool) -> Plan:
    """Engines beside the matrix, with a run with the mode off where it is compared with one."""
    # Over fifty lines: one table of engines and their runs.
    requests = make_requests()
    settings: dict[str, dict[str, Any]] = {
        "one request at a time": {"max_num_seqs": 1, "requests": requests[:3]},
        "small capture sizes": {
            "compilation": {
                "mode": 0,
                "cudagraph_mode": "FULL_DECODE_ONLY",
                "cudagraph_capture_sizes": [1, 2, 4, 8],
            }
        },
        "the target in FULL": {"compilation": {"mode": 0, "cudagraph_mode": "FULL"}},
        "the target in PIECEWISE": {"compilation": PIECEWISE},
        # vLLM itself lowers the target's mode to PIECEWISE then.
        "K by batch size": {
            "speculative": {
                "num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 5, 2], [6, 8, 1]]
            }
        },
        "LoRA": {
            "engine": {"enable_lora": True, "max_loras": 2, "max_lora_rank": MAX_RANK},
            # vLLM on CPU is wrong about requests without an adapter beside others.
            "requests": tuple(
                replace(request, adapter=ADAPTERS[index % 2])
                for index, request in enumerate(requests)
            ),
            # CPU's kernels for adapters want as many rows as there are tokens: no padding.
            "compilation": {**FULL_DECODE_ONLY, "cudagraph_capture_sizes": [*range(4, 33, 4)]},
        },
        "another KV-cache group": {
            "engine": {"hf_overrides": WINDOWS},
            "kv_blocks": 130,
        },
        "up to the largest length": {
            "requests": tuple(replace(request, tokens=200) for request in requests[:6]),
            "max_model_len": 80,
            "kv_blocks": 40,
        },
        "prefix caching, chunked prefill and prompt logprobs": {
            "requests": tuple(
                replace(request, prompt_logprobs=2 if index % 4 == 1 else None)
                for index, request in enumerate(requests + requests[:4])
            ),
            "prefix_caching": True,
            "max_num_batched_tokens": 64,
        },
        "the target without graphs": {
            "enforce_eager": True,
            "compilation": None,
            "requests": requests[:3],
        },
        "an eager drafter": {"speculative": {"enforce_eager": True}, "requests": requests[:3]},
        "sampled drafts, all greedy": {"speculative": {"draft_sample_method": "probabilistic"}},
        "sampled drafts": {
            "speculative": {"draft_sample_method": "probabilistic"},
            "requests": tuple(replace(request, temperature=1.5) for request in requests[:4]),
        },
    }
    runs = [Run("auto")]
    if name in OFF or (thorough and name not in REFUSED and name != "sampled drafts"):
        runs.append(Run("off", "off"))
    if name == "small capture sizes":
        runs.append(Run("beyond them", untried=True))
        runs += [Run(f"mixed, {mode}", mode, untried=True, mixed=True) for mode in ("loop", "step")]
    if name == "one request at a time":
        runs += [FAILING, Run("a profile that fails", profile_fails=True)]
    bugs = [
        Run(each.name, mutation=each.changes) for each in SCENARIO_MUTATIONS if each.engine == name
    ]
    # What is taken off stays off: the runs that need the adapters come first.
    runs = [Run("off", "off"), *bugs, Run("auto")] if name == "LoRA" else [*runs, *bugs]
    # Of the drafts, this one reads its tokens through its embedding alone.
    draft = "eagle3" if name == "LoRA" else "eagle3hid"
    engine = QUICKEST | settings[name].pop("engine", {})
    return Plan(make_spec(models, draft, 3, engine=engine, **settings[name]), runs)


#: The host reads a length, which no capture allows.
FAILING = Run(
    "a capture that fails",
    mutation=(
        (
            "passes.py",
            "Passes.metadata",
            "max_seq_len=...",
            "max_seq_len=int(seq_lens[:reqs].max())",
        ),
    ),
)


USED = (
    "one request at a time",
    "small capture sizes",
    "the target in FULL",
    "the target in PIECEWISE",
    "another KV-cache group",
    "up to the largest length",
    "prefix caching, chunked prefill and prompt logprobs",
    "sampled drafts, all greedy",
)
REFUSED = {
    "the target without graphs": "cudagraph mode is NONE",
    "an eager drafter": "the drafter has enforce_eager",
}


@pytest.fixture(scope="module")
def scenarios(
    forks: ForkedModules, tiny_models: Path, pytestconfig: pytest.Config
) -> dict[str, dict[str, Outcome]]:
    names = [*USED, *REFUSED, "sampled drafts", "K by batch size", "LoRA"]
    thorough = bool(pytestconfig.getoption("--thorough"))
    plans = [scenario(tiny_models, name, thorough=thorough) for name in names]
    return dict(zip(names, run_harness(forks, plans), strict=True))


@pytest.mark.parametrize("name", USED)
def test_drafts_are_right_and_in_graphs(
    scenarios: dict[str, dict[str, Outcome]], name: str
) -> None:
    outcome = scenarios[name]["auto"]
    assert outcome.error is None
    assert outcome.tokens_ok
    if name != "up to the largest length":
        # Near it, upstream stops to draft for all requests, which the oracle does not know.
        expect_right(outcome)
    expect_graphs(outcome, 3)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OFF else pytest.mark.thorough)
        for name in (*USED, "K by batch size")
    ],
)
def test_drafts_are_those_without_graphs(
    scenarios: dict[str, dict[str, Outcome]], name: str
) -> None:
    outcome, off = scenarios[name]["auto"], scenarios[name]["off"]
    assert off.tokens_ok
    assert outcome.accepted == off.accepted
    assert not off.used


def test_where_k_changes_with_the_batch_the_steps_of_each_k_are_in_graphs(
    scenarios: dict[str, dict[str, Outcome]],
) -> None:
    outcome = scenarios["K by batch size"]["auto"]
    expect_right(outcome)
    assert outcome.captured == [f"{role} {size}" for role in ("first", "step") for size in OWN]
    assert outcome.python_calls == 0
    # A first pass is captured for the largest K; steps serve any K.
    assert live_sizes(outcome, "propose") <= {1, 2}
    assert live_sizes(outcome, "later_steps") == {2, 3, 4, 5}
    assert not any(outcome.missed[name] for name in outcome.missed if name.startswith("later"))
    assert {replay.split()[0] for replay in outcome.replays} == {"first", "step"}


def test_the_draft_has_none_of_the_targets_adapters(
    scenarios: dict[str, dict[str, Outcome]],
) -> None:
    outcome = scenarios["LoRA"]["auto"]
    expect_right(outcome)
    expect_graphs(outcome, 3)
    assert any("model.embed_tokens runs without LoRA adapters" in line for line in outcome.log)
    # Upstream's later passes want as many rows as the target's batch has tokens: CPU's kernel says
    # so, where a GPU's writes beyond the rows.
    assert "does not broadcast" in (scenarios["LoRA"]["off"].error or "")


def test_the_draft_lies_in_another_group(scenarios: dict[str, dict[str, Outcome]]) -> None:
    assert scenarios["another KV-cache group"]["auto"].group > 0
    assert scenarios["the target in FULL"]["auto"].group == 0


@pytest.mark.parametrize("mutation", SCENARIO_MUTATIONS, ids=lambda each: each.name)
def test_mutation_is_caught(scenarios: dict[str, dict[str, Outcome]], mutation: Mutation) -> None:
    outcome = scenarios[mutation.engine][mutation.name]
    assert caught_by(outcome) == mutation.catcher, outcome.error
    assert mutation.says in (outcome.error or "")


def test_first_passes_over_the_largest_capture_size_stay_upstreams(
    scenarios: dict[str, dict[str, Outcome]],
) -> None:
    outcome = scenarios["small capture sizes"]["auto"]
    assert outcome.captured == ["first 1", "first 2", *(f"loop {size}" for size in OWN)]
    assert live_sizes(outcome, "propose") <= {1, 2}
    assert 8 in live_sizes(outcome, "later_steps")


def test_beyond_the_largest_capture_size_they_have_graphs_where_that_is_granted(
    scenarios: dict[str, dict[str, Outcome]],
) -> None:
    outcome = scenarios["small capture sizes"]["beyond them"]
    expect_right(outcome)
    assert outcome.captured == [f"{role} {size}" for role in ("first", "loop") for size in OWN]
    assert {3, 4, 8} <= live_sizes(outcome, "propose")


@pytest.mark.parametrize("mode", ["loop", "step"])
def test_mixed_batches_have_graphs_where_that_is_granted(
    scenarios: dict[str, dict[str, Outcome]], mode: str
) -> None:
    outcome = scenarios["small capture sizes"][f"mixed, {mode}"]
    expect_right(outcome)
    assert outcome.captured.count("mixed 8") == 3  # of 128, 256 and 512 tokens
    assert not outcome.declined, "every batch has graphs, and none of its passes is upstream's"
    assert outcome.replays["mixed 8"] > 3
    assert outcome.python_calls == 0


def test_one_request_at_a_time_has_two_graphs(scenarios: dict[str, dict[str, Outcome]]) -> None:
    assert scenarios["one request at a time"]["auto"].captured == ["first 1", "loop 1"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_runs_as_upstream_and_says_why(
    scenarios: dict[str, dict[str, Outcome]], name: str
) -> None:
    outcome = scenarios[name]["auto"]
    expect_right(outcome)
    assert not outcome.captured
    assert not outcome.used
    assert any(REFUSED[name] in line for line in outcome.log), outcome.log


def test_sampled_drafts_are_drawn_in_graphs(scenarios: dict[str, dict[str, Outcome]]) -> None:
    """Only that they are: on CPU vLLM verifies sampled drafts wrongly, with graphs or without."""
    outcome = scenarios["sampled drafts"]["auto"]
    assert outcome.error is None
    assert live_sizes(outcome, "propose")
    assert not live_sizes(outcome, "later_steps")
    assert {replay.split()[0] for replay in outcome.replays} == {"first", "loop"}


def test_a_capture_that_fails_leaves_upstreams_drafting(
    scenarios: dict[str, dict[str, Outcome]],
) -> None:
    outcome = scenarios["one request at a time"]["a capture that fails"]
    expect_right(outcome)
    assert not outcome.captured
    assert not outcome.used
    (warning,) = [line for line in outcome.log if line.startswith("WARNING")]
    assert "_local_scalar_dense" in warning


def test_a_profile_that_fails_does_not_make_the_kv_cache_too_large_in_silence(
    scenarios: dict[str, dict[str, Outcome]],
) -> None:
    outcome = scenarios["one request at a time"]["a profile that fails"]
    expect_right(outcome)
    assert outcome.profiled == 0
    assert outcome.captured == ["first 1", "loop 1"]
    (warning,) = [line for line in outcome.log if line.startswith("WARNING")]
    assert "no memory left" in warning
    assert re.search(r"without their \d+ MiB.*gpu_memory_utilization", warning), warning
    others = [
        each for name, each in scenarios["one request at a time"].items() if name != outcome.name
    ]
    assert len(others) > 1
    assert not any("profile" in line for each in others for line in each.log)
