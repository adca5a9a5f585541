"""The drafts of a step's requests, counted together, are those that upstream counts. Needs vLLM.

Upstream's loop is taken from the `_prepare_inputs` of the releases, with the arrays it fills.
"""

from __future__ import annotations

import ast
import functools
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
from tests.batched_bookkeeping.mutations import DRAFT_COUNTS, Bug
from tests.batched_bookkeeping.releases import (
    MOST,
    RUNNER,
    K,
    assert_noticed,
    each_bug_of,
    feature,
    method,
    plain,
    shipped,
    sources,
)

pytestmark = pytest.mark.network

COUNTED = "steps whose drafts were counted together"
#: Releases in which the loop has another text.
CHANGED = ("0.20.0", "0.25.0")
#: What stands for the loop's part of the function.
PART = """
def part(self, scheduler_output, num_scheduled_tokens, num_reqs):
    return num_draft_tokens, num_decode_draft_tokens
"""


@functools.cache
def whole(release: str, patched: bool) -> ast.FunctionDef:
    return method(sources(release)[RUNNER][patched], "GPUModelRunner", "_prepare_inputs")


def loop(release: str, patched: bool) -> ast.For:
    (found,) = (
        node
        for node in ast.walk(whole(release, patched))
        if isinstance(node, ast.For)
        and ast.unparse(node.iter) == "scheduler_output.scheduled_spec_decode_tokens.items()"
    )
    return found


@functools.cache
def tree(release: str, patched: bool) -> ast.FunctionDef:
    """The part of the function from where it makes the arrays to the end of the loop."""
    (branch,) = (
        node.orelse
        for node in whole(release, patched).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "not use_spec_decode"
    )
    (made,) = ast.parse(PART).body
    assert isinstance(made, ast.FunctionDef)
    made.body[:0] = branch[: branch.index(loop(release, patched)) + 1]
    return made


@functools.cache
def function(release: str, patched: bool) -> Any:
    names: dict[str, Any] = {"np": np}
    return releases.compiled(release, [tree(release, patched)], names)["part"]


class Request(NamedTuple):
    """A request of the step.

    :ivar drafts: how many it has; None: it is not among those with drafts.
    :ivar tokens: of the step; :ivar missing: of its prompt, not computed yet (negative: beyond).
    """

    drafts: int | None
    tokens: int
    missing: int


class Step(NamedTuple):
    """A step.

    :ivar rows: the row of each request; :ivar order: in which they were given drafts.
    :ivar unknown: how many of these are before one that the batch does not have; None: it has all.
    :ivar short: how many of the last rows the arrays lack; upstream raises where one has drafts.
    """

    requests: list[Request]
    rows: list[int]
    order: list[int]
    unknown: int | None = None
    short: int = 0


@st.composite
def requests(draw: st.DrawFn) -> Request:
    drafts = draw(st.one_of(st.none(), st.integers(0, K)))
    # Often one token and the drafts, as who decodes has.
    tokens = draw(st.one_of(st.just(1 + (drafts or 0)), st.integers(1, K + 3)))
    return Request(drafts, tokens, draw(st.integers(-2, 2)))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    each = draw(st.lists(requests(), max_size=MOST))
    numbers = range(len(each))
    rows, order = draw(st.permutations(numbers)), draw(st.permutations(numbers))
    unknown = draw(st.integers(0, len(each))) if draw(st.integers(0, 7)) == 0 else None
    short = 1 if each and draw(st.integers(0, 7)) == 0 else 0
    return Step(each, rows, order, unknown, short)


def scheduled(step: Step) -> dict[str, list[int]]:
    """The drafts of the requests that have some, by their ids."""
    names = [(f"r{number}", step.requests[number].drafts) for number in step.order]
    if step.unknown is not None:
        names.insert(step.unknown, ("unknown", 1))
    return {name: [-1] * drafts for name, drafts in names if drafts is not None}


def outcome(release: str, patched: bool, step: Step) -> Any:
    """Both arrays behind the loop, or the error."""
    rows, prompt = len(step.requests), 8
    tokens = np.zeros(rows, dtype=np.int32)
    batch = SimpleNamespace(
        req_id_to_index={f"r{number}": row for number, row in enumerate(step.rows)},
        num_computed_tokens_cpu=np.zeros(MOST + 1, dtype=np.int32),
        num_prompt_tokens=np.zeros(MOST + 1, dtype=np.int32),
    )
    for row, request in zip(step.rows, step.requests, strict=True):
        tokens[row] = request.tokens
        batch.num_prompt_tokens[row] = prompt + row
        batch.num_computed_tokens_cpu[row] = prompt + row - request.missing
    runner = SimpleNamespace(input_batch=batch)
    output = SimpleNamespace(scheduled_spec_decode_tokens=scheduled(step))
    used = rows - step.short
    try:
        arrays = function(release, patched)(runner, output, tokens[:used], used)
    except (KeyError, IndexError) as error:
        return type(error), str(error)
    return plain([arrays, batch, output])


