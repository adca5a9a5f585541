"""A scheduler that takes steps of decodes as one does what upstream's does, step by step.

Each release's own asynchronous scheduler, cache and requests run twice, on the same loads: with
drafts and without, both model runners, prefix caching, preemption, priorities, aborts, pauses,
resets, sessions, stop conditions, lengths, several clients and KV events. After each call the
answers, and all that the scheduler, its requests and its cache keep, are the same. Needs vLLM.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from bench import steady_scheduler as bench
from tests.support.covering import NAMES, each_release

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping.mutations import Bug
from tests.steady_scheduler import schedulers
from tests.steady_scheduler.mutations import STEPS
from tests.steady_scheduler.releases import each_bug_of, with_bug
from tests.steady_scheduler.schedulers import World, run

# isort: split
from vllm.v1.core import held_slots, steady_steps
from vllm.v1.overlay_effects import effects

pytestmark = pytest.mark.network

#: So many loads show each mistake at the latest.
LOADS = 16


def drawn(seed: int) -> World:
    """A world of a seed."""
    draw = random.Random(seed)
    return World(
        drafts=draw.choice((0, 3)),
        second=draw.random() < 0.5,
        caching=draw.random() < 0.7,
        blocks=draw.choice((30, 60, 200)),
        most=draw.choice((4, 8, 16)),
        budget=draw.choice((16, 64, 200)),
        policy=draw.choice(("fcfs", "fcfs", "priority")),
        clients=draw.choice((1, 1, 2)),
        log_stats=draw.random() < 0.7,
        events=draw.random() < 0.5,
        threshold=draw.choice((0, 0, 8)),
        metrics=draw.choice(("none", "none", "detailed")),
    )


@pytest.fixture(autouse=True)
def from_two_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are taken as one, too."""
    monkeypatch.setattr(steady_steps, "FEWEST", 2)


def counted() -> dict[str, int]:
    report = effects().get(steady_steps.FEATURE)
    return dict(report["counts"]) if report else {}


@pytest.mark.parametrize("release", each_release("steady-scheduler"))
def test_each_step_is_upstreams(release: str) -> None:
    """Two loads of each release, no two of them alike."""
    number = NAMES.index(release)
    for seed in (2 * number, 2 * number + 1):
        run(release, drawn(seed), seed)


@pytest.mark.parametrize("release", ["0.20.0", "0.26.0", "0.33.0"])
@pytest.mark.parametrize("drafts", [0, 3])
def test_a_batch_that_goes_on_is_taken_as_one(release: str, drafts: int) -> None:
    """Behind the first steps nothing is upstream's but what stops."""
    before = counted()
    with schedulers.own_modules(release), mock.patch.object(bench, "RELEASE", release):
        scheduler = bench.make_scheduler(8, drafts, second=False)
        held_slots.hold_slots(scheduler)
        under_way = [scheduler.schedule()]
        for number in range(40):
            under_way.append(scheduler.schedule())
            step = under_way.pop(0)
            scheduler.update_from_output(step, bench.output_of(step, number))
    rise = {name: number - before.get(name, 0) for name, number in counted().items()}
    assert rise["steps scheduled together"] >= 37
    assert rise["outputs noted together"] >= 37


def left(change: Any) -> list[str]:
    """What is counted against the steps of a scheduler of 0.33.0 that is changed first."""
    with schedulers.own_modules("0.33.0"), mock.patch.object(steady_steps, "count") as count:
        scheduler = schedulers.make_scheduler("0.33.0", World())
        change(scheduler)
        held_slots.hold_slots(scheduler)
        assert ("schedule" in vars(scheduler)) is not bool(count.call_args_list)
    return [call.args[1] for call in count.call_args_list]


@pytest.mark.parametrize("name", list(steady_steps._REASONS))
def test_what_a_scheduler_does_beside_decodes_leaves_it_to_upstream(name: str) -> None:
    def change(scheduler: Any) -> None:
        setattr(scheduler, name, mock.Mock())

    (text,) = left(change)
    assert text.endswith(steady_steps._REASONS[name])


def test_other_schedulers_are_left_to_upstream() -> None:
    assert left(lambda scheduler: None) == []

    def other(scheduler: Any) -> None:
        scheduler.__class__ = type("Other", (type(scheduler),), {"__module__": "theirs"})

    def pipeline(scheduler: Any) -> None:
        scheduler.parallel_config.pipeline_parallel_size = 2

    def sampled(scheduler: Any) -> None:
        scheduler.num_sampled_tokens_per_step = 0

    way = "schedulers whose steps are left to upstream: "
    assert left(other) == [f"{way}theirs has rules of its own"]
    assert left(pipeline) == [f"{way}pipeline parallelism"]
    assert left(sampled) == [f"{way}a step samples another number of tokens than one"]


def test_the_switch_leaves_all_to_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(held_slots.VARIABLE, "off")
    with schedulers.own_modules("0.33.0"):
        scheduler = schedulers.make_scheduler("0.33.0", World())
        held_slots.hold_slots(scheduler)
        assert "schedule" not in vars(scheduler)
    assert effects()[steady_steps.FEATURE]["state"] == "idle"


@pytest.mark.parametrize("together", [False, True])
def test_both_ways_can_be_timed(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "STEPS", 14)
    with schedulers.own_modules("0.32.0"):
        assert min(bench.medians(2, 3, together=together, second=True)) > 0


@contextmanager
def bug_in(bug: Bug) -> Iterator[None]:
    """The feature's module with a bug."""
    module = with_bug(steady_steps.__name__, bug)
    module.FEWEST = 2  # type: ignore[attr-defined]  # of the feature's module
    with mock.patch.object(held_slots, "take_steps", module.take_steps):  # type: ignore[attr-defined]
        yield


def run_loads() -> None:
    for seed in range(LOADS):
        run(("0.22.0", "0.33.0")[seed % 2], drawn(seed), seed)


@each_bug_of(STEPS)
def test_each_mistake_is_noticed(bug: Bug) -> None:
    """Within a few loads; Python's own errors notice some."""
    errors = (AssertionError, KeyError, TypeError, AttributeError, IndexError, ValueError)
    with bug_in(bug), pytest.raises(errors):
        run_loads()
