"""Requests that go on, done together, are left as upstream leaves each of them.

Upstream's `_update_states` is that of the releases, run on the batch and the requests of the
installed vLLM; every field of these is compared. Needs vLLM.
"""

from __future__ import annotations

import ast
import functools
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.package import KNOWN_RELEASES

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping import releases
from tests.batched_bookkeeping.mutations import REQUESTS, Bug
from tests.batched_bookkeeping.releases import (
    MOST,
    RUNNER,
    VOCABULARY,
    WIDTH,
    K,
    assert_noticed,
    each_bug_of,
    feature,
    make_batch,
    method,
    plain,
    shipped,
    sources,
    text,
    torch,
)

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

pytestmark = pytest.mark.network

BATCH = "vllm/v1/worker/gpu_input_batch.py"
TOGETHER = "steps whose requests went on together"
CORRECTED = "steps whose rejected drafts were taken off together"
BEYOND = "steps with drafts beyond a row's end left to upstream"
#: Releases in which one of the functions has another text.
CHANGED = ("0.20.0", "0.21.0", "0.22.0", "0.26.0", "0.27.0", "0.33.0")


@functools.cache
def trees(release: str, patched: bool) -> list[ast.FunctionDef]:
    """The runner's function, and the batch's that notes the drafts of one request."""
    return [
        method(sources(release)[RUNNER][patched], "GPUModelRunner", "_update_states"),
        method(text(release, BATCH), "InputBatch", "update_req_spec_token_ids"),
    ]


@functools.cache
def functions(release: str, patched: bool) -> dict[str, Any]:
    """The functions, in a module that has what they use of theirs."""
    names: dict[str, Any] = {
        "CachedRequestState": CachedRequestState,
        "get_pp_group": lambda: SimpleNamespace(is_last_rank=LAST_RANK[0]),
        "update_scheduler_for_invalid_drafts": trim,
        "update_ngram_gpu_tensors_incremental": lambda *given, **named: None,
    }
    return releases.compiled(release, trees(release, patched), names)


#: Whether the process has the last stage of a pipeline.
LAST_RANK = [True]


def trim(event: Any, valid: Any, scheduled: Any, index: dict[str, int]) -> None:
    """Take a draft from each request that has some, as ngram does with what it did not find."""
    for tokens in scheduled.scheduled_spec_decode_tokens.values():
        del tokens[-1:]


# -- states


class Request(NamedTuple):
    """A request that goes on, and what the scheduler says of it.

    :ivar known: output tokens that the scheduler knows of.
    :ivar drafted: how many drafts it had in the step before.
    :ivar inside: whether it is in the batch; else it is taken up again.
    :ivar resumed: whether one in the batch is taken up again; vLLM takes it out first.
    """

    prompt: int
    output: int
    known: int
    computed: int
    drafts: list[int]
    drafted: int
    inside: bool
    new_block: bool
    resumed: bool = False


class Step(NamedTuple):
    """A batch and a step.

    :ivar accepted: how many tokens of each row of the step before were valid.
    :ivar before: the row of each request in the step before; -1 where it was in none.
    """

    requests: list[Request]
    order: list[int]
    accepted: list[int]
    before: list[int]
    asynchronous: bool
    speculative: bool
    ngram: bool
    last_rank: bool


def drafts(most: int) -> st.SearchStrategy[list[int]]:
    """So many drafts at most; often as many."""
    sizes = st.one_of(st.integers(0, most), st.just(most))
    tokens = st.integers(-1, VOCABULARY - 1)
    return sizes.flatmap(lambda size: st.lists(tokens, min_size=size, max_size=size))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    requests = []
    for _ in range(draw(st.integers(0, MOST))):
        length = draw(st.one_of(st.integers(1, WIDTH - 1), st.integers(WIDTH - K, WIDTH - 1)))
        prompt = draw(st.integers(1, length))
        output = length - prompt
        known = draw(st.integers(max(output - 2, 0), min(output + K + 1, WIDTH - 1 - prompt)))
        # Seldom one too many.
        room = WIDTH - max(length, prompt + known) + draw(st.sampled_from((0, 0, 1)))
        requests.append(
            Request(
                prompt,
                output,
                known,
                draw(st.integers(0, length)),
                draw(drafts(min(K, room))),
                draw(st.integers(0, K)),
                draw(st.integers(0, 4)) > 0,
                draw(st.booleans()),
                draw(st.integers(0, 30)) == 0,
            )
        )
    return Step(
        requests,
        draw(st.permutations(range(len(requests)))),
        draw(st.lists(st.integers(1, K + 1), min_size=MOST, max_size=MOST)),
        [row if draw(st.integers(0, 3)) else -1 for row in draw(st.permutations(range(MOST)))],
        *(draw(st.integers(0, 3)) > 0 for _ in range(2)),
        draw(st.integers(0, 5)) == 0,
        draw(st.integers(0, 3)) > 0,
    )


