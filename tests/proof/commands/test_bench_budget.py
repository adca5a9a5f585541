"""The laws of the budget of ``overlay bench``, with engines that only move a clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import OverlayError
from overlay.proof.commands.budget import ENGINES, ONE_BY_ONE, Budget, Part, Sharing
from overlay.proof.commands.engines import Measured, Stage
from overlay.proof.commands.progress import Progress, news
from overlay.proof.commands.question import Question
from overlay.proof.engine_pool import Ended, Job
from overlay.proof.repeats import Quantity, order
from overlay.proof.reports.bench_page import page
from overlay.proof.reports.benched import OVERLAY, STOCK, V2, BenchReport, benched
from overlay.proof.serving_turns import AT_RATE, ServingTurn, serving_turns
from overlay.proof.turns import Event, Step
from overlay.proof.turns import patience as late_after
from overlay.report.words import enumeration

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

    def run(self, job: Job, *, deadline: float, told: Callable[[Job, Ended | None], None]) -> Ended:
        told(job, None)
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
                return ended(job, None, deadline, result, told)
            self.now += took
            add_cell(result, part, size)
            self.cells.setdefault((part, engine), {})[size] = self.now
        return ended(job, None if result is None else 0, self.now - begun, result, told)


class Side(Engines):
    """The same engines side by side: all start at once, and measure in turn."""

    def run_party(
        self,
        jobs: Sequence[Job],
        meet: Path,
        *,
        deadline: float,
        patience: float,
        round_of: Callable[[int], int],
        told: Callable[[Job, Ended | None], None],
        heard: Callable[[Job, Event], None],
    ) -> Mapping[str, Ended]:
        begun, results = self.now, dict[str, dict[str, Any]]()
        late, waiting = list[Job](), list[Job]()
        first = min(self._start(job) for job in jobs)
        limit = min(deadline, late_after(first, patience))
        for job in jobs:
            told(job, None)
            engine, part = job.name.split(", ")[0], Part(job.name.split(", ")[1])
            self.started.append((part, engine))
            start = self._start(job)
            if start >= limit:
                late.append(job)
                continue
            waiting.append(job)
            results[job.name] = run_engine(part, start, deadline)
            self.now = max(self.now, begun + start)
        how = dict[str, Ended]()
        for job in late:
            self.now = begun + limit
            gone = Ended(-9, limit, None, "", "had not started")
            if limit == deadline:
                gone = Ended(None, deadline, None, "")
            told(job, gone)
            how[job.name] = gone
        killed = False
        for number, turn in enumerate(turns_of(jobs[0])):
            for job in order(jobs, round_of(number)):
                if job in waiting and not killed:
                    heard(job, Event(jobs.index(job), Step.BEGAN, number))
                    killed = self._turn(job, begun, deadline, results[job.name], turn)
                if job in waiting and not killed:
                    heard(job, Event(jobs.index(job), Step.ENDED, number))
        for job in waiting:
            status = None if killed else 0
            how[job.name] = ended(job, status, self.now - begun, results[job.name], told)
        return how

    def _start(self, job: Job) -> float:
        engine, part = job.name.split(", ")[0], Part(job.name.split(", ")[1])
        return self._seconds.get((part, engine), [1.0])[0]

    def _turn(
        self,
        job: Job,
        begun: float,
        deadline: float,
        result: dict[str, Any],
        turn: ServingTurn | None,
    ) -> bool:
        """Measure all batches, or what a server's turn is for; whether all were killed by then."""
        engine, part = job.name.split(", ")[0], Part(job.name.split(", ")[1])
        _, *cells = self._seconds.get((part, engine), [1.0, 1.0, 1.0, 1.0])
        words = job.command[: job.command.index("--meet")]
        soft = seconds_of(replace(job, command=words), part)
        each = dict(zip((1, 8, 32), cells, strict=True)) | {AT_RATE: cells[-1]}
        for size in (1, 8, 32) if turn is None else (turn.requests,):
            if self.now - begun >= soft:
                return False
            if self.now + each[size] - begun >= deadline:
                self.now = begun + deadline
                return True
            self.now += each[size]
            if turn is None or turn.counts:
                add_turn(result, part, size)
                if size != AT_RATE:
                    self.cells.setdefault((part, engine), {})[size] = self.now
            else:
                result.setdefault("warmed", {})[str(size)] = {"runs": 2}
            job.out.write_text(json.dumps(result), encoding="utf-8")
        return False


