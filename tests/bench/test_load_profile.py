"""How a steady load is kept up, and how its steps are told apart."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import load_engine
from bench.load_engine import Load, answer_length
from bench.load_steps import DECODES, MIXED, PREFILLS, Step, Watch, by_class, class_of
from bench.profiling import step_time

CONCURRENCY, ANSWER = 5, 3


@pytest.mark.parametrize(
    ("scheduled", "drafts", "class_"),
    [
        ({"a": 4, "b": 1}, {"a": [1, 2, 3]}, DECODES),
        ({"a": 4, "b": 4}, {"a": [1, 2, 3]}, MIXED),
        ({"a": 512, "b": 512}, {}, PREFILLS),
    ],
)
def test_a_request_decodes_where_its_tokens_are_one_and_its_drafts(
    scheduled: dict[str, int], drafts: dict[str, list[int]], class_: str
) -> None:
    assert class_of(scheduled, drafts) == class_


@given(st.lists(st.tuples(st.sampled_from([DECODES, MIXED]), st.integers(1, 50)), min_size=1))
def test_the_classes_share_out_the_whole_time(taken: list[tuple[str, int]]) -> None:
    steps, now = [], 0.0
    for class_, milliseconds in taken:
        steps.append(Step(class_, 2, 8, now, {"propose": 0.001}))
        now += milliseconds / 1000
    figures = by_class(steps, now)
    assert sum(row["steps"] for row in figures.values()) == len(taken)
    assert sum(row["share_of_time"] for row in figures.values()) == pytest.approx(1, abs=1e-3)
    for class_, row in figures.items():
        lasted = [milliseconds for name, milliseconds in taken if name == class_]
        assert row["mean_ms"] == pytest.approx(sum(lasted) / len(lasted), abs=1e-2)
        assert row["host_median_ms"] == {"propose": 1.0}


class Engine:
    """Gives each request one token a step."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.most = 0

    def add_request(self, name: str, prompt: dict[str, Any], params: Any) -> None:
        assert len(prompt["prompt_token_ids"]) == 7
        self.left[name] = params.max_tokens

    def step(self) -> list[Any]:
        self.most = max(self.most, len(self.left))
        outputs = []
        for name in list(self.left):
            self.left[name] -= 1
            done = not self.left[name]
            outputs.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1])], finished=done))
            if done:
                del self.left[name]
        return outputs


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    vllm, parameters = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    vllm.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]  # what load_engine imports
    parameters.RequestOutputKind = SimpleNamespace(DELTA=1)  # type: ignore[attr-defined]  # likewise
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", parameters)
    return Engine()


def test_the_engine_is_the_one_of_the_step_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["load_engine", "--configs", str(tmp_path)])
    options = step_time.llm_arguments(load_engine.arguments(), [256])
    assert options["model"].startswith(str(tmp_path))
    assert (options["max_num_seqs"], options["tensor_parallel_size"]) == (256, 1)


def test_as_many_requests_as_asked_for_are_in_flight(engine: Engine) -> None:
    load = Load(SimpleNamespace(llm_engine=engine), CONCURRENCY, 7, ANSWER)
    load.run(2 * CONCURRENCY)
    assert engine.most == CONCURRENCY
    assert load.produced == load.ended * ANSWER == 2 * CONCURRENCY * ANSWER
    load.finish()
    assert not engine.left


@given(st.integers(1, 300), st.floats(0, 1))
def test_answers_are_spread_evenly_around_their_length(answer: int, spread: float) -> None:
    lengths = [answer_length(number, answer, spread) for number in range(200)]
    least, most = round(answer * (1 - spread)), round(answer * (1 + spread))
    assert min(lengths) >= max(least, 1)
    assert max(lengths) <= most
    assert sum(lengths) / len(lengths) == pytest.approx(answer, abs=1 + answer / 50)


def test_what_the_host_takes_belongs_to_the_step_that_it_is_taken_in() -> None:
    runner = SimpleNamespace(
        execute_model=lambda scheduled: None,
        sample_tokens=lambda: None,
        drafter=SimpleNamespace(propose=lambda: None),
    )
    watch = Watch(runner)
    for scheduled, drafts in (({"a": 4}, {"a": [1, 2, 3]}), ({}, {}), ({"a": 9}, {})):
        runner.execute_model(
            SimpleNamespace(
                num_scheduled_tokens=scheduled,
                scheduled_spec_decode_tokens=drafts,
                total_num_scheduled_tokens=sum(scheduled.values()),
            )
        )
        if scheduled:
            runner.sample_tokens()
    runner.drafter.propose()
    assert [step.class_ for step in watch.steps] == [DECODES, PREFILLS]
    assert [set(step.host) for step in watch.steps] == [
        {"execute_model", "sample_tokens"},
        {"execute_model", "sample_tokens", "propose"},
    ]
