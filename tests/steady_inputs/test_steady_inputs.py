"""Steady inputs: the GPU ends with what upstream's copies would give it, with fewer of them."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy")  # in the environment of the engine
PATCHES = Path(__file__).resolve().parents[2] / "patches"
FILE = PATCHES / "steady-inputs/files/vllm/v1/worker/steady_inputs.py"


def load() -> ModuleType:
    """The feature's modules under their vLLM names, without vLLM and without PyTorch.

    They are taken out of ``sys.modules`` again: other tests import what they find there.
    """
    names = ("vllm", "vllm.v1", "vllm.v1.worker")
    modules = ("steady_decode", "steady_inputs")
    before = dict(sys.modules)
    try:
        for name in names:
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = []
        sys.modules["vllm.v1"].__path__ = [
            str(PATCHES / name / "files/vllm/v1") for name in ("steady-inputs", "shared")
        ]
        sys.modules["vllm.v1.worker"].__path__ = [str(FILE.parent)]
        return [importlib.import_module(f"vllm.v1.worker.{name}") for name in modules][-1]
    finally:
        shared = ("vllm.v1.overlay_effects", "vllm.v1.overlay_switches")
        own = [*(f"vllm.v1.worker.{module}" for module in modules), *shared]
        for name in (*names, *own):
            sys.modules.pop(name, None)
        sys.modules.update(before)


steady = load()


class FakeTensor:
    """As much of a tensor as ``copy_to_gpu`` needs, over a numpy array; counts copies."""

    copies = 0

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> FakeTensor:
        return FakeTensor(self.array[index])

    def copy_(self, other: FakeTensor, non_blocking: bool) -> FakeTensor:
        FakeTensor.copies += 1
        self.array[...] = other.array
        return self


class FakeBuffer:
    """A ``CpuGpuBuffer``: the CPU side shows through ``np``."""

    def __init__(self, size: int) -> None:
        self.np = np.zeros(size, dtype=np.int64)
        self.cpu = FakeTensor(self.np)
        self.gpu = FakeTensor(np.full(size, -7, dtype=np.int64))  # never what anybody copied

    def copy_to_gpu(self, n: int | None = None) -> FakeTensor:
        if n is None:
            return self.gpu.copy_(self.cpu, non_blocking=True)
        return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)


SIZE = 6
STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), min_size=SIZE, max_size=SIZE),
        st.one_of(st.none(), st.integers(0, SIZE)),
        st.booleans(),
    ),
    max_size=12,
)


@given(STEPS)
def test_the_gpu_holds_what_upstream_would_have_copied(
    steps: list[tuple[list[int], int | None, bool]],
) -> None:
    plain, ours = FakeBuffer(SIZE), FakeBuffer(SIZE)
    copy = steady.SteadyCopy(ours)
    for content, n, moved in steps:
        if moved:  # the GPU side is replaced by another tensor, as vLLM's CPU runner does
            plain.gpu, ours.gpu = (FakeTensor(np.full(SIZE, -9)) for _ in range(2))
        plain.np[:] = ours.np[:] = content
        expected, found = plain.copy_to_gpu(n), copy(n)
        assert (found.array == expected.array).all()
        assert (ours.gpu.array == plain.gpu.array).all()


def test_an_unchanged_buffer_is_copied_once() -> None:
    buffer = FakeBuffer(SIZE)
    copy = steady.SteadyCopy(buffer)
    FakeTensor.copies = 0
    for _ in range(5):
        copy(4)
    assert FakeTensor.copies == 1
    buffer.np[3] = 1
    copy(3)
    assert FakeTensor.copies == 1
    copy(4)
    assert FakeTensor.copies == 2


@dataclasses.dataclass
class Metadata:
    draft_token_ids: Any
    num_draft_tokens: list[int]
    logits_indices: Any
    target_logits_indices: Any


def runner(ids: Any) -> SimpleNamespace:
    buffers = {name: FakeBuffer(SIZE) for name in steady.STEADY_BUFFERS}
    return SimpleNamespace(
        input_ids=SimpleNamespace(gpu=ids),
        device=SimpleNamespace(type="cpu"),
        speculative_config=object(),
        max_num_reqs=SIZE,
        **buffers,
    )


def upstream(drafts: Any, tokens: Any, ids: Any) -> Metadata:
    """``_calc_spec_decode_metadata`` as upstream defines it, in numpy."""
    sampled = drafts + 1
    ends = np.cumsum(sampled)
    logits = np.concatenate(
        [np.arange(t - s, t) for t, s in zip(tokens, sampled, strict=True)]
    ).astype(int)
    targets = np.concatenate(
        [np.arange(e - s, e - 1) for e, s in zip(ends, sampled, strict=True)]
    ).astype(int)
    return Metadata(ids[logits][targets + 1], drafts.tolist(), logits, targets)


SHAPES = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(lambda d: np.array(d, np.int32))


@given(st.lists(SHAPES, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_kept_metadata_equal_upstreams(shapes: list[Any], rng: Any) -> None:
    ids = np.zeros(64, dtype=np.int32)
    inputs = steady.SteadyInputs(runner(ids))
    scratch_drafts, scratch_tokens = np.zeros(4, np.int32), np.zeros(4, np.int32)
    for shape in [shape for shape in shapes for _ in range(2)]:
        count = len(shape)
        # The runner hands over views of memory that it writes again for the next step.
        drafts, tokens = scratch_drafts[:count], scratch_tokens[:count]
        drafts[:], tokens[:] = shape, np.cumsum(shape + 1)
        ids[:] = [rng.randrange(100) for _ in range(64)]
        found = inputs.spec_decode_metadata(drafts, tokens)
        expected = upstream(drafts, tokens, ids)
        if found is None:
            inputs.keep_spec_decode_metadata(drafts, tokens, expected)
            continue
        assert found.num_draft_tokens == expected.num_draft_tokens
        assert (found.draft_token_ids == expected.draft_token_ids).all()
        assert (found.logits_indices == expected.logits_indices).all()
        assert (found.target_logits_indices == expected.target_logits_indices).all()


def test_the_second_step_of_a_shape_is_kept() -> None:
    ids = np.arange(64, dtype=np.int32)
    inputs = steady.SteadyInputs(runner(ids))
    drafts, tokens = np.array([3, 3], np.int32), np.array([4, 8], np.int32)
    assert inputs.spec_decode_metadata(drafts, tokens) is None
    inputs.keep_spec_decode_metadata(drafts, tokens, upstream(drafts, tokens, ids))
    assert inputs.spec_decode_metadata(drafts, tokens) is not None
    assert inputs.spec_decode_metadata(drafts, tokens + 1) is None
    assert inputs.spec_decode_metadata(drafts[:1], tokens[:1]) is None


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAY_STEADY_INPUTS", "1")
    with pytest.raises(ValueError, match=r"set it to on or off, or to untried$"):
        steady.create_steady_inputs(runner(np.zeros(1)))
    monkeypatch.setenv("OVERLAY_STEADY_INPUTS", "off")
    assert steady.create_steady_inputs(runner(np.zeros(1))) is None
    assert effect() == ("idle", "OVERLAY_STEADY_INPUTS=off")


class Platform:
    """vLLM's platform, as far as it is asked."""

    def __init__(self, cuda: bool) -> None:
        self.is_cuda = lambda: cuda


