"""The graph double itself: what it records, refuses, catches and leaves alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
np: Any = pytest.importorskip("numpy")

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draft_graphs.recorded_graph import (
    CaptureRefused,
    GraphPool,
    RecordedGraph,
    ReplayRefused,
)
from tests.support import cpu_operators

VECTOR = torch.arange(8.0)
OUT = torch.zeros(8)
MASK = torch.tensor([True] * 4 + [False] * 4)
COUNTS = torch.tensor([1, 2])
LENGTH = torch.tensor(3)
ARRAY = np.arange(3)
MATRIX = torch.eye(8)


def record(body: Callable[[], Any], **options: Any) -> tuple[RecordedGraph, Any]:
    graph = RecordedGraph(**options)
    with graph.capture():
        out = body()
    return graph, out


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (lambda: VECTOR.sum().item(), "_local_scalar_dense"),
        (VECTOR.tolist, "tolist"),
        (VECTOR.cpu, "cpu"),
        (VECTOR.numpy, "numpy"),
        (lambda: np.asarray(VECTOR), "__array__"),
        (lambda: bool(VECTOR.sum() > 3), "_local_scalar_dense"),
        (lambda: int(VECTOR[0]), "_local_scalar_dense"),
        (VECTOR.nonzero, "nonzero"),
        (lambda: torch.where(VECTOR > 3), "nonzero"),
        (lambda: VECTOR[MASK], "boolean mask"),
        (lambda: OUT.__setitem__(MASK, VECTOR[:4]), "boolean mask"),
        (lambda: VECTOR[:LENGTH], "_local_scalar_dense"),
        (lambda: torch.arange(LENGTH), "_local_scalar_dense"),
        (lambda: VECTOR[:3] + torch.tensor([1.0, 2.0, 3.0]), "torch.tensor"),
        (lambda: VECTOR[:3] + torch.from_numpy(ARRAY), "mixes memory of the host"),
        (lambda: VECTOR[:3] + torch.as_tensor(ARRAY), "as_tensor"),
        (lambda: VECTOR[[0, 1]], "fresh host data"),
        (lambda: OUT.__setitem__([0, 1], 2.0), "fresh host data"),
        (lambda: VECTOR[:2].repeat_interleave(COUNTS), "repeat_interleave"),
        (lambda: torch.equal(VECTOR, OUT), "equal"),
        (lambda: torch.unique(VECTOR), "unique"),
        (VECTOR.pin_memory, "pin_memory"),
    ],
)
def test_what_a_capture_could_not_do_is_refused_by_name(
    body: Callable[[], Any], named: str
) -> None:
    with pytest.raises(CaptureRefused, match=named):
        record(body)
    assert RecordedGraph.capturing is None
    assert torch.from_numpy(ARRAY).shape == (3,)  # the refusal does not outlive the capture


@pytest.mark.parametrize(
    "body",
    [
        lambda: OUT.__setitem__(MASK, 3.0),
        lambda: VECTOR.masked_fill(MASK, 0.0),
        lambda: OUT.__setitem__(slice(0, 2), 2.0),
        lambda: OUT.__setitem__(slice(0, 2), VECTOR[2:4]),
        lambda: OUT.__setitem__(COUNTS, VECTOR[2:4]),
        lambda: VECTOR[:2].repeat_interleave(COUNTS, output_size=3),
        lambda: torch.nn.functional.linear(VECTOR, MATRIX),
        lambda: (torch.zeros(3), torch.arange(4), torch.full_like(VECTOR, 2)),
        lambda: torch.einsum("ij,jk->ik", MATRIX, MATRIX).t().reshape(-1).softmax(0),
        lambda: torch.where(VECTOR > 3, VECTOR, 0.0),
        lambda: VECTOR.topk(2),
        lambda: torch.sum(VECTOR[8:] == VECTOR[:0]),
        lambda: torch.cat([VECTOR, VECTOR.to(torch.float64)]),
    ],
)
def test_replay_gives_what_the_code_gives(body: Callable[[], Any]) -> None:
    """The law of the instrument: on inputs that capture never saw, replay equals running."""
    VECTOR.copy_(torch.arange(8.0))
    OUT.zero_()
    graph, recorded = record(body)
    VECTOR.copy_(torch.tensor([4.0, 9.0, 1.0, 7.0, 0.0, 2.0, 8.0, 3.0]))
    graph.replay()
    replayed_out = OUT.clone()
    OUT.zero_()
    expected = body()
    assert torch.equal(OUT, replayed_out)
    for got, wanted in zip(tensors(recorded), tensors(expected), strict=True):
        assert torch.equal(got, wanted)
    VECTOR.copy_(torch.arange(8.0))


def tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors(item)


def test_capture_runs_nothing() -> None:
    counter = torch.zeros(4)
    _, out = record(lambda: counter.add_(1) * 2)
    assert torch.equal(counter, torch.zeros(4))
    assert out.isnan().all()


def test_memory_that_a_replay_does_not_write_holds_poison() -> None:
    def body() -> Any:
        scratch = torch.empty(4)
        whole = torch.empty(4, dtype=torch.int64)
        scratch[:2] = VECTOR[:2]
        return scratch, whole

    graph, (scratch, whole) = record(body)
    scratch.zero_()
    whole.zero_()
    graph.replay()
    assert torch.equal(scratch[:2], VECTOR[:2])
    assert scratch[2:].isnan().all()
    assert (whole > 2**62).all()


def test_numbers_are_baked() -> None:
    factor = [2.0]
    graph, out = record(lambda: VECTOR * factor[0])
    factor[0] = 50.0
    graph.replay()
    assert torch.equal(out, VECTOR * 2)


def test_no_python_runs_in_a_replay() -> None:
    calls: list[int] = []

    def body() -> Any:
        calls.append(0)
        return VECTOR + 1

    graph, _ = record(body)
    graph.replay()
    graph.replay()
    assert len(calls) == 1
    assert graph.replays == 2


class Holder:
    value: Any


def test_a_name_that_was_assigned_a_new_tensor_is_caught() -> None:
    holder = Holder()
    holder.value = torch.ones(4)
    graph, _ = record(lambda: holder.value + 1)
    holder.value = torch.full((4,), 100.0)
    gc.collect()
    with pytest.raises(ReplayRefused, match=r"float32\[4\], first used by aten\.add"):
        graph.replay()


def test_another_recording_is_no_owner() -> None:
    holder = Holder()
    holder.value = torch.ones(4)
    graph, _ = record(lambda: holder.value + 1)
    other, _ = record(lambda: holder.value + 2)
    other.replay()
    holder.value = None
    for each in (graph, other):
        with pytest.raises(ReplayRefused, match="only the graph still owns"):
            each.replay()


def test_a_new_tensor_beside_the_old_one_is_not_read() -> None:
    """As on a GPU; this is what the module's own address check is for."""
    holder = Holder()
    holder.value = old = torch.ones(4)
    graph, out = record(lambda: holder.value + 1)
    holder.value = torch.full((4,), 100.0)
    old.fill_(5)
    graph.replay()
    assert torch.equal(out, torch.full((4,), 6.0))


