"""min_tokens holds beside drafts, and no longer than it should. Needs vLLM.

Each release's own processor in the batch of the installed vLLM, whose steps its own functions of
the runner prepare; and each mistake that was put in is noticed.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.covering import each_release

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping.releases import (
    MOST,
    VOCABULARY,
    WIDTH,
    K,
    compiled,
    feature,
    text,
    torch,
)
from tests.context_limit.world import Seat, World
from tests.support.beside_vllm import PATCHES, put_beside_vllm
from tests.support.code_edits import run_edited

put_beside_vllm("min-tokens")

# isort: split
from vllm.sampling_params import SamplingParams
from vllm.v1.overlay_effects import effects
from vllm.v1.sample.logits_processor import LogitsProcessors, builtin
from vllm.v1.worker import min_tokens

pytestmark = pytest.mark.network

PATH, STOP = "vllm/v1/sample/logits_processor/builtin.py", 7
NAME = "MinTokensLogitsProcessor"
BOOKKEEPING = ("batched-bookkeeping",)


@functools.cache
def processor_of(release: str) -> Any:
    """The class of a release's processor."""
    node = next(
        each
        for each in ast.parse(text(release, PATH)).body
        if isinstance(each, ast.ClassDef) and each.name == NAME
    )
    return compiled(release, [node], dict(vars(builtin)))[NAME]


class Asking(Seat):
    """A request with min_tokens."""

    def __init__(self, name: str, prompt: int, accepted: tuple[int, ...], least: int) -> None:
        super().__init__(name, prompt, accepted, 0.0)
        self.least = least

    @property
    def said(self) -> int:
        """How many tokens it has when the next step is sampled."""
        return self.outputs + (self.underway[1] if self.underway else 0)


class Sampled(World):
    """Asks the processor in each step which places may not be a stop token.

    :ivar wrong: where its answer is wrong: request, its tokens, and the places it masks.
    """

    def __init__(self, release: str, features: tuple[str, ...], *, mended: bool) -> None:
        super().__init__(release, features)
        kind = processor_of(release)
        self.processor = kind(None, torch.device("cpu"), False)
        self.batch.logitsprocs = LogitsProcessors([self.processor])
        self.kind, self.mended = kind, mended
        self.wrong: list[tuple[str, int, list[bool]]] = []

    def _parameters(self, seat: Any) -> Any:
        return SamplingParams(temperature=0.0, min_tokens=seat.least, stop_token_ids=[STOP])

    def _sample(self, scheduled: Any) -> None:
        if self.mended:
            self.runner.speculative_config = SimpleNamespace(use_ngram_gpu=lambda: False)
            with mock.patch.object(builtin, NAME, self.kind):
                min_tokens.count_tokens(self.runner, scheduled)
        names = self.batch.req_ids
        drafts = [len(scheduled.scheduled_spec_decode_tokens.get(name, ())) for name in names]
        at_drafts = torch.zeros(sum(drafts), VOCABULARY)
        self.processor.apply_with_spec_decode(at_drafts, drafts)
        behind = self.processor.apply(torch.zeros(len(names), VOCABULARY))
        masked = at_drafts[:, STOP].split(drafts)
        for row, name in enumerate(names):
            seat: Any = self.seats[name]
            if seat.computed + seat.new - len(masked[row]) < seat.prompt:
                continue  # nothing is sampled of the middle of a prompt
            places = [bool(each < 0) for each in (*masked[row], behind[row, STOP])]
            if places != [seat.said + place < seat.least for place in range(len(places))]:
                self.wrong.append((name, seat.said, places))


def wrong_places(
    release: str, seats: list[tuple[int, Asking]], *, mended: bool, features: tuple[str, ...] = ()
) -> list[tuple[str, int, list[bool]]]:
    """Serve requests, each from its step on; where the processor is wrong."""
    world, number = Sampled(release, features, mended=mended), 0
    waiting = list(seats)
    while True:
        for at, seat in list(waiting):
            if at <= number:
                world.join(seat)
                waiting.remove((at, seat))
        number += 1
        if not world.step() and not waiting:
            return world.wrong


def rejecting() -> list[tuple[int, Asking]]:
    """A request of which each draft is rejected."""
    return [(0, Asking("early", 2, (), 5))]


def accepting() -> list[tuple[int, Asking]]:
    """A request of which each draft is accepted."""
    return [(0, Asking("late", 2, (K,) * 9, 4))]