def on_platform(
    monkeypatch: pytest.MonkeyPatch, *, cuda: bool, triton: bool, value: str = ""
) -> tuple[Any, list[str]]:
    """What a runner on a device gets, and what the log says; nothing is compiled."""
    modules = {name: ModuleType(f"vllm.{name}") for name in ("platforms", "triton_utils", "logger")}
    lines: list[str] = []
    log = SimpleNamespace(info=lambda text, *values: lines.append(text % values))
    vars(modules["platforms"])["current_platform"] = Platform(cuda)
    vars(modules["triton_utils"])["HAS_TRITON"] = triton
    vars(modules["logger"])["init_logger"] = lambda name: log
    for module in modules.values():
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setenv("OVERLAY_STEADY_INPUTS", value)
    device = runner(np.zeros(1))
    device.device, device.use_async_spec_decode = SimpleNamespace(type="npu"), True
    with mock.patch.object(steady.SteadyInputs, "warm_up"):
        return steady.create_steady_inputs(device), lines


@pytest.mark.parametrize("value", ["", "on", "untried"])
def test_on_cuda_they_work(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    kept, lines = on_platform(monkeypatch, cuda=True, triton=True, value=value)
    assert kept is not None
    assert lines == []


def test_on_a_platform_where_no_test_has_run_they_do_nothing_and_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, lines = on_platform(monkeypatch, cuda=False, triton=True)
    assert kept is None
    (line,) = lines
    assert "no test has run on platform Platform" in line
    assert effect() == ("idle", effect()[1])
    assert effect()[1] in line
    kept, lines = on_platform(monkeypatch, cuda=False, triton=True, value="untried")
    assert kept is not None


@pytest.mark.parametrize("value", ["", "untried"])
@pytest.mark.parametrize("cuda", [True, False])
def test_without_triton_they_do_nothing_and_say_so(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, value: str
) -> None:
    """The kernel would be a plain function, and its launch a TypeError that stops the start."""
    kept, (line,) = on_platform(monkeypatch, cuda=cuda, triton=False, value=value)
    assert kept is None
    assert "has no Triton" in line
    assert effect()[0] == "idle"


def test_without_speculative_decoding_there_is_nothing_to_keep() -> None:
    plain = runner(np.zeros(1))
    plain.speculative_config = None
    assert steady.create_steady_inputs(plain) is None
    assert effect() == ("idle", "no speculative decoding")


def effect() -> tuple[str, str]:
    """What the feature has reported last."""
    told = steady.active.__globals__["effects"]()["steady-inputs"]
    return told["state"], told["text"]


@pytest.mark.parametrize(("asynchronous", "text"), [(True, "one kernel"), (False, "not copied")])
def test_a_runner_that_keeps_inputs_reports_it(asynchronous: bool, text: str) -> None:
    keeps = runner(np.zeros(1))
    keeps.use_async_spec_decode = asynchronous
    with mock.patch.object(steady.SteadyInputs, "warm_up"):
        assert steady.create_steady_inputs(keeps) is not None
    assert effect()[0] == "active"
    assert text in effect()[1]
