"""The last tokens of the rows, listed together, are those that upstream looks up. Needs vLLM."""

from __future__ import annotations

import ast
import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.package import KNOWN_RELEASES

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping import releases
from tests.batched_bookkeeping.mutations import LAST_TOKENS, Bug
from tests.batched_bookkeeping.releases import (
    MOST,
    WIDTH,
    assert_noticed,
    each_bug_of,
    feature,
    make_batch,
    method,
    shipped,
    sources,
)

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState

pytestmark = pytest.mark.network

PROPOSER = "vllm/v1/spec_decode/llm_base_proposer.py"
LISTED = "steps whose last tokens were listed together"
#: Releases in which the part of the function that lists them has another text.
CHANGED = ("0.20.0", "0.21.0")


@functools.cache
def tree(release: str, patched: bool) -> ast.FunctionDef:
    """The function up to where the tokens are copied to the device."""
    source = sources(release)[PROPOSER][patched]
    node = method(source, "SpecDecodeBaseProposer", "prepare_next_token_ids_padded")
    lines = [ast.unparse(statement) for statement in node.body]
    end = lines.index("self.backup_next_token_ids.copy_to_gpu(num_reqs)")
    del node.body[end:]
    return node


@functools.cache
def function(release: str, patched: bool) -> Any:
    names: dict[str, Any] = {"np": np}
    return releases.compiled(release, [tree(release, patched)], names)[tree(release, patched).name]


class Row(NamedTuple):
    """A request; :ivar ends: tokens that the batch has of it. :ivar embedded: its prompt is."""

    prompt: int
    output: list[int]
    ends: int
    embedded: bool


@st.composite
def rows(draw: st.DrawFn) -> Row:
    prompt = draw(st.integers(1, WIDTH - 1))
    output = draw(st.lists(st.integers(-1, 40), max_size=WIDTH - prompt))
    return Row(prompt, output, draw(st.integers(0, WIDTH)), draw(st.integers(0, 9)) == 0)


ROWS = st.lists(rows(), max_size=MOST)


def outcome(release: str, patched: bool, each: list[Row]) -> Any:
    """What is listed, or the error."""
    batch, requests = make_batch(), {}
    for number, row in enumerate(each):
        request = CachedRequestState(
            req_id=f"r{number}",
            prompt_token_ids=[100 + place for place in range(row.prompt)],
            mm_features=[],
            sampling_params=SamplingParams(temperature=0.0),
            generator=None,
            block_ids=([number],),
            num_computed_tokens=0,
            output_token_ids=list(row.output),
        )
        requests[request.req_id] = request
        batch.add_request(request)
        batch.num_tokens_no_spec[number] = row.ends
        if row.embedded:
            request.prompt_token_ids = None
    drafter = SimpleNamespace(
        backup_next_token_ids=SimpleNamespace(np=np.full(MOST + 1, -7, dtype=np.int32))
    )
    try:
        function(release, patched)(drafter, None, requests, batch, None)
    except ValueError as error:  # the last token is one of a prompt that was given as embeddings
        return str(error)
    return drafter.backup_next_token_ids.np.tolist()


def check(release: str, each: list[Row]) -> None:
    before = releases.counts(LISTED)[LISTED]
    assert outcome(release, True, each) == outcome(release, False, each)
    listed = releases.counts(LISTED)[LISTED] - before
    embedded = any(row.embedded and row.ends - 1 < row.prompt for row in each)
    assert listed == (bool(each) and not embedded)


@pytest.mark.parametrize("release", CHANGED)
@settings(max_examples=60, deadline=None)
@given(each=ROWS)
def test_they_are_those_that_upstream_looks_up(release: str, each: list[Row]) -> None:
    with feature():
        check(release, each)


@pytest.mark.parametrize("patched", [False, True])
def test_every_release_has_the_text_of_one_that_was_tried(patched: bool) -> None:
    tried = {ast.dump(tree(release, patched)) for release in CHANGED}
    names = [str(release) for release in KNOWN_RELEASES]
    assert [name for name in names if ast.dump(tree(name, patched)) not in tried] == []


def test_few_rows_are_left_to_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in (("on", True), ("off", False)):
        monkeypatch.setenv(shipped.VARIABLE, value)
        for number in (shipped.FEWEST_ROWS - 1, shipped.FEWEST_ROWS):
            batch = SimpleNamespace(
                num_reqs=number, num_tokens_no_spec=np.zeros(64, dtype=np.int32), req_ids=[]
            )
            done = shipped.last_tokens(batch, {}) is not None
            assert done is (wanted and number == shipped.FEWEST_ROWS)


@each_bug_of(LAST_TOKENS)
def test_each_mistake_is_noticed(bug: Bug) -> None:
    @given(each=ROWS, release=st.sampled_from(CHANGED))
    def law(each: list[Row], release: str) -> None:
        check(release, each)

    assert_noticed(bug, law, 100, IndexError, TypeError)