@pytest.mark.parametrize("release", each_release())
def test_every_release_has_the_faults(release: str) -> None:
    # It forgets that two of five tokens are there, for good.
    (name, said, places), *_ = wrong_places(release, rejecting(), mended=False)
    assert (name, said, places) == ("early", 2, [False] * (K + 1))
    # One is there; three drafts make four, and yet the fifth may not be a stop token.
    (late,) = wrong_places(release, accepting(), mended=False)
    assert late == ("late", 1, [True, True, True, True])


@pytest.mark.parametrize("release", each_release())
def test_they_are_mended(release: str) -> None:
    assert wrong_places(release, rejecting(), mended=True) == []
    assert wrong_places(release, accepting(), mended=True) == []


SEATS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.integers(1, WIDTH - 2),
        st.lists(st.integers(0, K), max_size=9).map(tuple),
        st.integers(0, WIDTH),
    ),
    min_size=1,
    max_size=MOST - 1,
)


def law(drawn: list[Any], features: tuple[str, ...] = ()) -> None:
    """No place is masked that may be a stop token, and each that may not."""
    seats = [(at, Asking(f"r{n}", *each)) for n, (at, *each) in enumerate(drawn)]
    assert wrong_places("0.33.0", seats, mended=True, features=features) == []


@pytest.mark.parametrize("features", [(), BOOKKEEPING], ids=["alone", "beside bookkeeping"])
@settings(max_examples=60, deadline=None)
@given(drawn=SEATS)
def test_min_tokens_holds_as_long_as_it_should(features: tuple[str, ...], drawn: list[Any]) -> None:
    with feature():
        law(drawn, features)


def test_switched_off_it_is_upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(min_tokens.VARIABLE, "off")
    assert wrong_places("0.33.0", rejecting(), mended=True)


#: Mistakes, each noticed: a scope, what it has, and what it gets instead.
BUGS = (
    ("_count", "int(tokens) - drafts", "int(tokens)"),
    ("_count", "known < least", "known + 1 < least"),
    ("_count", "known + drafts < least", "known < least"),
    ("_count", "known + drafts < least", "known + drafts + 1 < least"),
    ("_count", "TokenCount(known)", "TokenCount(0)"),
    ("_count", "processor.min_toks = lacking", "pass"),
    ("_count", "processor.update_state(None)", "pass"),
    ("_count", "{**masked, NOBODY: (0, (), *rest)}", "{**lacking, NOBODY: (0, (), *rest)}"),
    ("_count", "{**masked, NOBODY: (0, (), *rest)}", "masked"),
    ("_count", "batch.req_ids[row]", "batch.req_ids[0]"),
    ("_count", "batch.num_computed_tokens_cpu[row]", "batch.num_computed_tokens_cpu[0]"),
)
#: The first leaves and the others move up; some drafts are accepted, and some steps have none.
BUSY = [
    (0, 2, (), 3),
    (0, 3, (3, 0, 1), 6),
    (1, 1, (0, 0, 3), 9),
    (2, 5, (3, 3), 4),
    (3, 10, (1,), 4),
]


@pytest.fixture
def changed(request: pytest.FixtureRequest) -> Iterator[None]:
    """The module with a mistake."""
    file = PATCHES / "min-tokens/files/vllm/v1/worker/min_tokens.py"
    names = run_edited(file, [request.param], min_tokens.__name__)
    with mock.patch.object(min_tokens, "count_tokens", names["count_tokens"]):
        yield


@pytest.mark.parametrize("changed", BUGS, indirect=True, ids=lambda bug: f"{bug[1]} -> {bug[2]}")
@pytest.mark.usefixtures("changed")
def test_a_mistake_is_noticed() -> None:
    with pytest.raises((AssertionError, KeyError)):
        law(BUSY)


def test_the_load_of_the_mistakes_is_served_without_one() -> None:
    law(BUSY)


def test_what_it_does_is_counted() -> None:
    def counted() -> int:
        told = effects().get(min_tokens.FEATURE)
        return int(told["counts"].get(min_tokens.COUNTED, 0)) if told else 0

    before = counted()
    law([(0, 2, (), 0)])
    assert counted() == before
    law([(0, 2, (), 5)])
    assert counted() > before


@pytest.mark.parametrize(("config", "state"), [(object(), "active"), (None, "idle")])
def test_the_effect_is_reported(config: Any, state: str) -> None:
    min_tokens.report_effect(SimpleNamespace(speculative_config=config))
    assert effects()[min_tokens.FEATURE]["state"] == state
