"""A model runner of a release's own `_prepare_inputs` and fakes, and the steps it goes through."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from hypothesis import strategies as st

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.targets.resolution import resolve
from tests.steady_inputs.test_steady_inputs import FILE, steady

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
#: Host and device memory that only `_prepare_inputs` and `_prepare_input_ids` read after writing
#: it, in vLLM 0.20.0 to 0.33.0: (attribute of the runner, side). A steady step leaves it as it is.
UNREAD = (
    ("input_ids", "cpu"),
    ("req_indices", "gpu"),
    ("query_pos", "gpu"),
    ("num_scheduled_tokens", "gpu"),
    ("prev_positions", "gpu"),
    ("prev_num_draft_tokens", "gpu"),
)
METHODS = (
    "_get_cumsum_and_arange",
    "_compute_prev_positions",
    "_prepare_input_ids",
    "_prepare_inputs",
    "_calc_spec_decode_metadata",
)
ROWS, K_MAX, TOKENS = 4, 3, 40
BUFFERS = {
    "input_ids": (TOKENS, torch.int32),
    "query_start_loc": (ROWS + 1, torch.int32),
    "req_indices": (TOKENS, torch.int64),
    "query_pos": (TOKENS, torch.int64),
    "num_scheduled_tokens": (ROWS, torch.int32),
    "prev_positions": (ROWS, torch.int64),
    "prev_num_draft_tokens": (ROWS, torch.int32),
    "discard_request_mask": (ROWS, torch.bool),
    "num_decode_draft_tokens": (ROWS, torch.int32),
    "num_accepted_tokens": (ROWS, torch.int32),
}


@contextlib.contextmanager
def kernels_in_place(source: str | None = None) -> Iterator[Any]:
    """The kernels, or others, where ``steady_decode`` imports them from, vLLM itself left out."""
    triton: Any = ModuleType("vllm.triton_utils")
    triton.tl = SimpleNamespace(constexpr=object)
    triton.triton = SimpleNamespace(jit=lambda **_: lambda function: function)
    worker: Any = ModuleType("vllm.v1.worker")
    packages = {name: ModuleType(name) for name in ("vllm", "vllm.v1")}
    stand_ins = packages | {"vllm.v1.worker": worker, triton.__name__: triton}
    with mock.patch.dict(sys.modules, stand_ins):
        module: Any = ModuleType("vllm.v1.worker.steady_kernels")
        path = FILE.parent / "steady_kernels.py"
        sys.modules[module.__name__] = worker.steady_kernels = module
        exec(compile(source or path.read_text(), str(path), "exec"), module.__dict__)
        yield module


@functools.cache
def sources(release: str) -> tuple[bytes, bytes]:
    """The runner of a release, pristine and with the feature."""
    target = resolve(release)
    features = [one for one in load([shipped_folder()]) if one.id == "steady-inputs"]
    (change,) = [
        one for one in plan(features, target, target.release).changes if one.path == RUNNER
    ]
    assert change.before is not None
    assert change.after is not None
    return change.before, change.after


@functools.cache
def runner_class(release: str, patched: bool) -> type:
    """A class with a release's own methods, in a world of fakes."""
    source = sources(release)[patched].decode()
    lines = source.split("\n")
    methods = [
        "\n".join(lines[node.lineno - 1 : node.end_lineno])  # indented, as methods are
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name in METHODS
    ]
    assert len(methods) == len(METHODS)
    utils = resolve(release).read("vllm/v1/spec_decode/utils.py")
    assert utils is not None
    update = next(
        node
        for node in ast.parse(utils).body
        if isinstance(node, ast.FunctionDef)
        and node.name == "update_num_computed_tokens_for_batch_change"
    )
    names: dict[str, Any] = {
        "np": np,
        "torch": torch,
        "PIN_MEMORY": False,
        "SpecDecodeMetadata": Metadata,
        "async_tensor_h2d": lambda array, device, **_: torch.from_numpy(array.copy()).to(device),
    }
    text = utils.decode().split("\n")[update.lineno - 1 : update.end_lineno]
    text = ["from __future__ import annotations", *text, "class Runner:", *methods]
    exec(compile("\n".join(text), RUNNER, "exec"), names)
    runner: type = names["Runner"]
    return runner


