"""Batched bookkeeping leaves behind what upstream's own functions leave. Needs vLLM.

Upstream's functions are those of the releases, run on the batch, the requests and the log
probabilities of the installed vLLM; every field of these is compared, shared lists included.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overlay.package import KNOWN_RELEASES
from tests.support.covering import each_release

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping import releases
from tests.batched_bookkeeping.mutations import BOOKKEEPING, Bug
from tests.batched_bookkeeping.releases import (
    MOST,
    NAME,
    RUNNER,
    SAMPLER,
    VOCABULARY,
    WIDTH,
    K,
    assert_noticed,
    each_bug_of,
    effect,
    feature,
    make_batch,
    method,
    plain,
    shipped,
    sources,
    torch,
)

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu_input_batch import CachedRequestState

pytestmark = pytest.mark.network

#: Name -> file and class.
FUNCTIONS = {
    "_bookkeeping_sync": (RUNNER, "GPUModelRunner"),
    "parse_output": (SAMPLER, "RejectionSampler"),
}
#: Releases in which one of the functions has another text.
CHANGED = ("0.20.0", "0.22.0", "0.28.0", "0.31.0")
TOGETHER = "steps whose placeholders were written together"
FULL = "steps with a full row left to upstream"
LISTED, GAP = "outputs listed together", "outputs with a gap left to upstream"


# -- the functions of a release


@functools.cache
def tree(release: str, name: str, patched: bool) -> ast.FunctionDef:
    path, owner = FUNCTIONS[name]
    return method(sources(release)[path][patched], owner, name)


@functools.cache
def functions(release: str, patched: bool) -> SimpleNamespace:
    """The functions, in a module that has what they use of theirs."""
    names: dict[str, Any] = {
        "np": np,
        "envs": SimpleNamespace(VLLM_COMPUTE_NANS_IN_LOGITS=False),
        "gpu_sync_allowed": nullcontext,
        "PLACEHOLDER_TOKEN_ID": -1,
    }
    releases.compiled(release, [tree(release, name, patched) for name in FUNCTIONS], names)
    names["RejectionSampler"] = SimpleNamespace(parse_output=names["parse_output"])
    return SimpleNamespace(**{name: names[name] for name in FUNCTIONS})


# -- states


class Row(NamedTuple):
    """A request in the batch, and what a step sampled for it."""

    prompt: int
    output: int
    drafts: list[int]
    discarded: bool
    seeded: bool
    sampled: list[int]


class Step(NamedTuple):
    """A batch and a step.

    :ivar longest: what the runner takes for the longest request.
    """

    rows: list[Row]
    longest: int
    asynchronous: bool
    speculative: bool
    logprobs: bool


TOKENS = st.integers(0, VOCABULARY - 1)


@st.composite
def accepted(draw: st.DrawFn, regular: bool) -> list[int]:
    """A row as the rejection sampler gives it; else with tokens beyond the vocabulary and gaps."""
    if regular:
        tokens = draw(st.lists(TOKENS, min_size=1, max_size=K + 1))
        return tokens + [-1] * (K + 1 - len(tokens))
    anything = TOKENS | st.sampled_from((-1, VOCABULARY, VOCABULARY + 1))
    return draw(st.lists(anything, min_size=K + 1, max_size=K + 1))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    free = draw(st.sampled_from((0, 1, K + 2)))  # places left in the longest row
    regular = draw(st.booleans())
    rows = []
    for _ in range(draw(st.integers(1, MOST))):
        length = WIDTH - draw(st.sampled_from((free, free + 1, free + 2, 9, WIDTH - 1)))
        prompt = draw(st.integers(1, length))
        drafts = draw(st.lists(TOKENS, max_size=min(K, WIDTH - length)))
        flags = draw(st.integers(0, 7))
        rows.append(
            Row(prompt, length - prompt, drafts, flags < 2, flags % 2 == 0, draw(accepted(regular)))
        )
    return Step(
        rows,
        draw(st.sampled_from((WIDTH, WIDTH + 3, WIDTH - 2))),
        draw(st.integers(0, 3)) > 0,
        draw(st.integers(0, 3)) > 0,
        draw(st.booleans()),
    )


def full(longest: int, *lengths: int) -> Step:
    """A step of rows of these lengths, none of them discarded."""
    rows = [Row(length, 0, [], False, False, [4, 5, -1, -1]) for length in lengths]
    return Step(rows, longest, True, True, False)


def examples(law: Callable[..., None]) -> Callable[..., None]:
    """A law that is tried on what draws rarely give: one row that is full, in each way."""
    for step in (
        full(WIDTH, 3, WIDTH),
        full(WIDTH + 3, WIDTH, 3),
        full(WIDTH - 2, 3, WIDTH - 2),
        full(WIDTH - 2, 3, WIDTH - 3),
    ):
        law = example(step=step)(law)
    return law


class Generator:
    """A request's random numbers, of which the runner takes back what a discarded row used."""

    def __init__(self) -> None:
        self.offset = 8

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset


