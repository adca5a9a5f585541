"""The laws of the budget of ``overlay bench``, with engines that only move a clock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import OverlayError
from overlay.proof.commands.bench import BenchStage, Launch, OnJob
from overlay.proof.commands.bench_report import OVERLAY, STOCK, V2, BenchReport, page
from overlay.proof.commands.question import ENGINES, BenchQuestion, Budget, Part
from overlay.proof.engine_pool import EngineEnd, Job
from overlay.proof.repeats import Quantity
from overlay.report.lines import enumeration

#: Seconds of a start and of each cell behind it, of one engine.
SECONDS = st.lists(st.floats(0.1, 200), min_size=4, max_size=4)


class Engines:
    """Engines on a clock of their own.

    :param seconds: of each engine its start and its cells, by part and engine; those that are not
        named take a second each.
    """

    def __init__(self, seconds: Mapping[tuple[Part, str], list[float]]) -> None:
        self.now, self._seconds = 0.0, seconds
        self.started: list[tuple[Part, str]] = []
        #: When each cell was measured.
        self.cells: dict[tuple[Part, str], dict[int, float]] = {}

    def clock(self) -> float:
        return self.now

    def run(self, job: Job, deadline: float, on_engine: OnJob) -> EngineEnd:
        on_engine(job, None)
        engine, part = job.name.split(", ")[0], Part(job.name.split(", ")[1])
        self.started.append((part, engine))
        start, *cells = self._seconds.get((part, engine), [1.0, 1.0, 1.0, 1.0])
        begun, soft = self.now, seconds_of(job, part)
        result = run_engine(part, start, deadline) if start < deadline else None
        self.now += min(start, deadline)
        for size, took in zip((1, 8, 32), cells, strict=True):
            if result is None or self.now - begun >= soft:
                break
            if self.now + took - begun >= deadline:
                self.now = begun + deadline
                return ended(job, None, deadline, result, on_engine)
            self.now += took
            add_cell(result, part, size)
            self.cells.setdefault((part, engine), {})[size] = self.now
        return ended(job, None if result is None else 0, self.now - begun, result, on_engine)


def seconds_of(job: Job, part: Part) -> float:
    """What the engine is told of the time that is left."""
    if part is Part.STEPS:
        return float(job.command[job.command.index("--seconds") + 1])
    return float(json.loads(Path(job.command[-2]).read_text())["seconds"])


def run_engine(part: Part, start: float, deadline: float) -> dict[str, Any]:
    """The result of an engine that has started and measured nothing."""
    if part is Part.STEPS:
        return {"vllm": "0.99.0", "gpu": "FAKE", "draft_graphs": {"keys": {"loop": 4}}}
    begun = {"vllm": "0.99.0", "start_s": start, "acceptance": 2.5}
    return {**begun, "concurrency": {}, "first_token": None}


def add_cell(result: dict[str, Any], part: Part, size: int) -> None:
    """Put a figure into a result."""
    if part is Part.STEPS:
        result[f"batch{size}"] = {"repeats_ms_per_step": [2.0, 2.1]}
        return
    result["concurrency"][str(size)] = {"values": [99.0, 100.0], "agreed": True}
    if size == 32:
        result["first_token"] = {"rate": 5.0, "values": [8.0, 9.0]}


def ended(
    job: Job,
    status: int | None,
    seconds: float,
    result: dict[str, Any] | None,
    on_engine: OnJob,
) -> EngineEnd:
    how = EngineEnd(status, seconds, result, "")
    on_engine(job, how)
    return how


def measure(work: Path, engines: Engines, **options: Any) -> BenchReport:
    models = {"model": "a/b", "draft": "a/c", "against": "both"}
    question = BenchQuestion(concurrency=(1, 8, 32), **models, **options)
    budget = Budget(question.budget, engines.clock)
    launch = Launch(question, Path("python"), work, work, work, budget)
    return BenchStage(launch, lambda *_: None, engines.run).measure()


@given(
    seconds=st.dictionaries(st.tuples(st.sampled_from(Part), st.sampled_from(ENGINES)), SECONDS),
    budget=st.floats(0, 2000),
    rounds=st.integers(1, 3),
)
def test_no_engine_goes_on_beyond_the_budget_and_every_gap_is_named(
    tmp_path_factory: pytest.TempPathFactory,
    seconds: dict[tuple[Part, str], list[float]],
    budget: float,
    rounds: int,
) -> None:
    engines = Engines(seconds)
    measured, refusal = None, ""
    try:
        work = tmp_path_factory.mktemp("work")
        measured = measure(work, engines, budget=budget, rounds=rounds, deadline=100_000.0)
    except OverlayError as error:
        refusal = str(error)
    assert engines.now <= budget + 1e-6
    compared = [{STOCK, OVERLAY} <= {e for p, e in engines.cells if p is part} for part in Part]
    assert (measured is not None) == any(compared)
    if measured is None:
        assert "give a larger one" in refusal
    else:
        expect_named(engines, measured)


def expect_named(engines: Engines, measured: BenchReport) -> None:
    """Every cell was measured or is a gap, and none is both."""
    gaps = {(g.engine, g.what, size) for g in measured.gaps for size in g.requests}
    found = {(t.engine, Quantity.STEP_TIME, size) for t in measured.timed for size in t.batches}
    found |= {
        (s.engine, Quantity.THROUGHPUT, size) for s in measured.served for size in s.concurrency
    }
    assert found == {
        (engine, Quantity(part.value), size)
        for (part, engine), sizes in engines.cells.items()
        for size in sizes
    }
    wanted = {
        (engine, quantity, size)
        for engine in ENGINES
        for quantity in (Quantity.STEP_TIME, Quantity.THROUGHPUT)
        for size in (1, 8, 32)
    }
    assert not gaps & found
    assert gaps | found == wanted
    with_first = {each.engine for each in measured.served if each.first_token is not None}
    without = {gap.engine for gap in measured.gaps if gap.what is Quantity.FIRST_TOKEN}
    assert without == set(ENGINES) - with_first


def test_the_most_telling_figures_come_first(tmp_path: Path) -> None:
    engines = Engines({})
    measure(tmp_path, engines, rounds=1)
    first = sorted((when, cell) for cell, sizes in engines.cells.items() for when in sizes.values())
    assert [cell for _, cell in first[:9:3]] == [(Part.STEPS, each) for each in ENGINES]
    assert [cell[0] for _, cell in first[9:]] == [Part.SERVING] * 9
    assert engines.started == [(part, each) for part in Part for each in ENGINES]


def test_a_first_round_that_is_too_long_ends_with_the_budget(tmp_path: Path) -> None:
    slow = {(part, engine): [100.0, 10.0, 10.0, 10.0] for part in Part for engine in ENGINES}
    engines = Engines(slow)
    measured = measure(tmp_path, engines, budget=405.0, rounds=3)
    # Three engines took 130 seconds each: no server is started at the end of the budget.
    assert engines.started == [(Part.STEPS, each) for each in ENGINES]
    assert engines.now == 380.0
    gaps = [(gap.engine, gap.what, gap.requests) for gap in measured.gaps]
    assert gaps[:2] == [
        (STOCK, Quantity.THROUGHPUT, (1, 8, 32)),
        (STOCK, Quantity.FIRST_TOKEN, ()),
    ]
    assert (V2, Quantity.STEP_TIME, (32,)) in gaps
    lines = "\n".join(map(str, measured.own_lines()))
    for text in (lines, page(measured)):
        assert "not measured, the budget of 405 s was spent (--budget): stock V1" in text
        assert "server with 1, 8 and 32 requests at a time" in text
    rows = measured.tables[0].rows
    assert rows[3][-3:] == ("not measured", "overlap", "-")
    assert measured.own_data()["bench"]["not_measured"][0] == {
        "engine": STOCK,
        "what": "serving",
        "requests": [1, 8, 32],
    }
    assert measured.verdict.endswith("the budget did not allow all figures.")


def test_rounds_beyond_the_budget_are_left_out_and_named(tmp_path: Path) -> None:
    measured = measure(tmp_path, Engines({}), budget=20.0, rounds=3, only=Part.STEPS)
    (note,) = measured.notes
    assert note.startswith(
        "2 rounds were left out: one more takes about 12 s, and 12 s of --budget"
    )
    assert all(len(each.batches[1].values) == 2 for each in measured.timed)
    assert "engines started in 1 of 3 rounds" in measured.remarks


def test_a_later_round_that_was_cut_is_named(tmp_path: Path) -> None:
    class Slower(Engines):
        def run(self, job: Job, deadline: float, on_engine: OnJob) -> EngineEnd:
            if "round 2" in job.name:
                self._seconds = {(Part.STEPS, each): [50.0, 1.0, 1.0, 1.0] for each in ENGINES}
            return super().run(job, deadline, on_engine)

    measured = measure(tmp_path, Slower({}), budget=120.0, rounds=2, only=Part.STEPS)
    assert measured.gaps == ()
    assert measured.notes == ("round 2 was not finished: --budget 120 s was spent",)


def test_the_schedule_says_how_often_an_engine_starts() -> None:
    text = BenchQuestion(against="both").schedule.text
    assert "at most 3 rounds of 6 engine starts" in text
    assert f"step times of {enumeration(ENGINES)}, then servers of" in text
    assert "--budget 1800 s" in text
    assert "2 engine starts" in BenchQuestion(only=Part.STEPS, rounds=1).schedule.text
