"""What is drawn, compared and reduced, without an engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.proof.oracle import FIRST_TOKEN, continuation, drafts
from tests.fuzz.comparison import (
    CONTEXT_LIMIT,
    STEPS,
    Least,
    first_difference,
    first_other_answer,
    first_wrong_draft,
)
from tests.fuzz.loads import RULE, VOCAB, draw_load, reduced, relied_on
from tests.fuzz.pairs import MENDED, MENDS, NOT_BESIDE_GRAPHS, VARIANTS, draw_pair, reduce, switches

SEEDS = st.integers(0, 1 << 30)


@given(SEEDS, st.booleans(), st.sets(st.integers(0, 60)))
def test_a_seed_makes_one_pair_and_one_load(seed: int, gpu: bool, without: set[int]) -> None:
    pair = draw_pair(seed, gpu=gpu)
    assert pair == draw_pair(seed, gpu=gpu)
    load = draw_load(pair.loads[0], pair.shape)
    assert load == draw_load(pair.loads[0], pair.shape)
    left = reduced(load, sorted(without))
    added = [event["id"] for event in left if event["do"] == "add"]
    assert len(added) == len(set(added))
    assert {event.get("id") for event in left} <= {*added, None}
    assert [event["at"] for event in left] == sorted(event["at"] for event in left)
    sampled = [event for event in load if event.get("parameters", {}).get("temperature")]
    assert gpu or not sampled


@given(SEEDS, *[st.booleans()] * 5)
def test_a_load_leaves_out_what_a_stock_vllm_does_wrong_and_nothing_else(
    seed: int,
    gpu: bool,
    stale_frames: bool,
    endless: bool,
    stale_masks: bool,
    whole_steps: bool,
) -> None:
    pair = draw_pair(seed, gpu=gpu)
    shape, load = pair.shape, draw_load(pair.loads[0], pair.shape)
    release = {"stale_frames": stale_frames, "endless": endless, "stale_masks": stale_masks}
    release["whole_steps"] = whole_steps
    left = relied_on(load, shape, gpu=gpu, **release)
    piecewise = gpu and shape.mode in ("PIECEWISE", "FULL_AND_PIECEWISE")
    stops = stale_frames and shape.asynchronous
    for before, after in zip(load, left, strict=True):
        expected = dict(before)
        if piecewise and "parameters" in before:
            asked = before["parameters"]
            expected["parameters"] = {
                name: asked[name] for name in asked if name != "prompt_logprobs"
            }
        if stale_masks and "parameters" in before:
            asked = expected["parameters"]
            expected["parameters"] = {
                n: each for n, each in asked.items() if n != "allowed_token_ids"
            }
        if endless and "parameters" in before:
            asked = expected["parameters"]
            if len(before["prompt"]) + asked.get("min_tokens", 0) > shape.length:
                expected["parameters"] = {n: each for n, each in asked.items() if n != "min_tokens"}
        if whole_steps and shape.short_draft and "parameters" in before:
            asked = expected["parameters"]
            out = {"stop", "ignore_eos"} if "grammar" in asked else {"stop"}
            expected["parameters"] = {n: each for n, each in asked.items() if n not in out}
        if stops and before["do"] == "reset running":
            expected["do"] = "reset"
        assert after == expected


def outcomes() -> list[dict[str, Any]]:
    """What an engine did: two loads of three steps."""
    return [
        {
            "steps": [{field: [[number, 1], [2, 3]] for field in STEPS} for number in range(3)],
            "answers": {"1.r0": {"tokens": [[5, 6]], "text": ["x"]}},
            "error": None,
        }
        for _ in range(2)
    ]


@given(st.integers(0, 1), st.integers(0, 2), st.sampled_from(STEPS))
def test_the_first_step_that_differs_is_named(load: int, step: int, field: str) -> None:
    one, other = outcomes(), outcomes()
    assert first_difference(one, other) is None
    other[load]["steps"][step][field][1][0] = 9
    if step < 2:
        other[load]["steps"][step + 1] = {}  # what follows from it
    other[load]["answers"].clear()
    other[load]["error"] = "Error in step: died of it"
    found = first_difference(one, other)
    assert found is not None
    assert found[:3] == (load, step, field)
    assert (found.stock, found.other) == ([2, 3], [9, 3])


@pytest.mark.parametrize(
    ("field", "value"), [("error", "ValueError"), ("steps", []), ("answers", {"1.r0": {}})]
)
def test_an_end_that_differs_is_seen(field: str, value: Any) -> None:
    one, other = outcomes(), outcomes()
    other[1] = {**other[1], field: value}
    assert first_difference(one, other) is not None
    assert first_difference(one, one[:1]) is not None
    assert first_difference(other, other) is None


class FakePlace:
    """Engines that differ where some events are in their load."""

    stock, other = "stock", "other"

    def __init__(self, needed: set[int]) -> None:
        self._needed = needed

    def spec(self, shape: Any, env: Any, **load: Any) -> Any:
        return set(load["without"])

    def run(self, side: str, specs: list[set[int]]) -> list[dict[str, Any]]:
        results = []
        for without in specs:
            outcome, _ = outcomes()
            if side == "other" and not self._needed & without:
                outcome["steps"][0]["free"] = 0
            results.append({"outcomes": [outcome]})
        return results


@given(SEEDS, st.data())
def test_what_a_difference_does_not_need_is_left_out(seed: int, data: st.DataObject) -> None:
    pair = draw_pair(seed)
    total = len(draw_load(pair.loads[1], pair.shape))
    needed = data.draw(st.sets(st.integers(0, total - 1), min_size=1, max_size=2))
    place: Any = FakePlace(needed)
    without = reduce(place, pair, pair.variants[0], 1)
    assert not needed & set(without)
    assert len(without) > total / 2


def answer(tokens: list[int], finish: str = "length") -> dict[str, Any]:
    return {"tokens": [tokens], "text": [""], "finish": [finish], "stop": [None]}


def loads(error: str | None, **answers: Any) -> list[dict[str, Any]]:
    return [{"steps": [], "answers": answers, "error": error}]


@pytest.mark.parametrize("full", CONTEXT_LIMIT)
def test_a_mended_engine_may_take_other_steps_and_must_not_die_or_answer_otherwise(
    full: str,
) -> None:
    stock = loads(full, a=answer([1, 2]), b=answer([3], "abort"))
    assert first_other_answer(stock, loads(None, a=answer([1, 2]), b=answer([3, 4])), {}) is None
    assert first_other_answer(loads("Other"), loads("Other"), {}) is None  # not what is mended
    for mended in (loads(full), loads("Other"), loads(None, a=answer([1, 3]))):
        assert first_other_answer(stock, mended, {}) is not None
    assert first_other_answer(loads(None), loads("Other"), {}) is not None


def test_a_mended_engine_holds_min_tokens_whatever_stock_does() -> None:
    stock, least = loads(None, a=answer([3], "stop")), {"a": Least(2, frozenset({1}))}
    assert first_other_answer(stock, loads(None, a=answer([2, 3, 1], "stop")), least) is None
    assert first_other_answer(stock, loads(None, a=answer([2])), least) is None  # max_tokens
    for wrong in ([3], [2, 1], [1, 3, 3]):
        mended = loads(None, a=answer(wrong, "stop"))
        assert first_other_answer(stock, mended, least) is not None


@given(st.lists(st.integers(FIRST_TOKEN, VOCAB - 1), min_size=2, max_size=9), st.integers(0, 3))
def test_drafts_are_accepted_as_far_as_they_are_right(prompt: list[int], other: int) -> None:
    k, coming = 3, continuation(RULE, prompt, 9)
    tokens = [*prompt, *coming]
    drafted = drafts(RULE, tokens[: len(prompt) + 1], k)
    right = [*coming[1:]]
    accepted = next((at for at in range(k) if drafted[at] != right[at]), k)
    scheduled = {"scheduled": [[["1.r", k + 1, k]]]}
    step = {"verified": [["1.r", len(prompt) + 1, k, other]]}
    steps: list[dict[str, Any]] = [scheduled, scheduled, step]
    outcomes = [{"steps": steps, "answers": {"1.r": answer(coming)}, "error": None}]
    wrong = first_wrong_draft(outcomes, {"1.r": prompt}, k, 99)
    assert (wrong is None) is (other == accepted)
    assert first_wrong_draft(outcomes, {"1.r": prompt}, k, len(prompt) + 12) is None
    assert first_wrong_draft(outcomes, {}, k, 99) is None
    del scheduled["scheduled"]
    assert first_wrong_draft(outcomes, {"1.r": prompt}, k, 99) is None


@given(SEEDS)
def test_mends_are_on_in_their_own_variant_only(seed: int) -> None:
    pair = draw_pair(seed)
    assert MENDED not in pair.variants
    for variant in VARIANTS:
        on = switches(variant, pair.shape)
        working = {name for name, switch in MENDS.items() if on[switch] == "on"}
        possible = {*MENDS} - {*(NOT_BESIDE_GRAPHS if pair.shape.graphs else ())}
        assert working == (possible if variant == MENDED else set())