def make_runner(step: Step) -> Any:
    """A double of the runner, with a batch and requests of the installed vLLM."""
    batch = make_batch()
    requests = {}
    for number, row in enumerate(step.rows):
        request = CachedRequestState(
            req_id=f"r{number}",
            prompt_token_ids=[7] * row.prompt,
            mm_features=[],
            sampling_params=SamplingParams(temperature=0.0),
            generator=None,
            block_ids=([number],),
            num_computed_tokens=0,
            output_token_ids=[9] * row.output,
        )
        requests[request.req_id] = request
        batch.add_request(request)
        batch.update_req_spec_token_ids(request, {request.req_id: row.drafts})
        if row.seeded:
            batch.generators[number] = Generator()
    batch.refresh_metadata()
    batch.prev_sampled_token_ids = torch.zeros(len(step.rows), 1) if step.speculative else None
    mask = np.zeros(MOST + 1, dtype=bool)
    mask[: len(step.rows)] = [row.discarded for row in step.rows]
    return SimpleNamespace(
        input_batch=batch,
        requests=requests,
        max_model_len=step.longest,
        use_async_scheduling=step.asynchronous,
        routed_experts_initialized=False,
        discard_request_mask=SimpleNamespace(np=mask),
        _to_list=lambda tokens: tokens.tolist(),
        _get_prompt_logprobs_dict=lambda *given: {"arguments": len(given)},
    )


def make_output(step: Step) -> Any:
    """What the sampler gave: [rows, K+1] tokens, or one each without speculation."""
    columns = K + 1 if step.speculative else 1
    tokens = torch.tensor([row.sampled[:columns] for row in step.rows], dtype=torch.int32)
    logprobs = None
    if step.logprobs:
        count = tokens.numel()
        logprobs = LogprobsTensors(
            torch.arange(2 * count, dtype=torch.int32).reshape(count, 2),
            torch.arange(2 * count, dtype=torch.float32).reshape(count, 2),
            torch.arange(count, dtype=torch.int32),
        )
    return SimpleNamespace(sampled_token_ids=tokens, logprobs_tensors=logprobs)


def outcome(release: str, patched: bool, step: Step) -> Any:
    """What the bookkeeping of a step returns or raises, and the runner behind it."""
    runner, output = make_runner(step), make_output(step)
    function = functions(release, patched)._bookkeeping_sync
    scheduled = SimpleNamespace(num_scheduled_tokens={"r0": 1})
    result: Any
    try:
        result = function(runner, scheduled, output, None, torch.zeros(4, 2), 2)
    except (AssertionError, ValueError) as error:  # more tokens than a row holds
        result = type(error).__name__, str(error)
    runner._to_list = runner._get_prompt_logprobs_dict = None
    return plain([result, runner, output])


def parsed(release: str, patched: bool, step: Step) -> Any:
    """The lists of accepted tokens, as the output of async scheduling asks for them."""
    output = make_output(step)
    discarded = [number for number, row in enumerate(step.rows) if row.discarded]
    function = functions(release, patched).parse_output
    result = function(
        output.sampled_token_ids, VOCABULARY, discarded, logprobs_tensors=output.logprobs_tensors
    )
    return plain([result, output])


def counts() -> dict[str, int]:
    return releases.counts(TOGETHER, FULL, LISTED, GAP)


def lengths(step: Step) -> list[int]:
    """Of the rows that get a token, how many they have."""
    return [row.prompt + row.output for row in step.rows if not row.discarded]


