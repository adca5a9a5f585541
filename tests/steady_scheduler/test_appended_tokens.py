"""The patched update of a request appends the tokens, and stops, as upstream's does.

Each release's own scheduler and asynchronous scheduler, as far as they update a request, run on its
own request, pristine and patched. Needs vLLM.
"""

from __future__ import annotations

import ast
import functools
import inspect
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.covering import each_release

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping.mutations import Bug
from tests.steady_scheduler import releases
from tests.steady_scheduler.kv_caches import feature, modules, own_modules, scheduler_of
from tests.steady_scheduler.mutations import APPENDED_TOKENS
from tests.steady_scheduler.releases import assert_noticed, each_bug_of

# isort: split
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import held_slots

pytestmark = pytest.mark.network

PATHS = {
    "Scheduler": "vllm/v1/core/sched/scheduler.py",
    "AsyncScheduler": "vllm/v1/core/sched/async_scheduler.py",
}
UPDATE = "_update_request_with_output"
SIZE, LONGEST, EOS, STOP = 4, 14, 1, 2


def update_of(source: bytes, owner: str) -> list[ast.stmt]:
    """The method by which a class updates a request; nothing where it has none of its own."""
    if f"def {UPDATE}(" not in source.decode():
        return []
    return [releases.method(source, owner, UPDATE)]


@functools.cache
def schedulers(release: str, patched: bool) -> Any:
    """The asynchronous scheduler of a release with what updates a request, and nothing else."""
    found = modules(release)
    names: dict[str, Any] = {
        "check_stop": found["vllm.v1.core.sched.utils"].check_stop,
        "RequestStatus": found["vllm.v1.request"].RequestStatus,
    }
    classes: list[ast.stmt] = []
    for owner, path in PATHS.items():
        source = releases.text(release, path)
        if owner == "AsyncScheduler":
            source = releases.sources(release)[path][patched]
        bases: list[ast.expr] = [ast.Name("Scheduler", ast.Load())] if classes else []
        body = update_of(source, owner) or [ast.Pass()]
        classes.append(ast.ClassDef(owner, bases, [], body, []))
    return releases.compiled(release, classes, names)["AsyncScheduler"]


class Case(NamedTuple):
    """A request, and what a step gave it."""

    prompt: int
    output: list[int]
    tokens: list[int]
    most: int
    least: int = 0
    eos: int | None = None
    stops: tuple[int, ...] = ()
    repeated: bool = False
    placeholders: int = 4
    status: str = "RUNNING"
    discarded: int = 0
    pooling: bool = False
    stale: bool = False


def make_request(release: str, case: Case) -> Any:
    """A release's request."""
    found = modules(release)
    params = SamplingParams(
        max_tokens=case.most,
        min_tokens=min(case.least, case.most),
        stop_token_ids=list(case.stops),
        repetition_detection=RepetitionDetectionParams(2, 1, 2) if case.repeated else None,
    )
    params._eos_token_id = case.eos
    request = found["vllm.v1.request"].Request(
        request_id="r",
        prompt_token_ids=[9] * case.prompt,
        sampling_params=params,
        pooling_params=None,
        block_hasher=found["vllm.v1.core.kv_cache_utils"].get_request_block_hasher(SIZE, sha256),
    )
    request.append_output_token_ids(list(case.output))
    request.num_computed_tokens = request.num_tokens + len(case.tokens) - 1
    request.num_output_placeholders = case.placeholders
    request.status = found["vllm.v1.request"].RequestStatus[case.status]
    for name in ("async_tokens_to_discard", "discard_latest_async_tokens"):
        if hasattr(request, name):
            setattr(request, name, type(getattr(request, name))(case.discarded))
    if case.pooling:
        request.sampling_params = None
    return request


