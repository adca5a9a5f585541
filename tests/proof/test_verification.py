"""Laws of how runs of engines are compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import OverlayError
from overlay.proof import oracle
from overlay.proof.engine_compat import GraphMode
from overlay.proof.oracle import Answer, OracleStep, make_rule, tiny_requests
from overlay.proof.verification import (
    DifferenceKind,
    EngineRun,
    ModeOutcome,
    RankFacts,
    first_difference,
    judged,
    leaves_answer,
)
from tests.engine import expected_steps

RULE = make_rule()
REQUESTS = tiny_requests(RULE.vocab)
K = 5


def right() -> list[Answer]:
    """What an engine serves that does as the rule says."""
    return [
        Answer(
            len(request.prompt),
            tuple(oracle.continuation(RULE, request.prompt, request.tokens)),
            tuple(expected_steps.undisturbed(RULE, request.prompt, request.tokens, K)),
        )
        for request in REQUESTS
    ]


def run_of(served: list[Answer], replays: int = 7) -> EngineRun:
    rank = RankFacts(0, "active", "", {"first": 1}, {"first": replays} if replays else {}, {})
    return EngineRun("0.99.0", "/site", "FAKE", K, False, tuple(served), (rank,), 1.0, 1.0)


def test_what_is_right_does_not_differ() -> None:
    assert first_difference(right(), right()) is None
    assert leaves_answer(RULE, REQUESTS, right()) is None


@given(st.data())
def test_the_first_changed_token_is_found(data: st.DataObject) -> None:
    served = right()
    number = data.draw(st.integers(0, len(served) - 1))
    position = data.draw(st.integers(0, len(served[number].tokens) - 1))
    tokens = list(served[number].tokens)
    tokens[position] += 1
    served[number] = served[number]._replace(tokens=tuple(tokens))
    for found in (first_difference(right(), served), leaves_answer(RULE, REQUESTS, served)):
        assert found is not None
        assert (found.request, found.position, found.kind) == (
            number,
            position,
            DifferenceKind.TOKEN,
        )


@given(st.data())
def test_the_first_changed_step_is_found(data: st.DataObject) -> None:
    served = right()
    number = data.draw(st.integers(0, len(served) - 1))
    place = data.draw(st.integers(0, len(served[number].steps) - 1))
    steps = list(served[number].steps)
    step = steps[place]
    accepted = data.draw(st.integers(0, K).filter(lambda each: each != step.accepted))
    steps[place] = OracleStep(step.known, step.drafted, accepted)
    served[number] = served[number]._replace(steps=tuple(steps))
    for found in (first_difference(right(), served), leaves_answer(RULE, REQUESTS, served)):
        assert found is not None
        assert (found.request, found.kind) == (number, DifferenceKind.ACCEPTED)
        assert found.position == step.known - served[number].prompt
        assert (found.expected, found.found) == (step.accepted, accepted)


@given(st.data())
def test_another_schedule_is_no_difference(data: st.DataObject) -> None:
    """Steps that only one run made, and fewer drafts near a limit, are not compared."""
    served = right()
    for number, each in enumerate(served):
        kept = data.draw(
            st.lists(st.booleans(), min_size=len(each.steps), max_size=len(each.steps))
        )
        steps = tuple(step for step, keep in zip(each.steps, kept, strict=True) if keep)
        most = data.draw(st.integers(1, K))
        steps = tuple(
            OracleStep(s.known, min(s.drafted, most), min(s.accepted, most)) for s in steps
        )
        served[number] = each._replace(steps=steps)
    assert first_difference(right(), served) is None
    assert first_difference(served, right()) is None
    assert leaves_answer(RULE, REQUESTS, served) is None


def test_the_earlier_difference_of_a_request_is_told() -> None:
    served = right()
    tokens = list(served[0].tokens)
    tokens[-1] += 1
    steps = list(served[0].steps)
    steps[0] = OracleStep(steps[0].known, K, (steps[0].accepted + 1) % (K + 1))
    served[0] = Answer(served[0].prompt, tuple(tokens), tuple(steps))
    found = first_difference(right(), served)
    assert found is not None
    assert (found.position, found.kind) == (1, DifferenceKind.ACCEPTED)


def test_a_mode_that_replays_nothing_is_idle_and_no_proof() -> None:
    answer = (RULE, REQUESTS)
    assert judged("", GraphMode.LOOP, run_of(right()), None, answer).outcome is ModeOutcome.SAME
    assert judged("", GraphMode.LOOP, run_of(right(), 0), None, answer).outcome is ModeOutcome.IDLE
    assert (
        judged("", GraphMode.OFF, run_of(right(), 0), None, answer).outcome is ModeOutcome.REFERENCE
    )


def test_where_upstream_leaves_the_known_answer_it_is_the_measure() -> None:
    served = right()
    served[3] = served[3]._replace(
        steps=(OracleStep(served[3].prompt + 1, K, 0), *served[3].steps[1:])
    )
    if leaves_answer(RULE, REQUESTS, served) is None:
        pytest.fail("the example leaves nothing")
    reference = run_of(served, 0)
    answer = (RULE, REQUESTS)
    same = judged("", GraphMode.LOOP, run_of(served), reference, answer)
    assert (same.outcome, same.against) == (ModeOutcome.SAME, "the engine without draft graphs")
    assert judged("", GraphMode.LOOP, run_of(served), None, answer).outcome is ModeOutcome.DIFFERS


@pytest.mark.parametrize("data", [{}, {"vllm": "1"}, {"served": 3}, {"ranks": [{}]}])
def test_a_malformed_result_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(OverlayError, match="expected the result of an engine run"):
        EngineRun.read(data)
