"""A KV cache that answers at once for requests that hold their slots keeps what upstream's keeps.

Each release's own managers of the KV cache run on the installed vLLM, twice: one as the patched
scheduler has it, the other as upstream does. All that they keep is compared after each call.
Needs vLLM.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import held_slots as bench
from tests.support.covering import each_release

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping.mutations import Bug
from tests.steady_scheduler import releases
from tests.steady_scheduler.kv_caches import (
    LOOKAHEAD,
    Side,
    World,
    feature,
    make_manager,
    modules,
    own_modules,
    scheduler_of,
)
from tests.steady_scheduler.mutations import HELD_SLOTS
from tests.steady_scheduler.releases import assert_noticed, each_bug_of

# isort: split
from vllm.v1.core import held_slots

pytestmark = pytest.mark.network

HOOKED = "vllm.v1.core.sched.async_scheduler"
ASKS = "schedulers that ask which requests hold their slots"

Call = tuple[str, tuple[int, ...]]

FULL = ("full",)
NUMBERS = st.integers(0, 2)
#: A request, its tokens, how many of them are accepted, how many outputs are added, and whether
#: they are noted.
STEPS = st.one_of(
    st.tuples(NUMBERS, st.integers(1, 4), st.integers(0, 4), st.integers(0, 4), st.booleans()),
    st.tuples(NUMBERS, st.just(1), st.just(1), st.just(1), st.booleans()),
)
#: What a scheduler does, and how often in a row.
CALLS: st.SearchStrategy[tuple[Call, int]] = st.one_of(
    st.tuples(
        st.tuples(st.just("admit"), st.tuples(NUMBERS, st.integers(1, 20), st.integers(1, 20))),
        st.just(1),
    ),
    st.tuples(st.tuples(st.just("go_on"), STEPS), st.integers(1, 8)),
    st.tuples(st.tuples(st.just("end"), st.tuples(NUMBERS)), st.just(1)),
)
WORLDS = st.builds(
    World,
    # Mostly that in which most is answered at once.
    st.sampled_from((FULL, FULL, FULL, FULL, ("window",), ("full", "window"), ("wide", "wider"))),
    st.sampled_from((True, True, False)),
    st.sampled_from((8, 14, 40)),
    st.booleans(),
)
SOME_CALLS = st.lists(CALLS, min_size=3, max_size=20).map(
    lambda calls: [
        *[("admit", (number, length, 4)) for number, length in ((0, 5), (1, 15))],
        *[call for call, times in calls for _ in range(times)],
    ]
)


def check(release: str, world: World, calls: list[Call], asked: list[str] | None = None) -> int:
    """Both sides answer and keep the same; how often one was asked of a running request.

    :param asked: gets a word for each call that comes to upstream's functions.
    """
    number = 0
    with own_modules(modules(release)):
        with noted_calls(release, [] if asked is None else asked):
            asking = Side(release, world, asks=True)
        upstream = Side(release, world, asks=False)
        for name, arguments in calls:
            answers = [getattr(side, name)(*arguments) for side in (asking, upstream)]
            assert answers[0] == answers[1]
            assert asking.kept() == upstream.kept()
            number += name == "go_on" and answers[0] is not None
    return number


@contextmanager
def noted_calls(release: str, asked: list[str]) -> Iterator[None]:
    """Note what comes to the methods of a manager that is made and patched meanwhile."""
    module = modules(release)["vllm.v1.core.kv_cache_manager"]
    class_ = module.KVCacheManager
    allocate, note = class_.allocate_slots, class_.cache_blocks

    def allocate_slots(self: Any, request: Any, *given: Any, **named: Any) -> Any:
        if request.status.name == "RUNNING":
            asked.append("allocate")
        return allocate(self, request, *given, **named)

    def cache_blocks(self: Any, request: Any, tokens: int) -> None:
        asked.append("note")
        note(self, request, tokens)

    for function in (allocate_slots, cache_blocks):
        function.__module__ = module.__name__
    with mock.patch.multiple(class_, allocate_slots=allocate_slots, cache_blocks=cache_blocks):
        yield


@pytest.mark.parametrize("release", each_release("steady-scheduler"))
@settings(max_examples=20, deadline=None)
@given(world=WORLDS, calls=SOME_CALLS)
def test_what_is_allocated_is_what_upstream_allocates(
    release: str, world: World, calls: list[Call]
) -> None:
    check(release, world, calls)


@pytest.mark.parametrize("release", each_release("steady-scheduler"))
def test_a_request_that_holds_its_slots_does_not_come_to_upstream(release: str) -> None:
    """Sixteen tokens behind a prompt of five, in blocks of eight, with three tokens' lookahead."""
    for noted, allocated, full in ((True, 2, 2), (False, 4, 0)):
        asked: list[str] = []
        one: list[Call] = [("go_on", (0, 1, 1, 1, noted))]
        world = World(FULL, caching=True, blocks=40)
        number = check(release, world, [("admit", (0, 5, 5)), *one * 16], asked)
        # Two new blocks, and two that are full.
        assert (number, asked.count("allocate"), asked.count("note")) == (16, allocated, full)


@pytest.mark.parametrize("release", each_release("steady-scheduler"))
def test_without_a_prefix_cache_only_a_new_block_comes_to_upstream(release: str) -> None:
    asked: list[str] = []
    one: list[Call] = [("go_on", (0, 1, 1, 1, True))]
    world = World(FULL, caching=False, blocks=40)
    number = check(release, world, [("admit", (0, 5, 5)), *one * 16], asked)
    assert (number, asked) == (16, ["allocate"] * 2)


