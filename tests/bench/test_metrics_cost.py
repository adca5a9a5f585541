"""How the cost of counting is told from the host's drift."""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import metrics_cost
from bench.metrics_cost import Counting, compared, differences, measure

FACTORS = st.floats(0.98, 1.02)
STEPS = st.floats(1, 50)


@given(off=st.lists(STEPS, min_size=2, max_size=30), factor=FACTORS)
def test_drift_between_pairs_does_not_count(off: list[float], factor: float) -> None:
    found = compared([(each * factor, each) for each in off])
    assert found["percent"] == pytest.approx(100 * (factor - 1), abs=1e-3)
    assert found["median"] == pytest.approx(100 * (factor - 1), abs=1e-3)
    assert found["error"] == pytest.approx(0, abs=1e-3)


@given(off=st.lists(STEPS, min_size=4, max_size=30), factor=FACTORS)
def test_a_switch_that_costs_more_one_way_shows_in_one_order(
    off: list[float], factor: float
) -> None:
    pairs = [(each, each * factor if number % 2 else each) for number, each in enumerate(off)]
    found = differences(pairs)
    assert found["off_first"]["median"] == pytest.approx(0, abs=1e-3)
    assert found["on_first"]["median"] == pytest.approx(100 * (1 / factor - 1), abs=1e-3)


@given(noise=st.lists(st.floats(-5, 5), min_size=2, max_size=400))
def test_the_interval_of_the_median_holds_as_many_differences_as_a_coin_does(
    noise: list[float],
) -> None:
    found = compared([(10 + each / 10, 10) for each in noise])
    below = sum(each < found["low"] - 1e-3 for each in noise)
    above = sum(each > found["high"] + 1e-3 for each in noise)
    assert found["low"] <= found["median"] <= found["high"]
    for outside in (below, above):
        assert outside <= max(len(noise) / 2 - 0.98 * math.sqrt(len(noise)), 0)


@given(noise=st.lists(st.floats(-5, 5), min_size=2, max_size=30))
def test_the_error_is_that_of_a_mean(noise: list[float]) -> None:
    found = compared([(10 + each / 10, 10) for each in noise])
    mean = sum(noise) / len(noise)
    variance = sum((each - mean) ** 2 for each in noise) / (len(noise) - 1)
    assert found["error"] == pytest.approx(math.sqrt(variance / len(noise)), abs=1e-3)


class Engine:
    """An engine whose steps are longer while it counts, on a clock of its own."""

    def __init__(self) -> None:
        self.now, self.counting, self.steps, self.counted = 0.0, True, 0, 0

    def step(self) -> None:
        self.now += 0.0101 if self.counting else 0.01
        self.counted += 10 * self.counting
        self.steps += 1

    def collective_rpc(self, name: str, args: tuple[Any, ...] = ()) -> list[Any]:
        if name == "load_counting":
            (self.counting,) = args
        if name == "load_counted":
            return [self.counted]
        steps, self.steps = self.steps, 0
        return [[None] * steps]


def test_both_ways_are_measured_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = Engine()
    clock = SimpleNamespace(perf_counter=lambda: engine.now)
    monkeypatch.setattr(metrics_cost, "time", clock)
    found = measure(engine, engine, pairs=6, steps=50)
    assert found["difference"]["percent"] == pytest.approx(1, abs=0.01)
    assert found["step_ms"] == {"on": 10.1, "off": 10.0}
    assert found["counts_per_step"] == {"on": 10, "off": 0}
    assert len(found["windows"]) == 6


def test_no_module_counts_while_counting_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    effects: Any = ModuleType("effects")
    effects.count = lambda feature, name: counted.append(name)
    effects.put = lambda *_: counted.append("put")
    holder: Any = ModuleType("holder")
    holder.count, holder.put, holder.other = effects.count, len, effects.count
    for module in (effects, holder):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    counting = Counting(effects)
    for _ in range(2):
        counting.switch(False)
        counting.switch(False)
        effects.count("a", "b")
        effects.put("a", "b", 1, None)
        holder.count("a", "b")
        assert not counted
        assert holder.put is len  # another one of that name
        counting.switch(True)
    holder.count("a", "b")
    assert counted == ["b"]