def check(release: str, step: Step) -> None:
    """Both count the same, and the feature does it wherever upstream raises no error."""
    before = releases.counts(COUNTED)[COUNTED]
    patched = outcome(release, True, step)
    counted = releases.counts(COUNTED)[COUNTED] - before
    pristine = outcome(release, False, step)
    assert patched == pristine
    assert counted == (bool(scheduled(step)) and not isinstance(pristine[0], type))


#: A request that decodes, a chunk of a prompt with drafts, one without, and one without drafts.
MIXED = [Request(K, K + 1, -1), Request(2, 5, 2), Request(0, 1, 0), Request(None, 1, 0)]


@pytest.mark.parametrize("release", CHANGED)
@settings(max_examples=150, deadline=None)
@example(step=Step(MIXED, [2, 0, 3, 1], [3, 1, 0, 2]))
@example(step=Step(MIXED, [2, 0, 3, 1], [3, 1, 0, 2], unknown=4))
@example(step=Step(MIXED, [3, 0, 2, 1], [3, 1, 0, 2], short=1))
@given(step=steps())
def test_they_are_those_that_upstream_counts(release: str, step: Step) -> None:
    with feature():
        check(release, step)


@pytest.mark.parametrize("patched", [False, True])
def test_every_release_has_the_text_of_one_that_was_tried(patched: bool) -> None:
    tried = {ast.dump(tree(release, patched)) for release in CHANGED}
    assert len(tried) == len(CHANGED)
    names = [str(release) for release in KNOWN_RELEASES]
    assert [name for name in names if ast.dump(tree(name, patched)) not in tried] == []


@pytest.mark.parametrize("release", each_release("batched-bookkeeping"))
def test_nothing_behind_the_loop_reads_what_it_binds(release: str) -> None:
    """A loop that is left at its beginning does not bind them to the last request."""
    left = loop(release, False)
    inside = {id(node) for node in ast.walk(left)}
    names = [node for node in ast.walk(whole(release, False)) if isinstance(node, ast.Name)]
    bound = {n.id for n in names if id(n) in inside and isinstance(n.ctx, ast.Store)}
    assert {"req_id", "req_idx", "draft_len"} <= bound
    assert left.end_lineno is not None
    assert [n.id for n in names if n.id in bound and n.lineno > left.end_lineno] == []


def test_few_requests_are_left_to_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of requests below and at the bound, with the bound as it is shipped."""
    bound = shipped.FEWEST_GOING_ON
    for value, wanted in (("on", True), ("off", False)):
        monkeypatch.setenv(shipped.VARIABLE, value)
        for number in (bound - 1, bound):
            names = [f"r{row}" for row in range(number)]
            batch = SimpleNamespace(req_id_to_index={name: row for row, name in enumerate(names)})
            arrays = [np.full(bound, -7, dtype=np.int32) for _ in range(2)]
            tokens = np.full(bound, 3, dtype=np.int32)
            drafts = {name: [5, 5] for name in names}
            done = shipped.count_drafts(batch, drafts, *arrays, tokens)
            assert done is (wanted and number == bound)
            assert [set(array.tolist()) for array in arrays] == [{2 if done else -7}] * 2


@pytest.mark.parametrize("tokens", [None, np.ones(2, dtype=np.int32)])
def test_nothing_is_written_before_upstreams_error(tokens: Any) -> None:
    batch = SimpleNamespace(req_id_to_index={"r0": 0, "r1": 1})
    arrays = [np.full(2, -7, dtype=np.int32) for _ in range(2)]
    with feature() as module:
        drafts: dict[str, list[int]] = {"r0": [], "r1": [], "unknown": []}
        assert module.count_drafts(batch, drafts, *arrays, tokens) is False
    assert [array.tolist() for array in arrays] == [[-7, -7]] * 2


@each_bug_of(DRAFT_COUNTS)
def test_each_mistake_is_noticed(bug: Bug) -> None:
    @given(step=steps(), release=st.sampled_from(CHANGED))
    def law(step: Step, release: str) -> None:
        check(release, step)

    assert_noticed(bug, law, 200, IndexError, ValueError, TypeError)