@pytest.mark.parametrize("release", each_release("steady-scheduler"))
def test_a_running_request_is_asked_for_in_the_words_that_are_answered_at_once(
    release: str,
) -> None:
    source = releases.text(release, "vllm/v1/core/sched/scheduler.py")
    running, *others = sorted(
        (
            node
            for node in ast.walk(releases.method(source, "Scheduler", "schedule"))
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) == "self.kv_cache_manager.allocate_slots"
        ),
        key=lambda call: call.lineno,
    )
    assert [ast.unparse(part) for part in (*running.args, *running.keywords)] == [
        "request",
        "num_new_tokens",
        "num_lookahead_tokens=self.num_lookahead_tokens",
    ]
    assert len(others) == 1
    assert len(others[0].args) + len(others[0].keywords) > 3


@pytest.mark.parametrize("release", each_release("steady-scheduler"))
def test_the_asynchronous_scheduler_has_its_cache_answer_at_once(release: str) -> None:
    patched = releases.sources(release)["vllm/v1/core/sched/async_scheduler.py"][True]
    body = releases.method(patched, "AsyncScheduler", "__init__").body
    assert [ast.unparse(each) for each in body[:3]] == [
        "super().__init__(*args, **kwargs)",
        "from vllm.v1.core.held_slots import hold_slots",
        "hold_slots(self)",
    ]


@pytest.mark.parametrize("release", each_release("steady-scheduler"))
def test_the_asynchronous_scheduler_is_imported_when_plugins_were_loaded(release: str) -> None:
    """Else it could not be patched in memory: only `get_scheduler_cls` imports it, when called."""
    source = releases.text(release, "vllm/config/scheduler.py")
    (import_,) = (
        node
        for node in ast.walk(releases.method(source, "SchedulerConfig", "get_scheduler_cls"))
        if isinstance(node, ast.ImportFrom) and node.module == HOOKED
    )
    assert [alias.name for alias in import_.names] == ["AsyncScheduler"]
    for path in ("vllm/v1/engine/core.py", "vllm/v1/core/sched/scheduler.py"):
        top = ast.parse(releases.text(release, path)).body
        assert not [
            each
            for each in top
            if isinstance(each, ast.ImportFrom | ast.Import)
            and "async_scheduler" in ast.unparse(each)
        ]


def test_nothing_is_answered_where_nothing_is_asked_for() -> None:
    world = World(FULL, caching=True, blocks=8)
    with own_modules(modules("0.33.0")):
        side = Side("0.33.0", world, asks=True)
        side.admit(0, 5, 5)
        with pytest.raises(ValueError, match="num_new_tokens"):
            side.manager.allocate_slots(side.requests[0], 0, num_lookahead_tokens=LOOKAHEAD)


def reasons(world: World, *, class_: type | None = None) -> list[str]:
    """What is counted where a scheduler of 0.33.0 is made."""
    with own_modules(modules("0.33.0")), mock.patch.object(held_slots, "count") as count:
        manager = make_manager("0.33.0", world)
        manager.__class__ = class_ or type(manager)
        held_slots.hold_slots(scheduler_of(manager))
        replaced = {"allocate_slots", "cache_blocks"} & set(vars(manager))
    told = [call.args[1] for call in count.call_args_list]
    assert told
    assert bool(replaced) is (told == [ASKS])
    return told


def test_who_allocates_upstreams_way_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    way = "schedulers that allocate upstream's way: "
    usual = World(FULL, caching=True, blocks=8)
    assert reasons(usual) == [ASKS]
    stock = modules("0.33.0")["vllm.v1.core.kv_cache_manager"].KVCacheManager
    other = type("Other", (stock,), {"allocate_slots": lambda *_: None, "__module__": "theirs"})
    other.allocate_slots.__module__ = "theirs"  # type: ignore[attr-defined]  # just made
    assert reasons(usual, class_=other) == [f"{way}theirs has rules of its own"]
    with mock.patch.object(stock, "allocate_slots", other.allocate_slots):  # type: ignore[attr-defined]  # likewise
        assert reasons(usual) == [f"{way}theirs has rules of its own"]
    rules = "SlidingWindowManager has rules of its own"
    assert reasons(World(("full", "window"), caching=True, blocks=8)) == [way + rules]
    parts = World(("wide", "wider"), caching=True, blocks=8)
    assert reasons(parts) == [f"{way}blocks are hashed in parts"]
    monkeypatch.setenv(held_slots.VARIABLE, "off")
    assert reasons(usual) == [f"{way}{held_slots.VARIABLE}=off"]
    monkeypatch.setenv(held_slots.VARIABLE, "perhaps")
    with pytest.raises(ValueError, match="perhaps"):
        reasons(usual)


@pytest.mark.parametrize("asks", [False, True])
def test_both_ways_can_be_timed(asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "STEPS", 3)
    assert bench.microseconds(2, caching=True, asks=asks) > 0


@each_bug_of(HELD_SLOTS)
def test_each_mistake_is_noticed(bug: Bug) -> None:
    @given(world=WORLDS, calls=SOME_CALLS, release=st.sampled_from(("0.20.0", "0.33.0")))
    def law(world: World, calls: list[Call], release: str) -> None:
        check(release, world, calls)

    assert_noticed(bug, law, 150, within=feature)
