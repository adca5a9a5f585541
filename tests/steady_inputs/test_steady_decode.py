"""A steady step leaves the state that upstream's own ``_prepare_inputs`` leaves, on its source."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings

from overlay.package import KNOWN_RELEASES
from tests.steady_inputs.test_steady_inputs import FILE, steady

np = pytest.importorskip("numpy")  # in the environment of the engine
torch = pytest.importorskip("torch")

from tests.support.code_edits import Edit, edited
from tests.support.steady_runner import (
    ROWS,
    UNREAD,
    Step,
    kernels_in_place,
    make_runner,
    run,
    sequences,
    sources,
)

pytestmark = pytest.mark.network

CHANGED = ("0.20.0", "0.22.0", "0.24.0", "0.25.0", "0.28.0", "0.30.0", "0.32.0", "0.33.0")


@pytest.mark.parametrize("release", CHANGED)
@settings(max_examples=80, deadline=None)
@given(sequence=sequences())
def test_the_state_after_each_step_is_upstreams(release: str, sequence: list[Step]) -> None:
    upstream = make_runner(release, patched=False)
    ours = make_runner(release, patched=True)
    with kernels_in_place():
        for step in sequence:
            assert run(ours, step) == run(upstream, step)


@functools.cache
def read(release: str) -> tuple[str, dict[str, set[str]]]:
    """A release's ``_prepare_inputs`` without docstring, and what each function reads.

    :returns: by `attribute.side` of a buffer, the names of the functions that read it.
    """
    bodies, readers = [], dict[str, set[str]]()
    for function in ast.walk(ast.parse(sources(release)[0])):
        if not isinstance(function, ast.FunctionDef):
            continue
        if function.name == "_prepare_inputs":
            bodies.append(ast.unparse(ast.Module(function.body[1:], [])))
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                place = f"{node.value.attr}.{node.attr}"
                readers.setdefault(place, set()).add(function.name)
    (body,) = bodies
    return body, readers


def test_between_the_releases_tried_nothing_changed() -> None:
    """``_prepare_inputs`` of every release is, but for its docstring, one that was tried."""
    # 0.29 writes out the rows of positions that a steady step never has (M-RoPE, XD-RoPE).
    tried = {read(release)[0] for release in CHANGED}
    untried = [str(r) for r in KNOWN_RELEASES if read(str(r))[0] not in tried]
    assert untried == ["0.29.0"]


def test_what_a_steady_step_leaves_is_read_nowhere_else() -> None:
    for release in KNOWN_RELEASES:
        readers = read(str(release))[1]
        for name, side in UNREAD:
            assert readers.get(f"{name}.{side}", set()) <= {"_prepare_inputs", "_prepare_input_ids"}


@pytest.fixture
def kernels() -> Iterator[Any]:
    with kernels_in_place() as module:
        yield module


def launched_kind(inputs: Any, last: Any) -> list[Any]:
    """What Triton compiles a kernel for: types, and whether a stride is 1."""
    sizes = [(tensor.dtype, tensor.shape) for tensor in vars(inputs).values()]
    return sizes + [(tensor.dtype, tensor.stride()) for tensor in vars(last).values()]


def test_the_warm_up_compiles_what_a_steady_step_launches(
    kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    self = make_runner("0.26.0", patched=True)
    same = (3,) * ROWS
    step = Step(
        3, 3, (0, 1, 2, 3), same, (0,) * ROWS, same, (9, 8, 7, 6), (5,) * ROWS, (0,) * ROWS, True, 1
    )
    kinds = []

    def note(inputs: Any, last: Any, num_reqs: int, draft_ids: Any) -> None:
        kinds.append(launched_kind(inputs, last))

    monkeypatch.setattr(kernels, "compute_advance", note)
    monkeypatch.setattr(kernels, "launch_advance", note)
    run(self, step)
    run(self, step)
    assert len(kinds) == 1
    self.num_spec_tokens = 3
    self.steady_inputs.warm_up()
    assert len(kinds) == 1  # nothing to compile for a CPU
    held = self.steady_inputs._decode._inputs()
    on_device = type(held)(**{name: tensor.to("meta") for name, tensor in vars(held).items()})
    kernels.warm_up(on_device, 3)
    assert kinds[1] == kinds[0]


def test_a_steady_step_takes_the_short_way(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    self = make_runner("0.26.0", patched=True)
    same = (3,) * ROWS
    step = Step(
        3, 3, (0, 1, 2, 3), same, (0,) * ROWS, same, (9, 8, 7, 6), (5,) * ROWS, (0,) * ROWS, True, 1
    )
    run(self, step)
    taken = []
    inner = kernels.advance
    monkeypatch.setattr(kernels, "advance", lambda *given: taken.append(1) or inner(*given))
    run(self, step)
    assert taken == [1]
    other = dataclasses.replace
    changes: tuple[dict[str, Any], ...] = (
        {"rows": 2},  # another shape than the kept one
        {"previous": (1, 0, 2, 3)},
        {"last_drafts": (3, 0, 3, 3)},
        {"drafts": (3, 2, 3, 3)},
        {"more": (0, 1, 0, 0)},
        {"prompts": (5, 5, 8, 5)},
        {"on_gpu": False},
    )
    for change in changes:
        run(self, step)
        taken.clear()
        run(self, other(step, **change))
        assert not taken, change
    for attribute, value in {
        "use_async_spec_decode": False,
        "enable_prompt_embeds": True,
        "uses_mrope": True,
        "lora_config": object(),
        "model_config": SimpleNamespace(is_hybrid=True),
        "_pp_recv_work": object(),
        "uses_xdrope_dim": 3,
        "mamba_prev_last_scheduled_idx": object(),
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(self, attribute, value)
            assert not self.steady_inputs._decode.supported(), attribute


KERNELS, COMPUTE = "steady_kernels", "compute_advance"
DECODE, STEADY_K, PREPARE = "steady_decode", "SteadyDecode.steady_k", "SteadyDecode.prepare"
HOST = "SteadyDecode._fill_host_side"
#: Mistakes: module, function, the code there, what a mistake would make of it.
MUTATIONS: list[Edit] = [
    (
        KERNELS,
        COMPUTE,
        "inputs.num_computed[:num_reqs] += counts",
        "inputs.num_computed[:num_reqs] += k",
    ),
    (KERNELS, COMPUTE, "inputs.num_accepted.fill_(1)", "None"),
    (
        KERNELS,
        COMPUTE,
        "inputs.num_accepted[:num_reqs] = counts",
        "inputs.num_accepted[:num_reqs] = 1",
    ),
    (KERNELS, COMPUTE, "inputs.seq_lens.zero_()", "None"),
    (
        KERNELS,
        COMPUTE,
        "inputs.seq_lens[:num_reqs] = ...",
        "inputs.seq_lens[:num_reqs] = computed + k",
    ),
    (KERNELS, COMPUTE, "rows.clamp(max=num_reqs)", "rows"),
    (KERNELS, COMPUTE, "ids[:, 1:] = drafts", "ids[:, 1:] = drafts[:1]"),
    (KERNELS, COMPUTE, "ids[:, 0] = last.sampled[:num_reqs, 0]", "pass"),
    (
        KERNELS,
        COMPUTE,
        "draft_ids.view(num_reqs, k).copy_(drafts)",
        "draft_ids.view(num_reqs, k).copy_(last.drafts[-num_reqs:])",
    ),
    (DECODE, STEADY_K, "(num_scheduled_tokens == k + 1).all()", "True"),
    (DECODE, STEADY_K, "(runner.prev_num_draft_tokens.np[:rows] > 0).all()", "True"),
    (
        DECODE,
        STEADY_K,
        "(batch.num_computed_tokens_cpu[:rows] >= batch.num_prompt_tokens[:rows]).all()",
        "True",
    ),
    (DECODE, STEADY_K, "previous.get(name) == row", "previous.get(name) is not None"),
    (DECODE, HOST, "lengths[rows:] = 0", "pass"),
    (DECODE, HOST, "batch.num_computed_tokens_cpu[:rows]", "lengths[:rows] - k - 1"),
    (DECODE, HOST, "starts[rows + 1 :] = tokens", "pass"),
    (DECODE, HOST, "lengths[:rows] < known", "False"),
    (DECODE, PREPARE, "runner.discard_request_mask.copy_to_gpu(rows)", "None"),
    (DECODE, HOST, "runner.num_decode_draft_tokens.np[rows:] = -1", "pass"),
    (
        DECODE,
        PREPARE,
        "runner.query_start_loc.gpu[: rows + 1]",
        "runner.query_start_loc.gpu[:rows]",
    ),
]


@pytest.mark.parametrize("bug", MUTATIONS, ids=lambda bug: f"{bug[1]}: {bug[2]} -> {bug[3]}")
def test_each_mistake_is_noticed(bug: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    module = bug[0]
    mutated = edited((FILE.parent / f"{module}.py").read_text(), [bug[1:]], module)
    if module == "steady_decode":
        world: dict[str, Any] = {"__name__": "mutated"}
        exec(compile(mutated, "mutated", "exec"), world)
        monkeypatch.setattr(steady, "SteadyDecode", world["SteadyDecode"])

    @settings(max_examples=150, deadline=None, database=None, phases=[Phase.generate])
    @given(sequence=sequences())
    @seed(1)
    def law(sequence: list[Step]) -> None:
        upstream = make_runner("0.20.0", patched=False)
        ours = make_runner("0.20.0", patched=True)
        for step in sequence:
            assert run(ours, step) == run(upstream, step)

    kernels = kernels_in_place(mutated if module == "steady_kernels" else None)
    with kernels, pytest.raises(AssertionError):
        law()
