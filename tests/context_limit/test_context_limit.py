"""A request that comes to the end of its context beside drafts does not end the engine. Needs vLLM.

Each release's own functions of the runner and the batch, with the fault and mended.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.covering import each_release

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping.releases import MOST, WIDTH, K, feature
from tests.context_limit.world import Seat, serve

# isort: split
from vllm.v1.overlay_effects import effects
from vllm.v1.worker import context_limit

pytestmark = pytest.mark.network

MEND = ("context-limit",)
BOTH = ("batched-bookkeeping", "context-limit")
FULL = "Sampled token IDs exceed the max model length"


def smallest() -> list[tuple[int, Seat]]:
    """A request of which each draft is rejected, and one with a penalty that comes near its end."""
    return [(0, Seat("plain", 2, (), 0.0)), (5, Seat("penalised", 2, (), 1.0))]


@pytest.mark.parametrize("release", each_release("context-limit"))
def test_every_release_has_the_fault(release: str) -> None:
    with pytest.raises(AssertionError, match=FULL):
        serve(release, (), smallest())
    # The same request alone, and one after the other, is served.
    serve(release, (), smallest()[:1])
    serve(release, (), smallest()[1:])


@pytest.mark.parametrize("release", each_release("context-limit"))
def test_it_is_mended(release: str) -> None:
    serve(release, MEND, smallest())
    with feature():
        serve(release, BOTH, smallest())


def test_switched_off_it_is_upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(context_limit.VARIABLE, "off")
    with pytest.raises(AssertionError, match=FULL):
        serve("0.33.0", MEND, smallest())


SEATS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.integers(1, WIDTH - 2),
        st.lists(st.integers(0, K), max_size=9).map(tuple),
        st.sampled_from((0.0, 0.0, 1.0)),
    ),
    min_size=1,
    max_size=MOST - 1,
)


@pytest.mark.parametrize("features", [MEND, BOTH], ids=["alone", "beside batched-bookkeeping"])
@settings(max_examples=40, deadline=None)
@given(drawn=SEATS)
def test_no_load_fills_a_row(features: tuple[str, ...], drawn: list[Any]) -> None:
    """And where upstream serves the load, each count is upstream's."""

    def seats() -> list[tuple[int, Seat]]:
        return [(at, Seat(f"r{n}", *each)) for n, (at, *each) in enumerate(drawn)]

    with feature():
        mended = serve("0.33.0", features, seats())
        try:
            upstream = serve("0.33.0", (), seats())
        except AssertionError:
            return  # the fault
        for mine, theirs in zip(mended, upstream, strict=True):
            for (name, count), (other, limit) in zip(mine, theirs, strict=True):
                assert name == other
                assert count == limit or WIDTH - K - 1 <= count < limit


def test_what_it_sets_right_is_counted() -> None:
    name = context_limit.ALIGNED
    before = effects().get(context_limit.FEATURE, {"counts": {}})["counts"].get(name, 0)
    serve("0.33.0", MEND, smallest())
    assert effects()[context_limit.FEATURE]["counts"][name] > before


@pytest.mark.parametrize(
    ("asynchronous", "ngram", "state"),
    [(True, False, "active"), (False, False, "idle"), (True, True, "idle")],
)
def test_the_effect_is_reported(asynchronous: bool, ngram: bool, state: str) -> None:
    config = SimpleNamespace(use_ngram_gpu=lambda: ngram)
    runner = SimpleNamespace(use_async_spec_decode=asynchronous, speculative_config=config)
    context_limit.report_effect(runner)
    assert effects()[context_limit.FEATURE]["state"] == state