def check(release: str, step: Step) -> None:
    """Both give the same, and the feature does what it is there for."""
    before = counts()
    assert outcome(release, True, step) == outcome(release, False, step)
    if step.asynchronous:
        full = max(lengths(step), default=0) >= min(WIDTH, step.longest)
        name = FULL if full else TOGETHER
        assert counts() == before | {name: before[name] + 1}
    before = counts()
    assert parsed(release, True, step) == parsed(release, False, step)
    changed = {name for name, number in counts().items() if number != before[name]}
    assert changed in ({LISTED}, {GAP})


# -- laws


@pytest.mark.parametrize("release", CHANGED)
@settings(max_examples=25, deadline=None)
@examples
@given(step=steps())
def test_what_it_leaves_is_what_upstream_leaves(release: str, step: Step) -> None:
    with feature():
        check(release, step)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_release_has_the_functions_of_one_that_was_tried(name: str) -> None:
    for patched in (False, True):
        tried = [ast.dump(tree(release, name, patched)) for release in CHANGED]
        assert [
            r for r in KNOWN_RELEASES if ast.dump(tree(str(r), name, patched)) not in tried
        ] == []


@pytest.mark.parametrize("release", each_release("batched-bookkeeping"))
def test_the_effect_is_reported_when_the_runner_knows_its_configuration(release: str) -> None:
    init = method(sources(release)[RUNNER][True], "GPUModelRunner", "__init__")
    lines = [ast.unparse(statement) for statement in init.body]
    at = lines.index("report_effect(self)")
    assert lines[at - 1] == f"from {NAME} import report_effect"
    for name in ("use_async_scheduling", "speculative_config"):
        assert any(line.startswith(f"self.{name} = ") for line in lines[:at])


def regular(count: int, length: int = 3) -> Step:
    """A step without anything special."""
    row = Row(length, 0, [1, 2, 3], False, False, [4, 5, -1, -1])
    return Step([row] * count, WIDTH, True, True, False)


def test_few_requests_are_left_to_upstream() -> None:
    """The numbers of rows below and at the bound, with the bound as it is shipped."""
    few = shipped.FEWEST_ROWS - 1
    before = counts()
    rows = np.array([[4, 5, -1, -1]] * (few + 1), dtype=np.int32)
    runner = make_runner(regular(2))
    assert not shipped.append_placeholders(runner, few, set())
    assert shipped.accepted_tokens(rows[:few], rows[:few] >= 0) is None
    assert counts() == before
    assert shipped.accepted_tokens(rows, rows >= 0) == [[4, 5]] * (few + 1)
    assert counts() == before | {LISTED: before[LISTED] + 1}


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(regular(3))
    runner.speculative_config = None
    with feature():
        for value, wanted in (("", True), ("on", True), ("off", False)):
            monkeypatch.setenv(shipped.VARIABLE, value)
            assert shipped.append_placeholders(runner, 3, set()) is wanted
            tokens = np.array([[4, -1]])
            assert (shipped.accepted_tokens(tokens, tokens >= 0) == [[4]]) is wanted
    shipped.report_effect(runner)
    assert effect() == ("idle", "OVERLAY_BATCHED_BOOKKEEPING=off")
    monkeypatch.setenv(shipped.VARIABLE, "fast")
    with pytest.raises(ValueError, match="BOOKKEEPING is 'fast'; set it to on or off"):
        shipped.report_effect(runner)


@pytest.mark.parametrize(
    ("asynchronous", "speculative", "state"),
    [
        (True, None, "active"),
        (False, object(), "active"),
        (False, None, "idle"),
    ],
)
def test_it_is_idle_where_neither_loop_runs(
    asynchronous: bool, speculative: object, state: str
) -> None:
    shipped.report_effect(
        SimpleNamespace(use_async_scheduling=asynchronous, speculative_config=speculative)
    )
    assert effect()[0] == state


@each_bug_of(BOOKKEEPING)
def test_each_mistake_is_noticed(bug: Bug) -> None:
    @examples
    @given(step=steps())
    def law(step: Step) -> None:
        check("0.33.0", step)

    assert_noticed(bug, law, 100, IndexError)
