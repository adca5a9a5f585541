"""Metrics: which values there are for which processes, whatever records say."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay import _processes
from overlay._processes import Effect, EffectRecord, Meaning, ProcessRecord
from overlay._processes.live import Member, Number, family
from overlay.in_memory import metrics
from overlay.in_memory.metrics import METRICS, MetricSample, Statistics
from overlay.results import Way
from tests.support import process_records
from tests.support.process_records import LOOP, counting

MEMORY = Meaning("graph_memory_bytes", gauge=True)


def record(pid: int, **changes: Any) -> ProcessRecord:
    """A record with an effect, unless it is told otherwise."""
    active = EffectRecord("draft-graphs", Effect.ACTIVE, "14 graphs")
    return process_records.record(pid, **{"effects": (active,), **changes})


def value(found: list[MetricSample], metric: str, **labels: str) -> float:
    """The one value of a metric with these labels among others."""
    (sample,) = [
        each for each in found if each.metric == metric and labels.items() <= each.labels.items()
    ]
    return sample.value


# The values


def test_a_process_tells_its_numbers_by_what_they_mean() -> None:
    numbers = (
        Number("draft-graphs", "replays of loop", 7, LOOP),
        Number("draft-graphs", "bytes of captured graphs", 1 << 40, MEMORY),
        Number("steady-inputs", "steps prepared by one kernel", 3, None),
    )
    found = list(metrics.samples([Member(record(5), numbers, None)]))
    assert value(found, "replays", graph="loop", pid="5", rank="0", feature="draft-graphs") == 7
    assert value(found, "graph_memory_bytes", pid="5") == 1 << 40
    assert value(found, "events", event="steps prepared by one kernel") == 3
    assert value(found, "info", digest="a" * 12, features="draft-graphs", patched="true") == 1
    assert value(found, "feature_state", state="active") == 1
    assert value(found, "feature_state", state="idle") == 0
    assert value(found, "attention", reason="") == 0


WORDS = st.one_of(st.text(max_size=12), st.sampled_from(["replays", "pid", "graph", "a\ud800\n"]))
MEANINGS = st.builds(
    Meaning,
    WORDS,
    st.lists(st.tuples(WORDS, WORDS), max_size=3).map(tuple),
    st.booleans(),
)
NUMBERS = st.lists(
    st.builds(Number, WORDS, WORDS, st.integers(0, (1 << 64) - 1), st.none() | MEANINGS),
    max_size=6,
)


@given(st.dictionaries(st.integers(1, 1 << 22), NUMBERS, max_size=3), WORDS)
def test_whatever_strangers_record_each_value_is_one_series_and_none_is_lost(
    processes: dict[int, list[Number]], role: str
) -> None:
    members = [
        Member(record(pid, role=role, digest=role, effects=()), tuple(numbers), role or None)
        for pid, numbers in processes.items()
    ]
    found = list(metrics.samples(members))
    keys = [(each.metric, tuple(sorted(each.labels.items()))) for each in found]
    assert len(set(keys)) == len(keys)
    for each in found:
        assert all(text.encode() is not None for text in each.labels.values())
        assert not any(set(text) & {"\n", "\r", "\x00"} for text in each.labels.values())
        assert METRICS.get(each.metric) is None or METRICS[each.metric].gauge == each.gauge
        assert each.labels["pid"] in map(str, processes)
    told = sum(each.value for each in found if each.metric not in ("info", "attention"))
    assert told == sum(each.number for numbers in processes.values() for each in numbers)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), max_size=8))
def test_lines_of_statistics_add_up_to_what_was_counted(steps: list[tuple[int, int]]) -> None:
    statistics, now, told = Statistics(), {}, 0
    for pid, more in steps:
        now[pid] = now.get(pid, 0) + more
        members = [
            Member(record(each), (Number("f", "n", number, None),), None)
            for each, number in now.items()
        ]
        text = statistics.text(members)
        told += int(text.removeprefix("f: n ") or 0)
    assert told == sum(now.values())


def test_a_gauge_is_none_of_what_was_counted() -> None:
    numbers = (Number("f", "bytes", 9, MEMORY),)
    assert Statistics().text([Member(record(1), numbers, None)]) == ""


# The processes of a server


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_processes, "folders", lambda: (tmp_path,))
    return tmp_path


def totals(pid: int) -> tuple[float, list[int]]:
    """All replays that a scrape of process ``pid`` shows, and the processes that made them."""
    found = [each for each in metrics.samples(family(pid)) if each.metric == "replays"]
    return sum(each.value for each in found), sorted(int(each.labels["pid"]) for each in found)


def test_every_api_server_tells_the_same_and_a_restarted_engine_counts_on_its_own() -> None:
    server = record(os.getpid(), role="api server", rank=None, effects=())
    _processes.write(server)
    with counting("api server", None) as second:
        with counting("engine core", 0) as engine, counting("engine core", 1) as rank:
            expected = (21, sorted([second.pid, engine.pid, rank.pid]))
            assert totals(server.pid) == totals(second.pid) == expected
        with counting("engine core", 0) as again:  # the others have ended: their records went
            assert totals(server.pid) == (14, sorted([second.pid, again.pid]))


def test_a_server_tells_of_its_own_processes_only() -> None:
    """This process has no record, so its children are servers of their own."""
    with counting("worker", 0) as one, counting("worker", 0) as other:
        assert totals(one.pid) == (7, [one.pid])
        assert totals(other.pid) == (7, [other.pid])


def test_workers_of_a_ray_cluster_belong_to_a_server_without_workers(tmp_path: Path) -> None:
    """An engine offline calls itself a worker, too: nobody started it for this server."""
    raylet = tmp_path / "raylet"
    raylet.symlink_to(sys.executable)
    with (
        counting("api server", None) as server,
        counting("worker", 0, parent=raylet) as ray,
        counting("worker", 0) as offline,
    ):
        assert totals(server.pid) == (14, sorted([server.pid, ray.pid]))
        assert totals(offline.pid) == (7, [offline.pid])


def test_a_process_that_is_off_beside_patched_ones_is_told() -> None:
    with counting("worker", 0) as patched:
        _processes.write(record(os.getpid(), role="engine core", way=Way.OFF, summary="off"))
        problems = {each.record.pid: each.problem for each in family(patched.pid)}
    assert problems == {
        os.getpid(): "is off (OVERLAY=off), its peers patched",
        patched.pid: None,
    }


def test_a_record_of_an_older_overlay_has_names_alone() -> None:
    with counting("worker", 0) as made:
        _processes.write(made._replace(meanings=()))
        found = list(metrics.samples(family(made.pid)))
        assert value(found, "events", event="replays of loop") == 7


def test_a_record_keeps_what_its_numbers_mean() -> None:
    mine = record(os.getpid(), counters=(("f", "n"), ("f", "m")), meanings=(LOOP, None))
    _processes.write(mine)
    assert list(_processes.read_all()) == [mine]