def test_data_swapped_under_a_tensor_is_not_read() -> None:
    parameter = torch.ones(4)
    graph, out = record(lambda: parameter + 1)
    kept = parameter.data
    parameter.data = torch.full((4,), 7.0)
    graph.replay()
    assert torch.equal(out, kept + 1)


def test_a_temporary_from_outside_the_dispatcher_is_caught() -> None:
    def body() -> Any:
        return VECTOR + torch.utils.dlpack.from_dlpack(np.ones(8, dtype=np.float32))

    with pytest.raises(CaptureRefused):
        record(body)


def test_host_only_tensors_are_refused() -> None:
    pinned = torch.zeros(4)
    with pytest.raises(CaptureRefused, match=r"copy_.*must not use"):
        record(lambda: pinned.copy_(VECTOR[:4]), host_only=[pinned[1:]])


def test_host_memory_is_computed_with_on_the_host() -> None:
    lengths = torch.tensor([2, 3])

    def body() -> Any:
        return VECTOR * int((lengths[1:] - lengths[:-1]).max().item())

    graph, out = record(body, host=[lengths])
    lengths.zero_()  # a number that the host has read is baked
    graph.replay()
    assert torch.equal(out, VECTOR)


@pytest.mark.parametrize("body", [lambda host: VECTOR + host, lambda host: OUT.copy_(host * 2)])
def test_host_memory_beside_device_memory_is_refused(body: Callable[[Any], Any]) -> None:
    host = torch.ones(8)
    with pytest.raises(CaptureRefused, match="mixes memory"):
        record(lambda: body(host), host=[host])