def turns_of(job: Job) -> Sequence[ServingTurn | None]:
    """The turns that an engine has; ``None``: one for all batches."""
    rounds = int(job.command[job.command.index("--turns") + 1])
    if Part(job.name.split(", ")[1]) is Part.STEPS:
        return [None] * rounds
    return serving_turns((1, 8, 32), at_rate=True, rounds=rounds)


def add_turn(result: dict[str, Any], part: Part, size: int) -> None:
    """Put the figure of one turn into a result."""
    if part is Part.STEPS:
        cell = result.setdefault(f"batch{size}", {"repeats_ms_per_step": [], "repeats_by_turn": []})
        cell["repeats_ms_per_step"] += [2.0, 2.1]
        cell["repeats_by_turn"].append(2)
        return
    if size == AT_RATE:
        cell = result["first_token"] or {"rate": 5.0, "values": [], "by_turn": []}
        result["first_token"] = cell
    else:
        cells = result["concurrency"]
        cell = cells.setdefault(str(size), {"values": [], "by_turn": [], "agreed": True})
    cell["values"].append(99.0)
    cell["by_turn"].append(1)


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
    told: Callable[[Job, Ended | None], None],
) -> Ended:
    how = Ended(status, seconds, result, "")
    told(job, how)
    return how


def measure(work: Path, engines: Engines, **options: Any) -> Measured:
    question = Question(concurrency=(1, 8, 32), model="a/b", draft="a/c", **options)
    budget = Budget(question.budget, engines.clock)
    stage = Stage(question, Path("python"), work, work, work, lambda *_: None, budget, engines.run)
    stage.sharing = ONE_BY_ONE
    if isinstance(engines, Side):
        stage.party, stage.sharing = engines.run_party, Sharing(side_by_side=True, why="")
    return stage.measure()


@given(
    seconds=st.dictionaries(st.tuples(st.sampled_from(Part), st.sampled_from(ENGINES)), SECONDS),
    budget=st.floats(0, 2000),
    rounds=st.integers(1, 3),
    kind=st.sampled_from([Engines, Side]),
)
def test_no_engine_goes_on_beyond_the_budget_and_every_gap_is_named(
    tmp_path_factory: pytest.TempPathFactory,
    seconds: dict[tuple[Part, str], list[float]],
    budget: float,
    rounds: int,
    kind: type[Engines],
) -> None:
    engines = kind(seconds)
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


def expect_named(engines: Engines, measured: Measured) -> None:
    """Every cell was measured or is a gap, and none is both."""
    gaps = {(g.engine, g.quantity, size) for g in measured.gaps for size in g.requests}
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
    without = {gap.engine for gap in measured.gaps if gap.quantity is Quantity.FIRST_TOKEN}
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
    gaps = [(gap.engine, gap.quantity, gap.requests) for gap in measured.gaps]
    assert gaps[:2] == [
        (STOCK, Quantity.THROUGHPUT, (1, 8, 32)),
        (STOCK, Quantity.FIRST_TOKEN, ()),
    ]
    assert (V2, Quantity.STEP_TIME, (32,)) in gaps
    report = shown(measured, 405.0)
    lines = "\n".join(map(str, report.own_lines()))
    for text in (lines, page(report)):
        assert "not measured, the budget of 405 s was spent (--budget): stock V1" in text
        assert "server with 1, 8 and 32 requests at a time" in text
    rows = report.tables[0].rows
    assert rows[3][-3:] == ("not measured", "overlap", "-")
    assert report.own_data()["bench"]["not_measured"][0] == {
        "engine": STOCK,
        "what": "serving",
        "requests": [1, 8, 32],
    }
    assert report.verdict.endswith("the budget did not allow all figures.")


