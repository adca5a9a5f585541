"""Laws of the draft keys: which graphs there are, and which of them a batch gets."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.draft_graphs.added_modules import FOLDER, added

keys: Any = added("keys")

KS = st.integers(1, 8)
SIZES = st.sets(st.integers(1, 40), max_size=8)
SEQS = st.integers(1, 700)
CAPTURES = st.integers(1, 600)


@st.composite
def plans(draw: Any) -> tuple[list[Any], int, int, int]:
    """A plan, with the k, max_num_seqs and max_capture_tokens that it was made for."""
    k, seqs, tokens = draw(KS), draw(SEQS), draw(CAPTURES)
    later = draw(st.sampled_from([("loop",), ("step",), ("loop", "step"), ()]))
    first = draw(st.booleans())
    plan = keys.plan_keys(
        k=k, max_num_seqs=seqs, max_capture_tokens=tokens, first=first, later=later
    )
    return plan, k, seqs, tokens


def holding(plan: list[Any]) -> Any:
    """The keys of a plan, to be dispatched."""
    captured = keys.DraftKeys()
    for key in plan:
        captured.add(key)
    return captured


@given(sizes=SIZES, k=KS, role=st.sampled_from(keys.UNIFORM_ROLES), reqs=st.integers(-1, 45))
def test_the_smallest_graph_that_holds_the_batch_is_dispatched(
    sizes: set[int], k: int, role: str, reqs: int
) -> None:
    captured = keys.DraftKeys()
    for size in sizes:
        captured.add(keys.draft_key(role, size, k))
    per_request = keys.tokens_per_request(role, k)
    key = captured.dispatch(role, reqs * per_request, reqs, k)
    fitting = [size for size in sizes if size >= reqs]
    expected = keys.draft_key(role, min(fitting), k) if fitting and reqs > 0 else None
    assert key == expected


@given(sizes=SIZES, k=KS, reqs=st.integers(1, 45), tokens=st.integers(0, 500))
def test_a_batch_that_is_not_uniform_has_no_graph(
    sizes: set[int], k: int, reqs: int, tokens: int
) -> None:
    captured = keys.DraftKeys()
    for size in sizes:
        captured.add(keys.draft_key("first", size, k))
    if tokens != reqs * (k + 1):
        assert captured.dispatch("first", tokens, reqs, k) is None


@given(sizes=st.sets(st.integers(1, 40), min_size=1), k=KS)
def test_neither_another_role_nor_another_k_is_dispatched(sizes: set[int], k: int) -> None:
    captured = keys.DraftKeys()
    for size in sizes:
        captured.add(keys.draft_key("loop", size, k))
    assert captured.dispatch("step", 1, 1, k) is None
    assert captured.dispatch("loop", 1, 1, k + 1) is None
    assert captured.dispatch("loop", 1, 1, k) is not None


def test_a_key_added_after_a_dispatch_counts() -> None:
    captured = keys.DraftKeys()
    captured.add(keys.draft_key("loop", 8, 3))
    assert captured.dispatch("loop", 3, 3, 3).num_reqs == 8
    captured.add(keys.draft_key("loop", 4, 3))
    assert captured.dispatch("loop", 3, 3, 3).num_reqs == 4


def test_cleared_keys_dispatch_nothing() -> None:
    captured = keys.DraftKeys()
    captured.add(keys.draft_key("loop", 8, 3))
    assert captured.dispatch("loop", 3, 3, 3) is not None
    captured.clear()
    assert len(captured) == 0
    assert captured.dispatch("loop", 3, 3, 3) is None


@given(limit=st.integers(-3, 900))
def test_the_ladder_ends_at_its_limit_and_wastes_little(limit: int) -> None:
    sizes = keys.ladder(limit)
    assert sizes == sorted(set(sizes))
    if limit < 1:
        assert sizes == []
        return
    assert sizes[0] == 1
    assert sizes[-1] == limit
    for smaller, size in itertools.pairwise(sizes):
        assert size - smaller <= (
            4 if size <= 8 else 8 if size <= 64 else 16 if size <= 128 else 32
        )


@given(made=plans())
def test_a_plan_holds_every_batch_within_the_limits_and_no_other(
    made: tuple[list[Any], int, int, int],
) -> None:
    plan, k, seqs, tokens = made
    captured = holding(plan)
    for role in {key.role for key in plan}:
        per_request = keys.tokens_per_request(role, k)
        limit = min(seqs, tokens // per_request)
        for reqs in (1, 2, 3, 5, limit // 2, limit - 1, limit, limit + 1, seqs):
            if reqs > 0:
                key = captured.dispatch(role, reqs * per_request, reqs, k)
                assert (key is not None) == (reqs <= limit), (role, reqs, limit)
    assert all(key.num_tokens <= tokens and key.num_reqs <= seqs for key in plan)
    assert k > 1 or all(key.role == "first" for key in plan)


@given(k=st.integers(2, 8), seqs=SEQS, tokens=CAPTURES, most=st.integers(1, 4000))
def test_first_passes_alone_may_have_more_tokens_than_others(
    k: int, seqs: int, tokens: int, most: int
) -> None:
    made = {"k": k, "max_num_seqs": seqs, "first": True, "later": ("loop",)}
    plan = keys.plan_keys(**made, max_capture_tokens=tokens, max_first_tokens=most)
    first = [key.num_reqs for key in plan if key.role == "first"]
    later = [key.num_reqs for key in plan if key.role == "loop"]
    assert max(first, default=0) == min(seqs, most // (k + 1))
    assert max(later) == max(min(seqs, tokens), max(first, default=0))
    # A batch has as many padded rows in its first pass as in the later ones.
    assert set(first) <= set(later)


@given(
    k=KS,
    seqs=SEQS,
    tokens=CAPTURES,
    most=st.integers(0, 5000),
    batch=st.tuples(st.integers(1, 700), st.integers(1, 5000)),
)
def test_a_mixed_batch_within_the_limits_has_a_graph_and_as_many_later_rows(
    k: int, seqs: int, tokens: int, most: int, batch: tuple[int, int]
) -> None:
    made = {"k": k, "max_num_seqs": seqs, "first": True, "later": ("loop", "step")}
    plan = keys.plan_keys(**made, max_capture_tokens=tokens, max_mixed_tokens=most)
    captured = holding(plan)
    reqs, length = min(batch), max(batch)
    key = captured.dispatch("mixed", length, reqs, k)
    assert captured.dispatch("mixed", length, reqs, k + 1) is None
    assert captured.dispatch("mixed", length, reqs, k, sampled=True) is None
    limit = min(seqs, tokens)
    if reqs > limit or length > most:
        assert key is None
        return
    if key is None:  # the largest graph has as many requests as tokens, and there are more of both
        assert most < limit
        return
    assert key.num_reqs >= reqs
    assert key.num_tokens >= length
    if k > 1:
        for role in ("loop", "step"):
            assert captured.dispatch(role, key.num_reqs, key.num_reqs, k).num_reqs == key.num_reqs
    # No other graph would have done with less of both.
    assert not any(
        reqs <= other.num_reqs <= key.num_reqs
        and length <= other.num_tokens <= key.num_tokens
        and other != key
        for other in plan
        if other.role == "mixed"
    )
    if key.num_reqs > reqs and k > 1:
        later = captured.dispatch("loop", key.num_reqs, key.num_reqs, k)
        assert keys.has_padding(later, plan)


@given(made=plans())
def test_first_and_later_passes_of_a_batch_have_the_same_rows(
    made: tuple[list[Any], int, int, int],
) -> None:
    plan, k, _, _ = made
    captured = holding(plan)
    for reqs in range(1, 140):
        first = captured.dispatch("first", reqs * (k + 1), reqs, k)
        for role in ("step", "loop"):
            later = captured.dispatch(role, reqs, reqs, k)
            if first is not None and later is not None:
                assert first.num_reqs == later.num_reqs


@given(made=plans())
def test_the_largest_graph_of_each_role_comes_first(
    made: tuple[list[Any], int, int, int],
) -> None:
    plan = made[0]
    for role in keys.ROLES:
        sizes = [key.num_reqs for key in plan if key.role == role]
        assert sizes == sorted(set(sizes), reverse=True)


@given(made=plans())
def test_a_graph_has_padding_if_a_smaller_batch_is_dispatched_to_it(
    made: tuple[list[Any], int, int, int],
) -> None:
    plan, k, _, _ = made
    captured = holding(plan)
    for key in plan:
        per_request = key.num_tokens // key.num_reqs
        padded = any(
            captured.dispatch(key.role, reqs * per_request, reqs, k) == key
            for reqs in range(max(1, key.num_reqs - 40), key.num_reqs)
        )
        assert keys.has_padding(key, plan) == padded


@pytest.mark.parametrize(
    ("role", "tokens", "reqs", "k"),
    [
        ("first", 3, 1, 3),
        ("step", 4, 1, 3),
        ("loop", 0, 0, 3),
        ("second", 1, 1, 3),
        ("mixed", 7, 8, 3),
        ("mixed", 7, 0, 3),
    ],
)
def test_a_key_that_contradicts_itself_cannot_be_made(
    role: str, tokens: int, reqs: int, k: int
) -> None:
    with pytest.raises(ValueError):
        keys.DraftKey(role, tokens, reqs, k)


def test_keys_policy_and_report_need_neither_torch_nor_vllm() -> None:
    script = (
        "import sys; import draft_graphs.keys, draft_graphs.policy, draft_graphs.messages;"
        "sys.exit(any(name.split('.')[0] in ('torch', 'vllm') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", script], cwd=FOLDER, check=True, timeout=60)


@given(sizes=st.sets(st.integers(1, 40), min_size=1), k=KS)
def test_sampled_drafts_have_graphs_of_their_own(sizes: set[int], k: int) -> None:
    captured = keys.DraftKeys()
    for size in sizes:
        captured.add(keys.draft_key("loop", size, k))
    assert captured.dispatch("loop", 1, 1, k, True) is None
    for size in sizes:
        captured.add(replace(keys.draft_key("loop", size, k), sampled=True))
    greedy, sampled = (captured.dispatch("loop", 1, 1, k, each) for each in (False, True))
    assert replace(greedy, sampled=True) == sampled != greedy
    assert not keys.has_padding(sampled, [greedy, sampled]) or min(sizes) > 1


@given(k=KS, seqs=st.integers(1, 40))
def test_the_plan_of_sampled_drafts_is_the_greedy_one_twice(k: int, seqs: int) -> None:
    def plan(sampled: bool) -> list[Any]:
        found: list[Any] = keys.plan_keys(
            k=k,
            max_num_seqs=seqs,
            max_capture_tokens=64,
            first=True,
            later=("loop",),
            sampled=sampled,
        )
        return found

    greedy = plan(False)
    both = plan(True)
    assert both[: len(greedy)] == greedy
    assert both[len(greedy) :] == [replace(key, sampled=True) for key in greedy]


@pytest.mark.parametrize("k", [1, 3])
def test_a_mixed_graph_of_more_requests_begins_where_the_smaller_one_is_full(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of 16 requests have up to K+1 tokens each, and then one more needs the next graph."""
    full = 16 * (k + 1)
    monkeypatch.setattr(keys, "MIXED_TOKENS", (full - 1, full, full + 1, full + 2))
    for most in (full + 1, 1000):
        made = keys.mixed_keys(k, (16, 64), most)
        sizes = {
            reqs: sorted(key.num_tokens for key in made if key.num_reqs == reqs)
            for reqs in (16, 64)
        }
        every = [size for size in (full - 1, full, full + 1, full + 2) if size < most] + [most]
        assert sizes[16] == [size for size in every if size >= 16]
        assert sizes[64] == [size for size in every if size >= max(64, full + 1)]
