"""The double of torch_npu's graphs refuses what would not end, or would be lost, on an NPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.ascend import npu_double as npu
from tests.draft_graphs.recorded_graph import CaptureRefused, ReplayRefused

SCHEMA = "(Tensor x, *, int[] actual_seq_lengths_kv, Tensor block_table, Tensor[] out)"
LIBRARY = torch.library.Library("npu", "FRAGMENT")
for _name in ("summed", "other"):
    LIBRARY.define(f"{_name}{SCHEMA} -> (Tensor, Tensor)")


def _summed(
    x: Any, *, actual_seq_lengths_kv: list[int], block_table: Any, out: list[Any]
) -> tuple[Any, Any]:
    out[0].copy_(x + sum(actual_seq_lengths_kv) + block_table.sum())
    return out[0], out[1]


for _name in ("summed", "other"):
    LIBRARY.impl(_name, _summed, "CPU")


class Draft:
    """A graph of two task groups, each behind an event."""

    def __init__(self) -> None:
        self.x, self.table = torch.zeros(1), torch.ones(2, dtype=torch.int32)
        self.out = [torch.zeros(1) for _ in range(2)]
        self.rest = torch.zeros(1)
        self.events: list[npu.ExternalEvent] = []
        self.handles: list[npu.TaskGroup] = []
        self.stream = npu.Stream()
        self.graph = npu.NPUGraph()
        with npu.graph(self.graph):
            for number in range(2):
                event = npu.ExternalEvent()
                event.wait(npu.DEVICE.stream)
                event.reset(npu.DEVICE.stream)
                self.events.append(event)
                npu.graph_task_group_begin(npu.DEVICE.stream)
                self.call(number, [5])
                self.handles.append(npu.graph_task_group_end(npu.DEVICE.stream))

    def call(self, number: int, lengths: list[int], name: str = "summed") -> None:
        """Call the operator of a task group."""
        getattr(torch.ops.npu, name)(
            self.x,
            actual_seq_lengths_kv=lengths,
            block_table=self.table,
            out=[self.out[number], self.rest],
        )

    def update(self, number: int, lengths: list[int], name: str = "summed") -> None:
        """Update a task group and record its event."""
        npu.graph_task_update_begin(self.stream, self.handles[number])
        self.call(number, lengths, name)
        npu.graph_task_update_end(self.stream)
        self.events[number].record(self.stream)


@pytest.fixture
def draft() -> Iterator[Draft]:
    yield Draft()
    npu.DEVICE.drop()


def test_a_graph_goes_on_as_its_events_are_recorded(draft: Draft) -> None:
    draft.graph.replay()
    assert draft.out[0].item() == 0
    draft.update(0, [10])
    assert (draft.out[0].item(), draft.out[1].item()) == (12, 0)
    draft.update(1, [20])
    assert draft.out[1].item() == 22
    npu.synchronize()
    assert draft.graph.replays == 1


def test_an_update_is_for_one_replay(draft: Draft) -> None:
    for number in (0, 1):
        draft.update(number, [10])
    draft.graph.replay()
    assert draft.out[1].item() == 12
    draft.graph.replay()
    for event in draft.events:
        event.record(draft.stream)
    assert draft.out[1].item() == 1, "a length of 1, and null blocks"


def test_the_host_does_not_wait_for_what_waits_for_it(draft: Draft) -> None:
    draft.graph.replay()
    behind, event = npu.Stream(), npu.Event()
    behind.wait_stream(npu.DEVICE.stream)
    event.record(behind)
    for wait in (npu.synchronize, event.synchronize, behind.synchronize):
        with pytest.raises(ReplayRefused, match="for ever"):
            wait()


def test_a_copy_is_there_when_it_was_waited_for(draft: Draft) -> None:
    side, event = npu.Stream(), npu.Event()
    host, source = torch.zeros(1), torch.full((1,), 7.0)
    side.wait_stream(npu.DEVICE.stream)
    with npu.stream(side):
        host.copy_(source, non_blocking=True)
        event.record()
    draft.graph.replay()
    assert host.item() == 0
    event.synchronize()  # ahead of the graph, which still waits
    assert host.item() == 7


def test_a_second_launch_would_take_the_events_of_the_first(draft: Draft) -> None:
    draft.graph.replay()
    with pytest.raises(ReplayRefused, match="still waits"):
        draft.graph.replay()


def test_an_event_that_is_recorded_twice_has_lost_an_update(draft: Draft) -> None:
    draft.events[1].record(draft.stream)
    with pytest.raises(ReplayRefused, match="its update is lost"):
        draft.events[1].record(draft.stream)


def test_an_update_has_the_operators_of_its_group(draft: Draft) -> None:
    with pytest.raises(ReplayRefused, match="other operators"):
        draft.update(0, [10], "other")
    npu.graph_task_update_begin(draft.stream, draft.handles[0])
    with pytest.raises(ReplayRefused, match="other operators"):
        npu.graph_task_update_end(draft.stream)
    npu.graph_task_update_begin(draft.stream, draft.handles[0])
    with pytest.raises(ReplayRefused, match="only operators of a task group"):
        torch.zeros(1).add_(1)
    draft.call(0, [1])
    npu.graph_task_update_end(draft.stream)


def test_updates_are_made_outside_a_capture_and_waits_inside(draft: Draft) -> None:
    handle: Any = object()
    with pytest.raises(CaptureRefused, match="inside a capture"):
        npu.ExternalEvent().wait(npu.DEVICE.stream)
    with pytest.raises(ReplayRefused, match="by their handles"):
        npu.graph_task_update_begin(draft.stream, handle)