def make_runner(step: Step) -> Any:
    """A double of the runner, with a batch and requests of the installed vLLM."""
    batch, requests = make_batch(), {}
    for number, request in enumerate(step.requests):
        state = CachedRequestState(
            req_id=f"r{number}",
            prompt_token_ids=[7] * request.prompt,
            mm_features=[],
            sampling_params=SamplingParams(temperature=0.0),
            generator=None,
            block_ids=([number],),
            num_computed_tokens=request.computed + 1,
            output_token_ids=[9] * request.output,
        )
        state.prev_num_draft_len = request.drafted
        requests[state.req_id] = state
        if request.inside:
            batch.add_request(state)
            batch.spec_token_ids[batch.req_id_to_index[state.req_id]].extend([3] * request.drafted)
    batch.prev_req_id_to_index = {
        f"r{number}": row for number, row in enumerate(step.before) if row >= 0
    }
    ignored = mock.MagicMock()
    return SimpleNamespace(
        input_batch=batch,
        requests=requests,
        use_async_scheduling=step.asynchronous,
        use_async_spec_decode=step.asynchronous and step.speculative,
        speculative_config=SimpleNamespace(use_ngram_gpu=lambda: step.ngram)
        if step.speculative
        else None,
        prev_num_draft_tokens=SimpleNamespace(np=np.zeros(MOST + 1, dtype=np.int32)),
        num_tokens_no_spec_gpu=torch.zeros(MOST + 1, dtype=torch.int32),
        _get_valid_sampled_token_count=lambda: step.accepted,
        _may_reorder_batch=lambda scheduled: None,
        num_prompt_logprobs={},
        encoder_cache={},
        routed_experts_initialized=False,
        **dict.fromkeys(IGNORED, ignored),
    )


#: What the function calls or passes on that has nothing to do with drafts.
IGNORED = (
    "late_interaction_runner",
    "_on_request_state_removed",
    "_process_encoder_cache_scheduler_output",
    "_zero_block_ids",
    "_num_valid_draft_tokens_event",
    "_num_valid_draft_tokens_cpu",
    "token_ids_gpu_tensor",
    "device",
    "_ngram_pinned_idx_buf",
    "_ngram_pinned_val_buf",
)


def make_scheduled(step: Step) -> Any:
    """What the scheduler says of the step."""
    ids = [f"r{number}" for number in step.order]
    each = [step.requests[number] for number in step.order]
    cached = SimpleNamespace(
        req_ids=ids,
        num_computed_tokens=[request.computed for request in each],
        new_block_ids=[([2],) if r.new_block or r.resumed or not r.inside else None for r in each],
        num_output_tokens=[request.known for request in each],
        resumed_req_ids={
            name for name, r in zip(ids, each, strict=True) if r.resumed or not r.inside
        },
        new_token_ids=[],
        all_token_ids={name: [9] * (r.prompt + r.known) for name, r in zip(ids, each, strict=True)},
    )
    return SimpleNamespace(
        finished_req_ids=set(),
        free_encoder_mm_hashes=[],
        new_block_ids_to_zero=[],
        kv_cache_block_copies=[],
        num_scheduled_tokens=dict.fromkeys(ids, 1),
        scheduled_cached_reqs=cached,
        scheduled_new_reqs=[],
        scheduled_spec_decode_tokens={
            name: list(r.drafts) for name, r in zip(ids, each, strict=True) if r.drafts
        },
    )


def outcome(release: str, patched: bool, step: Step) -> Any:
    """What the function returns or raises, and the runner behind it and behind the correction."""
    runner, scheduled = make_runner(step), make_scheduled(step)
    names = functions(release, patched)
    upstream = names["update_req_spec_token_ids"]
    LAST_RANK[0] = step.last_rank
    try:
        with mock.patch.object(InputBatch, "update_req_spec_token_ids", upstream):
            correct = names["_update_states"](runner, scheduled)
    except ValueError as error:  # more drafts than a row has places: vLLM ends
        return type(error).__name__, str(error)
    if correct is not None:
        correct()
    fields = vars(runner)
    for name in (*IGNORED, "speculative_config", "_get_valid_sampled_token_count"):
        del fields[name]
    return plain([correct is None, fields, scheduled])