@dataclasses.dataclass
class Metadata:
    draft_token_ids: Any
    num_draft_tokens: list[int]
    cu_num_draft_tokens: Any
    cu_num_sampled_tokens: Any
    target_logits_indices: Any
    bonus_logits_indices: Any
    logits_indices: Any

    def __post_init__(self) -> None:
        self.max_spec_len = max(self.num_draft_tokens)


class Buffer:
    """A ``CpuGpuBuffer`` whose GPU side is another tensor of the same device."""

    def __init__(self, size: int, dtype: Any) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self.gpu = torch.full((size,), 1, dtype=dtype)
        self.np = self.cpu.numpy()

    def copy_to_gpu(self, n: int | None = None) -> Any:
        return self.gpu[:n].copy_(self.cpu[:n])


class BlockTable:
    """Records what it is asked for, arguments as they are at that moment."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def commit_block_table(self, num_reqs: int) -> None:
        self.calls.append(num_reqs)

    def compute_slot_mapping(self, num_reqs: int, starts: Any, positions: Any) -> None:
        self.calls.append((num_reqs, starts.tolist(), positions.tolist()))


def make_runner(release: str, *, patched: bool) -> Any:
    self = runner_class(release, patched)()
    vars(self).update({name: Buffer(*kind) for name, kind in BUFFERS.items()})
    vars(self).update(
        max_num_reqs=ROWS,
        device="cpu",
        pin_memory=False,
        arange_np=np.arange(TOKENS),
        _arange_scratch=np.zeros(TOKENS, dtype=np.int64),
        positions=torch.zeros(TOKENS, dtype=torch.int64),
        seq_lens=torch.zeros(ROWS, dtype=torch.int32),
        num_computed_tokens=torch.zeros(ROWS, dtype=torch.int32),
        optimistic_seq_lens_cpu=torch.zeros(ROWS, dtype=torch.int32),
        speculative_config=object(),
        use_async_spec_decode=True,
        use_async_scheduling=True,
        enable_prompt_embeds=False,
        uses_mrope=False,
        uses_xdrope_dim=0,
        lora_config=None,
        num_accepted_tokens_event=SimpleNamespace(synchronize=lambda: None),
        model_config=SimpleNamespace(is_hybrid=False),
        mamba_prev_last_scheduled_idx=None,
        _pp_recv_work=None,
        cache_config=SimpleNamespace(mamba_cache_mode="none"),
        requests={},
    )
    self.input_batch = SimpleNamespace(
        block_table=BlockTable(),
        num_computed_tokens_cpu_tensor=torch.zeros(ROWS, dtype=torch.int32),
        # Nothing else is written without state-space layers.
        num_accepted_tokens_cpu=np.ones(ROWS, dtype=np.int32),
        num_prompt_tokens=np.ones(ROWS, dtype=np.int32),
        token_ids_cpu_tensor=torch.arange(ROWS * 200, dtype=torch.int32).view(ROWS, 200),
        req_prompt_embeds={},
        is_token_ids_tensor=None,
    )
    self.input_batch.num_computed_tokens_cpu = (
        self.input_batch.num_computed_tokens_cpu_tensor.numpy()
    )
    self.input_batch.token_ids_cpu = self.input_batch.token_ids_cpu_tensor.numpy()
    self.steady_inputs = steady.SteadyInputs(self) if patched else None
    return self


@dataclasses.dataclass(frozen=True)
class Step:
    """What a step finds: host state, and what the last one left on the GPU."""

    rows: int
    k: int
    previous: tuple[int, ...]  # row of the last step, -1 for a new request
    drafts: tuple[int, ...]  # of this step, by row
    more: tuple[int, ...]  # tokens beyond drafts and one: a prefill in chunks
    last_drafts: tuple[int, ...]  # by row of the last step
    computed: tuple[int, ...]
    prompts: tuple[int, ...]
    unfinished: tuple[int, ...]  # tokens that a request has beyond this step's
    on_gpu: bool
    seed: int


@st.composite
def steps(draw: st.DrawFn, rows: int, k: int) -> Step:
    """Mostly steady, sometimes with anything else that a step may have."""

    def mostly(usual: int, low: int, high: int) -> tuple[int, ...]:
        if draw(st.integers(0, 5)) < 5:
            return (usual,) * ROWS
        return tuple(draw(st.lists(st.integers(low, high), min_size=ROWS, max_size=ROWS)))

    previous = tuple(range(ROWS))
    if draw(st.integers(0, 5)) == 5:
        previous = tuple(draw(st.permutations([-1, 0, 1, 2])))
    drafts = mostly(k, 0, k)
    return Step(
        rows=rows,
        k=k,
        previous=previous,
        drafts=tuple(0 if p < 0 else d for p, d in zip(previous, drafts, strict=True)),
        more=mostly(0, 0, 2),
        last_drafts=mostly(k, 0, k),
        computed=tuple(draw(st.lists(st.integers(0, 90), min_size=ROWS, max_size=ROWS))),
        prompts=mostly(0, 0, 90),
        unfinished=mostly(0, 0, 3),
        on_gpu=draw(st.integers(0, 7)) > 0,
        seed=draw(st.integers(0, 99)),
    )


@st.composite
def sequences(draw: st.DrawFn) -> list[Step]:
    """Steps, mostly of one batch."""
    found = []
    rows, k = draw(st.integers(1, ROWS)), draw(st.integers(1, K_MAX))
    for _ in range(draw(st.integers(2, 10))):
        if draw(st.integers(0, 4)) == 4:
            rows, k = draw(st.integers(1, ROWS)), draw(st.integers(1, K_MAX))
        found.append(draw(steps(rows, k)))
    return found


def disturb(self: Any, generator: Any) -> None:
    """Write where others may write between two steps: drafters, and vLLM's dummy runs."""
    places = [self.seq_lens, self.optimistic_seq_lens_cpu, self.num_accepted_tokens.gpu]
    places += [self.query_start_loc.cpu, self.query_start_loc.gpu]
    for place in places:
        place.copy_(torch.randint(50, place.shape, generator=generator))
    self.num_decode_draft_tokens.np[:] = 9