def shown(measured: Measured, budget: float) -> BenchReport:
    verdict = benched(measured.timed, measured.served, measured.gaps)
    return BenchReport(
        verdict, "1b", 3, measured.timed, {}, measured.served, measured.notes, measured.gaps,
        budget=budget,
    )  # fmt: skip


def test_rounds_beyond_the_budget_are_left_out_and_named(tmp_path: Path) -> None:
    measured = measure(tmp_path, Engines({}), budget=20.0, rounds=3, only=Part.STEPS)
    (note,) = measured.notes
    assert note.startswith(
        "2 rounds were left out: one more takes about 12 s, and 12 s of --budget"
    )
    assert all(len(each.batches[1].values) == 2 for each in measured.timed)


def test_a_later_round_that_was_cut_is_named(tmp_path: Path) -> None:
    class Slower(Engines):
        def run(self, job: Job, **options: Any) -> Ended:
            if "round 2" in job.name:
                self._seconds = {(Part.STEPS, each): [50.0, 1.0, 1.0, 1.0] for each in ENGINES}
            return super().run(job, **options)

    measured = measure(tmp_path, Slower({}), budget=120.0, rounds=2, only=Part.STEPS)
    assert measured.gaps == ()
    assert measured.notes == ("round 2 was not finished: --budget 120 s was spent",)


def test_side_by_side_each_engine_starts_once_for_each_part(tmp_path: Path) -> None:
    engines = Side({})
    measured = measure(tmp_path, engines, rounds=3)
    assert engines.started == [(part, each) for part in Part for each in ENGINES]
    assert (measured.notes, measured.gaps) == ((), ())
    for each in measured.timed:
        assert {sample.rounds for sample in each.batches.values()} == {(2, 2, 2)}
    for served in measured.served:
        assert served.first_token is not None
        samples = [*served.concurrency.values(), served.first_token]
        assert {sample.rounds for sample in samples} == {(1, 1, 1)}


def test_side_by_side_an_engine_that_does_not_start_leaves_time_for_the_others(
    tmp_path: Path,
) -> None:
    engines = Side({(Part.STEPS, V2): [1e6, 1.0, 1.0, 1.0]})
    measured = measure(tmp_path, engines, rounds=2, budget=300.0)
    assert engines.now < 300.0
    assert "V2, steps: it had not started" in measured.notes
    assert [each.engine for each in measured.timed] == [STOCK, OVERLAY]
    assert [each.engine for each in measured.served] == list(ENGINES)


def test_side_by_side_slow_step_times_leave_time_for_the_servers(tmp_path: Path) -> None:
    slow = {(Part.STEPS, engine): [10.0, 30.0, 30.0, 30.0] for engine in ENGINES}
    measured = measure(tmp_path, Side(slow), rounds=3, budget=720.0)
    assert [each.engine for each in measured.served] == list(ENGINES)
    assert measured.gaps == ()
    assert measured.notes == ("step times: 1 of 3 rounds were finished: --budget 720 s was spent",)


def test_side_by_side_rounds_that_were_not_finished_are_named(tmp_path: Path) -> None:
    slow = {(Part.STEPS, engine): [10.0, 9.0, 9.0, 9.0] for engine in ENGINES}
    measured = measure(tmp_path, Side(slow), rounds=3, budget=200.0, only=Part.STEPS)
    (note,) = measured.notes
    assert note == "step times: 2 of 3 rounds were finished: --budget 200 s was spent"
    assert measured.gaps == ()


