"""Steady input ids equal what upstream's own function gives, on its real source."""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.targets.resolution import resolve
from tests.steady_inputs.test_steady_inputs import FakeBuffer, steady

np = pytest.importorskip("numpy")  # in the environment of the engine
torch = pytest.importorskip("torch")
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
ROWS, K_MAX, TOKENS = 4, 3, 32

pytestmark = pytest.mark.network


@functools.cache
def functions(release: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """``_prepare_input_ids`` of a release, pristine and with the feature."""
    target = resolve(release)
    features = [one for one in load([shipped_folder()]) if one.id == "steady-inputs"]
    found = plan(features, target, target.release)
    (change,) = [one for one in found.changes if one.path == RUNNER]
    assert change.before is not None
    assert change.after is not None
    return compiled(change.before), compiled(change.after)


def compiled(source: bytes) -> Callable[..., None]:
    tree = ast.parse(source)
    (function,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "_prepare_input_ids"
    ]
    lines = source.decode().split("\n")[function.lineno - 1 : function.end_lineno]
    text = "from __future__ import annotations\n" + textwrap.dedent("\n".join(lines))
    names: dict[str, Any] = {"np": np, "torch": torch, "PIN_MEMORY": False}
    exec(compile(text, RUNNER, "exec"), names)
    prepare: Callable[..., None] = names["_prepare_input_ids"]
    return prepare


class Buffer:
    """A ``CpuGpuBuffer`` whose GPU side is another tensor of the same device."""

    def __init__(self, size: int) -> None:
        self.cpu = torch.zeros(size, dtype=torch.int32)
        self.gpu = torch.zeros(size, dtype=torch.int32)

    def copy_to_gpu(self, n: int) -> None:
        self.gpu[:n].copy_(self.cpu[:n])


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """A step of a batch: mostly steady, sometimes with anything else that a step may have."""
    rows = draw(st.integers(1, ROWS))
    k = draw(st.integers(1, K_MAX))
    previous = draw(st.integers(rows, ROWS))
    positions, drafts = list(range(rows)), [k] * rows
    extra = [1] * rows
    if draw(st.booleans()):
        positions = draw(
            st.lists(st.integers(-1, previous - 1), min_size=rows, max_size=rows, unique=True)
        )
    if draw(st.booleans()):
        drafts = draw(st.lists(st.integers(0, k), min_size=rows, max_size=rows))
    if draw(st.booleans()):  # a prefill in chunks has more tokens than its drafts and one
        extra = draw(st.lists(st.integers(1, 3), min_size=rows, max_size=rows))
    drafts = [0 if position < 0 else n for n, position in zip(drafts, positions, strict=True)]
    return {
        "rows": rows,
        "k": k,
        "previous": previous,
        "positions": positions,
        "drafts": drafts,
        "extra": extra,
        "has_drafts": draw(st.integers(0, 5)) > 0,
    }


def runner(step: dict[str, Any], seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    rows, k, previous = step["rows"], step["k"], step["previous"]
    self = SimpleNamespace(
        **{name: FakeBuffer(TOKENS) for name in steady.STEADY_BUFFERS},
        input_ids=Buffer(TOKENS),
        max_num_reqs=ROWS,
        num_spec_tokens=k,
        prev_num_spec_tokens=k,
        enable_prompt_embeds=False,
        pin_memory=False,
        device="cpu",
        _pp_recv_work=None,
        speculative_config=object(),
    )
    for tensor in (self.input_ids.cpu, self.input_ids.gpu):
        tensor.copy_(torch.randint(1000, (TOKENS,), generator=generator))
    sampled = torch.randint(1000, (previous, 1), generator=generator, dtype=torch.int32)
    drafted = torch.randint(1000, (previous, k), generator=generator)
    self._draft_token_ids = drafted if step["has_drafts"] else None
    ids = [f"r{row}" for row in range(rows)]
    self.input_batch = SimpleNamespace(prev_sampled_token_ids=sampled, req_ids=ids)
    self.prev_positions.np[:rows] = step["positions"]
    return self


@pytest.mark.parametrize("release", ["0.20.0", "0.24.0", "0.26.0", "0.33.0"])
@settings(max_examples=150, deadline=None)
@given(step=steps(), seed=st.integers(0, 9))
def test_input_ids_equal_upstreams(release: str, step: dict[str, Any], seed: int) -> None:
    upstream, patched = functions(release)
    tokens = np.cumsum([d + e for d, e in zip(step["drafts"], step["extra"], strict=True)])
    scheduled = {f"r{row}": [-1] * n for row, n in enumerate(step["drafts"]) if n}
    output = SimpleNamespace(scheduled_spec_decode_tokens=scheduled)
    arguments = (output, step["rows"], int(tokens[-1]), tokens.astype(np.int32))
    expected, found = runner(step, seed), runner(step, seed)
    found.steady_inputs = steady.SteadyInputs(found)
    upstream(expected, *arguments)
    patched(found, *arguments)
    assert torch.equal(found.input_ids.gpu, expected.input_ids.gpu)


def test_a_steady_step_takes_the_short_way() -> None:
    step = {"rows": 3, "k": 2, "previous": 3, "positions": [0, 1, 2], "has_drafts": True}
    self = runner(step, 0)
    inputs = steady.SteadyInputs(self)
    scheduled = {f"r{row}": [-1, -1] for row in range(3)}
    assert inputs.fill_input_ids(3, np.array([3, 6, 9], np.int32), scheduled)
    assert not inputs.fill_input_ids(3, np.array([3, 6, 10], np.int32), scheduled)
    assert not inputs.fill_input_ids(3, np.array([3, 6, 9], np.int32), scheduled | {"r2": [-1]})
    self.prev_positions.np[:3] = [1, 0, 2]
    assert not inputs.fill_input_ids(3, np.array([3, 6, 9], np.int32), scheduled)