def updated(release: str, case: Case, *, patched: bool) -> Any:
    """What an update returns or raises, what it has of the cache, and what the request is then."""
    noted: list[int] = []
    scheduler = schedulers(release, patched)()
    scheduler.max_model_len = LONGEST
    cache = SimpleNamespace(cache_blocks=lambda request, tokens: noted.append(tokens))
    scheduler.kv_cache_manager = cache
    request, tokens = make_request(release, case), list(case.tokens)
    if patched:
        scheduler.append_together = held_slots._appending(LONGEST)
    update = scheduler._update_request_with_output
    # From 0.27.0 on: what was under way when the request was preempted.
    late = {"is_stale": case.stale} if "is_stale" in inspect.signature(update).parameters else {}
    try:
        result = update(request, tokens, **late)
        answer: Any = result, result[0] is tokens
    except (AssertionError, AttributeError) as error:
        answer = type(error)
    fields = {name: value for name, value in vars(request).items() if name != "_block_hasher"}
    fields = {
        name: list(value) if type(value).__name__ == "ConstantList" else value
        for name, value in fields.items()
        if name not in ("sampling_params", "arrival_time", "events")
    }
    return answer, noted, tokens, fields


def check(release: str, case: Case) -> None:
    """Both do the same."""
    with own_modules(modules(release)):
        assert updated(release, case, patched=True) == updated(release, case, patched=False)


#: The last token is the last that a request, or the model, may have.
LAST_OF_MOST = Case(3, [0], [0, 3, 4], most=4)
LAST_OF_LONGEST = Case(10, [0], [0, 3, 4], most=12)
TOKENS = st.integers(0, 4)
CASES = st.builds(
    Case,
    prompt=st.integers(1, 12),
    output=st.lists(TOKENS, max_size=5),
    tokens=st.lists(TOKENS, max_size=4),
    most=st.integers(1, 12),
    least=st.integers(0, 12),
    eos=st.sampled_from((None, EOS)),
    stops=st.sampled_from(((), (), (STOP,), (STOP, 3))),
    repeated=st.integers(0, 3).map(lambda number: number == 3),
    placeholders=st.integers(0, 8),
    status=st.sampled_from(("RUNNING", "RUNNING", "PREEMPTED")),
    discarded=st.integers(0, 4).map(lambda number: max(number - 3, 0)),
    pooling=st.integers(0, 15).map(lambda number: number == 15),
    stale=st.booleans(),
)


@pytest.mark.parametrize("release", each_release("steady-scheduler"))
@settings(max_examples=150, deadline=None)
@given(case=CASES)
@example(case=LAST_OF_MOST)
@example(case=LAST_OF_LONGEST)
# One token less, which may be appended together.
@example(case=LAST_OF_MOST._replace(most=5))
@example(case=LAST_OF_LONGEST._replace(prompt=9))
def test_a_request_is_updated_as_upstream_updates_it(release: str, case: Case) -> None:
    check(release, case)


@pytest.mark.parametrize("release", each_release("steady-scheduler"))
def test_tokens_that_cannot_stop_it_are_appended_at_once(release: str) -> None:
    """Nothing is left to the loop that asks after each token."""
    with own_modules(modules(release)):
        case = Case(3, [0], [0, 3, 4], most=12, eos=EOS)
        request = make_request(release, case)
        before = request.num_tokens
        assert held_slots._appending(LONGEST)(request, case.tokens)
        assert request.num_tokens == before + 3
        for other in (
            case._replace(tokens=[0]),
            case._replace(tokens=[0, EOS]),
            case._replace(stops=(STOP,)),
            case._replace(repeated=True),
            case._replace(most=4),
            case._replace(prompt=10),
            case._replace(pooling=True),
        ):
            request = make_request(release, other)
            before = request.num_tokens
            assert not held_slots._appending(LONGEST)(request, other.tokens)
            assert request.num_tokens == before


def test_a_scheduler_that_allocates_upstreams_way_appends_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release, case = "0.33.0", Case(3, [0], [0, 3, 4], most=12)
    monkeypatch.setenv(held_slots.VARIABLE, "off")
    with own_modules(modules(release)):
        scheduler = scheduler_of(SimpleNamespace())
        held_slots.hold_slots(scheduler)
        assert not scheduler.append_together(make_request(release, case), case.tokens)


@each_bug_of(APPENDED_TOKENS)
def test_each_mistake_is_noticed(bug: Bug) -> None:
    @given(case=CASES, release=st.sampled_from(("0.20.0", "0.32.0", "0.33.0")))
    @example(case=LAST_OF_MOST, release="0.32.0")
    @example(case=LAST_OF_LONGEST, release="0.32.0")
    def law(case: Case, release: str) -> None:
        check(release, case)

    assert_noticed(bug, law, 600, AttributeError, within=feature)