def test_neighbours_in_a_pool_lose_what_nobody_holds() -> None:
    pool = GraphPool()
    kept_graph, kept = record(lambda: VECTOR + 1, pool=pool)
    kept_graph.replay()
    lost_graph, lost = record(lambda: VECTOR + 2, pool=pool)
    lost_graph.replay()
    where = next(m.everything for m in lost_graph.memory.values() if m.role == "pool")
    del lost
    kept_graph.replay()
    assert torch.equal(kept, VECTOR + 1)
    assert where.isnan().all()
    lost_graph.replay()
    assert torch.equal(kept, VECTOR + 1)  # somebody holds it: a pool does not reuse it
    assert torch.equal(where, VECTOR + 2)


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0, 1, 2]), max_size=12))
def test_behind_any_replay_what_others_of_the_pool_left_is_poison(order: list[int]) -> None:
    pool = GraphPool()
    graphs = [record(lambda: VECTOR + 1, pool=pool)[0] for _ in range(3)]
    own = [
        next(m.everything for m in graph.memory.values() if m.role == "pool") for graph in graphs
    ]
    for number in order:
        graphs[number].replay()
        for other, memory in enumerate(own):
            assert bool(memory.isnan().all()) is (other != number)


def test_captures_neither_nest_nor_repeat_nor_outlive_an_error() -> None:
    graph, _ = record(lambda: VECTOR + 1)
    with pytest.raises(CaptureRefused, match="captured already"), graph.capture():
        pass
    with pytest.raises(CaptureRefused, match="another capture"):
        record(lambda: record(lambda: VECTOR + 1))
    broken = RecordedGraph()
    target = torch.zeros(4)
    with pytest.raises(ZeroDivisionError), broken.capture():
        target.add_(1 / int(target.dim() == 0))
    assert torch.equal(target, torch.zeros(4))
    with pytest.raises(ReplayRefused, match="not captured"):
        broken.replay()
    record(lambda: VECTOR + 1)


LIBRARY = torch.library.Library("recorded_graph_test", "DEF")
LIBRARY.define("doubled(Tensor a, Tensor(b!) out) -> ()")
CALLS: list[str] = []


def doubled(a: Any, out: Any) -> None:
    CALLS.append("doubled")
    out.copy_(a * 2)


LIBRARY.impl("doubled", doubled, "CPU")


# To mypy, torch is what importorskip returns: neither its decorators nor its types are known.
@torch.library.custom_op("recorded_graph_test::plus_five", mutates_args=())  # type: ignore[untyped-decorator]
# Torch comes from importorskip.
def plus_five(a: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
    CALLS.append("plus_five")
    return a + 5


def test_python_operators_are_entered_and_their_insides_recorded() -> None:
    """Guards the private PyTorch names that entering leans on: without it, Python would replay."""
    out = torch.zeros(8)
    graph, sum_ = record(
        lambda: (
            torch.ops.recorded_graph_test.doubled(VECTOR, out),
            torch.ops.recorded_graph_test.plus_five(VECTOR),
        )[1]
    )
    assert sum(graph.entered.values()) == 2
    names = {str(operation.func) for operation in graph.operations}
    assert names == {"aten.mul.Tensor", "aten.copy_.default", "aten.add.Tensor"}
    CALLS.clear()
    graph.replay()
    assert CALLS == []
    assert torch.equal(out, VECTOR * 2)
    assert torch.equal(sum_, VECTOR + 5)


def test_composite_operators_in_cpp_are_recorded() -> None:
    """vLLM's step kernel is one: registered without a key, it runs above a plain mode."""
    cpu_operators.load()
    step = torch.ops._C.eagle_step_slot_mapping_metadata_kernel_impl
    positions, lengths, slots = torch.tensor([3, 15]), torch.tensor([4, 16]), torch.zeros(2)
    positions, lengths, slots = positions.long(), lengths.int(), slots.long()
    table = torch.tensor([[5, 6], [7, 8]], dtype=torch.int32)
    graph, _ = record(lambda: step(positions, table, lengths, positions, slots, 16, 32, -1))
    assert len(graph.operations) == 1
    assert positions.tolist() == [3, 15]
    table.add_(10)
    graph.replay()
    graph.replay()
    assert positions.tolist() == [5, 17]
    assert lengths.tolist() == [6, 18]
    assert slots.tolist() == [15 * 16 + 5, 18 * 16 + 1]