def counts() -> dict[str, int]:
    return releases.counts(TOGETHER, BEYOND, CORRECTED)


def check(release: str, step: Step) -> None:
    """Both give the same, and the feature does what it is there for."""
    before = counts()
    patched = outcome(release, True, step)
    changed = {name for name, number in counts().items() if number != before[name]}
    assert patched == outcome(release, False, step)
    within = [r for r in step.requests if r.inside and not r.resumed]
    ngram = step.speculative and step.ngram
    together = step.last_rank and not ngram and bool(within)
    if any(map(fills, within)):
        assert changed <= {TOGETHER, BEYOND, CORRECTED}
    else:
        assert changed - {CORRECTED} == ({TOGETHER} if together else set())
    # What upstream's loop gathers on an earlier stage of a pipeline is corrected together, too.
    if not step.asynchronous or ngram or not any(request.drafted for request in within):
        assert CORRECTED not in changed


def fills(request: Request) -> bool:
    """Whether its drafts may go beyond the end of its row, wherever upstream puts them."""
    ends = request.prompt + max(request.output, request.known)
    return ends + K + len(request.drafts) > WIDTH


# -- laws


@pytest.mark.parametrize("release", CHANGED)
@settings(max_examples=60, deadline=None)
@given(step=steps())
def test_what_it_leaves_is_what_upstream_leaves(release: str, step: Step) -> None:
    with feature():
        check(release, step)


def test_every_release_has_the_functions_of_one_that_was_tried() -> None:
    for patched in (False, True):
        tried = [[ast.dump(tree) for tree in trees(release, patched)] for release in CHANGED]
        missing = [
            str(release)
            for release in KNOWN_RELEASES
            if not any(same_drafts(str(release), patched, each) for each in tried)
        ]
        assert missing == []


def same_drafts(release: str, patched: bool, tried: list[str]) -> bool:
    """Whether the functions of a release are these."""
    return [ast.dump(tree) for tree in trees(release, patched)] == tried


def plain_step(count: int, drafts: list[int], length: int = 5) -> Step:
    """A step of so many requests in the batch, without anything special."""
    request = Request(length, 0, 0, length, drafts, 0, True, False)
    rows = list(range(MOST))
    return Step([request] * count, rows[:count], [1] * MOST, rows, True, True, False, True)


def test_few_requests_are_left_to_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of requests below and at the bound, with the bound as it is shipped."""
    for value, wanted in (("on", True), ("", True), ("off", False)):
        monkeypatch.setenv(shipped.VARIABLE, value)
        for bound, enough in ((4, True), (5, True), (6, False)):
            step, corrections = plain_step(5, [1]), [("r0", 3, SimpleNamespace())] * 5
            runner, scheduled = make_runner(step), make_scheduled(step)
            with mock.patch.object(shipped, "FEWEST_GOING_ON", bound):
                done = shipped.continue_requests(runner, scheduled, [], True)
                assert bool(done) is (enough and wanted)
                together = shipped.correction(runner, corrections) is not None
                assert together is (enough and wanted)


def test_drafts_beyond_the_end_of_a_row_are_upstreams_error() -> None:
    step = plain_step(2, [1, 2, 3], WIDTH - 2)
    before = counts()
    with feature():
        for patched in (True, False):
            assert outcome("0.33.0", patched, step)[0] == "ValueError"
    assert counts() == before | {BEYOND: before[BEYOND] + 1}


def test_rejected_drafts_are_taken_off_together() -> None:
    step = plain_step(3, [])
    drafted = [request._replace(drafted=K) for request in step.requests]
    before = counts()
    with feature():
        check("0.33.0", step._replace(requests=drafted, accepted=[1, 2, 3, 4, 1, 1]))
    expected = {name: before[name] + 1 for name in (TOGETHER, CORRECTED)}
    assert counts() == before | expected


def test_a_step_without_requests_is_not_counted() -> None:
    before = counts()
    with feature():
        check("0.33.0", plain_step(0, []))
    assert counts() == before


@each_bug_of(REQUESTS)
def test_each_mistake_is_noticed(bug: Bug) -> None:
    @given(step=steps(), release=st.sampled_from(("0.20.0", "0.33.0")))
    def law(step: Step, release: str) -> None:
        check(release, step)

    assert_noticed(bug, law, 150, IndexError, KeyError, TypeError, ValueError)