@pytest.mark.parametrize(
    ("budget", "finished", "missing"),
    [
        (60.0, 0, [(8, 32), (), (8, 32), (), (1, 8, 32), ()]),
        (300.0, 1, []),
        (340.0, 1, []),
        (420.0, 2, []),
    ],
)
def test_side_by_side_servers_say_how_many_rounds_of_all_cells_were_finished(
    tmp_path: Path, budget: float, finished: int, missing: list[tuple[int, ...]]
) -> None:
    slow = {(Part.SERVING, engine): [10.0, 9.0, 9.0, 9.0] for engine in ENGINES}
    measured = measure(tmp_path, Side(slow), rounds=3, budget=budget, only=Part.SERVING)
    spent = f"--budget {budget:g} s was spent"
    assert measured.notes == (f"servers: {finished} of 3 rounds were finished: {spent}",)
    assert [gap.requests for gap in measured.gaps] == missing


def test_what_a_single_round_lacks_is_a_gap_and_no_note(tmp_path: Path) -> None:
    slow = {(Part.SERVING, engine): [10.0, 9.0, 9.0, 9.0] for engine in ENGINES}
    measured = measure(tmp_path, Side(slow), rounds=1, budget=100.0, only=Part.SERVING)
    assert (measured.notes, bool(measured.gaps)) == ((), True)


def test_a_turn_that_measured_nothing_says_so_and_repeats_no_figure() -> None:
    one = {"batch1": {"repeats_ms_per_step": [2.0]}}
    two = {"batch1": {"repeats_ms_per_step": [2.0, 2.1]}}
    assert [news(one, None), news(two, one)] == ["1: 2.0 ms", "1: 2.1 ms"]
    for nothing in (news(None, None), news(two, two)):
        assert nothing == "nothing was measured in it, since --budget is spent"


def test_a_server_tells_of_a_turn_by_its_own_figures_whatever_it_has_measured_since() -> None:
    progress = Progress(Question(concurrency=(4,), rounds=2), Part.SERVING)
    result = {
        "warmed": {"4": {"runs": 2}, "0": {"runs": 1}},
        "concurrency": {"4": {"values": [10.0, 11.0], "by_turn": [1, 1]}},
        "first_token": {"rate": 5.25, "values": [8.0, 9.0], "by_turn": [1, 1]},
    }
    ended = [progress.text(Event(0, Step.ENDED, number), result) for number in range(6)]
    assert ended == [
        "round 1 of 2, 4 requests at a time: warm after 2 runs",
        "round 1 of 2, 4 requests at a time: 10 tokens/s",
        "round 1 of 2, first token: warm after 1 run",
        "round 1 of 2, first token: 8.0 ms at 5.25 requests/s",
        "round 2 of 2, 4 requests at a time: 11 tokens/s",
        "round 2 of 2, first token: 9.0 ms at 5.25 requests/s",
    ]
    assert progress.text(Event(0, Step.BEGAN, 6), None) == "the turn in which it ends begins"


@given(measured=st.integers(0, 6))
def test_a_server_that_has_no_time_left_says_so_once(measured: int) -> None:
    progress = Progress(Question(concurrency=(4,), rounds=2), Part.SERVING)
    done = list(serving_turns((4,), at_rate=True, rounds=2))[:measured]
    result: dict[str, Any] = {"concurrency": {}, "first_token": None}
    for turn in done:
        if turn.counts:
            add_turn(result, Part.SERVING, turn.requests)
        else:
            result.setdefault("warmed", {})[str(turn.requests)] = {"runs": 2}
    said = [progress.text(Event(0, Step.ENDED, number), result) for number in range(6)]
    nothing = [each for each in said if each.endswith("in it, since --budget is spent")]
    assert len(nothing) == (measured < 6)
    assert [bool(each) for each in said] == [number <= measured for number in range(6)]
    began = [progress.text(Event(0, Step.BEGAN, number), None) for number in range(6)]
    assert not any(began) or measured == 6


def test_the_schedule_says_how_often_an_engine_starts() -> None:
    text = Question().schedule.text
    assert "at most 3 rounds of 6 engine starts" in text
    assert f"step times of {enumeration(ENGINES)}, then servers of" in text
    assert "--budget 720 s" in text
    assert "3 engine starts" in Question(only=Part.STEPS, rounds=1).schedule.text
