"""torch_npu's streams, events and graphs on the CPU, with what can go wrong with them on an NPU.

`install` puts the doubles into `torch.npu`, before vllm_ascend is imported. They keep to what
torch_npu does where a draft depends on it:

- A graph is launched and goes on by itself. At a node that waits for an `ExternalEvent` it stops
  until the host records the event; what is launched behind it has to wait, too. Whoever waits for
  such work from the host would wait for ever, and is refused.
- Host arguments of an operator are numbers in the graph. They are updated between
  `graph_task_update_begin` and `_end`, by a call of the same operators; after each replay the
  double makes all lengths 1, so that an update that is missing gives another draft.
- An event that is recorded twice before a graph has waited for it once has lost an update, and a
  graph that is launched again while it still waits would consume what is recorded for its next
  replay: both are refused.
- Copies on a stream other than the device's own are done when the host waits for them, so that
  nobody reads what is not there yet.

It cannot show: races of the device's own, memory that two tasks share, durations.

Longer than other modules: streams, events and graphs are one state machine and share its state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from tests.draft_graphs.recorded_graph import (
    CaptureRefused,
    GraphPool,
    Operation,
    RecordedGraph,
    ReplayRefused,
    _alias,
    _key,
    _Recorder,
    references_held,
)

#: The host arguments by which an operator computes its tiling, by operator.
HOST_LENGTHS = {
    "npu_fused_infer_attention_score": ("actual_seq_lengths", "actual_seq_lengths_kv"),
    "npu_fused_infer_attention_score_v2": ("actual_seq_qlen", "actual_seq_kvlen"),
}
_KEY_LENGTHS = {"actual_seq_lengths_kv", "actual_seq_kvlen"}


class Task:
    """An operator of the NPU in a graph, with the arguments that it would be launched with."""

    results: tuple[()] = ()

    def __init__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.set(func, args, kwargs)

    def set(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Take other arguments."""
        self.func = func
        self.args = tuple(_frozen(argument) for argument in args)
        self.kwargs = {name: _frozen(argument) for name, argument in kwargs.items()}

    def run(self) -> None:
        """Compute on the memory that the arguments lie in."""
        self.func(*self.args, **self.kwargs)

    def tensors(self) -> Iterator[torch.Tensor]:
        """The tensors among the arguments."""
        leaves = tree_leaves((self.args, self.kwargs))
        yield from (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    def stale(self) -> dict[str, Any]:
        """The arguments after a replay: of host lengths 1 each, of a block table null blocks."""
        lengths = {name: [1] * len(self.kwargs[name]) for name in _KEY_LENGTHS & self.kwargs.keys()}
        # An update binds a table that is the host's only until the next step.
        return {
            **self.kwargs,
            **lengths,
            "block_table": torch.zeros_like(self.kwargs["block_table"]),
        }


class Wait:
    """A node that waits until the host has recorded an event."""

    def __init__(self, event: ExternalEvent) -> None:
        self.event = event

    def tensors(self) -> Iterator[torch.Tensor]:
        """None."""
        return iter(())


class Reset(Wait):
    """A node that forgets that an event was recorded."""


class TaskGroup:
    """A handle: the tasks of a graph from `first` up to `end`."""

    def __init__(self, graph: NPUGraph, first: int) -> None:
        self.graph, self.first, self.end = graph, first, first

    def tasks(self) -> list[Task]:
        """The tasks, in the order of the capture."""
        return [node for node in self.graph.operations[self.first : self.end] if _is_task(node)]


def _is_task(node: Any) -> bool:
    return isinstance(node, Task)


def _frozen(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return _alias(argument)
    if isinstance(argument, list | tuple):
        return [_frozen(item) for item in argument]
    return argument


class _NpuRecorder(_Recorder):
    """Records operators of the NPU as tasks, without entering the CPU's stand-ins for them."""

    graph: NPUGraph

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func.namespace != "npu":
            return super().__torch_dispatch__(func, types, args, kwargs)
        if "workspace" in str(func):
            with _disable_current_modes():
                return torch.zeros(1)
        return self.graph.record_task(func, args, kwargs or {})


class NPUGraph(RecordedGraph):
    """`torch.npu.NPUGraph`: captured once, launched any number of times."""

    recorder = _NpuRecorder
    operations: list[Any]
    _pool: ClassVar[GraphPool | None] = None

    def __init__(self) -> None:
        if NPUGraph._pool is None:
            NPUGraph._pool = GraphPool()
        super().__init__("NPU graph", NPUGraph._pool)
        self._open = contextlib.ExitStack()
        self._at = 0
        self._tables: list[torch.Tensor] = []
        self.groups: list[TaskGroup] = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begin to record."""
        self._open.enter_context(self.capture())

    def capture_end(self) -> None:
        """End the recording; what it updates is stale until the first update."""
        self._open.close()
        self._make_stale()

    def record_task(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operator whose results have memory already."""
        out = kwargs.get("out")
        if out is None:
            raise CaptureRefused(f"{func}: a captured operator needs memory for its results")
        task = Task(func, args, kwargs)
        self._note_inputs(str(func), list(task.tensors()))
        self.operations.append(task)
        return tuple(out)

    def rebind(self, task: Task, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Give a task other arguments."""
        self.count_again()
        for tensor in task.tensors():
            memory = self._know(tensor, str(func), "external")
            memory.references -= 1
            if memory.references == 1 and memory.role == "external":
                del self.memory[_key(tensor)]
        task.set(func, args, kwargs)
        for tensor in task.tensors():
            self._know(tensor, str(func), "external").references += 1

    def replay(self) -> None:
        """Launch; it runs as far as it can."""
        self.check_replay(references_held())
        if self in DEVICE.running:
            raise ReplayRefused(
                f"{self.name}: launched while its last replay still waits, which would consume "
                "the events that are recorded for this one"
            )
        self._at = 0
        DEVICE.running.append(self)
        DEVICE.advance()

    def go_on(self) -> bool:
        """Run up to a node that waits; whether all of it has run."""
        with torch.no_grad(), _disable_current_modes():
            if self._at == 0:
                self.pool.poison(self, references_held())
            self.touch_memory()
            while self._at < len(self.operations):
                node = self.operations[self._at]
                if type(node) is Wait and not node.event.recorded:
                    return False
                if isinstance(node, Reset):
                    node.event.recorded = False
                elif not isinstance(node, Wait):
                    node.run()
                self._at += 1
        self._make_stale()
        self.replays += 1
        return True

    def passed(self) -> int:
        """How many of its task groups have run in this replay."""
        return sum(group.end <= self._at for group in self.groups)

    def _make_stale(self) -> None:
        for node in self.operations:
            if isinstance(node, Task):
                kwargs = node.stale()
                self._tables.append(kwargs["block_table"])
                self.rebind(node, node.func, node.args, kwargs)
        del self._tables[: -len(self.operations)]


class Stream:
    """`torch.npu.Stream`: copies on it are done when the host waits for them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.copies: list[Callable[[], object]] = []
        self.behind: list[NPUGraph] = []

    def wait_stream(self, other: Stream) -> None:
        """Do what follows behind everything that `other` has been given."""
        self.behind += DEVICE.running if other is DEVICE.stream else other.behind

    def synchronize(self) -> None:
        """Wait for everything on this stream, and on the device's own for its graphs."""
        DEVICE.refuse_to_wait(DEVICE.running if self is DEVICE.stream else self.behind)
        self.do(len(self.copies))

    def do(self, count: int) -> None:
        """Do the first `count` copies."""
        copies, self.copies = self.copies[:count], self.copies[count:]
        with _disable_current_modes():
            for copy in copies:
                copy()


class Event:
    """`torch.npu.Event`: what a stream had been given when it was recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._stream: Stream | None = None
        self._count = 0
        self._behind: list[NPUGraph] = []

    def record(self, stream: Stream | None = None) -> None:
        """Record it on a stream, or on the current one."""
        self._stream = stream or DEVICE.current
        self._count = len(self._stream.copies)
        self._behind = [*self._stream.behind]

    def synchronize(self) -> None:
        """Wait for it."""
        DEVICE.waits += [graph.passed() for graph in DEVICE.running]
        DEVICE.refuse_to_wait(self._behind)
        if self._stream is not None:
            self._stream.do(self._count)


class ExternalEvent:
    """`torch.npu.ExternalEvent`: a graph waits for it, and the host records it."""

    def __init__(self) -> None:
        self.recorded = False

    def wait(self, stream: Stream) -> None:
        """Record a node that waits."""
        _capturing().operations.append(Wait(self))

    def reset(self, stream: Stream) -> None:
        """Record a node that resets it."""
        _capturing().operations.append(Reset(self))

    def record(self, stream: Stream) -> None:
        """Let the graph that waits for it go on."""
        if self.recorded:
            raise ReplayRefused(
                "an event is recorded again before a graph has waited for it: its update is lost"
            )
        self.recorded = True
        DEVICE.advance()


class _Device:
    """One NPU: its own stream, the graphs that run or wait there, and the update in progress."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.current = self.stream
        self.running: list[NPUGraph] = []
        self.update: tuple[TaskGroup, _Updates] | None = None
        #: How many task groups of a running graph had run when the host waited for an event.
        self.waits: list[int] = []

    def advance(self) -> None:
        """Run what can run; a graph only when those before it have ended."""
        while self.running and self.running[0].go_on():
            self.running.pop(0)

    def refuse_to_wait(self, graphs: Sequence[NPUGraph]) -> None:
        """Refuse to wait for graphs that wait for the host."""
        if any(graph in self.running for graph in graphs):
            raise ReplayRefused(
                "the host waits for a graph that waits for an event of the host: for ever"
            )

    def drop(self) -> None:
        """Forget what still waits."""
        self.running.clear()


DEVICE = _Device()


class _Updates(TorchDispatchMode):  # type: ignore[misc]  # mypy sees no PyTorch
    """Collects the operators that are called, in place of running them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "npu":
            raise ReplayRefused(f"{func}: only operators of a task group are updated")
        self.calls.append((func, args, kwargs))
        return tuple(kwargs["out"])


class _LateCopies(TorchDispatchMode):  # type: ignore[misc]  # mypy sees no PyTorch
    """Leaves copies to when the host waits for the stream."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **kwargs)
        self._stream.copies.append(lambda: func(*args, **kwargs))
        return args[0]


def _capturing() -> NPUGraph:
    graph = RecordedGraph.capturing
    if not isinstance(graph, NPUGraph):
        raise CaptureRefused("an external event is waited for and reset inside a capture")
    return graph


@contextlib.contextmanager
def stream(wanted: Stream) -> Iterator[None]:
    """`torch.npu.stream`."""
    before, DEVICE.current = DEVICE.current, wanted
    try:
        with _LateCopies(wanted) if wanted is not DEVICE.stream else contextlib.nullcontext():
            yield
    finally:
        DEVICE.current = before


@contextlib.contextmanager
def graph(captured: NPUGraph, pool: Any = None, **options: Any) -> Iterator[None]:
    """`torch.npu.graph`."""
    captured.capture_begin(pool=pool)
    yield
    captured.capture_end()


def graph_task_group_begin(stream: Stream) -> None:
    """Begin a task group of the graph that is being captured."""
    capturing = _capturing()
    _groups.append(TaskGroup(capturing, len(capturing.operations)))


def graph_task_group_end(stream: Stream) -> TaskGroup:
    """End it; the handle by which it is updated."""
    group = _groups.pop()
    group.end = len(group.graph.operations)
    group.graph.groups.append(group)
    return group


def graph_task_update_begin(stream: Stream, handle: TaskGroup) -> None:
    """Begin to collect new arguments for a task group."""
    if RecordedGraph.capturing is not None or not isinstance(handle, TaskGroup):
        raise ReplayRefused("task groups are updated outside a capture, by their handles")
    updates = _Updates()
    updates.__enter__()
    DEVICE.update = handle, updates


def graph_task_update_end(stream: Stream) -> None:
    """Put the new arguments in the place of the old ones; their number and kind must agree."""
    if DEVICE.update is None:
        raise ReplayRefused("the end of an update that has not begun")
    (handle, updates), DEVICE.update = DEVICE.update, None
    updates.__exit__(None, None, None)
    tasks = handle.tasks()
    if [task.func for task in tasks] != [func for func, _, _ in updates.calls]:
        raise ReplayRefused("an update has other operators than the task group was captured with")
    for task, call in zip(tasks, updates.calls, strict=True):
        handle.graph.rebind(task, *call)


def synchronize(*args: Any) -> None:
    """`torch.npu.synchronize`."""
    DEVICE.stream.synchronize()


_groups: list[TaskGroup] = []

DOUBLES: dict[str, Any] = {
    "Event": Event,
    "ExternalEvent": ExternalEvent,
    "NPUGraph": NPUGraph,
    "Stream": Stream,
    "current_stream": lambda *args: DEVICE.current,
    "graph": graph,
    "graph_pool_handle": lambda: None,
    "graph_task_group_begin": graph_task_group_begin,
    "graph_task_group_end": graph_task_group_end,
    "graph_task_update_begin": graph_task_update_begin,
    "graph_task_update_end": graph_task_update_end,
    "stream": stream,
    "synchronize": synchronize,
}


def install() -> None:
    """Put the doubles into `torch.npu`, and let memory be what it is on the CPU."""
    import torch_npu

    for name, double in DOUBLES.items():
        assert hasattr(torch.npu, name), f"torch_npu has no {name} any more"
        setattr(torch.npu, name, double)
    torch.Tensor.pin_memory = lambda tensor, *args, **kwargs: tensor
    torch_npu._C._weak_ref_tensor = lambda tensor: tensor


# What the base class makes of other operators is the same here.
__all__ = ["DEVICE", "DOUBLES", "HOST_LENGTHS", "NPUGraph", "Operation", "install"]
