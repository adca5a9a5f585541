"""A steady step leaves the state that upstream's own ``_prepare_inputs`` leaves, on its source."""

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

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from overlay.features import load, shipped_folder
from overlay.planning import plan
from overlay.releases import KNOWN_RELEASES
from overlay.targets import resolve
from tests.test_steady_inputs import FILE, steady

np = pytest.importorskip("numpy")  # in the environment of the engine
torch = pytest.importorskip("torch")
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
UNREAD = steady.SteadyDecode.prepare.__globals__["UNREAD"]
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

pytestmark = pytest.mark.network


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
    return names["Runner"]  # type: ignore[no-any-return]


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
        # Nobody writes anything else without state-space layers.
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


def test_between_the_releases_tried_nothing_changed() -> None:
    """``_prepare_inputs`` of every release is, but for its docstring, one that was tried."""

    def code(release: str) -> str:
        tree = ast.parse(sources(release)[0])
        found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        (function,) = [n for n in found if n.name == "_prepare_inputs"]
        return ast.unparse(ast.Module(function.body[1:], []))

    # 0.29 writes out the rows of positions that a steady step never has (M-RoPE, XD-RoPE).
    tried = {code(release) for release in CHANGED}
    untried = [str(r) for r in KNOWN_RELEASES if code(str(r)) not in tried]
    assert untried == ["0.29.0"]


def test_what_a_steady_step_leaves_is_read_nowhere_else() -> None:
    readers: dict[str, set[str]] = {}
    for release in KNOWN_RELEASES:
        for function in ast.walk(ast.parse(sources(str(release))[0])):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                    place = f"{node.value.attr}.{node.attr}"
                    readers.setdefault(place, set()).add(function.name)
    for name, side in UNREAD:
        assert readers.get(f"{name}.{side}", set()) <= {"_prepare_inputs", "_prepare_input_ids"}


@pytest.fixture
def kernels() -> Iterator[Any]:
    with kernels_in_place() as module:
        yield module


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
    for change in (
        {"rows": 2},  # another shape than the kept one
        {"previous": (1, 0, 2, 3)},
        {"last_drafts": (3, 0, 3, 3)},
        {"drafts": (3, 2, 3, 3)},
        {"more": (0, 1, 0, 0)},
        {"prompts": (5, 5, 8, 5)},
        {"on_gpu": False},
    ):
        run(self, step)
        taken.clear()
        run(self, other(step, **change))  # type: ignore[arg-type]
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


#: Module, what stands there, what a mistake would make of it.
MUTATIONS = [
    ("steady_kernels", "num_computed[:num_reqs] += counts", "num_computed[:num_reqs] += k"),
    ("steady_kernels", "num_accepted.fill_(1)", "num_accepted"),
    ("steady_kernels", "num_accepted[:num_reqs] = counts", "num_accepted[:num_reqs] = 1"),
    ("steady_kernels", "seq_lens.zero_()", "seq_lens"),
    (
        "steady_kernels",
        "seq_lens[:num_reqs] = computed + k + 1",
        "seq_lens[:num_reqs] = computed + k",
    ),
    ("steady_kernels", "rows.clamp(max=num_reqs)", "rows"),
    ("steady_kernels", "ids[:, 1:] = drafts", "ids[:, 1:] = drafts[:1]"),
    ("steady_kernels", "ids[:, 0] = last.sampled[:num_reqs, 0]", "ids[:, 0]"),
    ("steady_kernels", "k).copy_(drafts)", "k).copy_(last.drafts[-num_reqs:])"),
    ("steady_decode", "(num_scheduled_tokens == k + 1).all()", "True"),
    ("steady_decode", "(runner.prev_num_draft_tokens.np[:rows] > 0).all()", "True"),
    (
        "steady_decode",
        "(batch.num_computed_tokens_cpu[:rows] >= batch.num_prompt",
        "(0 >= 0 * batch.num_prompt",
    ),
    ("steady_decode", "previous.get(name) == row for", "previous.get(name) is not None for"),
    ("steady_decode", "lengths[rows:] = 0", "lengths[rows:]"),
    (
        "steady_decode",
        "np.add(batch.num_computed_tokens_cpu[:rows], k + 1,",
        "np.add(lengths[:rows], 0,",
    ),
    ("steady_decode", "starts[rows + 1 :] = tokens", "starts[rows + 1 :]"),
    ("steady_decode", "lengths[:rows] < known", "False"),
    ("steady_decode", "runner.discard_request_mask.copy_to_gpu(rows)", "pass"),
    ("steady_decode", "runner.num_decode_draft_tokens.np[rows:] = -1", "pass"),
    (
        "steady_decode",
        "rows, runner.query_start_loc.gpu[: rows + 1]",
        "rows, runner.query_start_loc.gpu[:rows]",
    ),
]


@pytest.mark.parametrize(("module", "old", "new"), MUTATIONS)
def test_each_mistake_is_noticed(
    module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FILE.parent / f"{module}.py"
    source = path.read_text()
    assert source.count(old) == 1
    mutated = source.replace(old, new)
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