def run(self: Any, step: Step) -> list[Any]:
    """Set the step's state, prepare it, and return all that anybody else may read."""
    generator = torch.Generator().manual_seed(step.seed)
    rows, k, batch = step.rows, step.k, self.input_batch
    disturb(self, generator)
    names = [f"r{row}" for row in range(rows)]
    tokens = [1 + step.drafts[row] + step.more[row] for row in range(rows)]
    batch.num_reqs, batch.req_ids = rows, names
    batch.req_id_to_index = {name: row for row, name in enumerate(names)}
    batch.prev_req_id_to_index = {
        name: step.previous[row] for row, name in enumerate(names) if step.previous[row] >= 0
    }
    batch.num_computed_tokens_cpu[:] = step.computed
    batch.num_prompt_tokens[:] = step.prompts
    self.requests = {
        name: SimpleNamespace(num_tokens=step.computed[row] + tokens[row] + step.unfinished[row])
        for row, name in enumerate(names)
    }
    self.prev_num_draft_tokens.np[:] = step.last_drafts
    self.num_spec_tokens = self.prev_num_spec_tokens = k
    self._draft_token_ids = torch.randint(1000, (ROWS, k), generator=generator)
    counts = torch.randint(1, k + 2, (ROWS,), generator=generator, dtype=torch.int32)
    self.valid_sampled_token_count_gpu = counts if step.on_gpu else None
    sampled = torch.randint(1000, (ROWS, 1), generator=generator, dtype=torch.int32)
    batch.prev_sampled_token_ids = sampled if step.on_gpu else None
    batch.block_table.calls.clear()
    output = SimpleNamespace(
        total_num_scheduled_tokens=sum(tokens),
        scheduled_spec_decode_tokens={
            name: [-1] * step.drafts[row] for row, name in enumerate(names) if step.drafts[row]
        },
    )
    if not output.scheduled_spec_decode_tokens and not step.on_gpu:
        return []  # no drafts at all: upstream's other branch, which the feature does not touch
    logits_indices, metadata, *largest = self._prepare_inputs(output, np.array(tokens, np.int32))
    found = [logits_indices, largest, list(batch.block_table.calls)]
    if metadata is not None:
        found += [metadata.max_spec_len, *vars(metadata).values()]
    found += [self.seq_lens, self.positions, self.num_computed_tokens]
    found += [self.optimistic_seq_lens_cpu, batch.num_accepted_tokens_cpu]
    for name in BUFFERS:
        buffer = getattr(self, name)
        found += [
            (name, side, getattr(buffer, side).tolist())
            for side in ("cpu", "gpu")
            if (name, side) not in UNREAD
        ]
    return [one.tolist() if hasattr(one, "tolist") else one for one in found]
