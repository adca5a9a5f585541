"""The input ids of a step, filled for all requests together, are those that upstream fills.

Upstream's `_prepare_input_ids` is that of the releases, run on buffers of CPU tensors. Needs vLLM.
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

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.batched_bookkeeping import releases
from tests.batched_bookkeeping.mutations import INPUT_IDS, Bug
from tests.batched_bookkeeping.releases import (
    RUNNER,
    K,
    assert_noticed,
    each_bug_of,
    feature,
    method,
    plain,
    shipped,
    sources,
    torch,
)

pytestmark = pytest.mark.network

FILLED = "steps whose input ids were filled together"
NOT_THERE = "steps whose drafts are not on the device left to upstream"
#: Releases in which the function has another text.
CHANGED = ("0.20.0", "0.22.0", "0.24.0", "0.28.0", "0.31.0")
MOST, TOKENS = 5, 64


@functools.cache
def tree(release: str, patched: bool) -> ast.FunctionDef:
    return method(sources(release)[RUNNER][patched], "GPUModelRunner", "_prepare_input_ids")


@functools.cache
def function(release: str, patched: bool) -> Any:
    """The function, in a module that has what it uses of its own."""
    names = {"torch": torch, "np": np, "PIN_MEMORY": False}
    return releases.compiled(release, [tree(release, patched)], names)["_prepare_input_ids"]


class Request(NamedTuple):
    """A request of the step.

    :ivar row: where it was in the last step; -1: nowhere.
    :ivar drafts: how many of its drafts are verified; :ivar tokens: what else it has.
    """

    row: int
    drafts: int
    tokens: int


class Step(NamedTuple):
    """A step; :ivar width: drafts that the last one made; :ivar there: whether as a tensor."""

    requests: list[Request]
    width: int
    there: bool
    embeddings: bool


@st.composite
def steps(draw: st.DrawFn) -> Step:
    width = draw(st.integers(0, K))
    rows = draw(st.permutations(range(MOST))) if draw(st.booleans()) else list(range(MOST))
    requests = []
    for row in rows[: draw(st.integers(1, MOST))]:
        known = draw(st.integers(0, 4)) > 0
        requests.append(
            Request(
                row if known else -1,
                draw(st.integers(0, width)) if known else 0,
                1 if known else draw(st.integers(1, 6)),
            )
        )
    return Step(requests, width, draw(st.integers(0, 5)) > 0, draw(st.integers(0, 5)) == 0)


class Buffer:
    """A buffer of the host and one of the device; what is copied is told."""

    def __init__(self, told: list[Any], first: int) -> None:
        self.cpu = torch.arange(first, first + TOKENS, dtype=torch.int32)
        self.np, self.gpu = self.cpu.numpy(), torch.zeros(TOKENS, dtype=torch.int32)
        self._told, self._first = told, first

    def copy_to_gpu(self, number: int) -> None:
        self._told.append((self._first, number))
        self.gpu[:number] = self.cpu[:number]


def outcome(release: str, patched: bool, step: Step) -> Any:
    """The device's input ids behind the function, what was copied, and what it raised."""
    told: list[Any] = []
    names = [f"r{number}" for number in range(len(step.requests))]
    drafted = torch.arange(700, 700 + MOST * step.width).reshape(MOST, step.width)
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(
            req_ids=names,
            prev_sampled_token_ids=torch.arange(500, 500 + MOST, dtype=torch.int32)[:, None],
        ),
        prev_positions=SimpleNamespace(np=np.array([r.row for r in step.requests], dtype=np.int32)),
        input_ids=Buffer(told, 100),
        inputs_embeds=Buffer(told, 1000),
        is_token_ids=Buffer(told, 2000),
        enable_prompt_embeds=step.embeddings,
        _draft_token_ids=drafted if step.there else None,
        num_spec_tokens=step.width,
        prev_num_spec_tokens=step.width,
        pin_memory=False,
        device=torch.device("cpu"),
        steady_inputs=None,
        _pp_recv_work=None,
    )
    drafts = {name: [-1] * r.drafts for name, r in zip(names, step.requests, strict=True)}
    scheduled = SimpleNamespace(
        scheduled_spec_decode_tokens={name: each for name, each in drafts.items() if each}
    )
    ends = np.cumsum([r.drafts + r.tokens for r in step.requests], dtype=np.int32)
    function(release, patched)(runner, scheduled, len(names), int(ends[-1]), ends)
    buffers = (runner.input_ids, runner.inputs_embeds, runner.is_token_ids)
    return plain([told, [buffer.gpu for buffer in buffers], [buffer.cpu for buffer in buffers]])


def counts() -> dict[str, int]:
    return releases.counts(FILLED, NOT_THERE)


def check(release: str, step: Step) -> None:
    """Both fill the same, and the feature does what it is there for."""
    before = counts()
    patched = outcome(release, True, step)
    changed = {name for name, number in counts().items() if number != before[name]}
    assert patched == outcome(release, False, step)
    if step.embeddings:
        assert changed == set()
    elif any(request.drafts for request in step.requests) and not step.there:
        assert changed == {NOT_THERE}
    else:
        assert changed == {FILLED}


@pytest.mark.parametrize("release", CHANGED)
@settings(max_examples=80, deadline=None)
@example(step=Step([Request(0, 0, 1), Request(1, 0, 1)], 0, True, False))
@example(step=Step([Request(1, 0, 1), Request(0, 0, 1)], 0, True, False))
@example(step=Step([Request(-1, 0, 4), Request(0, 3, 1), Request(1, 2, 1)], 3, True, False))
@given(step=steps())
def test_what_it_fills_is_what_upstream_fills(release: str, step: Step) -> None:
    with feature():
        check(release, step)


def test_every_release_has_the_function_of_one_that_was_tried() -> None:
    for patched in (False, True):
        tried = [ast.dump(tree(release, patched)) for release in CHANGED]
        assert [r for r in KNOWN_RELEASES if ast.dump(tree(str(r), patched)) not in tried] == []


@pytest.mark.parametrize("value", ["on", "off"])
def test_few_requests_and_the_switch(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of requests below and at the bound, with the bound as it is shipped."""
    monkeypatch.setenv(shipped.VARIABLE, value)
    for rows in (shipped.FEWEST_ROWS - 1, shipped.FEWEST_ROWS):
        copied: list[int] = []
        runner = SimpleNamespace(
            enable_prompt_embeds=False,
            input_batch=SimpleNamespace(req_ids=["r"] * rows),
            input_ids=SimpleNamespace(copy_to_gpu=copied.append),
            _draft_token_ids=None,
        )
        ends = np.arange(1, rows + 1, dtype=np.int32)
        filled = shipped.fill_input_ids(runner, np.full(rows, -1), rows, ends, {}, 0)
        assert filled is (value == "on" and rows == shipped.FEWEST_ROWS)
        assert copied == [rows] * filled


@each_bug_of(INPUT_IDS)
def test_each_mistake_is_noticed(bug: Bug) -> None:
    @given(step=steps())
    def law(step: Step) -> None:
        check("0.33.0", step)

    assert_noticed(bug, law, 200, IndexError, ValueError, RuntimeError, AttributeError)
